"""The target side of the translation model: its vocabulary, a subset of the tokenizer's, and its target languages.

Three kinds of ids: a *tokenizer id* is one of the encoder's tokenizer; a *target id* is a column of the output layer,
0 … W - 1; a *start id* is W + the index of a target language. Users pass and get tokenizer ids (labels, the output of
`generate`). The decoder works on target and start ids (logits, `decoder_input_ids` of `forward`, the model's
`generation_config`, all code that sees scores inside `generate`).

Target ids are laid out as XLM-R's: 0 to 3 are begin, padding, end and unknown, `<s> <pad> </s> <unk>`, whatever ids the
tokenizer has for them. A tokenizer may have one id for two of them, such as padding and end.
Shapes: n sentences, T target tokens, W target tokens of the vocabulary.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from .configuration_decoder import BEGIN, END, PADDING, SPECIALS, UNKNOWN
from .families import Family


class TargetIdsModel(PreTrainedModel):
    """Base class of translation models: conversions between tokenizer, target and start ids.

    Subclasses register the buffer `target_token_ids`, (W,) the tokenizer id of each target id, ascending after the
    first four, and have a `decoder`, whose configuration names target ids.
    """

    config: Any
    family: ClassVar[Family]
    generation_config: GenerationConfig
    target_token_ids: Tensor
    decoder: PreTrainedModel

    def allow_lone_space(self) -> None:
        """Take "▁" from `suppress_tokens`, where models on pre-trained XLM-R encoders have it that 0.29.2 saved."""
        suppressed = self.generation_config.suppress_tokens
        if not (suppressed and self.family.special_ids) or self.target_token_ids.is_meta:
            return
        spaces = sorted({*self.config.special_token_ids} - {*self.config.never_translated()})
        written = self.target_ids(torch.tensor(spaces, dtype=torch.long, device=self.device)).tolist()
        self.generation_config.suppress_tokens = [i for i in suppressed if i == UNKNOWN or i not in written]

    def target_ids(self, token_ids: Tensor) -> Tensor:
        """Convert tokenizer ids of any shape; tokens outside the target vocabulary become `<unk>`, negatives stay."""
        known = self.target_token_ids.to(token_ids.device)
        indices = torch.searchsorted(known[SPECIALS:], token_ids.contiguous()) + SPECIALS
        indices = indices.clamp_max(len(known) - 1)
        indices = indices.masked_fill(known[indices] != token_ids, UNKNOWN)
        for special in (BEGIN, PADDING, END):  # in this order: an id of padding and end is the end
            indices = indices.masked_fill(token_ids == known[special], special)
        return torch.where(token_ids < 0, token_ids, indices)

    def token_ids(self, target_ids: Tensor) -> Tensor:
        """Convert target ids of any shape to tokenizer ids; start ids become `</s>`."""
        known = self.target_token_ids.to(target_ids.device)
        return known[target_ids.masked_fill(target_ids >= len(known), self.end_id)]

    def known_ids(self, token_ids: Any) -> Any:
        """Convert one or more tokenizer ids; `None` if the target vocabulary lacks one of them."""
        asked = torch.as_tensor(token_ids, dtype=torch.long)
        ids = self.target_ids(asked)
        return None if ((ids == UNKNOWN) & (asked != self.target_token_ids[UNKNOWN].item())).any() else ids.tolist()

    def has_target_ids_of(self, other: Any) -> bool:
        """Whether target and start ids mean the same in both models."""
        token_ids = getattr(other, "target_token_ids", torch.empty(0)).to(self.target_token_ids)
        same_languages = self.config.target_languages == other.config.target_languages
        return token_ids.equal(self.target_token_ids) and same_languages

    @property
    def end_id(self) -> int:
        """The target id of `</s>`."""
        end = self.decoder.config.eos_token_id
        return end if isinstance(end, int) else END

    @property
    def padding_id(self) -> int:
        """The target id of `<pad>`."""
        return int(self.decoder.config.pad_token_id or 0)

    @property
    def first_position(self) -> int:
        """The position of the first token in the decoder's table, which is laid out like XLM-R's."""
        return self.padding_id + 1

    # --- start ids ----------------------------------------------------------------------------------------------------

    def start_ids_of(self, languages: Sequence[str]) -> Tensor:
        """(n,) the start id of each example's target language.

        Raises:
            ValueError: a language the model does not translate into.
        """
        known = self.config.target_languages or []
        unknown = sorted({*languages} - {*known})
        if unknown:
            fix = "Write one of them as it is" if known else "Name none"
            raise ValueError(
                f"no target language {', '.join(unknown)}; this model translates into {known or 'one, unnamed'}. {fix}."
            )
        ids = [len(self.target_token_ids) + known.index(language) for language in languages]
        device = self.target_token_ids.device  # that of the weights is "meta" where accelerate offloads them
        return torch.tensor(ids, dtype=torch.long, device=device)

    def set_default_ids(self) -> None:
        """Start translations with the model's only language, or with `</s>`; of several languages none is a default.

        Of special tokens a config.json has the tokenizer's ids, and HF's Trainer writes those into `generation_config`,
        for the end in front of the ids there; target ids replace them.
        """
        languages, settings = self.config.target_languages or [], self.generation_config
        for name in ("bos_token_id", "pad_token_id", "eos_token_id"):
            value, of_tokenizer, own = (getattr(each, name) for each in (settings, self.config, self.decoder.config))
            if isinstance(value, list) and value[:1] == [of_tokenizer] != [own]:
                setattr(settings, name, value[1:] if len(value) > 2 else (value[1:] or [own])[0])
            elif value == of_tokenizer:
                setattr(settings, name, own)
        if settings.decoder_start_token_id is None and len(languages) < 2:
            settings.decoder_start_token_id = len(self.target_token_ids) if languages else self.end_id

    def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None:
        """Like the parent, but a checkpoint without generation settings, such as XLM-R's, keeps the start id."""
        super().adjust_generation_fn(*args, **kwargs)
        self.set_default_ids()

    def default_start_id(self) -> int:
        """The start id of examples without a language.

        Raises:
            ValueError: the model has several target languages and none was set.
        """
        start = self.generation_config.decoder_start_token_id
        if start is None:
            raise ValueError(
                f"this model translates into {self.config.target_languages}; choose one: generate(..., "
                "target_language=...), forward(..., start_ids=model.start_ids_of([...])), or for every call by "
                "generation_config.decoder_start_token_id"
            )
        return int(start)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor, start_ids: Tensor | None = None) -> Tensor:
        """(n, T) target ids: the labels (n, T), tokenizer ids, shifted right behind the start ids (n,)."""
        before = self.target_ids(labels).new_empty(labels.shape)
        before[:, 0] = self.default_start_id() if start_ids is None else start_ids
        before[:, 1:] = self.target_ids(labels[:, :-1])
        return before.masked_fill(before < 0, self.padding_id)


def checked_target_ids(ids: Sequence[int] | None, family: Family, vocab_size: int) -> list[int]:
    """The tokenizer ids of a new decoder; `ValueError` if they are not laid out as `from_encoder` says."""
    if ids is None and family.special_ids is None:
        raise ValueError(
            f"target_token_ids are not given, and an encoder of {family.title} does not name its special tokens; make "
            "them by hictl_hf.translation.choose_target_ids(texts, tokenizer)"
        )
    found = [*range(vocab_size)] if ids is None else [int(number) for number in ids]  # those of a model are a tensor
    special, words = found[:SPECIALS], found[SPECIALS:]
    layout = [*family.special_ids] if family.special_ids else special
    ascending = all(a < b for a, b in zip(words, words[1:])) and not {*special} & {*words}
    if special != layout or len(special) < SPECIALS or not ascending or not all(0 <= n < vocab_size for n in found):
        first = ", ".join(map(str, layout)) if family.special_ids else "the ids"
        raise ValueError(
            f"target_token_ids are {found[:5]} … {found[-1:]}; they must be tokenizer ids below {vocab_size}: first "
            f"{first} (of begin, padding, end, unknown), then others, ascending, each once"
        )
    return found
