"""The text that a step is timed on: sentences, their lengths, and how batches are drawn.

Two mixes of lengths: "real" are translated sentences, of a file or of the packages that the demo installs; "lognormal"
are random words with lengths of mean 25 and sigma 0.7, at most 256 tokens. Batches are drawn at random, and pairs are
masked at 25 %; neither this nor tokenizing is timed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hictl_hf.data.cleaning import Cleaning
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.corpus import load_corpus
from hictl_hf.data.sampling import example_seed
from hictl_hf.data.tokenization import train_tokenizer

DEMO = Path(__file__).resolve().parents[1] / "recipes" / "demo.json"
VOCABULARY = 250_002  # XLM-R's; a smaller tokenizer uses its first rows only, all of them are scored and sampled
TRAINED_VOCABULARY = 12_000
RANDOM_WORDS = 20_000  # that the tokenizer of `random_workload` is trained on
PAIRS_READ = 20_000
SENTENCE_CHARACTERS = 60  # on one side at least; what is shorter in the demo's catalogues is labels and buttons
LONGEST = 256
MEAN_LENGTH, LENGTH_SIGMA = 25, 0.7
PAIR_MASK_RATE = 0.25
SEED = 1
SCORE_BYTES = 15  # of a naive step at its peak, for each position and word
NETWORKS_BYTES = 6e9  # both, with their gradients and the states of their optimisers

Batch = dict[str, Tensor]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Workload:
    """Rows of token ids by the name of their text, and the collator that makes batches of them."""

    tokenizer: PreTrainedTokenizerBase
    collator: PretrainingCollator
    texts: dict[str, Rows]

    def draw(
        self, text: str, pairs: int, number: int, fits: Callable[[Batch], bool] | None = None
    ) -> tuple[list[Batch], int]:
        """Random batches, and how many were drawn again because the naive step would not fit into memory with them."""
        rows, random, refused = self.texts[text], np.random.default_rng([SEED, pairs]), 0
        batches: list[Batch] = []
        while len(batches) < number:
            chosen = random.choice(len(rows), pairs, replace=len(rows) < pairs)
            batch = self.collator([{**rows[row], "seed": example_seed(SEED, len(batches), row)} for row in chosen])
            if (fits or naive_step_fits)(batch):
                batches.append(batch)
            else:
                refused += 1
            if refused > 20 * number:
                raise MemoryError(f"a naive step on {pairs} pairs does not fit into memory; lower --pairs_per_batch")
        return batches, refused


@dataclass(frozen=True)
class Size:
    """What there is to compute in a batch: tokens of x, y and x∘y together."""

    tokens: int
    padded_tokens: int
    """With x, y and x∘y each padded to their longest."""
    masked_words: int
    read_tokens: int
    """Whose last states are read: the first of x, y and x∘y, and the masked words."""
    squared_lengths: int
    """Sum over sentences: entries of one head's attention matrices."""
    sentences: int


def make_workload(pairs: str | None, encoder: str | None) -> Workload:
    """The texts through the tokenizer of an encoder's folder, or through one that is trained on them."""
    texts = read_pairs(pairs)
    tokenizer = (
        AutoTokenizer.from_pretrained(encoder)
        if encoder
        else train_tokenizer([text for pair in texts for text in pair], TRAINED_VOCABULARY, LONGEST)
    )
    collator = collator_of(tokenizer)
    x, y = (tokenizer(list(side), add_special_tokens=False, verbose=False)["input_ids"] for side in zip(*texts))
    real = [{"x": a, "y": b} for a, b in zip(x, y)]
    return Workload(tokenizer, collator, {"real": real, "lognormal": lognormal_rows(collator.regular_tokens)})


def random_workload() -> Workload:
    """Random words of log-normal lengths alone, of a tokenizer trained on random letters: needs no file."""
    letters = np.random.default_rng(SEED).choice(list("abcdefghijklmnopqrstuvwxyz"), (RANDOM_WORDS, 7))
    tokenizer = train_tokenizer([" ".join(map("".join, some)) for some in np.split(letters, 100)], 2**13, LONGEST)
    collator = collator_of(tokenizer)
    return Workload(tokenizer, collator, {"lognormal": lognormal_rows(collator.regular_tokens)})


def collator_of(tokenizer: PreTrainedTokenizerBase) -> PretrainingCollator:
    return PretrainingCollator(tokenizer, tlm_probability=PAIR_MASK_RATE, max_length=LONGEST)


def read_pairs(source: str | None) -> list[tuple[str, str]]:
    """At most `PAIRS_READ` pairs, chosen at random: those of the source, or the sentences among the demo's texts."""
    recipe = json.loads(DEMO.read_text("utf-8"))
    languages = recipe["cleaning"]["languages"]
    cleaning = Cleaning() if source else Cleaning(languages=languages)
    dataset, _ = load_corpus([source] if source else recipe["train_file"], cleaning)
    shortest = 0 if source else SENTENCE_CHARACTERS
    pairs = [(x, y) for x, y in zip(dataset["x"], dataset["y"]) if y is not None and max(len(x), len(y)) >= shortest]
    return [pairs[number] for number in np.random.default_rng(SEED).permutation(len(pairs))[:PAIRS_READ]]


def lognormal_rows(words: np.ndarray) -> Rows:
    """Pairs of random words; the lengths include the special tokens that the collator adds."""
    random = np.random.default_rng(SEED)
    mu = np.log(MEAN_LENGTH) - LENGTH_SIGMA**2 / 2
    lengths = random.lognormal(mu, LENGTH_SIGMA, (PAIRS_READ // 10, 2)).round().clip(3, LONGEST).astype(int) - 2
    return [{side: random.choice(words, length) for side, length in zip("xy", pair)} for pair in lengths]


def naive_step_fits(batch: Batch) -> bool:
    """Whether the scores of every word at every position leave the networks room in the memory that is free now."""
    status = Path("/proc/meminfo")
    if not status.exists():
        return True
    free = next(int(line.split()[1]) for line in status.open() if line.startswith("MemAvailable")) * 1024
    return batch["input_ids"].numel() * VOCABULARY * SCORE_BYTES < free - NETWORKS_BYTES


def size_of(batch: Batch) -> Size:
    """Counts of a batch."""
    sentence_lengths, joined_lengths = batch["sentence_attention_mask"].sum(-1), batch["attention_mask"].sum(-1)
    lengths = torch.cat([sentence_lengths, joined_lengths])
    padded = sum(len(part) * part.max() for part in (*sentence_lengths.chunk(2), joined_lengths))
    masked_words = int((batch["labels"] != -100).sum())
    return Size(
        tokens=int(lengths.sum()),
        padded_tokens=int(padded),
        masked_words=masked_words,
        read_tokens=len(lengths) + masked_words,
        squared_lengths=int(lengths.square().sum()),
        sentences=len(sentence_lengths),
    )
