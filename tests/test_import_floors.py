"""Imports go down: mathematics, then model and data, then evaluation and trainer, then the run."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hictl_hf"
FLOORS = {
    0: "number_formats supported_versions",
    1: "configuration_hictl gathering metrics negatives neighbours packing vocabulary plotting reporting tables "
    "version paper_corpora output_layer readers",
    2: "flags lines settings losses retrieval checkpoint_sizes cli tokenization mixture report_page model_cards",
    3: "modeling_hictl corpus collators checkpoints sharding xtreme_examples xtreme_features "
    "moses raw_bitext target_vocabulary report_sections publishing completion",
    4: "embedding arguments micro_batches streams robust_training question_answering tagging xtreme_files xtreme_hub "
    "xtreme_report mining_report modeling_hictl_translation translation_corpus translation_data translation_scores",
    5: "evaluation fine_tuning xtreme_conversion xtreme_kinds beam_search score translation_inspection "
    "explanation mining mteb_evaluation sentence_transformers_files",
    6: "trainers xtreme_tasks decoding translation_arguments translation_report onnx_export",
    7: "pretraining xtreme_data xtreme_scores translation_pipeline translation_training translation_setup",
    8: "xtreme_arguments translate translation ctranslate2_export",
    9: "xtreme_models embed explain",
    10: "xtreme page mine",
    11: "__init__",
}
FLOOR = {module: floor for floor, modules in FLOORS.items() for module in modules.split()}
ON_THE_HUB = (
    "configuration_hictl",
    "gathering",
    "losses",
    "negatives",
    "packing",
    "supported_versions",
    "vocabulary",
    "modeling_hictl",
    "modeling_hictl_translation",
)


def imports(module: str) -> Iterator[tuple[int, str]]:
    """Level and name of each import, in functions too: (1, "losses") of `from .losses import x`, (0, "torch")."""
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)


def test_every_module_has_a_floor() -> None:
    assert sorted(FLOOR) == sorted(path.stem for path in PACKAGE.glob("*.py"))


@pytest.mark.parametrize("module", FLOOR)
def test_imports_go_strictly_down(module: str) -> None:
    names = [name for level, name in imports(module) if level]
    assert all(name in FLOOR for name in names), "from .x import y, no sub-packages, no from . import x"
    assert [name for name in names if FLOOR[name] >= FLOOR[module]] == []
    assert [name for level, name in imports(module) if not level and name.split(".")[0] == "hictl_hf"] == []


def test_imports_are_found_at_all() -> None:
    assert (1, "losses") in list(imports("modeling_hictl")) and (0, "torch") in list(imports("losses"))


@pytest.mark.parametrize("module", ON_THE_HUB)
def test_files_that_travel_to_the_hub_need_nothing_else(module: str) -> None:
    # packaging comes with transformers, flash_attn is optional
    allowed = {"torch", "transformers", "huggingface_hub", "packaging", "flash_attn", *sys.stdlib_module_names}
    assert {name.split(".")[0] for level, name in imports(module) if not level} <= allowed
    assert {name for level, name in imports(module) if level} <= set(ON_THE_HUB)
    # transformers looks for relative imports by their text, wherever it stands, and copies what it finds
    text = (PACKAGE / f"{module}.py").read_text("utf-8")
    found = re.findall(r"(?:from|import)\s+\.(\w*)", text)
    assert sorted(found) == sorted(name for level, name in imports(module) if level), "one is in a docstring"
