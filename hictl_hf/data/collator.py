"""Collate examples (token ids) into the batch of `HictlForPreTraining.forward`: join, mask, reorder, bags of words.

All randomness comes from the seed of each example (`sampling.example_seed`), so a batch depends neither on the process
that collates it, nor on time or the other examples.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from ..errors import BadInput, short_repr
from ..models.word_sampling import UniformNumbers
from .layout import character_starts, layout_of, marked_starts, word_starts, words_never_sampled

Ids = Sequence[int] | NDArray[np.int64]
OBJECTIVES = ("lm", "sentence", "word")
REORDERINGS = ("words", "subwords", "local")
SEPARATORS = (1, 2)
SHORTEST_PAIR = 6  # tokens: one on each side and four special ones
LOCAL_WINDOW = 3  # BART's k: "local" moves a token by fewer than this many positions
SPACED_WRITING = 0.2  # with a smaller share of pieces that begin a word, a text counts as written without spaces
MASK_SALT = 0x6D61736B  # mixed into an example's seed, so that its masks and its word negatives are independent


@dataclass
class PretrainingCollator:
    """Collate examples `{"x": ids, "y": ids or None, "seed": int}` (ids without special tokens) into a batch.

    Args:
        tokenizer: one with a mask, padding and a first token (`layout_of`).
        mlm_probability, tlm_probability: share of tokens to predict in monolingual text and in pairs (appendix B).
        max_length: tokens of the longest input, special tokens included; sentences are cut alone, and of x∘y the longer
            side first.
        reordering: how to make the positive y of monolingual x: shuffle its "words", its "subwords", or its words
            within a "local" window. Text written without spaces is always shuffled by subwords.
        objectives: for which objectives to make inputs: "lm", "sentence", "word".
        clean_word_level: also make the unmasked x∘y, for `HictlConfig.word_level_input = "clean"`.
        join_reordered: whether that x∘y of monolingual x has its reordering as y (the paper), or is x alone.
        pair_separators: how many of the tokens between x and y that the tokenizer writes are kept: up to 2, such as
            XLM-R's `</s></s>`, or 1 as the paper writes x∘y.
        prompt: ids put before each sentence of the sentence level, as sentences are embedded later (`prompt_tokens`).

    Returns (call): the tensors that `HictlForPreTraining.forward` documents. An example with the same seed has the same
        masks, so give it another one in each epoch, as `TemperatureSampler` does for `PretrainingExamples`; without
        one, each call draws it from PyTorch's generator, and a resumed run has other masks.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    tlm_probability: float = 0.25
    max_length: int = 256
    reordering: str = "words"
    objectives: Sequence[str] = OBJECTIVES
    clean_word_level: bool = False
    join_reordered: bool = False
    pair_separators: int = 2
    prompt: Sequence[int] = ()

    def __post_init__(self) -> None:
        if unknown := set(self.objectives) - set(OBJECTIVES):
            raise ValueError(f"objectives has {sorted(unknown)}; it may have {', '.join(OBJECTIVES)}")
        if self.reordering not in REORDERINGS:
            raise ValueError(f"reordering is {self.reordering!r}; it must be one of {', '.join(REORDERINGS)}")
        if self.pair_separators not in SEPARATORS:
            raise ValueError(f"pair_separators is {self.pair_separators}; it must be 1 or 2")
        if self.join_reordered and not self.clean_word_level:
            raise ValueError("join_reordered is for the clean word level; set clean_word_level, or leave it out")
        for name in ("mlm_probability", "tlm_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a share between 0 and 1")
        size, self.layout = len(self.tokenizer), layout_of(self.tokenizer)
        self.room = self.max_length - self.layout.around_text  # for the tokens of a sentence
        self.separators = self.layout.between[: self.pair_separators]
        if len(self.prompt) > self.room - 1:
            raise BadInput(
                f"prompt has {len(self.prompt)} tokens; allowed are {self.room - 1} with a max_seq_length of "
                f"{self.max_length}: {self.layout.around_text} special tokens and one of the text are added; give a "
                "shorter --prompt, or a larger --max_seq_length"
            )
        self.begins_word = np.array(word_starts(self.tokenizer))
        self.marked_starts = np.array(marked_starts(self.tokenizer))
        self.begins_character = np.array(character_starts(self.tokenizer))
        self.special, self.never_sampled = torch.zeros(2, size, dtype=torch.bool)
        self.special[self.tokenizer.all_special_ids] = True
        self.never_sampled[words_never_sampled(self.tokenizer, size)] = True
        self.regular_tokens = (~self.never_sampled).nonzero().squeeze(1)

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        for example in examples:
            self.check(example)
        if "seed" not in examples[0]:
            drawn = torch.randint(2**62, (len(examples),)).tolist()
            examples = [{**example, "seed": seed} for example, seed in zip(examples, drawn, strict=True)]
        given, examples = examples, [self.cut(example) for example in examples]
        seeds, padding = torch.tensor([example["seed"] for example in examples]), self.tokenizer.pad_token_id
        joined, seen = pad([self.join(example["x"], example["y"]) for example in examples], padding)
        batch = {"example_seeds": seeds}
        if "lm" in self.objectives or "word" in self.objectives:
            rates = torch.tensor(
                [self.mlm_probability if example["y"] is None else self.tlm_probability for example in examples]
            )
            batch["input_ids"], labels = self.mask(joined, rates.unsqueeze(1), seeds)
            batch["attention_mask"] = seen.long()
        if "lm" in self.objectives:
            batch["labels"] = labels
        x = [example["x"] for example in examples]
        y: list[Ids] = []
        if "sentence" in self.objectives or self.join_reordered:
            y = [
                self.reorder(self.read(example["x"]), example["seed"]) if example["y"] is None else example["y"]
                for example in examples
            ]
        if "sentence" in self.objectives:
            first = [example["x"] for example in given]
            second = [other if example["y"] is None else example["y"] for example, other in zip(given, y, strict=True)]
            batch["sentence_input_ids"], seen = pad([self.sentence(ids) for ids in first + second], padding)
            batch["sentence_attention_mask"] = seen.long()
            texts = first + [example["x"] if example["y"] is None else example["y"] for example in given]
            batch["sentence_hashes"] = torch.tensor([text_hash(self.read(text)) for text in texts])
        if "word" in self.objectives:
            if self.join_reordered:
                pairs = [self.cut({"x": ids, "y": other, "seed": 0}) for ids, other in zip(x, y, strict=True)]
                joined, seen = pad([self.join(pair["x"], pair["y"]) for pair in pairs], padding)
                batch["clean_attention_mask"] = seen.long()
            batch["bag"] = self.bag_of_words(joined)
            if self.clean_word_level:
                batch["clean_input_ids"] = joined
        return batch

    def check(self, example: Mapping[str, Any]) -> None:
        """Raise `BadInput` for an example that is no token ids, or has special tokens, which would be trained on."""
        allowed = (
            "allowed are x and y, token ids without special tokens and padding (y None for monolingual text), which "
            "tokenize_corpus makes"
        )
        if missing := [name for name in ("x", "y") if name not in example]:
            raise BadInput(f"an example has no {', '.join(missing)}, but {', '.join(map(str, example))}; {allowed}")
        for name in ("x", "y"):
            ids = example[name]
            if name == "y" and ids is None:
                continue
            if isinstance(ids, str) or np.ndim(ids) != 1:
                fix = "tokenize texts first, and take a dataset of lists: dataset.with_format(None)"
                raise BadInput(f"{name} of an example is {short_repr(ids)}; {allowed}; {fix}")
            first, last = (int(ids[at]) if len(ids) else None for at in (0, -1))
            padding = {self.tokenizer.pad_token_id} - {self.tokenizer.unk_token_id}  # which a text may have
            if first == self.layout.before[0] or padding & {first, last}:
                ends = " … ".join(self.tokenizer.convert_ids_to_tokens([first, last]))
                raise BadInput(f"{name} of an example is {ends}; {allowed}")

    def cut(self, example: dict[str, Any]) -> dict[str, Any]:
        """Return the example as x∘y has it, cut to `max_length`."""
        x = example["x"][: self.room]
        if example["y"] is None:
            return {"x": x, "y": None, "seed": example["seed"]}
        y = example["y"][: self.room]
        excess = max(0, len(x) + len(y) + len(self.separators) - self.room)
        from_longer = min(excess, abs(len(x) - len(y)))
        from_x = (from_longer if len(x) >= len(y) else 0) + (excess - from_longer) // 2
        return {"x": x[: len(x) - from_x], "y": y[: len(y) - (excess - from_x)], "seed": example["seed"]}

    def join(self, x: Ids, y: Ids | None) -> list[int]:
        """Return x or the pair with special tokens, in XLM-R `<s> x </s>` and `<s> x </s></s> y </s>`."""
        before, after = self.layout.before, self.layout.after
        return [*before, *x, *after] if y is None else [*before, *x, *self.separators, *y, *after]

    def sentence(self, ids: Ids) -> list[int]:
        """Return a sentence as the sentence level reads it: cut, with the prompt and special tokens."""
        return self.join([*self.prompt, *self.read(ids)], None)

    def read(self, ids: Ids) -> Ids:
        """Return what the sentence level reads of a sentence."""
        return ids[: self.room - len(self.prompt)]

    def mask(self, ids: Tensor, rates: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return masked ids and labels, each (n, T): 80 % of the chosen tokens become `<mask>`, 10 % a random one.

        Args:
            ids: (n, T).
            rates: (n, 1) shares of tokens to choose.
            seeds: (n,).
        """
        # Three numbers for each position; those of a token do not depend on the padding after it.
        numbers = UniformNumbers(seeds ^ MASK_SALT).next(3 * ids.shape[1])
        choice, fate, token = numbers.view(*ids.shape, 3).unbind(-1)
        chosen = (choice < rates) & ~self.special[ids]
        others = self.regular_tokens[(token * len(self.regular_tokens)).long()]
        masked = ids.masked_fill(chosen & (fate < 0.8), self.tokenizer.mask_token_id)
        return torch.where(chosen & (fate >= 0.9), others, masked), ids.where(chosen, -100)

    def bag_of_words(self, ids: Tensor) -> Tensor:
        """Return (n, B) the distinct words of each example of (n, T) ids, ascending, padded with -1."""
        tokens = ids.where(~self.never_sampled[ids], -1).sort(-1).values
        new = (tokens >= 0) & (tokens != F.pad(tokens, (1, 0), value=-1)[:, :-1])
        return fill_rows(tokens[new], new.sum(-1), -1)[0]

    def reorder(self, ids: Ids, seed: int) -> NDArray[np.int64]:
        """Return the positive of monolingual text: its tokens in another order (section 3.1)."""
        ids = np.array(ids, np.int64)
        if len(ids) and not self.begins_word[ids[0]]:
            ids[0] = self.marked_starts[ids[0]]
        random = np.random.default_rng([seed, 1])
        inner = self.begins_word[ids[1:]]  # whether each token but the first begins a word
        if self.reordering == "subwords" or len(inner) == 0 or inner.mean() < SPACED_WRITING:
            inner = self.begins_character[ids[1:]]
        units = np.split(ids, 1 + np.flatnonzero(inner))
        keys = random.random(len(units))
        if self.reordering == "local":
            keys = np.arange(len(units)) + keys * LOCAL_WINDOW
        order = np.argsort(keys)
        if len(units) > 1 and (np.diff(order) > 0).all():  # nothing moved by chance: x would be its own positive
            order[:2] = order[1::-1]
        return np.concatenate([units[unit] for unit in order])


def pad(rows: Sequence[Ids], filler: int) -> tuple[Tensor, Tensor]:
    """Pad rows on the right; returns ids and a bool mask of the tokens, each (rows, longest)."""
    lengths = torch.tensor([len(row) for row in rows])
    ids: Iterable[int] = chain.from_iterable(rows)
    return fill_rows(torch.from_numpy(np.fromiter(ids, np.int64, int(lengths.sum()))), lengths, filler)


def fill_rows(values: Tensor, lengths: Tensor, filler: int) -> tuple[Tensor, Tensor]:
    """Split values (tokens,) into padded rows of lengths (rows,); returns them and a mask, each (rows, longest)."""
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    return torch.full(mask.shape, filler).masked_scatter_(mask, values), mask


def tokens_read(batch: Mapping[str, Any]) -> Tensor | int:
    """Return the number of tokens of all inputs of a batch that its objectives read, ()."""
    masked = clean = batch.get("attention_mask")
    if "clean_input_ids" not in batch:
        clean = None
    elif "labels" not in batch:
        masked = None
    masks = masked, batch.get("clean_attention_mask", clean), batch.get("sentence_attention_mask")
    return sum(mask.sum() for mask in masks if mask is not None)


def text_hash(ids: Ids) -> int:
    """Return a 63-bit hash of the tokens, equal for equal texts."""
    return int.from_bytes(blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=8).digest(), "big") >> 1
