"""Hostile and damaged checkpoints: refused, or survived, before memory is taken and without running anything."""

import gzip
import json
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_stub import serve
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import (
    HictlConfig,
    HictlForConditionalGeneration,
    HictlForMaskedLM,
    HictlForPreTraining,
    HictlForTokenClassification,
    HictlModel,
    export_encoder,
)
from hictl_hf.data import lines as text_lines
from hictl_hf.data.lines import read_lines
from hictl_hf.data.records import Cursor
from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.embedding.encoder import load_encoder
from hictl_hf.errors import BadInput
from hictl_hf.hub.loading import (
    check_sizes,
    check_vocabulary,
    load_tokenizer,
    model_errors,
    parameters,
    warn_of_other_ids,
    weights_of,
)
from hictl_hf.models.configuration_hictl import config_class
from hictl_hf.models.families import FAMILIES, family_of
from hictl_hf.models.modeling_hictl import encoder_class
from hictl_hf.pretraining.dry_run import resolve_model
from hictl_hf.pretraining.start import recognise
from hictl_hf.translation.pipeline import load_translator
from hictl_hf.xtreme.arguments import XtremeArguments
from hictl_hf.xtreme.setup import load_config_and_tokenizer

MakeModel = Callable[..., PreTrainedModel]
ABSURD: dict[str, dict[str, Any]] = {
    "layers": {"num_hidden_layers": 10**9},
    "fewer layers": {"num_hidden_layers": 900},
    "words": {"vocab_size": 10**9},
    "positions": {"max_position_embeddings": 10**9},
    "hidden": {"hidden_size": 2**20},
    "beyond all bounds": {"hidden_size": 2**40, "intermediate_size": 2**62},
    "intermediate": {"intermediate_size": 10**9},
    "projection": {"projection_size": 10**9},
    "window": {"hard_negative_window": 10**12},
}


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase
) -> Path:
    """A checkpoint, its plain encoder, and a translation model."""
    folder = tmp_path_factory.mktemp("folders")
    model = model_for_text()
    model.save_pretrained(folder / "checkpoint")
    export_encoder(model, folder / "encoder")
    model_for_text(HictlForConditionalGeneration, decoder_layers=1).save_pretrained(folder / "translation")
    for name in ("checkpoint", "encoder", "translation"):
        tokenizer.save_pretrained(folder / name)
    return folder


