"""Values of the arguments of the model and the data: lists of names, files at a revision."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from hub_stub import serve

from hictl_hf.errors import BadInput
from hictl_hf.training.model_and_data import DataArguments, ModelArguments, at_revision, make_lists


def test_files_at_a_revision_are_those_that_a_model_needs(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"w", "pytorch_model.bin": b"p", "1_Pooling/config.json": b"{}"}
    with serve() as hub:
        hub.add("me/x", files, "a" * 40)
        args = ModelArguments("me/x", model_revision="v2")
        folder = Path(str(args.checkpoint))
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert found == {*files} - {"pytorch_model.bin"} and args.tokenizer_source == str(folder)
        assert ("GET", "/api/models/me/x/revision/v2") in hub.requests
        with pytest.raises(BadInput, match="me/nowhere at v2: .*allowed is a name on the Hub and its revision"):
            at_revision("me/nowhere", "v2")
        asked = len(hub.requests)
        assert ModelArguments("me/x").checkpoint == "me/x" and at_revision(str(tmp_path), "v2") == str(tmp_path)
        assert ModelArguments("me/x", "me/t").tokenizer_source == "me/t" and len(hub.requests) == asked


PAIRS = Dataset.from_list([{"en": "the house", "de": "das Haus"}])


@pytest.mark.parametrize("rows", [PAIRS, [PAIRS], PAIRS.to_pandas(), [*PAIRS]])
def test_rows_in_memory_are_refused_where_sources_are_named(rows: Any) -> None:
    with pytest.raises(BadInput, match=r"train_file is .*, of type \w+; allowed is a list of names. Write rows in mem"):
        make_lists(SimpleNamespace(train_file=rows), ["train_file"])


@dataclass
class Both(DataArguments):
    test_file: list[str] = field(default_factory=list)


def test_a_dataset_stands_for_the_sources_that_are_not_given() -> None:
    args = Both(dataset_name="me/data", validation_file=["mine"])
    args.check_data_arguments({"validation_file": "validation", "test_file": "test"})
    assert (args.train_file, args.validation_file, args.test_file) == (
        ["hub:me/data"], ["mine"], ["hub:me/data::test"]
    )  # fmt: skip
    assert args.dataset_name is None  # the same settings as with its sources


@pytest.mark.parametrize("name", ["max_train_samples", "preprocessing_num_workers"])
def test_numbers_of_examples_and_processes_are_1_or_more(name: str) -> None:
    DataArguments(**{name: 1}).check_data_arguments()  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=f"{name} is 0; allowed is 1 or more. Leave it out for no limit"):
        DataArguments(**{name: 0}).check_data_arguments()  # type: ignore[arg-type]


def test_a_path_is_one_source() -> None:
    args = DataArguments(train_file=Path("a"), validation_file="bc")  # type: ignore[arg-type]
    make_lists(args, ("train_file", "validation_file"))
    assert (args.train_file, args.validation_file) == (["a"], ["bc"])
