"""A dry run of the paper's mixtures, offline: shares by its sizes, names that do not resolve, nothing trained."""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_stub import Hub, serve
from huggingface_hub import constants, snapshot_download
from parsers import parse_arguments
from transformers import XLMRobertaConfig

from hictl_hf.cli import pretrain as command
from hictl_hf.errors import BadInput
from hictl_hf.models.configuration_hictl import config_class
from hictl_hf.models.families import FAMILIES
from hictl_hf.models.modeling_hictl import new_model
from hictl_hf.pretraining import pretrain
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.dry_run import RunPlan, plan, problem_of_dataset, resolve_model, resolve_source, shape_of
from hictl_hf.pretraining.estimates import Shape, gigabytes, milliseconds

ROOT = Path(__file__).parents[2]
TABLES = (ROOT / "tests/paper_tables.tsv").read_text("utf-8")
FULL = [f"{data}/{size}" for data in ("ccnet100-mt", "wiki15-mt") for size in ("base", "large")]
FULL += [name.replace("/", "/paper-") for name in FULL]
XNLI = {"ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"}


def sizes_of(table: int) -> dict[str, float]:
    """The sizes of appendix A: GB of each language (Table 7), millions of pairs of each (Table 8)."""
    text = TABLES.split(f"# Table {table}\n")[1].split("# Table")[0]
    return {code.removeprefix("en-"): float(size) for code, size in re.findall(r"([a-z][-a-z]+)\t([\d.]+)", text)}


