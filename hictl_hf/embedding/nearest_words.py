"""Inspect an encoder: find the words of its vocabulary, and the sentences of a file, that are nearest to a sentence.

The word-level objective pulls the first token's last state of x∘y towards the embeddings of the words of x and y, so
the nearest words are those of a sentence and of its translations. Frequent words are near to all sentences. If other
texts are given, words are therefore ranked by their similarity minus its mean over those texts.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.languages import script_of
from ..data.layout import pieces_shown, words_never_sampled
from ..data.records import checked_text
from ..data.text_encoding import encode_texts
from ..data.tokenization import list_of_texts
from ..errors import BadInput, BrokenRow, short_repr
from ..models.families import longest_input, refuse_adapter
from ..models.word_sampling import cosines
from ..reports.tables import Cell, Table
from .encoder import embed_sentences
from .pooling import Pooling, encoder_of, own_text

ALL_LANGUAGES = "all"
IN_SENTENCE, SPECIAL_TOKEN = "in the sentence", "special token"  # marks of words that are found trivially
ROWS_AT_ONCE = 1000  # tokenized together
TEXTS_KEPT = 256  # of each language, and of the sentences, for the mean similarity of words
LEAST_PIECES = 10  # scripts with fewer pieces are not shown: a few letters, no language of the vocabulary
LONGEST = 120  # characters of a text in a table


class NearWord(NamedTuple):
    """A piece of the vocabulary and its cosine with the sentence.

    Attributes:
        above: the cosine minus its mean over other texts; `None` without other texts.
        mark: `IN_SENTENCE`, `SPECIAL_TOKEN` or "".
    """

    piece: str
    similarity: float
    above: float | None
    mark: str


class NearSentence(NamedTuple):
    """A sentence, its line number, from 1, and its cosine."""

    line: int
    text: str
    similarity: float


class Explainer:
    """Search for the nearest words and sentences with one model.

    Args:
        model, tokenizer: from `embedding.load_encoder`.
        rows: texts, each under its language: [{"de": "das Haus"}]. A piece is assigned to the language with the largest
            share of the piece among its tokens; without texts, to its Unicode script.
        among: sentences to search in, without empty and repeated ones.
        pooling: of sentences; `None`: the model's own. Words are always those near the first token's last state.

    The mean similarity of a word is taken over the first texts of each language and some of the sentences.

    >>> from hictl_hf.embedding.encoder import load_encoder  # doctest: +SKIP
    >>> explainer = Explainer(*load_encoder("runs/demo/checkpoint"), among=["das Haus"])  # doctest: +SKIP
    >>> explainer.words("the house")["Latin"], explainer.sentences("the house")  # doctest: +SKIP
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        rows: Iterable[Mapping[str, str]] = (),
        among: Sequence[str] = (),
        pooling: Pooling | None = None,
    ) -> None:
        refuse_adapter("the layer of word embeddings", model.get_input_embeddings())
        self.model, self.tokenizer, self.pooling = model, tokenizer, pooling
        self.pieces = pieces_shown(tokenizer)
        self.special = set(words_never_sampled(tokenizer, len(tokenizer)))
        first: dict[str, list[str]] = defaultdict(list)
        languages = np.array(piece_languages(tokenizer, self.pieces, keep_first(rows, first)), dtype=object)
        languages[list(self.special)] = ""
        self.groups = {name: np.flatnonzero(languages == name) for name in dict.fromkeys(languages) if name}
        lines: dict[str, int] = {}
        for number, text in enumerate(list_of_texts(among), start=1):
            if text.strip():
                lines.setdefault(text, number)
        self.texts, self.lines = list(lines), list(lines.values())
        self.vectors = self.embed(self.texts) if lines else None
        others = [text for texts in first.values() for text in texts] + self.texts[:: len(lines) // TEXTS_KEPT + 1]
        self.usual = self.mean_similarities(others) if others else None  # (V,)

    @property
    def caution(self) -> str:
        """A warning if the model was not trained with the word-level objective; else empty."""
        if getattr(self.model.config, "word_weight", 0) > 0:
            return ""
        return (
            "The model's configuration does not say that it was trained with HiCTL's word-level objective; without it "
            "the words near a sentence mean little."
        )

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(texts, d) unit vectors, with the model's default prompt."""
        return embed_sentences(self.model, self.tokenizer, texts, self.pooling, normalize=True, progress=len(texts) > 1)

    def words(self, sentence: str, translation: str | None = None, number: int = 10) -> dict[str, list[NearWord]]:
        """The nearest words to x, or to x∘y, best first: of all languages, then of each, the nearest language first."""
        ids, similarities = self.similarities(sentence, translation)
        marks = dict.fromkeys(ids, IN_SENTENCE) | dict.fromkeys(self.special, SPECIAL_TOKEN)
        above = None if self.usual is None else similarities - self.usual
        scores = similarities if above is None else above
        groups = dict(sorted(self.groups.items(), key=lambda group: -scores[group[1]].max()))
        return {
            name: [
                NearWord(
                    self.pieces[word],
                    float(similarities[word]),
                    None if above is None else float(above[word]),
                    marks.get(word, ""),
                )
                for word in best(scores, number, group)
            ]
            for name, group in ({ALL_LANGUAGES: np.arange(len(scores))} | groups).items()
        }

    @torch.inference_mode()
    def similarities(self, sentence: str, translation: str | None) -> tuple[list[int], NDArray[np.float32]]:
        """The input ids, and (V,) cosines of the first token's last state with the word embeddings."""
        check(sentence)
        check(sentence if translation is None else translation)
        longest = longest_input(self.model.config)
        text = own_text(self.model.config, sentence)
        second = None if translation is None else own_text(self.model.config, translation)
        settings = {"truncation": True, "max_length": longest, "return_tensors": "pt"}
        tokens = encode_texts(self.tokenizer, text, second, **settings)
        first = encoder_of(self.model)(**tokens.to(self.model.device)).last_hidden_state[:, 0].float()
        similarities = self.with_vocabulary(F.normalize(first, dim=-1))
        return tokens["input_ids"][0].tolist(), similarities

    def mean_similarities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(V,) means of these cosines over texts."""
        pooling = Pooling("cls", self.model.config.num_hidden_layers)
        vectors = embed_sentences(self.model, self.tokenizer, texts, pooling, prompt="", normalize=True)
        mean = vectors.mean(0, keepdims=True)
        return self.with_vocabulary(torch.from_numpy(mean).to(self.model.device))

    @torch.inference_mode()
    def with_vocabulary(self, directions: Tensor) -> NDArray[np.float32]:
        """(V,) products of a vector (1, d) with the unit embeddings of the vocabulary."""
        vocabulary = self.model.get_input_embeddings().weight[: len(self.pieces)]
        return cosines(directions, vocabulary)[0].cpu().numpy()

    def sentences(self, sentence: str, number: int = 10) -> list[NearSentence]:
        """The nearest of the sentences to search in, best first."""
        check(sentence)
        if self.vectors is None:
            return []
        similarities = self.vectors @ self.embed([sentence])[0]
        return [
            NearSentence(self.lines[row], self.texts[row], float(similarities[row]))
            for row in best(similarities, number, np.arange(len(similarities)))
        ]


def check(sentence: str) -> None:
    """Raise `BadInput` for a sentence that is empty or not valid text."""
    try:
        checked_text("own", sentence)
    except BrokenRow as problem:
        raise BadInput(f"the sentence {problem}") from problem
    if not sentence.strip():
        raise BadInput("the sentence is empty; allowed is one with a word in it. Write one, in quotes.")


def best(similarities: NDArray[np.float32], number: int, among: NDArray[np.int64]) -> list[int]:
    """The indices in `among` with the highest similarities; ties go to the first."""
    return [int(index) for index in among[np.argsort(-similarities[among], kind="stable")[:number]]]


# --- languages --------------------------------------------------------------------------------------------------------


def keep_first(rows: Iterable[Mapping[str, str]], kept: Mapping[str, list[str]]) -> Iterator[Mapping[str, str]]:
    """Yield the rows unchanged and add the first texts of each language to `kept`."""
    for row in rows:
        if not isinstance(row, Mapping):
            raise BadInput(f"rows has {short_repr(row)}; allowed are texts under languages: [{{'de': 'das Haus'}}].")
        for language, text in row.items():
            if len(kept[language]) < TEXTS_KEPT and text.strip():
                kept[language].append(text)
        yield row


def piece_languages(
    tokenizer: PreTrainedTokenizerBase, pieces: Sequence[str], rows: Iterable[Mapping[str, str]] = ()
) -> list[str]:
    """The language of each piece: the one with the largest share of it among its tokens, "" if it does not occur.

    Without texts it is the script of the piece, "" for scripts of fewer than `LEAST_PIECES`.
    """
    counts: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros(len(pieces), np.int64))
    rest = iter(rows)
    while block := list(islice(rest, ROWS_AT_ONCE)):
        texts: dict[str, list[str]] = defaultdict(list)
        for row in block:
            for language, text in row.items():
                texts[language].append(text)
        for language, batch in texts.items():
            ids = encode_texts(tokenizer, batch, add_special_tokens=False)["input_ids"]
            counts[language] += np.bincount(np.concatenate(ids).astype(np.int64), minlength=len(pieces))
    if not counts:
        scripts = list(map(script, pieces))
        sizes = Counter(scripts)
        return [name if sizes[name] >= LEAST_PIECES else "" for name in scripts]
    names = [*counts, ""]
    shares = np.stack([count / max(count.sum(), 1) for count in counts.values()])  # (languages, V)
    return [names[row] for row in np.where(shares.any(0), shares.argmax(0), len(names) - 1)]


def script(piece: str) -> str:
    """The most frequent Unicode script among the letters of a piece, "" without letters.

    >>> [script(piece) for piece in ("▁house", "дом", "▁家", "42", "▁घर")]
    ['Latin', 'Cyrillic', 'CJK', '', 'Devanagari']
    """
    letters = filter(str.isalpha, unicodedata.normalize("NFKC", piece))
    found = Counter(filter(None, map(script_of, letters)))
    name = found.most_common(1)[0][0] if found else ""
    return name if name == "CJK" else name.capitalize()


# --- tables -----------------------------------------------------------------------------------------------------------


def word_table(words: Mapping[str, Sequence[NearWord]]) -> Table:
    """Tabulate near words by language."""
    compared = any(near.above is not None for group in words.values() for near in group)
    caption = (
        "Cosine of the first token's final state with the embeddings of the vocabulary"
        + (", and that cosine minus its mean over the other texts" if compared else "")
        + ". ▁ marks the beginning of a word; pieces of the sentence and special tokens are marked in the last column."
    )
    sections = {name: [word_row(near, compared) for near in group] for name, group in words.items()}
    heads = ["word", "cosine", *(["above mean"] if compared else []), ""]
    return Table("Nearest words", caption, list(map(Cell, heads)), sections)


def word_row(near: NearWord, compared: bool) -> list[Cell]:
    """The cells of a near word; `compared`: with the difference from the mean."""
    numbers = [near.similarity, near.above] if compared else [near.similarity]
    return [Cell(printable(near.piece)), *(Cell(f"{number:.3f}") for number in numbers), Cell(near.mark)]


def sentence_table(sentences: Sequence[NearSentence]) -> Table:
    """Tabulate near sentences with their line numbers."""
    rows = [[printable(near.text), near.line, f"{near.similarity:.3f}"] for near in sentences]
    return Table.of(["sentence", "line", "cosine"], rows, "Nearest sentences", "Cosine of the sentence vectors.")


def printable(text: str) -> str:
    """Replace control characters, which would act on a terminal, and cut the text to one short line."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return "".join("�" if unicodedata.category(letter) == "Cc" else letter for letter in short)
