"""Scripts that import modules of 0.7.5 run, and are told where things are now."""

import importlib
import sys
from pathlib import Path

import pytest

from hictl_hf import errors
from hictl_hf.data import cleaning, tokenization
from hictl_hf.former_names import MODULES, NAMES

PACKAGE = Path(errors.__file__).parent


def test_each_former_module_stands_for_one_of_today() -> None:
    assert len(MODULES) > 80
    for former, module in MODULES.items():
        assert not (PACKAGE / f"{former}.py").exists() and not (PACKAGE / former).exists(), former
        assert (PACKAGE / module.replace(".", "/")).with_suffix(".py").is_file(), module


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("readers", "BadInput", errors.BadInput),
        ("corpus", "Cleaning", cleaning.Cleaning),
        ("tokenization", "train_tokenizer", tokenization.train_tokenizer),
        ("readers", "shown", errors.short_repr),
    ],
)
def test_its_names_are_those_of_today(module: str, name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"hictl_hf.{module}", raising=False)
    with pytest.warns(DeprecationWarning, match=f"hictl_hf.{module} is hictl_hf.data.[a-z]+ since release 0.7.6"):
        found = importlib.import_module(f"hictl_hf.{module}")
    assert getattr(found, name) is value and name in {*NAMES, name}
    monkeypatch.delattr("hictl_hf." + module, raising=False)


def test_what_never_was_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hictl_hf.no_such_module")
    with pytest.raises(AttributeError, match="nor has hictl_hf.data.formats, which replaced it"):
        importlib.import_module("hictl_hf.readers").no_such_name  # noqa: B018
