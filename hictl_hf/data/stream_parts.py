"""How a stream mixes its sources: by shares that are given, else by the languages and bytes of their files."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from ..errors import BadInput, short_repr
from .cleaning import DEFAULT_CLEANING, Cleaning, CorpusReport, clean_rows
from .compression import compression_of
from .doubts import named_twice
from .records import Cursor
from .sampling import Languages, language_shares
from .sources import Shard, list_shards, read_shard

logger = logging.getLogger(__name__)

LOOKED_AT = 10_000  # records of a file in which the first clean row is looked for
DENSE = (".parquet", ".zip")  # and compressed files: fewer bytes a row


@dataclass
class StreamPart:
    """The files of a source whose first clean rows are in the same languages, with the share of the stream they get."""

    number: int
    """Index of the source."""
    source: str
    languages: Languages
    shards: list[Shard]
    size: float
    """Bytes; the corpora of an archive have equal parts of it."""
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.source} ({'-'.join(filter(None, self.languages))})"


def normalized_shares(shares: Sequence[float], sources: Sequence[str]) -> list[float]:
    """Shares that sum to 1; `BadInput` unless there is a positive one for each source."""
    if len(shares) != len(sources) or not sources or not all(0 < share < float("inf") for share in shares):
        raise BadInput(
            f"stream_shares is {short_repr(list(shares))}; allowed is a positive number for each of {len(sources)} "
            "sources. Give as many, or none to mix languages by their sizes."
        )
    return [share / sum(shares) for share in shares]


def stream_parts(
    sources: Sequence[str],
    cleaning: Cleaning = DEFAULT_CLEANING,
    text_alpha: float = 0.3,
    pair_alpha: float = 0.7,
    text_share: float | None = 0.5,
) -> list[StreamPart]:
    """Return the parts of all sources with their shares by `language_shares`, with bytes in place of rows.

    A file is taken to be in the languages of its first clean row. Parts in the same languages share in proportion to
    their bytes on disk, of which compressed files have fewer: a mixture of both is logged.
    """
    parts: list[StreamPart] = []
    for number, source in enumerate(sources):
        shards = list(list_shards(source))
        if not all(shard.sizes for shard in shards):
            raise BadInput(
                f"{source}: has no size by which it could be mixed with others; allowed are files. Give stream_shares, "
                "one positive number for each source."
            )
        parts += parts_of(number, source, shards, cleaning)
    for doubt in named_twice({code for part in parts for code in part.languages if code}):
        logger.warning(doubt)
    warn_of_dense_files(parts)
    totals: dict[Languages, float] = {}
    for part in parts:
        totals[part.languages] = totals.get(part.languages, 0) + part.size
    shares = language_shares(totals, text_alpha, pair_alpha, text_share)
    for part in parts:
        part.share = shares[part.languages] * part.size / totals[part.languages]
    return parts


def source_shares(parts: Sequence[StreamPart]) -> list[float]:
    """Return the share of each source, all its parts together."""
    return [sum(part.share for part in group) for _, group in groupby(parts, key=lambda part: part.number)]


def parts_of(number: int, source: str, shards: Sequence[Shard], cleaning: Cleaning) -> list[StreamPart]:
    """Divide the files of a source by their languages; those that show none are read with the first ones."""
    found: dict[Languages, list[Shard]] = {}
    others: list[Shard] = []
    for shard in shards:
        languages = first_languages([shard], cleaning, CorpusReport(), LOOKED_AT)
        (found.setdefault(languages, []) if languages else others).append(shard)
    if not found:
        report = CorpusReport()
        if not (languages := first_languages(shards, cleaning, report)):
            raise nothing_left(source, report)
        found[languages] = []
    if len(found) == 1:
        return [StreamPart(number, source, languages, list(shards), bytes_of(shards)) for languages in found]
    corpora = Counter(path for shard in shards for path in shard.sizes)
    parts = []
    for languages, own in found.items():
        size = sum(size / corpora[path] for shard in own for path, size in shard.sizes.items())
        parts.append(StreamPart(number, source, languages, own, size))
    parts[0].shards += others
    return parts


def bytes_of(shards: Sequence[Shard]) -> int:
    """Return the bytes of all files, of an archive with several corpora once."""
    return sum({path: size for shard in shards for path, size in shard.sizes.items()}.values())


def first_languages(
    shards: Sequence[Shard], cleaning: Cleaning, report: CorpusReport, records: int | None = None
) -> Languages | None:
    """Return the language or pair of languages of the first clean row, among so many records of each file."""
    for shard in shards:
        for rows in islice(read_shard(shard, Cursor(), report, cleaning.languages), records):
            for row in clean_rows(rows, cleaning, report):
                return str(row["x_lang"]), row["y_lang"]
    return None


def warn_of_dense_files(parts: Sequence[StreamPart]) -> None:
    """Log that files of different kinds are compared by their bytes."""
    kinds = {density(path): path for part in parts for shard in part.shards for path in shard.sizes}
    if len(parts) > 1 and len(kinds) > 1:
        logger.warning(
            "languages are mixed by the bytes of their files, which say little where %s are of different kinds; write "
            "them alike, or give the stream --stream_shares",
            " and ".join(kinds.values()),
        )


def density(path: str) -> str:
    """Return the ending of a file with fewer bytes a row than text has, else ""."""
    ending = os.path.splitext(path)[1].lower()
    return compression_of(path) or (ending if ending in DENSE else "")


class NothingLeft(BadInput):
    """A source without a row that cleaning keeps."""


def nothing_left(source: str, report: CorpusReport) -> NothingLeft:
    """Return the error for a source without a row that cleaning keeps."""
    found = ", ".join(f"{count} {reason}" for reason, count in report.skipped.items())
    return NothingLeft(
        f"{source}: no row is left after cleaning ({found}); allowed is one or more. Correct the source, or relax the "
        f"cleaning. {' '.join(report.messages[:1])}".rstrip()
    )
