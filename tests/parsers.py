"""The arguments of a run, from flags, or from a recipe and flags that override it."""

from functools import partial

from hictl_hf.parsing import parse_flags_or_recipe
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.translation.arguments import TranslationArguments
from hictl_hf.xtreme.arguments import XtremeArguments

parse_arguments = partial(parse_flags_or_recipe, kind=PretrainingArguments)
parse_translation_arguments = partial(parse_flags_or_recipe, kind=TranslationArguments)
parse_xtreme_arguments = partial(parse_flags_or_recipe, kind=XtremeArguments)
