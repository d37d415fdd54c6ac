"""Every family of encoders, from a published checkpoint to all that is done with the result: docs/encoders.md."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from parsers import parse_arguments
from safetensors.torch import load_file
from toy_families import SHAPES, TOKENIZERS, ids_of
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM, AutoTokenizer

import run_translation
import run_xtreme
from hictl_hf import HictlForConditionalGeneration
from hictl_hf.cli import explain, mine, translate
from hictl_hf.embedding import embed_sentences, load_encoder
from hictl_hf.errors import BadInput
from hictl_hf.models.families import FAMILIES
from hictl_hf.pretraining.run import pretrain
from hictl_hf.translation import choose_target_ids
from hictl_hf.translation.pipeline import load_translator, translation_pipeline

each_family = pytest.mark.parametrize("name", SHAPES)
one_by_default = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "modernbert" else pytest.mark.slow) for name in SHAPES]
)
TEXTS = ["the cat sees the house", "die Katze sieht das Haus", "猫看见房子"]
WITHOUT_THE_PACKAGE = """
import json, sys, torch
sys.modules["hictl_hf"] = None  # as if it were not installed
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM, AutoTokenizer
found = {}
for folder in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder + "/encoder")
    batch = tokenizer(["the cat sees the house", "die Katze"], padding=True, return_tensors="pt")
    model = AutoModelForPreTraining.from_pretrained(folder + "/checkpoint", trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules"), type(model).__module__
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        losses = model(ids, mask, labels=ids, sentence_input_ids=torch.cat([ids, ids.flip(0)]), bag=ids[:, 1:2],
                       example_seeds=torch.arange(2))
        plain = AutoModel.from_pretrained(folder + "/encoder").eval()
        translator = AutoModelForSeq2SeqLM.from_pretrained(folder + "/translator", trust_remote_code=True).eval()
        assert type(translator).__module__.startswith("transformers_modules"), type(translator).__module__
        logits = translator(ids, mask, labels=ids, start_ids=translator.start_ids_of(["en"] * len(ids))).logits
        generated = translator.generate(ids, attention_mask=mask, target_language="en", num_beams=2, max_new_tokens=5)
        tensors = losses.loss, plain(**batch)[0][:, 0], logits[:, 0], generated
        found[folder] = [number for tensor in tensors for number in tensor.flatten().tolist()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory, sentences: dict[str, list[str]]) -> str:
    path = tmp_path_factory.mktemp("corpus") / "pairs.jsonl"
    pairs = [{"en": en, "de": de} for en, de in zip(sentences["en"], sentences["de"])]
    path.write_text("\n".join(map(json.dumps, pairs)), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, sentences: dict[str, list[str]]) -> Callable[[str], Path]:
    """`started(name)`: a folder with a masked language model of a family and its tokenizer, as published."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            tokenizer = TOKENIZERS[name](text for texts in sentences.values() for text in texts)
            tokenizer.save_pretrained(made[name])
            config = getattr(transformers, f"{FAMILIES[name].prefix}Config")
            torch.manual_seed(0)
            shape = {**SHAPES[name], **ids_of(tokenizer), "vocab_size": len(tokenizer), "initializer_range": 0.1}
            getattr(transformers, f"{FAMILIES[name].prefix}ForMaskedLM")(config(**shape)).save_pretrained(made[name])
        return made[name]

    return folder


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, started: Callable[[str], Path], corpus_file: str
) -> Callable[..., Path]:
    """`trained(name)`: the folder of a run of two steps from that checkpoint, which keeps its first step."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(f"run-{name}") / "out"
            pretrain(parse_arguments(flags(started(name), corpus_file, made[name])))
        return made[name]

    return folder


def flags(encoder: Path, corpus: str, output: Path, *more: str) -> list[str]:
    return [
        "--model_name_or_path", str(encoder), "--train_file", corpus, "--output_dir", str(output), "--max_steps", "2",
        "--save_strategy", "steps", "--save_steps", "1", "--per_device_train_batch_size", "6", "--use_cpu", "true",
        "--held_out_sentences", "0", "--max_seq_length", "48", "--learning_rate", "1e-3", "--warmup_steps", "0",
        "--logging_steps", "1", "--disable_tqdm", "true", "--eval_strategy", "no", "--seed", "3", *more,
    ]  # fmt: skip


@one_by_default
def test_a_run_trains_all_losses_and_exports_the_encoder_as_its_own_class(
    name: str, trained: Callable[[str], Path], started: Callable[[str], Path]
) -> None:
    history = json.loads((trained(name) / "results.json").read_text("utf-8"))["history"]
    assert len(history) == 2
    for entry in history:
        assert all(np.isfinite(entry[loss]) and entry[loss] > 0 for loss in ("lm_loss", "sentence_loss", "word_loss"))
    encoder, checkpoint = (AutoModel.from_pretrained(trained(name) / part) for part in ("encoder", "checkpoint"))
    own = getattr(transformers, f"{FAMILIES[name].prefix}Model")
    assert type(encoder) is own and isinstance(checkpoint, own)
    saved = json.loads((trained(name) / "encoder/config.json").read_text("utf-8"))
    assert saved["model_type"] == name and "auto_map" not in saved
    tokenizer_file = trained(name) / "encoder/tokenizer_config.json"
    assert "TokenizersBackend" not in tokenizer_file.read_text("utf-8"), "transformers 4 does not know it"
    batch = AutoTokenizer.from_pretrained(trained(name) / "encoder")(TEXTS, padding=True, return_tensors="pt")
    states = [model.eval()(**batch)[0] for model in (encoder, checkpoint, own.from_pretrained(started(name)))]
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-5)
    assert (states[0] - states[2]).abs().max() > 1e-3, "it was not trained"
    model = AutoModelForPreTraining.from_pretrained(trained(name) / "checkpoint")
    assert type(model).__name__ == FAMILIES[name].class_name("ForPreTraining")
    assert model.sentence_probability.steps == 2