def spoiled(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> Path:
    copied = shutil.copytree(folder, tmp_path / "spoiled")
    config = json.loads((copied / "config.json").read_text("utf-8")) | changes
    (copied / "config.json").write_text(json.dumps(config), "utf-8")
    return copied


def test_a_tokenizer_with_other_ids_than_that_of_the_model_is_logged(
    folders: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = str(folders / "checkpoint"), train_tokenizer(["of other words", "and not so many"], 50, 62)
    warn_of_other_ids(model, model, tokenizer)
    warn_of_other_ids(model, "same", load_tokenizer(model))
    (tmp_path / "without").mkdir()
    warn_of_other_ids(str(tmp_path / "without"), "other", other)
    warn_of_other_ids(None, "other", other)
    assert caplog.text == ""
    warn_of_other_ids(model, "other", other)
    assert re.search(r"other: \d+ of its \d+ ids are other pieces in the tokenizer of .*checkpoint, such", caplog.text)


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint", "encoder", "translation"])
def test_a_model_as_it_was_saved_passes(folders: Path, name: str) -> None:
    check_sizes(folders / name)


@pytest.mark.parametrize("case", ABSURD)
def test_absurd_sizes_are_refused_before_memory_is_taken(folders: Path, tmp_path: Path, case: str) -> None:
    folder = spoiled(folders / "checkpoint", tmp_path, ABSURD[case])
    tracemalloc.start()
    with pytest.raises(BadInput, match="config.json states [0-9,]+ (parameters|layers)"):
        check_sizes(folder)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    with pytest.raises(BadInput, match="config.json states"):
        load_encoder(folder)


@pytest.mark.parametrize(
    "changes", [{"decoder_layers": 10**6}, {"decoder_vocab_size": 10**9}, {"decoder_ffn_dim": 10**9}]
)
def test_absurd_decoders_are_refused(folders: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="states"):
        check_sizes(spoiled(folders / "translation", tmp_path, changes))


@pytest.mark.parametrize("cls", [HictlForPreTraining, HictlForConditionalGeneration])
def test_parameters_are_counted_but_for_biases_and_norms(model_for_text: MakeModel, cls: type) -> None:
    model = model_for_text(cls, hidden_size=64, intermediate_size=256, decoder_layers=1)
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    assert matrices == pytest.approx(parameters(model.config), rel=0.12) and parameters(model.config) <= matrices * 1.05


def test_weights_on_the_hub_are_asked_too(folders: Path, tmp_path: Path) -> None:
    with serve() as hub:
        hub.add("me/good", folders / "checkpoint", "a" * 40)
        check_sizes("me/good")
        hub.add("me/bad", spoiled(folders / "checkpoint", tmp_path, {"num_hidden_layers": 900}), "a" * 40)
        with pytest.raises(BadInput, match="me/bad: config.json states"):
            check_sizes("me/bad")
        HictlForPreTraining.from_pretrained(folders / "checkpoint").save_pretrained(
            tmp_path / "shards", max_shard_size="50KB"
        )
        hub.add("me/shards", tmp_path / "shards", "a" * 40)
        assert "model.safetensors" not in hub.repositories["me/shards"]
        check_sizes("me/shards")


LOADERS: dict[str, Callable[[str], object]] = {
    "embedding": load_encoder,
    "pre-training": recognise,
    "XTREME": lambda name: load_config_and_tokenizer(XtremeArguments(model_name_or_path=name)),
    "sizes": check_sizes,
}


def told(load: Callable[[str], object], name: str) -> str:
    with pytest.raises(BadInput) as refused:
        load(name)
    return str(refused.value).replace(name, "NAME")


def test_weights_that_are_no_safetensors_are_refused_alike_everywhere(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "encoder", tmp_path / "pickled")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with serve() as hub:
        for number, name in enumerate(("pytorch_model.bin", "model.pt", "adapter_model.safetensors", "tf_model.h5")):
            if name.endswith((".bin", ".pt")):
                torch.save(state, folder / name)
            else:
                (folder / name).write_bytes(b"0" * 99)
            hub.add(f"me/other-{number}", folder, "a" * 40)
            messages = {told(load, place) for load in LOADERS.values() for place in (str(folder), f"me/other-{number}")}
            assert len(messages) == 1 and "has no weights in safetensors" in (message := messages.pop())
            assert "Convert a masked language model by AutoModelForMaskedLM" in message
            (folder / name).unlink()


def test_other_safetensors_beside_a_pickle_are_no_weights(folders: Path, tmp_path: Path) -> None:
    """A converted BGE-M3 has `colbert_linear.safetensors` with its `pytorch_model.bin`."""
    folder = shutil.copytree(folders / "encoder", tmp_path / "bge-m3")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "colbert_linear.safetensors")
    with serve() as hub:
        hub.add("me/bge-m3", folder, "a" * 40)
        for place in (str(folder), "me/bge-m3"):
            for load in LOADERS.values():
                assert "has no weights in safetensors" in told(load, place)
            assert "has no weights in safetensors" in resolve_model("model_name_or_path", place).problem
    with pytest.raises(OSError, match="model.safetensors"):
        HictlForConditionalGeneration.from_encoder(folder)
    assert HictlForConditionalGeneration.from_encoder(folders / "encoder", decoder_layers=1)


def test_shards_that_are_missing_are_named(folders: Path, tmp_path: Path) -> None:
    model = HictlForPreTraining.from_pretrained(folders / "checkpoint")
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    shards = weights_of(str(tmp_path))
    assert len(shards) > 1 and {path.suffix for path in shards} == {".safetensors"}
    (tmp_path / "other.safetensors").write_bytes(b"")
    assert weights_of(str(tmp_path)) == shards
    shards[0].unlink()
    with pytest.raises(BadInput, match=f"lacks {shards[0].name} of model.safetensors.index.json"):
        check_sizes(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}", "utf-8")
    with pytest.raises(BadInput, match="model.safetensors.index.json: cannot be read .*weight_map"):
        check_sizes(tmp_path)


def test_an_adapter_beside_the_weights_is_refused_alike_everywhere(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "encoder", tmp_path / "adapted")
    values = {"peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "r": 4, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(values | {"base_model_name_or_path": str(folder)}))
    translator = shutil.copytree(folders / "translation", tmp_path / "translator")
    (translator / "adapter_config.json").write_text(json.dumps(values))
    with serve() as hub:
        hub.add("me/adapted", folder, "a" * 40)
        messages = {told(load, place) for load in LOADERS.values() for place in (str(folder), "me/adapted")}
    messages.add(told(load_translator, str(translator)))
    assert len(messages) == 1 and "has an adapter (adapter_config.json)" in messages.pop()


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "t5"])
@pytest.mark.parametrize("cls", [HictlModel, HictlForPreTraining, HictlForMaskedLM, HictlForConditionalGeneration])
def test_another_architecture_is_refused_by_every_class(folders: Path, tmp_path: Path, kind: str, cls: Any) -> None:
    """Its weights have the names of XLM-R's, so it would load."""
    folder = spoiled(folders / "checkpoint", tmp_path, {"model_type": kind})
    if family_of(kind) is None:
        assert kind in told(load_encoder, str(folder)) and kind in told(recognise, str(folder))
    else:  # a family that HiCTL trains, whose weights have other names, and its configuration other values
        assert re.search("has no weights for|cannot be read", told(load_encoder, str(folder)))
    if family_of(kind) is None or cls is not HictlForPreTraining:
        message = f"is a model of type '{kind}'; (HiCTL's classes load hictl|HictlConfig loads hictl and xlm-roberta)"
        with pytest.raises(ValueError, match=message):
            cls.from_pretrained(folder)


