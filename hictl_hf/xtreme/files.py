"""The file formats of XTREME's download folder and of its submissions: read, checked and written, one file at a time.

The files of each task and language are in `tasks.TASKS`.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..data.formats import refuse_unequal
from ..data.lines import check_encoding, check_line_ends
from ..errors import BadInput, as_bad_input, short_repr
from ..files import write_text
from ..retrieval.bitext import Bitext
from .examples import (
    FIX,
    PAIRS,
    TAGGED,
    TRANSLATIONS,
    Question,
    check_label,
    list_at,
    parse_question,
    question_dataset,
    refuse_repeated,
    sorted_bitext,
    text_at,
)

LANGUAGE_OF_WORD = re.compile("[a-z-]{2,}:(?!//)")  # in raw PAN-X, "de:Berlin"; not the only word "http://..."
HEADERS = (("premise", "hypothesis"), ("sentence1", "sentence2"))
QUOTED = re.compile(r'"(?:[^"]*"")+[^"]*"')  # a column that a CSV writer quoted, doubling the quotes in it


# --- text -----------------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """Read a file in UTF-8, without its byte order mark."""
    with as_bad_input(str(path), "a file of text in UTF-8", "Check the path."):
        content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        raise BadInput(f"{path}: is compressed with gzip; allowed is plain text. Unpack it with gunzip.")
    check_encoding(str(path), content[:1000])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        found = f"has {short_repr(error.object[error.start : error.end])}, which is not UTF-8; allowed is UTF-8"
        raise BadInput(f"{path}:{line}: {found}. Convert the file with iconv or correct the line.") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise BadInput(f"{path}:{line}: has a NUL byte; allowed is text. Remove the byte.")
    return text


def lines_of(path: Path) -> list[str]:
    """Lines without their ends, LF or CRLF."""
    text = read_text(path)
    if "\n" not in text:
        check_line_ends(str(path), text.encode())
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def filled_lines_of(path: Path) -> list[str]:
    """The lines of a file; `BadInput` if it is empty."""
    lines = lines_of(path)
    if not any(line.strip() for line in lines):
        raise BadInput(f"{path}: is empty; allowed is one row or more. {FIX}")
    return lines


def sentences(lines: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Numbered lines of each sentence. As in the official scorer every blank line ends a sentence, which may be empty;
    at the end of the file the blank line may be missing."""
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            sentence.append((number, line))
        else:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


# --- sentence pairs and tagged words --------------------------------------------------------------------------------


def read_pair_examples(path: Path, labels: Collection[str] = (), compat: bool = False) -> Dataset:
    """Read sentence pairs, one a line: first TAB second [TAB label]; in translated sets first TAB second TAB first TAB
    second TAB label, of which the translations are used. Without labels in the file `label` is None.

    XTREME wrote sentences with quotes as CSV, quoted and with doubled quotes, and read them without undoing it. Here
    it is undone; with `compat` sentences are as the official models read them.
    """
    rows = [line.split("\t") for line in filled_lines_of(path)]
    columns, usual = usual_columns(rows)
    if columns not in (2, 3, 5):
        allowed = "allowed are sentence TAB sentence TAB label, in test files without label"
        raise BadInput(f"{path}:{usual}: has {columns} columns; {allowed}. Check that columns are separated by tabs.")
    if tuple(name.strip('"').lower() for name in rows[0]) in HEADERS:  # with labels, "label" is no label of the task
        raise BadInput(f"{path}:1: has the names of columns; allowed are sentences. Remove the line.")
    examples: list[dict[str, str | None]] = []
    for number, row in enumerate(rows, start=1):
        if len(row) != columns:
            found = f"has {len(row)} columns; allowed are {columns}, as in line {usual}"
            raise BadInput(f"{path}:{number}: {found}. {'Add or remove a tab' if any(row) else 'Remove the line'}.")
        label = check_label(f"{path}:{number}", row[-1], labels) if columns > 2 else None
        first, second = row[-3:-1] if columns > 2 else row
        examples.append({"first": original(first, compat), "second": original(second, compat), "label": label})
    return Dataset.from_list(examples, features=PAIRS)