def powers(sizes: dict[str, float], alpha: float) -> dict[str, float]:
    """Shares p^alpha of a half of the examples."""
    return {name: 0.5 * size**alpha / sum(each**alpha for each in sizes.values()) for name, size in sizes.items()}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hub with the encoders and datasets of the recipes; the weights are empty files."""
    with serve() as hub:
        for name, layers, size in (("base", 12, 768), ("large", 24, 1024)):
            config = XLMRobertaConfig(
                vocab_size=250_002, hidden_size=size, num_hidden_layers=layers, intermediate_size=4 * size,
                num_attention_heads=size // 64,
            )  # fmt: skip
            files = {"config.json": config.to_json_string().encode(), "model.safetensors": b""}
            hub.add(f"me/xlm-roberta-{name}", files)
        multiun = [{"config_name": name} for name in ("ar-en", "en-es", "en-fr", "en-ru", "en-zh")]
        hub.datasets["Helsinki-NLP/multiun"] = {"cardData": {"configs": multiun}}
        hub.datasets |= {f"wmt/wmt{year}": {} for year in (14, 16, 19)}
        hub.datasets |= {"cfilt/iitb-english-hindi": {}, "allenai/c4": {"cardData": {"configs": {"config_name": "mt"}}}}
        yield hub


def make_files(names: list[str]) -> None:
    for source in names:
        if source.startswith("opus/"):
            before, languages = source.removesuffix("}").split("{")
            for language in languages.split(","):
                Path(before).parent.mkdir(exist_ok=True)
                Path(before + language).write_text("a\n", "utf-8")
        elif "hub:" not in source:
            path = Path(source.partition(":")[2])
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress(b"a\n"))


@pytest.mark.parametrize("name", FULL)
def test_each_full_recipe_prints_shares_by_the_papers_sizes(
    name: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, size = str(ROOT / f"recipes/{name}.json"), name.rpartition("/")[2].removeprefix("paper-")
    argv = [recipe, "--dry_run", "--model_name_or_path", f"me/xlm-roberta-{size}"]
    sources = parse_arguments([recipe, "--bf16", "false"]).train_file
    make_files(sources)
    assert command.main(argv) == {}
    out = capsys.readouterr().out
    printed = {
        line.split()[0]: float(line.split()[1]) / 100 for line in out.splitlines() if line.startswith((*sources,))
    }
    assert list(printed) == sources and sum(printed.values()) == pytest.approx(1, abs=1e-4)
    texts, pairs = sizes_of(7), sizes_of(8)
    assert len(texts) == 94 and len(pairs) == 14
    texts = texts if "ccnet" in name else {code: gb for code, gb in texts.items() if code in XNLI}
    found = {source.partition(":")[0]: share for source, share in printed.items() if re.match("[a-z]{2}:", source)}
    assert found == pytest.approx(powers(texts, 0.3), abs=1e-4)
    for language, share in powers(pairs, 0.7).items():
        own = re.compile(rf"({language}-en|en-{language}\b|{'hindi' if language == 'hi' else '-'}$)")
        parts = [share for source, share in printed.items() if ":" not in source[:3] and own.search(source)]
        assert sum(parts) == pytest.approx(share, abs=1e-4), language
    assert "on 8 GPUs" in out and "1,024" in out and "200,000" in out and "204,800,000" in out
    assert re.search(r"time on 8 x H100 +(\d+ days?, )?\d+:\d\d:\d\d or more", out) and "GB on one GPU" in out
    assert out.endswith("every name resolves; nothing was trained\n") and not Path("runs").exists()


def test_names_that_do_not_resolve_are_named_and_end_the_command(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = str(ROOT / "recipes/ccnet100-mt/base.json")
    make_files(
        [source for source in parse_arguments([recipe, "--bf16", "false"]).train_file if "cc100/br" not in source]
    )
    del hub.datasets["wmt/wmt16"]
    hub.datasets["Helsinki-NLP/multiun"] = {"cardData": {"configs": [{"config_name": "ar-en"}]}}
    with pytest.raises(SystemExit, match="1"):
        command.main([recipe, "--dry_run", "--model_name_or_path", "me/nowhere"])
    out = capsys.readouterr().out
    lost = re.findall(r"^does not resolve: (\S+) (\S+): (.*)$", out, re.MULTILINE)
    assert {(role, name) for role, name, _ in lost} == {
        ("train_file", "br:cc100/br.txt.gz"), ("validation_file", "hub:wmt/wmt16:tr-en:validation"),
        ("model_name_or_path", "me/nowhere"),
        *(("train_file", f"hub:Helsinki-NLP/multiun:en-{code}") for code in ("es", "fr", "ru", "zh")),
    }  # fmt: skip
    reasons = {name: reason for _, name, reason in lost}
    assert "does not exist" in reasons["br:cc100/br.txt.gz"]
    assert not [name for name, reason in reasons.items() if reason.startswith(f"{name}:")], "named once"
    assert reasons["hub:Helsinki-NLP/multiun:en-fr"] == "has no configuration en-fr; allowed are ar-en"


def test_a_dataset_that_is_only_a_loading_script_does_not_resolve(hub: Hub) -> None:
    hub.datasets["statmt/cc100"] = {"siblings": [{"rfilename": "cc100.py"}, {"rfilename": "README.md"}]}
    assert "loading script" in problem_of_dataset("statmt/cc100", "")
    assert problem_of_dataset("allenai/c4", "mt") == "" and problem_of_dataset("wmt/wmt14", "x") == ""


def test_the_folder_of_a_data_set_resolves_without_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hictl_hf.pretraining.dry_run.on_the_hub", None)
    (folder := tmp_path / "with a space" / "data").mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"en": "a cat", "de": "eine Katze"}\n')
    assert not resolve_source("train_file", f"hub:{folder.parent}").problem
    assert resolve_source("train_file", f"en:hub:{folder.parent}::validation").size == "36 B"


def test_a_checkpoint_in_the_cache_resolves_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot_download("me/xlm-roberta-base")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not resolve_model("model_name_or_path", "me/xlm-roberta-base").problem
    assert "Check its name, the connection" in resolve_model("model_name_or_path", "me/xlm-roberta-large").problem


def test_shares_without_stream_shares_are_those_of_languages_by_bytes(tmp_path: Path) -> None:
    """Two languages paired with English, 4 : 1 by bytes, with alpha 0.5: 2 : 1."""
    for language, lines in (("de", 400), ("fr", 100)):
        rows = [json.dumps({"en": f"{number:04} word", language: f"{number:04} wort"}) for number in range(lines)]
        (tmp_path / f"{language}.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    files = [str(tmp_path / f"{language}.jsonl") for language in ("de", "fr")]
    args = PretrainingArguments(train_file=files, pair_alpha=0.5, config_overrides={"vocab_size": 99})
    found = plan(args)
    assert found.shares == pytest.approx([2 / 3, 1 / 3]) and found.steps is None and not found.unresolved
    assert found.names[0].size.endswith(" KB")
    for shares in ([0.0, 0.0], [1.0]):
        with pytest.raises(BadInput, match="stream_shares is .*; allowed is a positive number for each of 2 sources"):
            plan(
                replace(args, streaming=True, validation_file=files, max_steps=2, stream_shares=shares, pair_alpha=0.7)
            )


def test_a_folder_of_several_languages_is_listed_by_language(tmp_path: Path) -> None:
    """4 : 1 by bytes, with alpha 0.5: 2 : 1, as of the files one by one."""
    folder = tmp_path / "train"
    folder.mkdir()
    for language, lines in (("de", 400), ("fr", 100)):
        rows = [json.dumps({"en": f"{number:04} word", language: f"{number:04} wort"}) for number in range(lines)]
        (folder / f"{language}.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    (tmp_path / "sw.txt").write_text("habari\n", "utf-8")
    files = [str(folder), f"sw:{tmp_path}/sw.txt"]
    found = plan(PretrainingArguments(train_file=files, pair_alpha=0.5, config_overrides={"vocab_size": 99}))
    assert found.shares == pytest.approx([0.5, 0.5])
    ((_, rows),) = next(found.tables()).sections.items()
    names = [files[0], f"{folder} (en-de)", f"{folder} (en-fr)", files[1], "2 sources"]
    shares = ["50.0000", "33.3333", "16.6667", "50.0000", "100.0000"]
    assert [[cell.text for cell in row[:2]] for row in rows] == [list(row) for row in zip(names, shares)]


def test_a_source_of_which_cleaning_keeps_nothing_does_not_end_a_dry_run_as_it_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for language in ("de", "fr"):
        (tmp_path / f"{language}.jsonl").write_text(f'{{"en": "four words are here", "{language}": "vier"}}\n', "utf-8")
    files = [str(tmp_path / f"{language}.jsonl") for language in ("de", "fr")]
    kept = {"languages": ["en", "de"]}
    args = PretrainingArguments(train_file=files, cleaning=kept, config_overrides={"vocab_size": 99})
    found = plan(args)
    assert not found.shares and not found.unresolved
    assert "fr.jsonl: no row is left after cleaning (1 other language)" in caplog.text
    with pytest.raises(BadInput, match="fr.jsonl: no row is left after cleaning"):
        plan(replace(args, streaming=True, validation_file=files, max_steps=2))


def test_a_dry_run_is_not_trained(tmp_path: Path) -> None:
    args = PretrainingArguments(train_file=["x"], output_dir=str(tmp_path / "run"), dry_run=True)
    with pytest.raises(BadInput, match="dry_run is true"):
        pretrain(args)


def test_of_several_processes_one_prints_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("ein Haus\n", "utf-8")
    given = ["--dry_run", "--train_file", f"de:{tmp_path}/a.txt", "--config_overrides", "vocab_size=99"]
    monkeypatch.setattr(command, "log_to_terminal", lambda *_: None)  # its levels stay for the tests after this one
    printed = []
    for is_told in (True, False):
        monkeypatch.setattr(PretrainingArguments, "should_log", is_told)
        command.main([*given, "--use_cpu", "true"])
        printed.append(capsys.readouterr().out)
    assert "every name resolves" in printed[0] and not printed[1]


def test_weights_that_a_run_would_refuse_do_not_resolve(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "has no weights in safetensors" in resolve_model("model_name_or_path", str(tmp_path)).problem
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert not resolve_model("model_name_or_path", str(tmp_path)).problem


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_model(family: str) -> None:
    """Not all encoders have XLM-R's: EuroBERT's feed-forward parts are gated, and its head is not tied."""
    sizes = {"vocab_size": 99, "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 6}
    args = PretrainingArguments(train_file=["x"], config_overrides={"model_type": family, **sizes})
    shape = shape_of(args)
    assert args.config_overrides == {"model_type": family, **sizes}  # a run may follow with the same arguments
    weights = dict(new_model(config_class(family)(**sizes, pad_token_id=0)).named_parameters())
    assert shape is not None and shape.parameters == sum(map(torch.Tensor.numel, weights.values()))
    of_layers = sum(weight.numel() for name, weight in weights.items() if re.search(r"\blayers?\.\d", name))
    assert shape.encoder == of_layers


def test_the_encoder_of_no_family_has_no_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "distilbert"}', "utf-8")
    assert shape_of(PretrainingArguments(train_file=["x"], config_name=str(tmp_path))) is None
    assert "is a model of type 'distilbert'; allowed are" in resolve_model("config_name", str(tmp_path)).problem


def test_memory_is_that_of_the_layers_kept_and_of_the_longest_input(
    saved_model: Callable[..., Path], tmp_path: Path
) -> None:
    start, data = saved_model(tmp_path / "start", num_hidden_layers=4), tmp_path / "a.tsv"
    data.write_text("en\tde\na cat\teine Katze\n", "utf-8")
    args = PretrainingArguments(train_file=[str(data)], model_name_or_path=str(start), max_seq_length=40)
    found = plan(replace(args, config_overrides={"num_hidden_layers": 1, "vocab_size": 7}))
    assert found.shape and found.shape.layers == 1 and found.shape.words > 7
    parts = gigabytes(found.shape, (40, 40, 40), 64, 8)
    total = sum(parts[:3]) + parts[4]
    assert f"GB on one GPU, 40 tokens{total:.1f};" in found.costs(found.shape).text().replace("  ", "")


@pytest.mark.parametrize(
    ("overrides", "row"),
    [
        ({}, (27, 27, 54)),
        ({"word_level_input": "clean"}, (27, 27, 54, 54)),  # the paper's settings
        ({"word_level_input": "clean", "lm_weight": 0}, (27, 27, 54)),
        ({"word_level_input": "clean", "word_weight": 0}, (27, 27, 54)),
        ({"sentence_weight": 0}, (54,)),
        ({"lm_weight": 0, "word_weight": 0}, (27, 27)),
        ({"lm_weight": 0, "word_weight": 0, "sentence_weight": 0}, ()),
    ],
)
def test_memory_and_time_count_the_inputs_that_the_objectives_encode(
    overrides: dict[str, Any], row: tuple[int, ...]
) -> None:
    usual = {"vocab_size": 99, "hidden_size": 768, "num_attention_heads": 12}
    args = PretrainingArguments(train_file=["x"], config_overrides=usual)
    default, found = shape_of(args), shape_of(replace(args, config_overrides=usual | overrides))
    assert default and found and default._replace(inputs=found.inputs, lm=found.lm) == found
    assert found.row(27, 54) == row and found.lm == ("lm_weight" not in overrides)
    planned = RunPlan([], [], found, 10, 128, 8, 8, gradient_cache=True)
    parts = gigabytes(found, row, 128, 8, 8 * 8 * 128)
    assert f"{sum(parts[:3]) + parts[4]:.1f};" in planned.costs(found).text()
    compute, more = (planned.step_milliseconds(shape, "H100", 8) for shape in (default, found))
    assert (compute < more) == (len(row) == 4) and (compute == more) == (found.lm and row == (27, 27, 54))


def test_sizes_that_do_not_fit_are_refused() -> None:
    overrides = {"vocab_size": 99, "hidden_size": 30, "num_attention_heads": 4}
    with pytest.raises(BadInput, match="config_overrides .*not a multiple of the number of attention heads"):
        shape_of(PretrainingArguments(train_file=["x"], config_overrides=overrides))


def test_a_step_reduces_and_updates_once() -> None:
    shape = Shape(12, 768, 3072, 250_002)
    one, eight = (RunPlan([], [], shape, 10, 128, number, 8) for number in (1, 8))
    compute, contrast, adam, late = milliseconds(shape, "H100", 128, 8)
    assert one.step_milliseconds(shape, "H100", 8) == pytest.approx(compute + contrast + adam + late)
    assert eight.step_milliseconds(shape, "H100", 8) == pytest.approx(8 * (compute + contrast) + adam + late)


def test_the_gradient_cache_contrasts_all_micro_batches_once() -> None:
    shape = Shape(12, 768, 3072, 250_002)
    cached = RunPlan([], [], shape, 10, 128, 8, 8, gradient_cache=True)
    compute, contrast, adam, late = milliseconds(shape, "H100", 128, 8)
    expected = 8 * compute * 7 / 6 + 64 * contrast + adam + late
    assert cached.step_milliseconds(shape, "H100", 8) == pytest.approx(expected)
    assert cached.contrasted(8) == 8 * 8 * 128
    assert RunPlan([], [], shape, 10, 128, 8, 8, True, gather_sentences=False).contrasted(8) == 8 * 128
