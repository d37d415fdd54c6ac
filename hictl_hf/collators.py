"""From rows of token ids to the batch of `HictlForPreTraining.forward`: joining, masking, reordering, bags of words.

All randomness comes from the seed that each row carries (`mixture.row_seed`), so a batch does not depend on who
collates it, when, or next to which rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from .tokenization import word_starts, words_never_sampled

Ids = NDArray[np.int64]
OBJECTIVES = ("lm", "sentence", "word")
REORDERINGS = ("words", "subwords", "local")
LOCAL_WINDOW = 3  # BART's k: "local" moves a token by fewer than this many places
SPACED_WRITING = 0.2  # share of pieces that begin a word below which a text is taken to be written without spaces


@dataclass
class PretrainingCollator:
    """Collate rows `{"x": ids, "y": ids or None, "seed": int}` (ids without special tokens) into a batch.

    Args:
        tokenizer: an XLM-R tokenizer.
        text_mask_rate, pair_mask_rate: share of tokens to predict in monolingual text and in pairs (appendix B).
        max_length: longest input in tokens, special tokens included; of a pair the longer side is cut first.
        reordering: how monolingual x becomes its positive y: shuffle its "words", its "subwords", or its words within a
            "local" window. Text written without spaces is always shuffled by subwords.
        objectives: which inputs to make, of "lm", "sentence" and "word".
        clean_word_level: also give the unmasked x∘y, for `HictlConfig.word_level_input = "clean"`.

    Returns (call): the tensors that `HictlForPreTraining.forward` documents.
    """

    tokenizer: PreTrainedTokenizerBase
    text_mask_rate: float = 0.15
    pair_mask_rate: float = 0.25
    max_length: int = 256
    reordering: str = "words"
    objectives: Sequence[str] = OBJECTIVES
    clean_word_level: bool = False

    def __post_init__(self) -> None:
        if unknown := set(self.objectives) - set(OBJECTIVES):
            raise ValueError(f"objectives has {sorted(unknown)}; it may have {', '.join(OBJECTIVES)}")
        if self.reordering not in REORDERINGS:
            raise ValueError(f"reordering is {self.reordering!r}; it must be one of {', '.join(REORDERINGS)}")
        for name in ("text_mask_rate", "pair_mask_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a share between 0 and 1")
        self.begins_word = np.array(word_starts(self.tokenizer))
        self.no_words = np.array(words_never_sampled(self.tokenizer, len(self.tokenizer)))
        self.special = np.array(self.tokenizer.all_special_ids)
        self.words = np.setdiff1d(np.arange(len(self.tokenizer)), self.no_words)

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        rows = [self.cut(row) for row in rows]
        batch: dict[str, torch.Tensor] = {"row_seeds": torch.tensor([row["seed"] for row in rows])}
        joined = [self.join(row["x"], row["y"]) for row in rows]
        if "lm" in self.objectives or "word" in self.objectives:
            masked = [self.mask(ids, row) for ids, row in zip(joined, rows)]
            batch |= self.padded("input_ids", "attention_mask", [ids for ids, _ in masked])
        if "lm" in self.objectives:
            batch["labels"] = pad([labels for _, labels in masked], -100)
        if "sentence" in self.objectives:
            y = [self.reorder(row["x"], row["seed"]) if row["y"] is None else row["y"] for row in rows]
            sentences = [self.join(ids, None) for ids in [row["x"] for row in rows] + y]
            batch |= self.padded("sentence_input_ids", "sentence_attention_mask", sentences)
            texts = [row["x"] for row in rows] + [row["x"] if row["y"] is None else row["y"] for row in rows]
            batch["sentence_texts"] = torch.tensor([text_hash(text) for text in texts])
        if "word" in self.objectives:
            batch["bag"] = pad([np.setdiff1d(ids, self.no_words) for ids in joined], -1)
            if self.clean_word_level:
                batch["clean_input_ids"] = pad(joined, self.tokenizer.pad_token_id)
        return batch

    def cut(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row as arrays, each sentence and the pair within `max_length`."""
        x = np.asarray(row["x"], np.int64)[: self.max_length - 2]
        if row["y"] is None:
            return {"x": x, "y": None, "seed": row["seed"]}
        y = np.asarray(row["y"], np.int64)[: self.max_length - 2]
        excess = max(0, len(x) + len(y) + 4 - self.max_length)
        from_longer = min(excess, abs(len(x) - len(y)))
        from_x = (from_longer if len(x) >= len(y) else 0) + (excess - from_longer) // 2
        return {"x": x[: len(x) - from_x], "y": y[: len(y) - (excess - from_x)], "seed": row["seed"]}

    def join(self, x: Ids, y: Ids | None) -> Ids:
        """`<s> x </s>`, and with y XLM-R's pair: `<s> x </s></s> y </s>`."""
        begin, end = [self.tokenizer.cls_token_id], [self.tokenizer.sep_token_id]
        return np.concatenate([begin, x, end] if y is None else [begin, x, end, end, y, end]).astype(np.int64)

    def mask(self, ids: Ids, row: dict[str, Any]) -> tuple[Ids, Ids]:
        """Masked ids and labels: of the chosen tokens 80 % become `<mask>`, 10 % another word, 10 % stay."""
        random = np.random.default_rng([row["seed"], 0])
        rate = self.text_mask_rate if row["y"] is None else self.pair_mask_rate
        chosen = (random.random(len(ids)) < rate) & ~np.isin(ids, self.special)
        fate = random.random(len(ids))
        masked = np.where(chosen & (fate < 0.8), self.tokenizer.mask_token_id, ids)
        masked = np.where(chosen & (fate >= 0.9), random.choice(self.words, len(ids)), masked)
        return masked, np.where(chosen, ids, -100)

    def reorder(self, ids: Ids, seed: int) -> Ids:
        """The positive of monolingual text: its tokens in another order (sentence-level CTL)."""
        random = np.random.default_rng([seed, 1])
        inner = self.begins_word[ids[1:]]  # whether each token but the first begins a word
        if self.reordering == "subwords" or len(inner) == 0 or inner.mean() < SPACED_WRITING:
            inner = np.ones_like(inner)
        units = np.split(ids, 1 + np.flatnonzero(inner))
        keys = random.random(len(units))
        if self.reordering == "local":
            keys = np.arange(len(units)) + keys * LOCAL_WINDOW
        order = np.argsort(keys)
        if len(units) > 1 and (np.diff(order) > 0).all():  # by chance nothing moved: x would be its own positive
            order[:2] = order[1::-1]
        return np.concatenate([units[unit] for unit in order])

    def padded(self, name: str, mask_name: str, rows: Sequence[Ids]) -> dict[str, torch.Tensor]:
        """Ids and their attention mask as two tensors."""
        return {name: pad(rows, self.tokenizer.pad_token_id), mask_name: pad([np.ones_like(row) for row in rows], 0)}


def pad(rows: Sequence[Ids], filler: int) -> torch.Tensor:
    """(rows, longest) the rows one below the other, filled up on the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], True, filler)


def text_hash(ids: Ids) -> int:
    """63 bits that are equal where the tokens are."""
    return int.from_bytes(blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=8).digest(), "big") >> 1