@pytest.mark.parametrize(
    "cls", [HictlModel, HictlForPreTraining, HictlForTokenClassification, HictlForConditionalGeneration]
)
@pytest.mark.parametrize("kind", ["roberta", "bert", None])
def test_a_configuration_that_is_given_does_not_hide_another_architecture(
    folders: Path, tmp_path: Path, cls: Any, kind: str | None
) -> None:
    config = HictlConfig.from_pretrained(folders / "checkpoint")
    if kind is None:  # weights of the same family, and weights of which nothing is said
        folder = spoiled(folders / "checkpoint", tmp_path, {"model_type": "xlm-roberta"})
        cls.from_pretrained(folder, config=config)
        (folder / "config.json").unlink()
        if cls is not HictlForConditionalGeneration:  # transformers looks there for what generation needs
            cls.from_pretrained(folder, config=config)
        return
    folder = spoiled(folders / "checkpoint", tmp_path, {"model_type": kind})
    with pytest.raises(ValueError, match=f"is a model of type '{kind}'; the configuration given is a HictlConfig"):
        cls.from_pretrained(folder, config=config)


@pytest.mark.parametrize("cls", [HictlModel, HictlForPreTraining, HictlConfig])
def test_the_first_argument_has_its_name_in_transformers(folders: Path, cls: Any) -> None:
    assert cls.from_pretrained(pretrained_model_name_or_path=folders / "checkpoint") is not None


@pytest.mark.parametrize("cls", [HictlModel, HictlForPreTraining, HictlForConditionalGeneration])
def test_weights_in_memory_need_no_folder(folders: Path, cls: Any) -> None:
    config = HictlConfig.from_pretrained(folders / "checkpoint")
    weights = cls(config).state_dict()
    loaded = cls.from_pretrained(pretrained_model_name_or_path=None, config=config, state_dict=weights)
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in weights.items())


def test_a_family_refuses_a_configuration_of_another_one(folders: Path) -> None:
    config = config_class("bert")(vocab_size=50, hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
    with pytest.raises(ValueError, match="is a model of type 'hictl'; the configuration given is a HictlBertConfig"):
        encoder_class(FAMILIES["bert"]).from_pretrained(folders / "checkpoint", config=config)


# --- what would be run ------------------------------------------------------------------------------------------------


class Hostile:
    """Touches a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.place,)


@pytest.mark.parametrize("name", ["checkpoint", "encoder", "translation"])
def test_a_pickle_is_never_run(folders: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(folders / name, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({"roberta.embeddings.word_embeddings.weight": Hostile(tmp_path / "run")}, folder / "pytorch_model.bin")
    load = load_translator if name == "translation" else load_encoder
    with pytest.raises(BadInput, match="has no weights in safetensors, and pickles can hold code"):
        load(folder)
    with pytest.raises(Exception, match="[Ww]eights.only|safetensors"):
        HictlForPreTraining.from_pretrained(folder)
    assert not (tmp_path / "run").exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "run").exists()  # so it would have been


CODE = "from pathlib import Path\nPath({place!r}).touch()\nclass Evil:\n    pass\n"


def test_code_in_a_checkpoint_is_not_run(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}}
    folder = spoiled(folders / "encoder", tmp_path, changes)
    (folder / "evil.py").write_text(CODE.format(place=str(tmp_path / "run")), "utf-8")
    load_encoder(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a user was asked whether to run it"))
    try:
        load_encoder(folder)
    except BadInput as refusal:
        assert "custom code" in str(refusal) or "trust_remote_code" in str(refusal)
    assert not (tmp_path / "run").exists()


def test_no_user_is_asked_whether_to_run_the_code_of_a_tokenizer(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer would be read from standard input, where `hictl translate` has the text."""
    translation = spoiled(folders / "translation", tmp_path, {})
    settings = json.loads((translation / "tokenizer_config.json").read_text("utf-8"))
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (translation / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (translation / "evil.py").write_text(CODE.format(place=str(tmp_path / "run")), "utf-8")
    alone = shutil.copytree(translation, tmp_path / "alone", ignore=shutil.ignore_patterns("config.json"))
    unknown = shutil.copytree(translation, tmp_path / "unknown")
    (unknown / "config.json").write_text('{"model_type": "x", "auto_map": {"AutoConfig": "evil.Evil"}}', "utf-8")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for load in (
        lambda: load_translator(translation),
        lambda: load_tokenizer(alone),
        lambda: load_tokenizer(unknown),
        lambda: load_config_and_tokenizer(XtremeArguments(model_name_or_path=str(unknown), output_dir=str(tmp_path))),
    ):
        with pytest.raises(BadInput, match="custom code|trust_remote_code"):
            load()
    with pytest.raises(ValueError, match="custom code|trust_remote_code"):
        check_sizes(unknown)
    assert not (tmp_path / "run").exists()


# --- text that explodes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_read_as_what_it_should_be_and_never_written(
    folders: Path, tmp_path: Path, file: str
) -> None:
    """Links are how the Hub's cache is made. One to a file of another kind is refused as such a file is."""
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0:secret\n" * 20, "utf-8")
    folder = shutil.copytree(folders / "checkpoint", tmp_path / "linked")
    real = shutil.move(folder / file, tmp_path / file)
    (folder / file).symlink_to(real)
    load_encoder(folder)
    (folder / file).unlink()
    (folder / file).symlink_to(secret)
    with pytest.raises(BadInput) as refused:
        load_encoder(folder)
    assert "secret" not in str(refused.value).replace(str(secret), "")
    assert secret.read_text("utf-8") == "root:x:0:0:secret\n" * 20


@pytest.mark.parametrize("name", ["bomb.txt.gz", "bomb.txt"])
def test_a_line_without_an_end_is_refused_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wb") as file:
        file.write(b"one\n")
        for _ in range(64):
            file.write(bytes(2**20))
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 2**20)
    tracemalloc.start()
    with pytest.raises(BadInput, match=rf"{name}:2: the line has more than 1,048,576 bytes"):
        list(read_lines(str(tmp_path / name), Cursor()))
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


