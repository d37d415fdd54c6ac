"""Files of every format with the same three pairs, and what is read of them."""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polib
import pyarrow
import pyarrow.parquet

from hictl_hf.data.records import Cursor, Row
from hictl_hf.data.sources import list_shards, read_rows, read_shard
from hictl_hf.errors import BadInput

# Quotes and a delimiter for the tables; U+2028 and U+0085, which end a line for str.splitlines but not for us.
PAIRS = [
    ('He said "go",\u2028now.', "Er sagte: „Geh\u0085jetzt.“"),
    ("Hello, world!", "Hallo, Welt!"),
    ("The cat sleeps.", "Die Katze schläft."),
]
TRANSLATIONS = [{"en": en, "de": de} for en, de in PAIRS]


class Skips:
    """The least a report can be."""

    def __init__(self, strict: bool = False) -> None:
        self.strict, self.counts, self.messages = strict, Counter(), []

    def skip(self, reason: str, message: str = "") -> None:
        if self.strict:
            raise BadInput(message)
        self.counts[reason] += 1
        self.messages.append(message)


def texts(source: object) -> list[dict[str, str]]:
    """The texts of a source without a single loss."""
    skips = Skips()
    rows = [row.texts for row in read_rows(str(source), skips)]
    assert not skips.counts
    return rows


def write(path: Path, text: str, start: bytes = b"") -> Path:
    """A file, compressed if its name ends in `.gz`, and the folders that it is in."""
    written = start + text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(written) if path.suffix == ".gz" else written)
    return path


def write_lines(path: Path, lines: Sequence[str], end: str = "\n", start: bytes = b"") -> Path:
    return write(path, "".join(line + end for line in lines), start)


def catalogue(language: str = "") -> polib.POFile:
    file = polib.POFile()
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Language": language}
    file.extend(polib.POEntry(msgid=en, msgstr=de) for en, de in PAIRS)
    return file


def saved(path: Path, file: polib.POFile) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as_mofile(str(path)) if path.suffix == ".mo" else file.save(str(path))
    return path


def moses(folder: Path, ending: str, end: str = "\n") -> str:
    for side, language in enumerate(("en", "de")):
        write_lines(folder / f"corpus.{language}{ending}", [pair[side] for pair in PAIRS], end)
    return f"{folder}/corpus.{{en,de}}{ending}"


FLAT_LINES = [json.dumps(pair, ensure_ascii=False) for pair in TRANSLATIONS]
TAB_LINES = ["en\tde", *("\t".join(pair) for pair in PAIRS)]


def parquet_with(columns: dict) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue().to_pybytes()


GOOD = b'{"en": "good", "de": "gut"}\n'


def records_of(source: object, cursor: Cursor, skips: Skips) -> list[tuple[list[Row], int, list[int]]]:
    """The rows of each record of the only shard, with the place after it."""
    (shard,) = list_shards(str(source))
    return [(rows, cursor.number, list(cursor.offsets)) for rows in read_shard(shard, cursor, skips)]
