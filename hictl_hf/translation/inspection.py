"""A translation model's behaviour on single sentences: the tokens that the [CLS] bias proposes, and the attention."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..data.layout import pieces_shown
from ..data.text_encoding import encode_texts
from ..models.configuration_decoder import SPECIALS
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..reports.page import Picture
from ..reports.tables import Cell, Table
from ..training.eval_mode import eval_mode
from .plots import plot_attention

PROPOSALS = 10  # for each sentence
MAX_TOKENS = 30  # on either side of a sentence that is shown
SIDES = {"target": "reference", "translation": "translation"}
Row = Mapping[str, str]


def look_into(
    model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    languages: Sequence[str],
    path: Path,
) -> list[Table | Picture]:
    """Show the tokens that [CLS] proposes for a bad, a medium and a good translation, and the attention of one.

    The attention is that of the medium one. Sentences of more than `MAX_TOKENS` tokens are skipped; the list is empty
    if none remain.

    Args:
        rows: `direction`, `source`, `target` and `translation`, from bad to good.
        languages: target language of each row.
        path: of the picture.
    """
    texts = [[row[key] for row in rows] for key in ("source", "translation")] if rows else []
    sides = [encode_texts(tokenizer, side)["input_ids"] for side in texts]
    short = [index for index, both in enumerate(zip(*sides)) if max(map(len, both)) <= MAX_TOKENS]
    if not short:
        return []
    middle, blocks = short[len(short) // 2], list[Table | Picture]()
    with eval_mode(model):
        if model.config.cls_bias != "none":
            shown = [rows[short[len(short) * quarter // 4]] for quarter in (1, 2, 3)]
            blocks.append(proposal_table(model, tokenizer, shown))
        blocks.append(attention_picture(model, tokenizer, rows[middle], languages[middle], path))
    return blocks


def encode_source(
    model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, row: Row
) -> dict[str, Tensor]:
    """The ids and the mask of the source of a row."""
    encoding = encode_texts(tokenizer, row["source"], return_tensors="pt").to(model.device)
    return {name: encoding[name] for name in ("input_ids", "attention_mask")}


@torch.inference_mode()
def proposal_table(
    model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]
) -> Table:
    """Tabulate for each row the tokens whose logits [CLS] raises most, and the sides they occur in.

    Args:
        model: in eval mode.
    """
    sections: dict[str, list[list[Cell]]] = {}
    pieces = pieces_shown(tokenizer)
    for row in rows:
        source = encode_source(model, tokenizer, row)
        states = model.get_encoder()(**source).last_hidden_state
        bias = model.word_bias(states, source["attention_mask"])
        assert bias is not None
        allowed = torch.ones_like(bias[0], dtype=torch.bool)
        allowed[[*range(SPECIALS), *(model.generation_config.suppress_tokens or ())]] = False
        indices = allowed.nonzero().flatten()
        values, best = (bias[0, indices] - bias[0, indices].mean()).topk(min(PROPOSALS, len(indices)))
        ids = model.token_ids(indices[best]).tolist()
        sides = {name: set(encode_texts(tokenizer, row[key])["input_ids"]) for key, name in SIDES.items()}
        cells = []
        for token_id, value in zip(ids, values.tolist()):
            where = [name for name, side in sides.items() if token_id in side]
            bar = "━" * round(20 * value / max(values[0].item(), 1e-9))
            cells.append(
                [Cell(pieces[token_id], strong=bool(where)), Cell(f"{value:.3g}"), Cell(bar), Cell(" and ".join(where))]
            )
        sections[f"{row['direction']}: {row['source']}"] = cells
    caption = (
        "By how much [CLS] raises the logit of a token above the mean of all tokens, at every step, with "
        f"γ = {float(model.bias_scale()):.3g}. Bold: tokens that occur in the reference or the translation. ▁ is "
        "where a word begins."
    )
    heads = [Cell("token"), Cell("raised by"), Cell(""), Cell("occurs in")]
    return Table("Words that [CLS] proposes", caption, heads, sections)


@torch.inference_mode()
def attention_picture(
    model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, row: Row, language: str, path: Path
) -> Picture:
    """Draw the attention of the decoder to the source while it produces the translation of a row.

    Args:
        model: in eval mode; its attention implementation is the same afterwards.
    """
    source = encode_source(model, tokenizer, row)
    labels = encode_texts(tokenizer, row["translation"], return_tensors="pt")["input_ids"][:, 1:].to(model.device)
    start = model.start_ids_of([language]) if model.config.target_languages else None
    attention = model.decoder.config._attn_implementation
    model.decoder.set_attn_implementation("eager")  # the other implementations return no weights
    try:
        states = model.get_encoder()(**source)
        given = {"attention_mask": source["attention_mask"], "encoder_outputs": states, "output_attentions": True}
        attention_weights = model(labels=labels, start_ids=start, **given).cross_attentions
    finally:
        model.decoder.set_attn_implementation(attention)
    # (target tokens, source tokens), the mean over layers and heads
    weights = torch.cat(attention_weights).float().mean((0, 1)).cpu().numpy()
    pieces = pieces_shown(tokenizer)
    tokens = [[pieces[number] for number in ids[0].tolist()] for ids in (source["input_ids"], labels)]
    caption = (
        f"Rows: the tokens of the translation, each when it is predicted; columns: those of the source. Darker: "
        f"more attention, mean over layers and heads. Source: {row['source']} Translation: {row['translation']}"
    )
    return Picture("Where the decoder looks", caption, plot_attention(weights, tokens[0], tokens[1], path))
