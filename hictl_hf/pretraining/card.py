"""The model cards of a pre-training run: the READMEs of its model and of its plain encoder on the Hub."""

import json
import math
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ..embedding.pooling import chosen_prompt, own_max_length, own_normalize, own_pooling
from ..hub.cards import (
    YOUR_FOLDER,
    YOUR_REPOSITORY,
    how_it_was_made,
    language_codes,
    licence_and_citation,
    markdown_table,
    name_on_the_hub,
    render_card,
    sentence_transformers_snippet,
    tags_of,
)
from ..models.families import Family, family_recorded
from ..reports.tables import escape_markdown
from .results import HEADS, METRIC, PretrainingResults, data_sentence, headline, lead

TEMPLATE = Path(__file__).with_name("model_card.md")
ENCODER_TEMPLATE = Path(__file__).with_name("encoder_card.md")
TEXTS = ("Good morning.", "Guten Morgen.")
OBJECTIVES = (  # name in the configuration, on the card, and the field of its temperature
    ("lm", "masked and translation language model, L_LM", None),
    ("sentence", "sentence-level contrast with hard negatives, L_S", "sentence_temperature"),
    ("word", "word-level contrast, L_W", "word_temperature"),
)


def model_card(results: PretrainingResults) -> str:
    """The README of the model: metadata, scores with their protocol, data, settings, limits and use."""
    return render_card(
        TEMPLATE,
        card_metadata(results),
        headline=escape_markdown(headline(results)),
        fill_masks="to fill masks, " if _fills_masks(results) else "",
        lead=escape_markdown(lead(results)),
        before=escape_markdown(results.before_label),
        scores=markdown_table(HEADS, (accuracy.cells(name) for name, accuracy in results.by_accuracy())),
        guard=markdown_table(HEADS, (row.cells(name) for name, row in results.guard.by_accuracy()))
        if results.guard
        else "",
        data=escape_markdown(data_sentence(results)),
        rows=markdown_table(("languages", "rows"), kept.items()) if (kept := results.corpus.kept) else "",
        objectives=markdown_table(("objective", "weight", "temperature", "loss at the end"), _objectives(results)),
        negatives=escape_markdown(_negatives(results)),
        scored="the sentences given for it (validation_file)"
        if results.training.get("validation_file")
        else "held-out sentences of the training corpus",
        noise=escape_markdown(_noise(results)),
        architecture=_family(results).title,
        snippet=transformers_snippet(YOUR_REPOSITORY, results),
        pooling=escape_markdown(_pooling(results)),
        sentence_transformers=sentence_transformers_snippet(YOUR_REPOSITORY, ", trust_remote_code=True"),
        name=json.dumps(YOUR_REPOSITORY),
        repository=YOUR_REPOSITORY,
        made=how_it_was_made(results),
        citation=licence_and_citation(),
    )


def encoder_card(results: PretrainingResults, config: Any, pooler: bool) -> str:
    """The README of the plain encoder.

    Args:
        config: of the model, which says how sentences are read.
        pooler: whether the projection is the encoder's pooler (`encoder_export.has_pooler`).
    """
    metadata = ModelCardData(
        library_name="sentence-transformers", pipeline_tag="sentence-similarity", language=_languages(results) or None,
        tags=[*tags_of(_family(results)), "sentence-transformers", "feature-extraction"],
    )  # fmt: skip
    return render_card(
        ENCODER_TEMPLATE, metadata, repository=YOUR_REPOSITORY, architecture=_family(results).title,
        pooler="yes" if pooler else "",
        least_version=", 5.4 or above" if own_pooling(config).layer != config.num_hidden_layers else "",
        headline=escape_markdown(headline(results)),
        snippet=vector_snippet(YOUR_FOLDER, config, pooler), pooling=escape_markdown(_pooling(results)),
        sentence_transformers=sentence_transformers_snippet(YOUR_FOLDER), citation=licence_and_citation(),
    )  # fmt: skip


def card_metadata(results: PretrainingResults) -> ModelCardData:
    """The metadata of the model's card, with the mean accuracy as its evaluation."""
    after = results.means()[1]
    score = EvalResult(
        task_type="sentence-similarity",
        task_name="Bitext retrieval",
        dataset_type="held-out-sentence-pairs",
        dataset_name="held-out sentence pairs",
        dataset_args={"hash": results.data_hash} if results.data_hash is not None else None,
        metric_type="accuracy",
        metric_name=results.protocol.metric if results.protocol else METRIC,
        metric_value=None if after is None else round(float(after), 2),
    )
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="fill-mask" if _fills_masks(results) else "sentence-similarity",
        language=_languages(results) or None,
        tags=[
            *tags_of(_family(results)),
            "contrastive-learning",
            "sentence-embeddings",
            "sentence-transformers",
            "feature-extraction",
        ],
        model_name=YOUR_REPOSITORY.split("/")[-1],
        base_model=name_on_the_hub(results.training.get("model_name_or_path")),
        eval_results=None if after is None else [score],
    )


def transformers_snippet(repository: str, results: PretrainingResults) -> str:
    """Example code that loads a published model, or a copy of its repository, with transformers alone."""
    name = json.dumps(repository)
    return snippet_of(name, f'{name}, subfolder="encoder"', name, results)


def run_snippet(folder: str, results: PretrainingResults) -> str:
    """The same of the model in the output folder of its run."""
    encoder, model = (json.dumps(f"{folder}/{part}") for part in ("encoder", "checkpoint"))
    return snippet_of(encoder, encoder, model, results)


