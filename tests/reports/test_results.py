"""Results of a run: the file, what is read back, and messages for what cannot be read."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.files import write_json
from hictl_hf.reports.results import RunResults, duration


class Place(NamedTuple):
    name: str
    layer: int


@dataclass(kw_only=True)
class Score:
    value: float | None
    place: Place | None = None


@dataclass(kw_only=True)
class ToyResults(RunResults):
    scores: dict[str, Score]
    curve: list[float | None] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    note: str | None = None


def toy(**changes: Any) -> ToyResults:
    scores = {"de": Score(value=1.5, place=Place("mean", 3)), "sw": Score(value=None)}
    return ToyResults(scores=scores, curve=[1, 2.5, None], logs=[{"step": 1, "any": [True]}], seed=5, **changes)


def written(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(toy().as_dict())) | changes


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = toy().write(tmp_path)
    assert path == tmp_path / "results.json" and list(tmp_path.iterdir()) == [path]
    assert ToyResults.read(path) == ToyResults.read(tmp_path) == toy()
    values = json.loads(path.read_text("utf-8"))
    assert values["schema_version"] == 1 and "note" not in values  # None by default, and None
    assert values["scores"] == {
        "de": {"value": 1.5, "place": {"name": "mean", "layer": 3}}, "sw": {"value": None}
    }  # fmt: skip
    assert ToyResults.from_dict(toy(note="x").as_dict()).note == "x"


def test_nan_is_read_as_none(tmp_path: Path) -> None:
    results = toy()
    results.scores["de"].value = math.nan
    results.write(tmp_path)
    assert ToyResults.read(tmp_path).scores["de"].value is None


def test_unknown_fields_of_the_same_schema_are_ignored() -> None:
    assert ToyResults.from_dict(written(more=[1])) == toy()


MISMATCHED: dict[str, tuple[Any, str]] = {
    "another schema": (written(schema_version=2), "schema_version is 2; allowed is 1. Read it with the release that"),
    "no object": ([1, 2], r"is \[1, 2\]; allowed is an object, the results of a training script"),
    "a missing field": ({"schema_version": 1}, "scores is missing; allowed is an object"),
    "a text for a number": (written(scores={"de": {"value": "7"}}), "scores.de.value is '7'; allowed is a number"),
    "a truth for a number": (written(seed=True), "seed is True; allowed is an integer"),
    "a number for a list": (written(curve=3), "curve is 3; allowed is a list"),
    "a text in a list": (written(curve=[1, "x"]), r"curve\[1\] is 'x'; allowed is a number"),
    "null for a record": (written(scores={"de": None}), "scores.de is None; allowed is an object"),
    "half a record": (
        written(scores={"de": {"value": 1, "place": {"name": "x"}}}),
        "scores.de.place.layer is missing; allowed is an integer",
    ),
    "an older release": ({"seed": 1}, r"\(no schema_version: of hictl_hf 0.7.5 or older\): scores is missing"),
}


@pytest.mark.parametrize("case", MISMATCHED)
def test_what_cannot_be_read_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    values, message = MISMATCHED[case]
    path = write_json(tmp_path / "results.json", values)
    with pytest.raises(BadInput, match=message) as refusal:
        ToyResults.read(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("text", [None, "[1, 2"], ids=["no file", "no JSON"])
def test_a_file_that_is_none_is_refused(text: str | None, tmp_path: Path) -> None:
    if text:
        (tmp_path / "results.json").write_text(text, "utf-8")
    with pytest.raises(BadInput, match="results.json: cannot be read .*; allowed is the results.json of a training"):
        ToyResults.read(tmp_path)


def test_settings_are_grouped_and_the_signature_names_versions_seed_and_data() -> None:
    results = toy(settings={"config": {"a": 1}, "training": {}}, versions={"torch": "2.13.0"}, data_hash="abc")
    assert results.setting_groups() == {"config": {"a": 1}}
    assert results.signature() == "torch 2.13.0 · seed 5 · data abc"


def test_a_duration_has_one_unit() -> None:
    assert [duration(seconds) for seconds in (119.6, 120, 7199, 7200)] == [
        "120 seconds", "2.0 minutes", "120.0 minutes", "2.0 hours",
    ]  # fmt: skip
    assert [duration(seconds) for seconds in (0.4, 0.9, 1.6)] == ["0 seconds", "1 second", "2 seconds"]


def test_json_keeps_the_order_of_keys_and_writes_nan_as_null(tmp_path: Path) -> None:
    path = write_json(tmp_path / "new" / "results.json", {"b": [1.5, math.nan], "a": {"λ": -math.inf}})
    assert path.read_text(encoding="utf-8").startswith('{\n  "b"')
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": [1.5, None], "a": {"λ": None}}


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "results.json", {"score": 1})
    with pytest.raises(TypeError):
        write_json(path, {"score": object()})
    assert json.loads(path.read_text()) == {"score": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_json(tmp_path / "results.json", {"score": 1})

    def fail(*paths: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("hictl_hf.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"score": 2})
    assert json.loads(path.read_text()) == {"score": 1}
    assert list(tmp_path.iterdir()) == [path]
