"""Results of a pre-training run, complete, incomplete and hostile, as `results.json` records them."""

from typing import Any

from hictl_hf.pretraining.results import PretrainingResults

RESULTS: dict[str, Any] = {
    "retrieval": {
        "untrained": 9.0,
        "hictl": 52.5,
        "per_language": {
            "sw": {"untrained": 10.0, "hictl": 5.0, "sentences": 250},
            "de": {"untrained": 8.0, "hictl": 100.0, "sentences": 1000},
        },
        "protocol": {
            "metric": "nearest-neighbour accuracy",
            "untrained": {"layer": 0, "mode": "mean"},
            "hictl": {"layer": 4, "mode": "projection"},
            "selected_on": "dev",
        },
    },
    "pairs": 91234,
    "languages": 2,
    "language_codes": ["de", "en", "sw"],
    "train_seconds": 341.2,
    "history": [{"step": 10, "lm_loss": 3.25, "negatives_per_anchor": 126}, {"step": 20, "lm_loss": 2.125}],
    "evaluations": [{"step": 10, "retrieval": 20.1}],
    "corpus": {"kept": {"en-de": 90000, "en-sw": 1234}, "skipped": {"duplicate": 12}, "changed": {"mnemonics": 7}},
    "settings": {
        "config": {"lm_weight": 1.0, "word_weight": 0, "sentence_temperature": 0.05},
        "training": {"seed": 42},
    },
    "versions": {"torch": "2.13.0"},
    "seed": 42,
    "command": "python run_pretraining.py --corpus corpus.jsonl",
    "data_hash": "sha256:abc",
}
ADAPTED: dict[str, Any] = {
    **RESULTS,
    "start": {"kind": "sentence encoder", "pooling": {"layer": 4, "mode": "mean"}, "prompt": "query: "},
    "guard": {
        "untrained": 70.0, "hictl": 71.5, "per_language": {"hi": {"untrained": 70.0, "hictl": 71.5, "sentences": 250}}
    },
    "settings": {"config": {}, "training": {"encoder": "someone/encoder"}},
    "interpolation": {"share": 0.75, "grid": [{"share": 0.0, "dev": 9.0, "guard": 70.0}]},
}  # fmt: skip
REQUIRED: dict[str, Any] = {"history": [], "corpus": {}}
INCOMPLETE: dict[str, dict[str, Any]] = {
    missing: {key: value for key, value in RESULTS.items() if key != missing} for missing in RESULTS.keys() - REQUIRED
} | {"all": REQUIRED}
ATTACK = '"><script>alert(1)</script>'
ATTACKED: dict[str, Any] = {
    **RESULTS,
    "retrieval": {"hictl": 1.0, "per_language": {ATTACK: {"untrained": 1.0, "hictl": 1.0}}},
    "corpus": {"kept": {ATTACK: 1}, "skipped": {ATTACK: 1}, "changed": {ATTACK: 1}},
    "settings": {ATTACK: {ATTACK: ATTACK}},
    "versions": {ATTACK: ATTACK},
    "command": ATTACK,
    "before_label": ATTACK,
    "data_hash": ATTACK,
}


def typed(values: dict[str, Any]) -> PretrainingResults:
    return PretrainingResults.from_dict({"schema_version": 1} | values)