@pytest.mark.slow
@each_family
def test_an_interrupted_run_ends_as_one_that_was_not(
    name: str, trained: Callable[[str], Path], started: Callable[[str], Path], corpus_file: str, tmp_path: Path
) -> None:
    shutil.copytree(trained(name) / "checkpoint-1", tmp_path / "checkpoint-1")
    more = "--resume_from_checkpoint", "true"
    pretrain(parse_arguments(flags(started(name), corpus_file, tmp_path, *more)))
    weights = [load_file(folder / "checkpoint/model.safetensors") for folder in (trained(name), tmp_path)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0].keys() | weights[1].keys())


@pytest.mark.slow
@each_family
def test_both_folders_embed_as_sentence_transformers_does(name: str, trained: Callable[[str], Path]) -> None:
    library = pytest.importorskip("sentence_transformers")
    for part, trust in (("encoder", False), ("checkpoint", True)):
        model, tokenizer = load_encoder(trained(name) / part, device="cpu")
        ours = embed_sentences(model, tokenizer, TEXTS)
        theirs = library.SentenceTransformer(str(trained(name) / part), device="cpu", trust_remote_code=trust)
        np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
        assert len({row.tobytes() for row in ours}) == len(TEXTS)


@one_by_default
def test_it_is_embedded_in_lower_precision(name: str, started: Callable[[str], Path]) -> None:
    vectors = {
        kind: embed_sentences(*load_encoder(started(name), kind, "cpu"), TEXTS) for kind in ("fp32", "bf16", "int8")
    }
    for kind in ("bf16", "int8"):
        assert (vectors[kind] * vectors["fp32"]).sum(-1).min() > 0.95 and not np.array_equal(
            vectors[kind], vectors["fp32"]
        )


def step(number: int, model: Path, corpus: str, output: Path, *more: str) -> list[str]:
    return [
        "--step", str(number), "--model_name_or_path", str(model), "--train_file", corpus, "--test_file", corpus,
        "--source_lang", "de", "--target_lang", "en", "--output_dir", str(output), "--max_steps", "2",
        "--save_strategy", "steps", "--save_steps", "1", "--learning_rate", "1e-2", "--warmup_steps", "0",
        "--max_tokens", "200", "--num_beams", "2", "--max_length_b", "3", "--max_length_a", "0", "--seed", "3",
        "--disable_tqdm", "true", *more,
    ]  # fmt: skip


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model/model.safetensors")