def test_the_longest_line_that_is_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 6)
    (tmp_path / "text").write_bytes(b"12345\nabcde\n123456")
    assert [line for _, line in read_lines(str(tmp_path / "text"), Cursor())] == ["12345", "abcde", "123456"]
    (tmp_path / "text").write_bytes(b"12345\n1234567")
    with pytest.raises(BadInput, match="text:2: the line has more than 6 bytes"):
        list(read_lines(str(tmp_path / "text"), Cursor()))


# --- errors of loading ------------------------------------------------------------------------------------------------


def test_errors_of_loading_name_the_checkpoint() -> None:
    for error in (KeyError("gelux"), ValueError("no"), OSError("no"), RuntimeError("no"), SafetensorError("no")):
        with pytest.raises(BadInput, match="here: (no|transformers has nothing called 'gelux')"), model_errors("here"):
            raise error
    with pytest.raises(BadInput, match="^as it was$"), model_errors("here"):
        raise BadInput("as it was")
    with pytest.raises(ZeroDivisionError), model_errors("here"):
        raise ZeroDivisionError


def test_a_tokenizer_that_is_none_or_too_large_is_refused(folders: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(folders / "checkpoint")
    check_vocabulary("here", tokenizer, len(tokenizer))
    with pytest.raises(
        BadInput, match=f"here: its tokenizer has {len(tokenizer)} ids, its model 3; they do not belong"
    ):
        check_vocabulary("here", tokenizer, 3)
    for written in (None, "[]", '{"added_tokens": [], "model": {"type": "of another release"}}'):
        if written:
            tokenizer.save_pretrained(tmp_path)
            (tmp_path / "tokenizer.json").write_text(written, "utf-8")
        with pytest.raises(BadInput, match="holds no tokenizer that loads"):
            load_tokenizer(tmp_path)


def test_a_tokenizer_whose_texts_have_ids_beyond_the_embeddings_is_refused(folders: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folders / "encoder", tmp_path / "model")
    tokenizer = load_tokenizer(folder)
    size = len(tokenizer)
    tokenizer.add_tokens(["<unread>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    load_encoder(folder)  # no text has this token
    tokenizer.add_tokens(["Katzen"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(
        BadInput, match=rf"model: its tokenizer has the id {size + 1} \('Katzen'\), its model {size} emb"
    ):
        load_encoder(folder)


def test_a_folder_without_tokenizer_is_refused_where_transformers_makes_one_without_words(
    folders: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders / "encoder", tmp_path / "model")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    message = "knows special tokens only, so its files are missing; allowed is a folder with the tokenizer"
    with pytest.raises(BadInput, match=message):
        load_encoder(folder)
    for family in ("xlm-roberta", "bert", "deberta-v2"):
        (folder / "config.json").write_text(json.dumps({"model_type": family}), "utf-8")
        with pytest.raises(BadInput, match=message):
            load_tokenizer(folder)
