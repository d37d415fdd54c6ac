"""The systems of the adaptation study: how each continues the start, as a table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hictl_hf import HictlConfig
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.pretraining.start import ENCODER, Start

from .pretraining import ROOT

OURS, PARTS, OTHERS = "hictl_hf", "hictl_hf with one change", "sentence-transformers"
START = "start"
REFERENCE = "st-mnrl"  # with what rows that do not change the recipe are compared, in addition to the start
THREE, ONE = (1, 2, 3), (1,)
MINED, SIMILAR = "mined", "similar"
USUAL_RATE = 5e-5  # of sentence-transformers
EXAMPLES = ("cleaning", "max_seq_length", "pair_alpha", "per_device_train_batch_size")  # settings of the recipe


@dataclass(frozen=True)
class System:
    """A row of the study.

    Attributes:
        section: of the table: `OURS`, `PARTS`, or `OTHERS`, which sentence-transformers trains.
        config_overrides, settings: changes of the recipe, the first ones of its `config_overrides`. With "max_steps"
            the row has these steps, not those of the minutes.
        loss, loss_settings: name and arguments of a loss of sentence-transformers.
        harder: what makes its negatives harder: `MINED` ones, as `mine_hard_negatives` finds them, or the batches of
            `SIMILAR` pairs that the recipe has.
        dropout: of sentence-transformers' training, instead of the encoder's.
        score_trained: also test the trained weights that are not averaged with the start.
        mine: also test BUCC, which takes half as long as all others.
    """

    label: str
    section: str = PARTS
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    loss: str = ""
    loss_settings: Mapping[str, Any] = field(default_factory=dict)
    harder: str = ""
    dropout: float | None = None
    seeds: tuple[int, ...] = ONE
    recipe: str = "studies/recipes/at_random.json"
    score_trained: bool = False
    mine: bool = False


ALL_LOSSES = {"lm_weight": 1.0, "sentence_weight": 1.0, "word_weight": 1.0}
PAPER_VECTOR = {"sentence_pooling": "cls", "sentence_projection": True}
CONTRAST, FOUR = "MultipleNegativesRankingLoss", ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
BOTH_DIRECTIONS = {"scale": 20.0, "directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
OUR_RATE = {"learning_rate": 1e-4}


def by_contrast(label: str, **changes: Any) -> System:
    """Return a row that sentence-transformers trains by its contrast of pairs, unless changed in both directions."""
    changes = {"loss": CONTRAST, "loss_settings": BOTH_DIRECTIONS, **changes}
    return System(label, OTHERS, **changes)


# The settings of docs/results.md before, in fp32 as the others; its language-model head was not taught alone first.
PUBLISHED = {"bf16": False, "save_strategy": "no", "lm_head_warmup_steps": 0}
SYSTEMS = {
    START: System("the start, unchanged", START, seeds=(0,), mine=True),
    "similar-other-side": System("recipes/adapt.json", OURS, recipe="recipes/adapt.json", seeds=THREE, mine=True),
    "similar-pairs": System(
        "recipes/adapt.json, negatives of both sides",
        OURS,
        config_overrides={"same_side_negatives": True},
        recipe="recipes/adapt.json",
        seeds=THREE,
        mine=True,
    ),
    "ours": System("the same, pairs at random", OURS, seeds=THREE, mine=True),
    "with-lm": System("with the language model", config_overrides={"lm_weight": 1.0}),
    "with-word": System("with the word level", config_overrides={"word_weight": 1.0}),
    "all-losses": System("all losses (the paper)", config_overrides=ALL_LOSSES),
    "hard-negatives": System("with hard negatives", config_overrides={"hard_negatives": True}),
    "no-hard-negatives": System("without hard negatives", config_overrides={"hard_negatives": False}),
    "other-side-only": System("negatives of the other side only", config_overrides={"same_side_negatives": False}),
    "first-token": System("a new projection of the first token (the paper)", config_overrides=PAPER_VECTOR),
    "temperature-0.02": System(
        "sentence temperature 0.02 for 0.05", config_overrides={"sentence_temperature": 0.02}, seeds=THREE
    ),
    "frozen-words": System("word embeddings not trained", settings={"freeze_word_embeddings": True}),
    "published": System(
        "the study before: the paper's losses and vector, rate 1e-4, 400 steps",
        config_overrides=ALL_LOSSES | PAPER_VECTOR | {"hard_negatives": True},
        settings=PUBLISHED,
        recipe="studies/recipes/continued.json",
        score_trained=True,
    ),
    "st-mnrl": by_contrast("both directions", seeds=THREE, mine=True),
    "st-mnrl-1e-4": by_contrast("both directions, rate 1e-4", settings=OUR_RATE),
    "st-scale-50": by_contrast(
        "both directions, scale 50 for 20 (temperature 0.02)", loss_settings=BOTH_DIRECTIONS | {"scale": 50.0}
    ),
    "st-gte": by_contrast(
        "also negatives of the same side (GTE)",
        loss_settings={"scale": 20.0, "directions": FOUR, "partition_mode": "joint"},
    ),
    "st-mined": by_contrast("both directions, mined hard negatives", harder=MINED),
    "st-similar": by_contrast("both directions, batches of similar pairs", harder=SIMILAR, seeds=THREE),
    "st-similar-1e-4": by_contrast(
        "both directions, batches of similar pairs, rate 1e-4", settings=OUR_RATE, harder=SIMILAR, seeds=THREE
    ),
    "st-similar-1e-4-no-dropout": by_contrast(
        "both directions, batches of similar pairs, rate 1e-4, dropout 0",
        settings=OUR_RATE,
        harder=SIMILAR,
        dropout=0.0,
        seeds=THREE,
    ),
    "st-cached": by_contrast(
        "both directions, 64 pairs a step (gradient cache)",
        settings={"per_device_train_batch_size": 64},
        loss=f"Cached{CONTRAST}",
        loss_settings=BOTH_DIRECTIONS | {"mini_batch_size": 16},
    ),
    "st-distill": System("distillation from the English side", OTHERS, loss="MSELoss"),
}


def recipe_of(name: str) -> dict[str, Any]:
    """Return the settings of a row; those of sentence-transformers use its data, length and pairs a step."""
    system = SYSTEMS[name]
    recipe: dict[str, Any] = json.loads((ROOT / system.recipe).read_text("utf-8"))
    if system.recipe != SYSTEMS["published"].recipe:
        recipe.pop("max_steps", None)  # the minutes decide
    recipe.pop("keep_start", None)  # all systems are averaged with the start in the same way
    if system.section == OTHERS:
        recipe["learning_rate"] = USUAL_RATE
    return {
        **recipe,
        **system.settings,
        "config_overrides": {**recipe.get("config_overrides", {}), **system.config_overrides},
    }


def settings_of(name: str) -> dict[str, Any]:
    """Return what decides the training of a row, as plain values: its recipe, and its loss if it has one."""
    changes = loss_of(name) if SYSTEMS[name].loss else {}
    settings: dict[str, Any] = {} if name == START else json.loads(json.dumps(recipe_of(name) | changes))
    return settings


def loss_of(name: str) -> dict[str, Any]:
    """Return what a row of sentence-transformers learns by."""
    system = SYSTEMS[name]
    changes: dict[str, Any] = {"harder": system.harder} if system.harder else {}
    if system.dropout is not None:
        changes["encoder_dropout"] = system.dropout
    return {"loss": system.loss, "loss_settings": dict(system.loss_settings), **changes}


def repeats_ours(name: str) -> bool:
    """Whether a row has the settings of "ours", which depend on the recipe."""
    system, given = SYSTEMS[name], recipe_of("ours")["config_overrides"]
    usual = HictlConfig().to_dict() | Start(ENCODER, Pooling("mean", 12)).config_overrides | given
    changed = any(usual[field] != value for field, value in system.config_overrides.items())
    return system.section == PARTS and not changed and not system.settings
