"""Convert raw treebanks and raw PAN-X to XTREME's files of tagged words, with the tags that its download removes from
test files. XTREME took all treebanks of Universal Dependencies 2.5, those of a language ordered by their file names.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from datasets import Dataset, concatenate_datasets

from ..data.languages import wanted_language
from ..errors import BadInput, short_repr
from ..files import write_text
from .examples import TAGGED, check_label
from .files import filled_lines_of, sentences

logger = logging.getLogger(__name__)

# The head of a multi-word token is its highest word in the tree; of several the one whose tag comes first here.
PRECEDENCE = "VERB NOUN PROPN PRON ADJ NUM ADV INTJ AUX ADP DET PART CCONJ SCONJ X PUNCT"
PRECEDENCES = {
    "es": "VERB AUX PRON ADP DET",
    "fr": "VERB AUX PRON NOUN ADJ ADV ADP DET PART SCONJ CONJ",
    "it": "VERB AUX ADV PRON ADP DET INTJ",
}
Rows = list[tuple[str, list[str]]]


def read_conllu(path: Path, language: str, labels: Collection[str] = ()) -> Dataset:
    """Read words as in the text: a multi-word token has the tag of its head. Sentences whose words are all, or all but
    one, underscores are left out, as are empty nodes; spaces and zero-width non-joiners in words are removed."""
    examples = []
    precedence = PRECEDENCES.get(wanted_language(language, [*PRECEDENCES]), PRECEDENCE).split()
    for sentence in sentences(filled_lines_of(path)):
        rows = [(f"{path}:{number}", line.split("\t")) for number, line in sentence if not line.startswith("#")]
        tagged = tagged_words(rows, precedence, labels)
        hidden = sum(word == "_" for word, _ in tagged)
        if tagged and (hidden == 0 or hidden < len(tagged) - 1):
            words = [word.replace("\u200c", "").replace(" ", "") for word, _ in tagged]
            examples.append({"words": words, "tags": [tag for _, tag in tagged]})
    if not examples:
        raise BadInput(f"{path}: has no sentence with words; allowed is one or more. Download the treebank again.")
    return Dataset.from_list(examples, features=TAGGED)


def tagged_words(rows: Rows, precedence: Sequence[str], labels: Collection[str] = ()) -> list[tuple[str, str]]:
    """Form and tag of each word of a sentence in CoNLL-U; `rows` are the place and the columns of each line."""
    words: dict[int, tuple[str, str]] = {}
    heads: dict[int, set[int]] = defaultdict(set)
    spans: list[tuple[str, str, range]] = []
    for place, columns in rows:
        first, dash, last = columns[0].partition("-")
        if len(columns) != 10 or not (first + last).replace(".", "").isdecimal():
            found = f"has {len(columns)} columns, the first {short_repr(columns[0])}"
            raise BadInput(f"{place}: {found}; allowed are the 10 of CoNLL-U. Download the treebank again.")
        if dash:
            spans.append((place, columns[1].strip(), range(int(first), int(last) + 1)))
        elif first.isdecimal():  # 8.1 is an empty node
            if int(first) in words:
                allowed = "allowed is each number once in a sentence"
                raise BadInput(f"{place}: has the word {first} again; {allowed}. Download the treebank again.")
            words[int(first)] = columns[1].strip(), check_label(place, columns[3], labels)
            named = (columns[6], *(relation.split(":")[0] for relation in columns[8].split("|")))
            heads[int(first)] |= {int(head) for head in named if head.isdecimal()}
    for place, form, span in spans:
        if not span or not words.keys() >= set(span):
            found = f"has {short_repr(form)} for the words {span.start} to {span.stop - 1}, some of which are missing"
            raise BadInput(f"{place}: {found}; allowed are words that follow. Download the treebank again.")
        head = min(span, key=lambda word: (len(ancestors(word, heads)), rank(words[word][1], precedence), word))
        words[head] = form, words[head][1]
        for word in set(span) - {head}:
            del words[word]
    return list(words.values())


def ancestors(word: int, heads: dict[int, set[int]]) -> set[int]:
    """All words above a word, and the root 0, also by enhanced dependencies; without the word itself in a cycle."""
    found: set[int] = set()
    waiting = [word]
    while waiting:
        new = heads.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found - {word}


def rank(tag: str, precedence: Sequence[str]) -> int:
    return precedence.index(tag) if tag in precedence else len(precedence)


def read_raw_panx(path: Path, labels: Collection[str] = ()) -> Dataset:
    """Read lines such as "de:Berlin TAB B-LOC", the word after the colon; a line without a tag ends a sentence."""
    examples = []
    lines = [line.strip() for line in filled_lines_of(path)]
    untagged = [number for number, line in enumerate(lines, start=1) if line and line.count("\t") != 1]
    if len(untagged) == sum(map(bool, lines)):
        found, allowed = short_repr(lines[untagged[0] - 1]), "allowed is language:word TAB tag"
        raise BadInput(f"{path}:{untagged[0]}: has {found}, and no line has a tag; {allowed}. Download PAN-X again.")
    if untagged:
        message = "%s:%d: this and %d other lines are not language:word TAB tag, and end a sentence"
        logger.warning(message, path, untagged[0], len(untagged) - 1)
    for sentence in sentences(line if line.count("\t") == 1 else "" for line in lines):
        words, tags = [], []
        for number, line in sentence:
            name, tag = line.strip().split("\t")
            _, colon, word = name.partition(":")
            if not colon:
                allowed = "allowed is language:word TAB tag"
                raise BadInput(f"{path}:{number}: has {short_repr(line)}; {allowed}. Download PAN-X again.")
            words.append(word.strip())
            tags.append(check_label(f"{path}:{number}", tag, labels))
        examples.append({"words": words, "tags": tags})
    return Dataset.from_list(examples, features=TAGGED)


def write_tagged(path: Path, examples: Iterable[dict[str, list[str]]]) -> Path:
    """Write one word a line, with its tag; a blank line between sentences."""
    tagged = (zip(example["words"], example["tags"], strict=True) for example in examples)
    return write_text(path, "\n".join("".join(f"{word}\t{tag}\n" for word, tag in each) for each in tagged))


def read_raw(task: str, paths: Iterable[Path], language: str = "", labels: Collection[str] = ()) -> Dataset:
    """The examples of raw files in the order of their names, as XTREME took them.

    Args:
        task: "udpos", treebanks in CoNLL-U, or "panx", WikiAnn.
        language: of the treebanks.
        labels: the tags that words may have; without them any but an empty one.
    """
    ordered = sorted(paths, key=lambda path: path.name)
    return concatenate_datasets(
        [read_conllu(path, language, labels) if task == "udpos" else read_raw_panx(path, labels) for path in ordered]
    )
