"""What a translation model does with single sentences: which words [CLS] proposes, and where the decoder looks. This
module decides which sentences are shown and what counts as a proposal; where it is shown is left to
`translation_report.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..reports.page import Picture
from ..reports.tables import Cell, Table
from .plots import plot_attention

PROPOSALS = 10  # for each sentence
PIECES = 30  # at most, on either side of a sentence that is shown
SPECIAL = 4  # <s> <pad> </s> <unk>, in all vocabularies
SIDES = {"target": "reference", "translation": "translation"}
Row = Mapping[str, str]


def look_into(
    model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    languages: Sequence[str],
    path: Path,
) -> Iterator[Table | Picture]:
    """What the model does with a bad, a middling and a good translation among those that are short enough to be shown.

    Args:
        model: is put into eval mode.
        rows: `direction`, `source`, `target` and `translation`, from bad to good.
        languages: target language of each row.
        path: of the picture.
    """
    model.eval()
    sides = [tokenizer([row[key] for row in rows])["input_ids"] for key in ("source", "translation")] if rows else []
    short = [at for at, both in enumerate(zip(*sides)) if max(map(len, both)) <= PIECES]
    if short and model.config.cls_bias != "none":
        yield proposal_table(model, tokenizer, [rows[short[len(short) * quarter // 4]] for quarter in (1, 2, 3)])
    if short:
        middle = short[len(short) // 2]
        yield attention_picture(model, tokenizer, rows[middle], languages[middle], path)


@torch.inference_mode()
def proposal_table(
    model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row]
) -> Table:
    """For each row the pieces whose logits [CLS] raises most, and where they stand; the model is in eval mode."""
    sections: dict[str, list[list[Cell]]] = {}
    for row in rows:
        source = tokenizer(row["source"], return_tensors="pt").to(model.device)
        states = model.roberta(**source).last_hidden_state
        bias = model.word_bias(states, source["attention_mask"])
        assert bias is not None
        words = torch.ones_like(bias[0], dtype=torch.bool)
        words[[*range(SPECIAL), *(model.generation_config.suppress_tokens or ())]] = False
        places = words.nonzero().flatten()
        values, best = (bias[0, places] - bias[0, places].mean()).topk(min(PROPOSALS, len(places)))
        ids = model.token_ids(places[best]).tolist()
        sides = {name: set(tokenizer(row[key])["input_ids"]) for key, name in SIDES.items()}
        cells = []
        for piece, number, value in zip(tokenizer.convert_ids_to_tokens(ids), ids, values.tolist()):
            where = [name for name, side in sides.items() if number in side]
            bar = "━" * round(20 * value / max(values[0].item(), 1e-9))
            cells.append([Cell(piece, strong=bool(where)), Cell(f"{value:.3g}"), Cell(bar), Cell(" and ".join(where))])
        sections[f"{row['direction']}: {row['source']}"] = cells
    caption = (
        "By how much [CLS] raises the logit of a piece of a word above the mean of all pieces, at every step, with "
        f"γ = {float(model.bias_scale()):.3g}. Bold: pieces that do stand in the reference or the translation. ▁ is "
        "where a word begins."
    )
    heads = [Cell("piece"), Cell("raised by"), Cell(""), Cell("stands in")]
    return Table("Words that [CLS] proposes", caption, heads, sections)


@torch.inference_mode()
def attention_picture(
    model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, row: Row, language: str, path: Path
) -> Picture:
    """Where the decoder looks as it says the translation of a row; the model is in eval mode."""
    source = tokenizer(row["source"], return_tensors="pt").to(model.device)
    labels = tokenizer(row["translation"], return_tensors="pt")["input_ids"][:, 1:].to(model.device)
    start = model.start_ids_of([language]) if model.config.target_languages else None
    attention = model.decoder.config._attn_implementation
    model.decoder.set_attn_implementation("eager")  # the others keep no weights
    try:
        states = model.roberta(**source)
        given = {"attention_mask": source["attention_mask"], "encoder_outputs": states, "output_attentions": True}
        looked = model(labels=labels, start_ids=start, **given).cross_attentions
    finally:
        model.decoder.set_attn_implementation(attention)
    weights = torch.cat(looked).float().mean((0, 1)).cpu().numpy()  # (target, source), of all layers and heads
    pieces = [tokenizer.convert_ids_to_tokens(ids[0].tolist()) for ids in (source["input_ids"], labels)]
    caption = (
        f"Rows: the pieces of the translation, each as it is about to be said; columns: those of the source. Darker: "
        f"more attention, mean over layers and heads. Source: {row['source']} Translation: {row['translation']}"
    )
    return Picture("Where the decoder looks", caption, plot_attention(weights, pieces[0], pieces[1], path))