@one_by_default
def test_both_steps_of_translation_train_resume_and_translate(
    name: str, started: Callable[[str], Path], corpus_file: str, tmp_path: Path
) -> None:
    """Step 1 from the family's own checkpoint: transformers' masked language model."""
    first, again, second = (tmp_path / part for part in ("first", "again", "second"))
    run_translation.main(step(1, started(name), corpus_file, first, "--decoder_layers", "1"))
    weights = weights_of(first)
    prefix = f"{getattr(transformers, f'{FAMILIES[name].prefix}Model').base_model_prefix}."
    start = load_file(started(name) / "model.safetensors")
    encoder = {key: weight for key, weight in weights.items() if key.startswith(prefix)}
    assert encoder and all(torch.equal(weight, start[key]) for key, weight in encoder.items()), "it is frozen"
    for part in ("checkpoint-1", "model"):
        settings = json.loads((first / part / "generation_config.json").read_text("utf-8"))
        assert [settings[f"{each}_token_id"] for each in ("bos", "pad", "eos")] == [0, 1, 2]
    again.mkdir()
    shutil.copytree(first / "checkpoint-1", again / "checkpoint-1")
    shutil.copy(first / "settings.json", again)
    run_translation.main(step(1, started(name), corpus_file, again, "--decoder_layers", "1"))
    resumed = weights_of(again)
    assert resumed.keys() == weights.keys() and all(torch.equal(resumed[key], weights[key]) for key in weights)
    run_translation.main(step(2, first / "model", corpus_file, second))
    assert any(not torch.equal(weights_of(second)[key], encoder[key]) for key in encoder), "step 2 trains the encoder"
    card = (second / "model/README.md").read_text("utf-8")
    assert f"an encoder, {FAMILIES[name].title}, started from" in card and f"- {name}\n" in card
    tokenizer_file = second / "model/tokenizer_config.json"
    assert "TokenizersBackend" not in tokenizer_file.read_text("utf-8"), "transformers 4 does not know it"
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    translate.main([
        "--model", str(second / "model"), "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"),
        "--max_length_b", "4", "--max_length_a", "0",
    ])  # fmt: skip
    lines = (tmp_path / "out.txt").read_text("utf-8").splitlines()
    found = [each["translation_text"] for each in translation_pipeline(
        second / "model", dtype="float32", device="cpu", max_length_a=0, max_length_b=4)(TEXTS)]  # fmt: skip
    assert lines == found and len(lines) == len(TEXTS)
    assert translation_pipeline(second / "model", dtype="int8", device="cpu")(TEXTS[0], max_length_a=0)


@pytest.mark.slow
@each_family
def test_translation_begins_from_hictl_or_from_nothing(
    name: str, trained: Callable[[str], Path], corpus_file: str, tmp_path: Path
) -> None:
    for part, more in {
        "checkpoint": ("--trim_target_vocab", "off"),
        "encoder": ("--random_encoder", "true", "--encoder_config", '{"intermediate_size": 48}'),
    }.items():
        output, more = tmp_path / part, ("--decoder_layers", "1", "--config_overrides", "decoder_dropout=0.3", *more)
        run_translation.main(step(1, trained(name) / part, corpus_file, output, *more))
        model, tokenizer = load_translator(output / "model", dtype="float32", device="cpu")
        assert type(model).__name__ == FAMILIES[name].class_name("ForConditionalGeneration")
        assert model.config.intermediate_size == (48 if part == "encoder" else SHAPES[name]["intermediate_size"])
        if part == "checkpoint":
            known = {*model.target_token_ids.tolist()}
            assert all({*tokenizer(text)["input_ids"]} <= known for text in TEXTS)
    field = "rms_norm_eps" if name == "modernbert" else "norm_bias"  # of another family
    with pytest.raises(BadInput, match=f"config_overrides has no field {field} with"):
        more = "--config_overrides", f"{field}=3"
        run_translation.main(step(1, trained(name) / "encoder", corpus_file, tmp_path / "wrong", *more))


