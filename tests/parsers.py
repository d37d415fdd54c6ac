"""The arguments of a run, from flags, or from a recipe and flags that override it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from hictl_hf.parsing import parse_flags_or_recipe
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.translation.arguments import TranslationArguments
from hictl_hf.xtreme.arguments import XtremeArguments

parse_arguments = partial(parse_flags_or_recipe, kind=PretrainingArguments)
parse_translation_arguments = partial(parse_flags_or_recipe, kind=TranslationArguments)
parse_xtreme_arguments = partial(parse_flags_or_recipe, kind=XtremeArguments)


def write_recipes(folder: Path, **recipes: dict[str, Any]) -> None:
    for name, recipe in recipes.items():
        (folder / f"{name}.json").write_text(json.dumps(recipe), "utf-8")