def snippet_of(tokenizer: str, encoder: str, model: str, results: PretrainingResults) -> str:
    """Example code, given what `from_pretrained` of each part takes."""
    texts = _texts(results.config.get("embedding_prompt") or "")
    return f"""from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({tokenizer})
batch = tokenizer({texts}, padding=True, return_tensors="pt")

# The plain {_family(results).title} encoder, to fine-tune or to pool; it needs none of our code.
encoder = AutoModel.from_pretrained({encoder})
states = encoder(**batch).last_hidden_state  # (sentences, tokens, hidden size)

# The HiCTL model with the vector that it was trained on; its code is stored with the weights.
model = AutoModelForPreTraining.from_pretrained({model}, trust_remote_code=True)
sentences = model.encode_sentences(batch["input_ids"], batch["attention_mask"])  # (sentences, r)"""


def vector_snippet(name: str, config: Any, pooler: bool) -> str:
    """Example code that embeds sentences by the plain encoder and transformers alone, read as the configuration says.

    It ends at the hidden states if the vector is a projection that the plain encoder does not have.
    """
    mode, layer = own_pooling(config)
    prompt = chosen_prompt(config)
    inner = layer != config.num_hidden_layers
    given = "[text.lower() for text in texts]" if getattr(config, "embedding_lower_case", False) else "texts"
    read = f"output_hidden_states=True).hidden_states[{layer}]" if inner else ").last_hidden_state"
    vectors = {
        "mean": """
mask = batch["attention_mask"].unsqueeze(-1)
vectors = (states * mask).sum(1) / mask.sum(1)""",
        "cls": "\nvectors = states[:, 0]",
        "projection": "\n    vectors = encoder.pooler.dense(states[:, 0])" if pooler else "",
    }[mode]
    if vectors and own_normalize(config):
        vectors += "\nvectors = torch.nn.functional.normalize(vectors)"
    return f"""import torch
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({json.dumps(name)})
encoder = AutoModel.from_pretrained({json.dumps(name)})
texts = {_texts(prompt)}
batch = tokenizer({given}, padding=True, truncation=True, max_length={own_max_length(config)}, return_tensors="pt")
with torch.no_grad():
    states = encoder(**batch{", " * inner}{read}  # (sentences, tokens, d){vectors}"""


def _texts(prompt: str) -> str:
    """The sentences of example code, each after a prompt."""
    return json.dumps([prompt + text for text in TEXTS], ensure_ascii=False)


def _fills_masks(results: PretrainingResults) -> bool:
    """Whether the run trained the language-model head; without L_LM, a sentence encoder keeps a new one."""
    return results.config.get("lm_weight") != 0


def _family(results: PretrainingResults) -> Family:
    return family_recorded(results.config)


def _languages(results: PretrainingResults) -> list[str]:
    return language_codes([*(name for name, _ in results.by_accuracy()), *(results.language_codes or ())])


def _pooling(results: PretrainingResults) -> str:
    """How a sentence vector is read: as chosen on dev, else as the configuration says."""
    chosen = results.protocol and results.protocol.hictl
    mode = chosen.mode if chosen else results.config.get("embedding_pooling") or "cls"
    layer = chosen.layer if chosen else results.config.get("embedding_layer")
    how = {"cls": "the state of the first token", "mean": "the mean of all tokens"}.get(mode, f"the {mode}")
    where = "in the last layer" if layer is None else f"at layer {layer}"
    had_a_choice = chosen and results.retrieval and results.retrieval.poolings_compared() != 1
    reason = f", as was best on {results.protocol.selected_on}" if had_a_choice and results.protocol else ""
    scaled = "" if results.config.get("embedding_normalize") is False else ", divided by its length"
    prompt = results.start.prompt if results.start else None
    before = f". {prompt!r} is put before each text" if prompt else ""
    return f"A vector is {how} {where}{reason}{scaled}{before}"


def _objectives(results: PretrainingResults) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for key, name, temperature in OBJECTIVES:
        weight, last = results.config.get(f"{key}_weight", "–"), results.last(f"{key}_loss")
        if results.config.get("hard_negatives") is False:
            name = name.replace(" with hard negatives", "")
        tau = results.config.get(temperature, "–") if temperature else "–"
        rows.append((name, "0 (off)" if weight == 0 else str(weight), str(tau), "–" if last is None else f"{last:.3f}"))
    return rows


def _negatives(results: PretrainingResults) -> str:
    config, last = results.config, results.last
    has_words, has_hard = config.get("word_weight") != 0, config.get("hard_negatives") is not False
    known = [
        (last("negatives_per_anchor"), "{:.0f} negatives for each sentence", True),
        (config.get("word_negatives"), "{} words outside the bag for each pair", has_words),
        (last("hard_negative_lambda"), "mean λ {:.2f} at the end", has_hard),
        (last("p_avg"), "p_avg {:.2f}", True),
    ]
    phrases = [phrase.format(value) for value, phrase, is_used in known if is_used and value is not None]
    return "; ".join(phrases) or "Negatives were not recorded"


def _noise(results: PretrainingResults) -> str:
    """Chance level, and the half-width of a 95% interval: 1.96 √(0.25 / n) in per cent is 98 / √n."""
    smallest = min((accuracy.sentences for _, accuracy in results.by_accuracy() if accuracy.sentences), default=None)
    if smallest is None:
        return "The size of the test sets was not recorded."
    return (
        f"The smallest test set has {smallest} sentences: chance is {100 / smallest:.1f}%, and one language may be off "
        f"by up to {98 / math.sqrt(smallest):.0f} points (95%) by the choice of sentences alone."
    )