@one_by_default
def test_pairs_are_mined_and_a_sentence_is_explained(
    name: str, started: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "x.txt", tmp_path / "y.txt"]
    for file, texts in zip(files, (TEXTS, TEXTS[::-1])):
        file.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    mine.main([*map(str, files), "--output", str(tmp_path / "pairs.tsv"), "--model", str(started(name)),
               "--margin", "absolute"])  # fmt: skip
    rows = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text("utf-8").splitlines()]
    assert {(x, y) for _, x, y in rows} == {(text, text) for text in TEXTS}
    capsys.readouterr()
    explain.main([TEXTS[0], "--model", str(started(name)), "--among", str(files[1]), "--words", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["sentences"][0]["text"], found["sentences"][0]["line"]) == (TEXTS[0], len(TEXTS))
    assert any(found["words"].values())


@pytest.mark.slow
@each_family
def test_xtreme_reads_the_encoder(
    name: str, trained: Callable[[str], Path], xtreme_folder: Path, tmp_path: Path
) -> None:
    tasks = ["xnli", "udpos", "tatoeba", *(["xquad"] if name != "eurobert" else [])]
    argv = [
        "--model_name_or_path",
        str(trained(name) / "encoder"),
        "--data",
        str(xtreme_folder),
        "--output_dir",
        str(tmp_path),
    ]
    run_xtreme.main(
        [
            *argv,
            "--tasks",
            *tasks,
            "--num_train_epochs",
            "1",
            "--per_device_train_batch_size",
            "8",
            "--learning_rate",
            "1e-3",
        ]
    )
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert {*results["tasks"]} == {*tasks}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xlm-roberta-xl", "modernbert"])
def test_two_processes_with_shards_train_what_one_trains(
    name: str, started: Callable[[str], Path], corpus_file: str, tmp_path: Path
) -> None:
    """From a checkpoint in several files, as XLM-R XL is published."""
    parts = tmp_path / "parts"
    getattr(transformers, f"{FAMILIES[name].prefix}ForMaskedLM").from_pretrained(started(name)).save_pretrained(
        parts, max_shard_size="40KB"
    )
    AutoTokenizer.from_pretrained(started(name)).save_pretrained(parts)
    assert len([*parts.glob("*.safetensors")]) > 2
    pretrain(parse_arguments(flags(parts, corpus_file, tmp_path / "one")))
    more = "--per_device_train_batch_size", "3", "--shard_parameters", "true", "--ddp_backend", "gloo"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = str(Path(__file__).parents[2] / "run_pretraining.py")
    done = subprocess.run(
        [*command, script, *flags(parts, corpus_file, tmp_path / "two", *more)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (load_file(tmp_path / run / "checkpoint/model.safetensors") for run in ("one", "two"))
    assert one.keys() == two.keys()
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_checkpoint_runs_without_the_package(trained: Callable[[str], Path], tmp_path: Path) -> None:
    folders = [str(trained(name)) for name in SHAPES]
    for name in SHAPES:
        tokenizer, encoder = AutoTokenizer.from_pretrained(trained(name) / "encoder"), trained(name) / "encoder"
        model = HictlForConditionalGeneration.from_encoder(
            encoder, choose_target_ids(TEXTS, tokenizer), ["en"], decoder_layers=1
        )
        model.save_pretrained(trained(name) / "translator")
    environment = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, *folders]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for folder in folders:
        tokenizer = AutoTokenizer.from_pretrained(folder + "/encoder")
        batch = tokenizer(TEXTS[:1] + ["die Katze"], padding=True, return_tensors="pt")
        states = AutoModel.from_pretrained(folder + "/encoder").eval()(**batch)[0][:, 0]
        ids, model = batch["input_ids"], AutoModelForPreTraining.from_pretrained(folder + "/checkpoint").eval()
        sentences, seeds = torch.cat([ids, ids.flip(0)]), torch.arange(2)
        losses = {"labels": ids, "sentence_input_ids": sentences, "bag": ids[:, 1:2], "example_seeds": seeds}
        expected = [model(ids, batch["attention_mask"], **losses).loss.item(), *states.flatten().tolist()]
        translator, mask = AutoModelForSeq2SeqLM.from_pretrained(folder + "/translator").eval(), batch["attention_mask"]
        logits = translator(ids, mask, labels=ids, start_ids=translator.start_ids_of(["en"] * len(ids))).logits
        generated = translator.generate(ids, attention_mask=mask, target_language="en", num_beams=2, max_new_tokens=5)
        expected += [*logits[:, 0].flatten().tolist(), *generated.flatten().tolist()]
        torch.testing.assert_close(torch.tensor(found[folder]), torch.tensor(expected), rtol=1e-5, atol=1e-5)