def usual_columns(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """How many columns most rows have, of equally frequent numbers the largest, and the first line with so many."""
    lengths = [*map(len, rows)]
    counts = Counter(lengths)
    columns = max(counts, key=lambda length: (counts[length], length))
    return columns, lengths.index(columns) + 1


def original(sentence: str, compat: bool) -> str:
    """The sentence before a CSV writer quoted it; one that only begins and ends with a quote stays."""
    return sentence[1:-1].replace('""', '"') if not compat and QUOTED.fullmatch(sentence) else sentence


def read_tagged_examples(path: Path, labels: Collection[str] = ()) -> Dataset:
    """Read sentences of words: word TAB tag, or only the word in files without tags, where `tags` is None."""
    lines = filled_lines_of(path)
    tagged = usual_columns([line.split("\t") for line in lines if line.strip()])[0] > 1
    if not tagged:
        refuse_spaces(path, lines, labels)
    examples: list[dict[str, list[str] | None]] = []
    for sentence in sentences(lines):
        rows = [(f"{path}:{number}", line.split("\t")) for number, line in sentence]
        for place, row in rows:
            if len(row) != 1 + tagged:
                allowed = f"allowed {'are 2, word TAB tag' if tagged else 'is 1, the word'}, as most lines have"
                raise BadInput(f"{place}: has {len(row)} columns; {allowed}. Add or remove a tab.")
        tags = [check_label(place, row[1], labels) for place, row in rows] if tagged else None
        examples.append({"words": [row[0].strip() for _, row in rows], "tags": tags})
    shared = commonprefix([word for example in examples for word in example["words"] or ()])
    if raw := LANGUAGE_OF_WORD.match(shared):
        allowed = "allowed are the words alone. Convert a raw file of PAN-X by hictl prepare-xtreme panx"
        raise BadInput(f"{path}: has {short_repr(raw[0])} before every word; {allowed}.")
    return Dataset.from_list(examples, features=TAGGED)


def refuse_spaces(path: Path, lines: Iterable[str], labels: Collection[str]) -> None:
    """Raise `BadInput` if each line ends with a tag after a space, as in files of CoNLL, where a tab is expected."""
    rows = [line.split() for line in lines if line.strip()]
    if labels and all(len(row) > 1 and row[-1] in labels for row in rows):
        allowed = "allowed is word TAB tag"
        raise BadInput(f"{path}:1: has spaces between its columns; {allowed}. Replace the spaces by tabs.")


def read_translations(path: Path) -> Dataset:
    """Read translations of tagged sentences: source words TAB language TAB words [TAB alignment, ignored]. Words are
    separated by spaces; Google's "zh-CN" is zh."""
    examples = []
    for number, line in enumerate(filled_lines_of(path), start=1):
        source, language, target = (column.split() for column in (*line.split("\t"), "", "")[:3])
        if line.count("\t") not in (2, 3) or len(language) != 1 or not source or not target:
            allowed = "allowed is sentence TAB language TAB translation [TAB alignment], none of them empty"
            raise BadInput(f"{path}:{number}: has {short_repr(line)}; {allowed}. Correct or remove the line.")
        examples.append({"source_words": source, "language": language[0].removesuffix("-CN"), "words": target})
    return Dataset.from_list(examples, features=TRANSLATIONS)


# --- question answering ---------------------------------------------------------------------------------------------


def read_question_examples(path: Path, training: bool = False) -> Dataset:
    """Read a file in SQuAD's format; see `question_dataset`."""
    return question_dataset(str(path), read_questions(path), training)


def read_questions(path: Path) -> Iterator[Question]:
    """Each question of a file in SQuAD's format; paragraphs are counted from 1 through the file."""
    content = read_json(path)
    articles = content if isinstance(content, list) else list_at(str(path), content, "data")
    paragraphs = (paragraph for article in articles for paragraph in list_at(str(path), article, "paragraphs"))
    for number, paragraph in enumerate(paragraphs, start=1):
        place = f"{path}: paragraph {number}"
        context = text_at(place, paragraph, "context")
        for count, record in enumerate(list_at(place, paragraph, "qas"), start=1):
            yield parse_question(f"{place}, question {count}", record, context)


def read_json(path: Path, allow_repeats: bool = True) -> Any:
    text = read_text(path)
    try:
        return json.loads(text, object_pairs_hook=None if allow_repeats else partial(distinct_keys, path))
    except (json.JSONDecodeError, RecursionError) as error:
        place = f"{path}:{getattr(error, 'lineno', 1)}"
        raise BadInput(f"{place}: is not JSON ({error}); allowed is one JSON document. {FIX}") from error


def distinct_keys(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    places: dict[str, str] = {}
    for number, (key, _) in enumerate(pairs, start=1):
        refuse_repeated(places, key, f"{path}: entry {number}")
    return dict(pairs)


# --- retrieval ------------------------------------------------------------------------------------------------------


def read_bucc(foreign: Path, english: Path, gold: Path | None = None) -> Bitext:
    """Read sentences to mine for translations: id TAB sentence; the gold file has foreign id TAB English id."""
    queries, candidates = read_identified(foreign), read_identified(english)
    pairs = set()
    for number, line in enumerate(filled_lines_of(gold) if gold else (), start=1):
        query, _, candidate = line.strip().partition("\t")
        if query not in queries or candidate not in candidates:
            allowed = "allowed is foreign id TAB English id, both of them in the files of sentences"
            raise BadInput(f"{gold}:{number}: has {short_repr(line)}; {allowed}. Correct the line, or check the files.")
        pairs.add((query, candidate))
    known = frozenset(pairs) if gold else None
    return Bitext([*queries.values()], [*candidates.values()], [*queries], [*candidates], known)


def read_identified(path: Path) -> dict[str, str]:
    """Sentences by id, in the order of the file."""
    texts: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, line in enumerate(filled_lines_of(path), start=1):
        name, tab, text = line.partition("\t")
        if not (name and tab):
            raise BadInput(f"{path}:{number}: has {short_repr(line)}; allowed is id TAB sentence. Correct the line.")
        refuse_repeated(places, name, f"{path}:{number}")
        texts[name] = text
    return texts


def read_tatoeba(foreign: Path, english: Path, gold: Path | None = None) -> Bitext:
    """Read LASER's files (tatoeba.deu-eng.deu, .eng), where line i of both is a pair; or XTREME's own (de-en.de, .en),
    whose English is sorted, so that only a file of labels (line i: the foreign line, from 0) has the pairs."""
    candidates, queries = read_values(foreign), read_values(english)
    refuse_unequal({str(foreign): str(len(candidates)), str(english): str(len(queries))})
    if english.suffix == ".eng":
        return sorted_bitext(queries, candidates)
    if english.suffix != ".en" or queries != sorted(queries):
        found = "is neither named like LASER's English files, .eng, nor sorted like XTREME's own, .en"
        raise BadInput(f"{english}: {found}; allowed is one of them. Download or rename the two files.")
    ids = [str(number) for number in range(len(queries))]
    labels = read_values(gold) if gold else ids
    refuse_unequal({str(gold): str(len(labels)), str(english): str(len(queries))})
    for number, label in enumerate(labels, start=1):
        if label not in ids:
            allowed = f"allowed are the lines of {foreign}, 0 to {len(ids) - 1}"
            raise BadInput(f"{gold}:{number}: has {short_repr(label)} as its label; {allowed}. Correct the label.")
    return Bitext(queries, candidates, ids, ids, frozenset(zip(ids, labels)) if gold else None)


# --- predictions and references in the layout of a submission -------------------------------------------------------


def read_values(path: Path) -> list[str]:
    """Read one value a line, also blank ones: labels of pairs, lines of Tatoeba."""
    return [line.strip() for line in filled_lines_of(path)]


def read_tags(path: Path) -> list[list[str]]:
    """Read the tags of each sentence, one a line, or word TAB tag, as `prepare` writes them."""
    numbered = sentences(filled_lines_of(path))
    return [[tag_of(f"{path}:{number}", line) for number, line in sentence] for sentence in numbered]


def tag_of(place: str, line: str) -> str:
    *words, tag = line.strip().split("\t")
    if len(words) > 1:
        allowed = "allowed are 1, the tag, or 2, word TAB tag"
        raise BadInput(f"{place}: has {len(words) + 1} columns; {allowed}. Remove a tab.")
    return tag.strip()


def read_answers(path: Path) -> dict[str, str]:
    """Read predicted answers by question id."""
    answers = read_json(path, allow_repeats=False)
    if not isinstance(answers, dict):
        raise BadInput(f'{path}: has {short_repr(answers)}; allowed is {{"question id": "answer"}}. {FIX}')
    return {name: text_at(str(path), answers, name) for name in answers}


def read_reference_answers(path: Path) -> dict[str, list[str]]:
    """Read reference answers by question id from a file in SQuAD's format, whether they occur in the context or not."""
    references: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for question in read_questions(path):
        refuse_repeated(places, question.id, question.place)
        references[question.id] = [text for text, _ in question.answers]
    if not any(any(texts) for texts in references.values()):
        fix = "Score with the published file; XTREME's download script took the answers out of its test files."
        raise BadInput(f"{path}: has no gold answer; allowed is one or more. {fix}")
    return references


def read_id_pairs(path: Path) -> set[tuple[str, ...]]:
    """Read the columns of each line, two unless a line is wrong; a file without lines has no pairs."""
    return {tuple(line.strip().split("\t")) for line in lines_of(path)}


def write_values(path: Path, values: Iterable[str]) -> Path:
    """Write one value a line; atomically, like all files below."""
    lines = list(values)
    if broken := [line for line in lines if "\n" in line or "\r" in line]:
        raise ValueError(f"{path}: would have the line {short_repr(broken[0])}; allowed are lines without line ends.")
    return write_text(path, "".join(f"{line}\n" for line in lines))


def write_tags(path: Path, tags: Iterable[Sequence[str]]) -> Path:
    return write_values(path, (line for sentence in tags for line in (*sentence, "")))


def write_answers(path: Path, answers: Mapping[str, str]) -> Path:
    return write_text(path, json.dumps(dict(answers), ensure_ascii=False, indent=1) + "\n")


def write_id_pairs(path: Path, pairs: Iterable[tuple[str, str]]) -> Path:
    return write_values(path, map("\t".join, sorted(pairs)))


def data_hash(examples: Any) -> str:
    """Fingerprint of examples, predictions or references: 8 hexadecimal digits of SHA-256, whatever they are read from.

    >>> data_hash({"a": ["x"], "b": []}) == data_hash({"b": [], "a": ["x"]}) != data_hash({"a": [], "b": ["x"]})
    True
    """
    if isinstance(examples, Bitext):
        examples = asdict(examples)
    if isinstance(examples, Dataset):  # faster by columns than by rows
        examples = (dict(zip(batch, row)) for batch in examples.iter(1000) for row in zip(*batch.values()))
    if isinstance(examples, Mapping):
        examples = examples.items()
    digest, encode = hashlib.sha256(), json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=sorted).encode
    for example in sorted(examples) if isinstance(examples, Set) else examples:
        digest.update(encode(example).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:8]
