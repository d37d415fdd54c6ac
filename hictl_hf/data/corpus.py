"""Load sources as one clean Arrow dataset with the columns x, y, x_lang, y_lang."""

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
from numpy.typing import NDArray
from tqdm.auto import tqdm

from ..errors import BadInput, short_repr
from ..processes import hides_progress
from .cleaning import DEFAULT_CLEANING, Cleaning, CorpusReport, clean_rows
from .doubts import named_twice
from .records import Row
from .sources import read_rows

FEATURES = datasets.Features({name: datasets.Value("string") for name in ("x", "y", "x_lang", "y_lang")})
logger = logging.getLogger(__name__)
ROWS_PER_BATCH = 10_000  # of the Arrow file


def load_corpus(
    sources: Sequence[str | os.PathLike[str]],
    cleaning: Cleaning = DEFAULT_CLEANING,
    strict: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tuple[datasets.Dataset, CorpusReport]:
    """Read and clean all sources, at each call again; returns the memory-mapped dataset and the counts."""
    report = CorpusReport(strict)
    rows = clean_rows(rows_of(sources, report, cleaning.languages), cleaning, report)
    folder = Path(cache_dir or Path(datasets.config.HF_DATASETS_CACHE) / "hictl_hf")
    path, report.hash = write_arrow(tqdm(rows, desc="reading", unit=" rows", disable=hides_progress()), folder)
    if not report.kept:
        found = f"{', '.join(map(str, sources))}: no row is left after cleaning; at least one is needed"
        raise BadInput(f"{found}. Correct the sources by the reasons here, or relax the cleaning.\n{report.summary()}")
    for doubt in named_twice(report.doubts.languages):
        logger.warning(doubt)
    return datasets.Dataset.from_file(str(path)), report


def rows_of(
    sources: Sequence[str | os.PathLike[str]], report: CorpusReport, languages: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield the rows of all sources in order; `languages` as in `read_rows`."""
    listed = isinstance(sources, Sequence) and not isinstance(sources, str)
    if not listed or not sources or not all(isinstance(source, str | os.PathLike) for source in sources):
        found = f"sources is {' '.join(short_repr(sources).split())}, of type {type(sources).__name__}"
        allowed = "a list of one or more names of files, folders and Hub datasets"
        fix = "Write ['corpus.jsonl'], and rows in memory first to a file: Dataset.to_parquet('corpus.parquet')"
        raise BadInput(f"{found}; allowed is {allowed}. {fix}.")
    for source in sources:
        yield from read_rows(source, report, languages)
        report.doubts.log(str(source))


def spread(examples: int, wanted: int) -> NDArray[np.int64]:
    """(wanted,) indices spread evenly over this many examples, so that each source keeps its share.

    >>> spread(10, 4)
    array([0, 2, 5, 7])
    """
    return np.arange(wanted, dtype=np.int64) * examples // wanted


def column(rows: datasets.Dataset, name: str) -> Iterator[Any]:
    """Yield the values of a column in order, read in batches: `rows[name]` reads each alone, which takes 100 times as
    long."""
    for batch in rows.select_columns([name]).iter(ROWS_PER_BATCH):
        yield from batch[name]


def sample_rows(rows: datasets.Dataset, wanted: int | None, report: CorpusReport) -> datasets.Dataset:
    """Take at most this many rows, spread evenly over those of each language; the others are counted as skipped."""
    if wanted is None or wanted >= len(rows):
        return rows
    numbers: dict[tuple[str, str | None], int] = {}  # of each pair of languages
    pairs = zip(column(rows, "x_lang"), column(rows, "y_lang"))
    number = np.fromiter((numbers.setdefault(pair, len(numbers)) for pair in pairs), np.int32, len(rows))
    even = spread(len(rows), wanted)
    chosen = np.sort(np.argsort(number, kind="stable")[even])  # of rows in turn, every second would be in one language
    if (chosen != even).any():  # such a run is not continued with other rows than releases until 0.29.2 chose
        report.hash = blake2b(report.hash.encode() + chosen.tobytes(), digest_size=16).hexdigest()
    for sign, each in ((-1, number), (1, number[chosen])):
        for pair, count in zip(numbers, np.bincount(each, minlength=len(numbers)).tolist()):
            report.kept["-".join(filter(None, pair))] += sign * count
    report.kept = +report.kept  # without zeros
    report.skipped["beyond max_train_samples"] += len(rows) - wanted
    return rows.select(chosen)


def write_arrow(rows: Iterable[dict[str, str | None]], folder: Path) -> tuple[Path, str]:
    """Write rows to an Arrow file named by its content: never stale, and equal rows are stored once.

    Returns:
        The file, and the hash in its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest, rows, schema = blake2b(digest_size=16), iter(rows), FEATURES.arrow_schema
    with tempfile.TemporaryDirectory(dir=folder) as draft:
        path = Path(draft) / "rows.arrow"
        with pyarrow.ipc.new_stream(str(path), schema) as writer:
            while chunk := list(islice(rows, ROWS_PER_BATCH)):
                batch = pyarrow.RecordBatch.from_pylist(chunk, schema=schema)
                digest.update(batch.serialize())
                writer.write_batch(batch)
        finished = folder / f"corpus-{digest.hexdigest()}.arrow"
        if not finished.exists():
            path.replace(finished)
    return finished, digest.hexdigest()
