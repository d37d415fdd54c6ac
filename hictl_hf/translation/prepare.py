"""Prepare the raw files of IWSLT, WMT, IITB and FLoRes as line-aligned files for a row of the paper's tables.

Files are searched anywhere below the raw folder, compressed with gzip or not; archives have to be unpacked. The output
folder is written completely or not at all: `train`, `validation` and `test`, each with the two languages as endings,
zero-shot test sets as `test-ro`, and `preparation.json`. Data of another size than the paper's is refused, or named in
the signature of every score.
"""

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ..data.records import checked_text
from ..data.sources import MOSES
from ..errors import BadInput, BrokenRow, as_bad_input, short_repr
from ..files import check_place, write_json
from ..version import __version__
from .moses import MosesTokenizer
from .paper_corpora import PaperCorpus
from .raw_bitext import GUIDE, Pair, find_files, read_pairs

RECORD = "preparation.json"
OF_RECORD = {"recipe": str, "romanian": str, "other_counts": list, "sha256": dict}
REWRITE = "Prepare the data again, or remove this file to use your own."
TOLERANCE = 0.03
CHUNK = 10_000  # pairs that are tokenized at a time
COMMAS = {"Ş": "Ș", "ş": "ș", "Ţ": "Ț", "ţ": "ț"}  # letters with a cedilla -> the Romanian ones with a comma
PLAIN = {"Ș": "S", "ș": "s", "Ț": "T", "ț": "t", "Ă": "A", "ă": "a", "Â": "A", "â": "a", "Î": "I", "î": "i"}
ROMANIAN = {
    "keep": {},
    "normalise": str.maketrans(COMMAS),
    "strip": str.maketrans(PLAIN | {letter: PLAIN[comma] for letter, comma in COMMAS.items()}),
}


# --- filters ---------------------------------------------------------------------------------------------------------


def clean(pairs: Iterator[Pair], corpus: PaperCorpus, moses_dir: str | None, skipped: Counter[str]) -> Iterator[Pair]:
    """Pairs with text on both sides, of limited length and length ratio in Moses' tokens; texts are unchanged."""
    tokenizers = [MosesTokenizer(language, moses_dir) for language in corpus.pair]
    while chunk := list(islice(pairs, CHUNK)):
        reasons = [reason_to_skip(pair, corpus) for pair in chunk]
        skipped.update(filter(None, reasons))
        chunk = [pair for pair, reason in zip(chunk, reasons) if not reason]
        if corpus.longest is None or corpus.ratio is None:
            yield from chunk
            continue
        words = [tokenizer.tokenize(side) for tokenizer, side in zip(tokenizers, zip(*chunk))]
        for pair, *lengths in zip(chunk, *([len(line.split()) for line in side] for side in words)):
            if max(lengths) > corpus.longest:
                skipped["too long"] += 1
            elif max(lengths) > corpus.ratio * min(lengths):
                skipped["length ratio"] += 1
            else:
                yield pair


def reason_to_skip(pair: Pair, corpus: PaperCorpus) -> str | None:
    if not all(pair):
        return "empty"
    try:
        for language, text in zip(corpus.pair, pair):
            checked_text(language, text)
    except BrokenRow:
        return "broken"
    return None


def finished(text: str, language: str, corpus: PaperCorpus, romanian: str) -> str:
    """The text as the model sees it: not tokenized."""
    text = text.translate(ROMANIAN[romanian]) if language == "ro" else text
    return text.lower() if corpus.lowercase else text


def deviations(corpus: PaperCorpus, lines: Mapping[str, int]) -> list[str]:
    """Sentences on the splits whose number of lines is not the expected one."""
    found = [
        f"{split} has {lines[split]} lines where its public recipe has {expected}"
        for split, expected in corpus.exact_lines.items()
        if lines[split] != expected
    ]
    rounded, train = corpus.rounded_train, lines["train"]
    if "train" not in corpus.exact_lines and abs(train - rounded) > TOLERANCE * rounded:
        found.append(f"train has {train} lines where the paper has about {rounded}")
    return found


# --- the command ----------------------------------------------------------------------------------------------------


def prepare(
    corpus: PaperCorpus,
    raw: Path,
    output: Path,
    moses_dir: str | None = None,
    romanian: str = "keep",
    allow_other_counts: bool = False,
) -> dict[str, Any]:
    """Write the files of a row; return what is in their `preparation.json`.

    Raises:
        BadInput: a file is missing or broken, the output exists, or, unless allowed, the numbers of lines are not the
            paper's.
    """
    if romanian not in ROMANIAN:
        raise BadInput(f"romanian is {romanian!r}; allowed are {', '.join(ROMANIAN)}. Choose one of them.")
    if romanian != "keep" and "ro" not in (*corpus.pair, *corpus.more_tests):
        raise BadInput(f"romanian is {romanian}, and {corpus.name} has no Romanian; leave it out.")
    check_place(output, folder=True)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise BadInput(f"{output}: exists already; allowed is a new folder. Remove it, or name another.")
    output.parent.mkdir(parents=True, exist_ok=True)
    skipped: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as unfinished:
        folder = Path(unfinished) / output.name
        folder.mkdir()
        lines, hashes = write_splits(folder, splits(corpus, raw, moses_dir, romanian, skipped))
        others = deviations(corpus, lines)
        if others and not allow_other_counts:
            fix = "Check the raw files, or give --allow_other_counts, which every score then states"
            raise BadInput(f"{raw}: is not the data of {corpus.name}: {'; '.join(others)}. {fix}; {GUIDE}.")
        record = {
            "recipe": corpus.name,
            "lines": dict(lines),
            "other_counts": others,
            "skipped": dict(skipped),
            "words": MosesTokenizer(corpus.source, moses_dir).signature if corpus.ratio else None,
            "romanian": romanian,
            "sha256": hashes,
            "version": __version__,
        }
        write_json(folder / RECORD, record)
        os.replace(folder, output)
    return record


def splits(
    corpus: PaperCorpus, raw: Path, moses_dir: str | None, romanian: str, skipped: Counter[str]
) -> Iterator[tuple[str, str, str]]:
    """Split, language and text of each line; all files are found before one is read."""
    pair, every = corpus.pair, corpus.validation if isinstance(corpus.validation, int) else 0
    held_out = {"test": (pair, corpus.test)} | {
        f"test-{language}": ((language, corpus.target), patterns) for language, patterns in corpus.more_tests.items()
    }
    if not isinstance(corpus.validation, int):
        held_out = {"validation": (pair, corpus.validation)} | held_out
    train = find_files(raw, corpus.train, pair, optional=corpus.any_train)
    found = {split: find_files(raw, patterns, languages) for split, (languages, patterns) in held_out.items()}
    kept = clean(read_pairs(train, pair, corpus.kept_tags), corpus, moses_dir, skipped)
    for number, texts in enumerate(kept, start=1):
        split = "validation" if every and number % every == 0 else "train"
        yield from ((split, name, finished(text, name, corpus, romanian)) for name, text in zip(pair, texts))
    for split, (languages, _) in held_out.items():
        for texts in read_pairs(found[split], languages):
            for name, text in zip(languages, texts):
                text = text.replace("’", "'") if corpus.straight_apostrophes else text
                yield split, name, finished(text, name, corpus, romanian)


def write_splits(folder: Path, lines: Iterator[tuple[str, str, str]]) -> tuple[Counter[str], dict[str, str]]:
    """Write the lines; return their number by split, and SHA-256 of each file."""
    counts: Counter[str] = Counter()
    files: dict[str, IO[bytes]] = {}
    with ExitStack() as stack:
        for split, language, text in lines:
            name = f"{split}.{language}"
            if name not in files:
                files[name] = stack.enter_context((folder / name).open("wb"))
            try:
                files[name].write(f"{text}\n".encode())
            except UnicodeEncodeError as error:
                found = f"{name} would have {short_repr(text)} in line {counts[name] + 1}; allowed is UTF-8"
                raise BadInput(f"{found}. Correct the raw file, or convert it with iconv.") from error
            counts[name] += 1
    hashes = {name: sha256(folder / name) for name in files}
    return Counter({name.rsplit(".", 1)[0]: count for name, count in counts.items()}), hashes


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def preparation_signature(source: str) -> dict[str, str]:
    """The signature of prepared data, `data/iwslt14-en-de/test.{en,de}` or one of its files; empty for other data.

    Raises:
        BadInput: a file is not as it was when it was prepared.
    """
    named = MOSES.fullmatch(source)
    names = [named["before"] + name.strip() + named["after"] for name in named["languages"].split(",")] if named else []
    paths = sorted(map(Path, names or [source]))
    place = paths[0].parent / RECORD
    if not place.is_file():
        return {}
    with as_bad_input(str(place), "the record that hictl prepare-translation writes", REWRITE):
        record = json.loads(place.read_text("utf-8"))
        for name, kind in OF_RECORD.items():
            if not isinstance(record[name], kind):
                raise TypeError(f"{name} is {short_repr(record[name])}")
    for path in paths:
        if not path.is_file() or sha256(path) != record["sha256"].get(path.name):
            allowed = f"allowed is the file as it was prepared. Prepare it again, or remove {RECORD} to use your own"
            raise BadInput(f"{path}: is not the file that {place} lists; {allowed}.")
    split = paths[0].stem
    hashes = [value[:8] for name, value in sorted(record["sha256"].items()) if Path(name).stem == split]
    signature = {"data": f"{record['recipe']} {split} {' '.join(hashes)}"}
    if record["romanian"] != "keep":
        signature["romanian"] = record["romanian"]
    if record["other_counts"]:
        signature["override"] = "; ".join(record["other_counts"])
    return signature
