"""Sharing a run: what arrives at the Hub, that it arrives whole, that it loads from there, and what is refused."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_stub import Hub, serve
from huggingface_hub import ModelCard
from parsers import parse_arguments, parse_translation_arguments
from recorded_run import RESULTS, typed
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import run_pretraining
import run_translation
from hictl_hf import HictlForConditionalGeneration, HictlForPreTraining
from hictl_hf.cli.publish import main
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.errors import BadInput
from hictl_hf.files import readable, write_json
from hictl_hf.hub.publishing import commit, files_of, push
from hictl_hf.pretraining.report import report
from hictl_hf.pretraining.results import PretrainingResults
from hictl_hf.pretraining.run import save

MODELS = ("config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json")
CODE = ("modeling_hictl.py", "configuration_hictl.py", "losses.py")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as stub:
        yield stub


def results_at(pooling: str, layer: int) -> PretrainingResults:
    """Results of a run that is read at this layer."""
    results = copy.deepcopy(RESULTS)
    results["retrieval"]["protocol"]["hictl"] = {"mode": pooling, "layer": layer}
    results["history"] = [{"step": step, "loss": 9.0 - step, "lm_loss": 3.0} for step in (1, 2)]
    return typed(results)


@pytest.fixture(scope="module")
def make_run(
    tmp_path_factory: pytest.TempPathFactory,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
) -> Callable[[int], Path]:
    """`make_run(seed)`: the folder of a finished run with this model, read at the mean of its first layer."""

    def make(seed: int) -> Path:
        folder, results = tmp_path_factory.mktemp("run") / "out", results_at("mean", 1)
        save(folder, model_for_text(seed=seed, initializer_range=0.5), tokenizer, results)
        report(folder, results)
        return folder

    return make


@pytest.fixture(scope="module")
def run(make_run: Callable[[int], Path]) -> Path:
    return make_run(1)


def below(folder: Path) -> dict[str, bytes]:
    """The files of a folder but for its card, by their names in it."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != "README.md"}


def expected(run: Path) -> dict[str, bytes]:
    """What a push of this run should leave, but for its cards."""
    encoder = {f"encoder/{name}": content for name, content in below(run / "encoder").items()}
    rest = {name: content for name, content in below(run).items() if not name.startswith(("checkpoint/", "encoder/"))}
    return below(run / "checkpoint") | encoder | rest


def without_cards(repository: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in repository.items() if not name.endswith("README.md")}


# --- what arrives -----------------------------------------------------------------------------------------------------


def test_a_run_arrives_whole_in_one_commit(hub: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(run), "me/x", "--private", "true"])
    files = hub.repositories["me/x"]
    assert without_cards(files) == expected(run)
    assert {*MODELS, *CODE, *(f"encoder/{name}" for name in MODELS)} <= files.keys()
    assert {"report.html", "results.json", "pictures/losses.png"} <= files.keys()
    names = ("tokenizer_config.json", "encoder/tokenizer_config.json")  # transformers 4 reads ours, and the card's code
    assert len({files[name] for name in names}) == 1  # takes the first for the encoder
    assert hub.private == {"me/x": True} and len(hub.commits["me/x"]) == 1
    assert capsys.readouterr().out.strip() == f"{hub.url}/me/x/commit/{hub.commits['me/x'][0]}"
    assert (run / "checkpoint" / "README.md").read_bytes() != files["README.md"]  # that does not know its repository


@pytest.mark.parametrize("flags", [[], ["--encoder_repository", "me/e"]])
def test_a_dry_run_prints_what_a_push_leaves_and_pushes_nothing(
    hub: Hub, run: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    main([str(run), "me/x", "--license", "mit", *flags, "--dry_run", "true"])
    printed = capsys.readouterr().out
    assert not hub.repositories and not hub.requests
    main([str(run), "me/x", "--license", "mit", *flags])
    assert len(hub.repositories) == 1 + bool(flags)
    for repository, files in hub.repositories.items():
        arrived = {name: content for name, content in files.items() if name != ".gitattributes"}
        assert f"{repository}: {len(arrived)} files, {readable(sum(map(len, arrived.values())))}\n" in printed
        for name, content in arrived.items():
            assert f"{readable(len(content))}  {name}\n" in printed
            assert not name.endswith("README.md") or f"--- {name}\n{content.decode()}" in printed


def test_the_draft_of_a_process_that_was_killed_is_not_pushed(hub: Hub, make_run: Callable[[int], Path]) -> None:
    run = make_run(2)
    arrives = expected(run)
    (run / "pictures" / ".losses.png.123").write_bytes(b"half")
    for folder in (run / "checkpoint" / ".vscode", run / "encoder" / ".git" / "info"):
        folder.mkdir(parents=True)
        (folder / "settings.json").write_bytes(b"not hidden")
    push(run, "me/x")
    assert without_cards(hub.repositories["me/x"]) == arrives


def test_the_card_names_the_repository_and_pictures_that_are_in_it(hub: Hub, run: Path) -> None:
    push(run, "me/x")
    files = hub.repositories["me/x"]
    card = ModelCard(files["README.md"].decode())
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", card.text)
    assert pictures == [f"pictures/{name}.png" for name in ("losses", "retrieval")]
    assert all(files[picture].startswith(b"\x89PNG") for picture in pictures)
    assert 'SentenceTransformer("me/x", trust_remote_code=True)' in card.text and "your-name" not in card.text
    assert card.data.to_dict()["model-index"][0]["results"][0]["metrics"][0]["value"] == 52.5
    assert "the mean of all tokens at layer 1" in card.text
    assert "plain encoder of me/x" in files["encoder/README.md"].decode()


def test_the_cards_name_a_licence_only_if_they_are_told_one(hub: Hub, run: Path) -> None:
    for repository, flags, licence in (("me/x", [], None), ("me/y", ["--license", "cc-by-4.0"], "cc-by-4.0")):
        main([str(run), repository, *flags])
        for card in ("README.md", "encoder/README.md"):
            assert ModelCard(hub.repositories[repository][card].decode()).data.to_dict().get("license") == licence


def test_the_encoder_can_have_a_repository_of_its_own(hub: Hub, run: Path) -> None:
    push(run, "me/x", encoder_repository="me/x-encoder")
    assert without_cards(hub.repositories["me/x-encoder"]) == below(run / "encoder")
    assert not [name for name in hub.repositories["me/x"] if name.startswith("encoder/")]
    card = hub.repositories["me/x"]["README.md"].decode()
    assert 'AutoModel.from_pretrained("me/x-encoder")' in card and "subfolder" not in card
    encoder = ModelCard(hub.repositories["me/x-encoder"]["README.md"].decode())
    assert encoder.data.to_dict()["base_model"] == "me/x" and 'SentenceTransformer("me/x-encoder")' in encoder.text


def test_a_model_loads_back_by_its_name(hub: Hub, run: Path) -> None:
    push(run, "me/x")
    local = HictlForPreTraining.from_pretrained(run / "checkpoint").state_dict()
    back = HictlForPreTraining.from_pretrained("me/x").state_dict()
    assert all(back[name].equal(weight) for name, weight in local.items())


def test_what_the_cards_show_runs(hub: Hub, run: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    pytest.importorskip("sentence_transformers")
    push(run, "me/x", encoder_repository="me/x-encoder")
    push(run, "me/y")
    found = {}
    for name in ("me/x", "me/y", "me/x-encoder"):
        for snippet in re.findall(r"```python\n(.*?)```", hub.repositories[name]["README.md"].decode(), re.DOTALL):
            names: dict[str, Any] = {}
            exec(snippet, names)
            found |= {(name, kind): names[kind] for kind in ("vectors", "states", "sentences") if kind in names}
    model = HictlForPreTraining.from_pretrained(run / "checkpoint").eval()
    expected = embed_sentences(model, tokenizer, ["Good morning.", "Guten Morgen."])
    for name in ("me/x", "me/y", "me/x-encoder"):
        np.testing.assert_allclose(found[name, "vectors"], expected, rtol=0, atol=1e-5)
        assert found[name, "states"].shape[-1] == 32
    assert found["me/x", "sentences"].shape == (2, 32)


def test_models_are_pushed_from_python_as_all_models_are(
    hub: Hub, run: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = HictlForPreTraining.from_pretrained(run / "checkpoint")
    model.push_to_hub("me/z")
    tokenizer.push_to_hub("me/z")
    assert {"config.json", "model.safetensors", "tokenizer.json", *CODE} <= hub.repositories["me/z"].keys()
    back, _ = load_encoder("me/z")
    assert back.projection.weight.equal(model.projection.weight)


ELSEWHERE = """
import json, logging, sys
from pathlib import Path

sys.modules["hictl_hf"] = None  # as if it were not installed
import numpy, sentence_transformers, torch
from transformers import AutoModel, AutoTokenizer

torch.set_num_threads(1)
folders, inputs, outputs, told = Path(sys.argv[1]), json.loads(sys.argv[2]), {}, []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
for name in ("transformers", "sentence_transformers"):
    logging.getLogger(name).addHandler(handler)
    logging.getLogger(name).setLevel(logging.WARNING)
mean = lambda hidden, mask: torch.nn.functional.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
tokenizer = AutoTokenizer.from_pretrained("me/x", trust_remote_code=True)
batch = tokenizer(inputs, padding=True, return_tensors="pt")
with torch.no_grad():
    for name, place in {"remote": {"trust_remote_code": True}, "plain": {"subfolder": "encoder"}}.items():
        model = AutoModel.from_pretrained("me/x", **place).eval()
        outputs[name] = mean(model(**batch, output_hidden_states=True).hidden_states[1], batch["attention_mask"])
        outputs[f"class of {name}"] = type(model).__module__.split(".")[0]
for name, place, trusted in (
    ("library", "me/x", True), ("library on a folder", folders / "checkpoint", True),
    ("library on the encoder", folders / "encoder", False), ("library on its repository", "me/e", False),
):
    reader = sentence_transformers.SentenceTransformer(str(place), device="cpu", trust_remote_code=trusted)
    outputs[name] = reader.encode(inputs, convert_to_tensor=True)
assert not [line for line in told if "newly" in line or "REPORT" in line], told
torch.save(outputs, sys.argv[3])
"""


@pytest.mark.slow
def test_pushed_models_give_the_same_vectors_in_a_process_without_the_package(
    hub: Hub, run: Path, sentences: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    import torch

    pytest.importorskip("sentence_transformers")
    push(run, "me/x")
    push(run, "me/y", encoder_repository="me/e")
    texts = [text for language in sentences.values() for text in language[:5]]
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", ELSEWHERE, str(run), json.dumps(texts), str(tmp_path / "outputs.pt")]
    done = subprocess.run(
        command, cwd=tmp_path, env=outside | hub.environment(tmp_path / "home"), capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = torch.load(tmp_path / "outputs.pt")
    model = HictlForPreTraining.from_pretrained(run / "checkpoint")
    here = embed_sentences(model, tokenizer, texts)
    classes = {name: value for name, value in outputs.items() if isinstance(value, str)}
    assert classes == {"class of remote": "transformers_modules", "class of plain": "transformers"}
    assert len(outputs) - len(classes) == 6
    for name in outputs.keys() - classes.keys():
        np.testing.assert_allclose(outputs[name].numpy(), here, rtol=0, atol=1e-5, err_msg=name)


# --- what goes wrong on the way ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *((where, "refuse") for where in ("/preupload/", "/objects/batch", "/objects/", "/commit/")),
        ("/commit/", "hang up"),
    ],
)
def test_a_push_that_fails_half_way_changes_nothing_and_is_repeated(
    hub: Hub, run: Path, make_run: Callable[[int], Path], where: str, how: str
) -> None:
    push(run, "me/x")
    before, other = dict(hub.repositories["me/x"]), make_run(2)
    assert expected(other)["model.safetensors"] != before["model.safetensors"]
    hub.interruptions[where] = how
    with pytest.raises(
        BadInput, match="me/x: .* all .* was committed or nothing .*(refused by the test|Forbidden|isconnected|rror)"
    ):
        push(other, "me/x")
    assert not hub.interruptions
    if how == "refuse":  # else it was made, and only the answer was lost
        assert hub.repositories["me/x"] == before
    push(other, "me/x")
    assert without_cards(hub.repositories["me/x"]) == expected(other) and len(hub.commits["me/x"]) == 2


def test_a_file_that_was_not_taken_is_told_with_the_reason(hub: Hub, run: Path) -> None:
    hub.interruptions |= {"/objects/batch": "", "/objects/": "refuse"}
    with pytest.raises(BadInput, match=r"Error while uploading '.*model.safetensors'.*, .*Forbidden.*\); it can"):
        push(run, "me/x")


def test_a_push_of_two_repositories_that_fails_between_them_is_repeated(hub: Hub, run: Path) -> None:
    hub.interruptions["me/x/commit"] = "refuse"
    repeated = f"hictl publish {run} me/x --encoder_repository me/x-encoder --license mit --private False$"
    with pytest.raises(BadInput, match=f"me/x: the push failed; all of it .* {repeated}"):
        push(run, "me/x", encoder_repository="me/x-encoder", license="mit", private=False)
    assert hub.repositories["me/x"] == {} and len(hub.commits["me/x-encoder"]) == 1
    push(run, "me/x", encoder_repository="me/x-encoder", license="mit", private=False)
    assert len(hub.commits["me/x"]) == len(hub.commits["me/x-encoder"]) == 1
    assert expected(run).keys() - below(run / "encoder").keys() <= {
        *hub.repositories["me/x"], *(f"encoder/{name}" for name in hub.repositories["me/x-encoder"])
    }  # fmt: skip


def test_what_an_earlier_push_left_goes_and_the_files_of_others_stay(hub: Hub, run: Path) -> None:
    old = ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "encoder/pooler.json", "pictures/a.png")
    hub.add("me/x", dict.fromkeys((*old, "LICENSE", ".gitattributes"), b"old"))
    push(run, "me/x")
    assert without_cards(hub.repositories["me/x"]) == expected(run) | {"LICENSE": b"old", ".gitattributes": b"old"}


def test_a_model_without_files_of_sentence_transformers_is_not_read_by_those_of_an_earlier_push(
    hub: Hub, run: Path, model_for_text: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    """A translation model has none."""
    push(run, "me/x")
    names = ("2_Dense/config.json", "3_Normalize/config.json", "adapter_config.json", "checkpoint-1/modules.json")
    hub.repositories["me/x"] |= dict.fromkeys((*names, "LICENSE"), b"old")
    model_for_text(seed=2).save_pretrained(tmp_path)
    commit("me/x", files_of(tmp_path, tmp_path))
    left = hub.repositories["me/x"].keys() - below(tmp_path).keys()
    shown = {"README.md", "results.json", "report.html", "tokenizer.json", "tokenizer_config.json"}
    assert left == {"checkpoint-1/modules.json", "LICENSE"} | shown
    assert load_encoder("me/x")[0].config.embedding_layer is None


# --- from the scripts -------------------------------------------------------------------------------------------------


def test_a_pre_training_run_is_pushed_once_when_it_has_ended(
    hub: Hub, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    pairs = [json.dumps({"en": en, "de": de}) for en, de in zip(sentences["en"], sentences["de"])]
    (tmp_path / "pairs.jsonl").write_text("\n".join(pairs), "utf-8")
    sizes = {"vocab_size": 160, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 66, "word_negatives": 16}
    run_pretraining.main([
        "--train_file", str(tmp_path / "pairs.jsonl"), "--config_overrides", json.dumps(sizes), "--max_seq_length",
        "60", "--output_dir", str(tmp_path / "run"), "--held_out_sentences", "8", "--max_steps", "4", "--save_strategy",
        "steps", "--save_steps", "1", "--use_cpu", "true", "--disable_tqdm", "true", "--per_device_train_batch_size",
        "8", "--push_to_hub", "true", "--hub_model_id", "x", "--hub_private_repo", "true",
    ])  # fmt: skip
    assert len(hub.commits["me/x"]) == 1 and hub.private["me/x"]
    assert without_cards(hub.repositories["me/x"]) == expected_of_script(tmp_path / "run")
    card = hub.repositories["me/x"]["README.md"].decode()
    assert set(re.findall(r"\((pictures/[^)]+)\)", card)) == {
        name for name in hub.repositories["me/x"] if name.startswith("pictures/")
    }
    kept = json.loads(hub.repositories["me/x"]["results.json"])["retrieval"]["protocol"]["hictl"]
    config = json.loads(hub.repositories["me/x"]["config.json"])
    assert (config["embedding_pooling"], config["embedding_layer"]) == (kept["mode"], kept["layer"])


def expected_of_script(run: Path) -> dict[str, bytes]:
    """`expected`, without what the run keeps for itself: checkpoints to resume from and the tokenizer it learned."""
    return {name: data for name, data in expected(run).items() if not re.match(r"checkpoint-\d|tokenizer/", name)}


def test_a_translation_run_is_pushed_when_it_has_ended_and_again_when_asked(
    hub: Hub, sentences: dict[str, list[str]], saved_model: Callable[..., Path], tmp_path: Path
) -> None:
    for language in ("de", "en"):
        (tmp_path / f"text.{language}").write_text("\n".join(sentences[language]) + "\n", "utf-8")
    saved_model(tmp_path / "encoder", seed=1)
    command = [
        "--model_name_or_path", str(tmp_path / "encoder"), "--train_file", f"{tmp_path}/text.{{de,en}}", "--test_file",
        f"{tmp_path}/text.{{de,en}}", "--source_lang", "de", "--target_lang", "en", "--max_steps", "2",
        "--decoder_layers", "1", "--num_beams", "2", "--max_tokens", "200", "--save_strategy", "no", "--disable_tqdm",
        "true", "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip
    publish = ["--push_to_hub", "true", "--hub_model_id", "de-en"]  # of the account's
    run_translation.main(command)
    assert not hub.repositories
    run_translation.main([*command, *publish])  # this run is finished: only that is left
    run_translation.main([*command, *publish])
    files = hub.repositories["me/de-en"]
    assert len(hub.commits["me/de-en"]) == 1
    assert (
        below(tmp_path / "run" / "model").items() <= files.items() and {"report.html", "results.json"} <= files.keys()
    )
    card = ModelCard(files["README.md"].decode())
    results = json.loads(files["results.json"])["test"]["de-en"]
    found = card.data.to_dict()["model-index"][0]["results"]
    types = [metric["type"] for row in found for metric in row["metrics"]]
    assert types == ["bleu" if "bleu" in name else name for name in results]
    assert results["sacrebleu"]["signature"].replace("|", r"\|") in card.text and card.data.language == ["de", "en"]
    back = HictlForConditionalGeneration.from_pretrained("me/de-en")
    assert back.config.is_encoder_decoder
    assert "Results" in (tmp_path / "run" / "model" / "README.md").read_text("utf-8")


REFUSED_SETTINGS = {
    "no name": ([], "give --hub_model_id your-name/model"),
    "a token": (
        ["--hub_model_id", "me/x", "--hub_token", "hf_secret"],
        "which would be stored and published with the command",
    ),
    "a branch": (["--hub_model_id", "me/x", "--hub_revision", "try"], "a run is pushed to main"),
}


@pytest.mark.parametrize("case", REFUSED_SETTINGS)
@pytest.mark.parametrize("parse", [parse_arguments, parse_translation_arguments])
def test_settings_that_would_push_badly_are_refused(case: str, parse: Callable[[list[str]], Any]) -> None:
    flags, message = REFUSED_SETTINGS[case]
    needed = ["--train_file", "x"] if parse is parse_arguments else ["--train_file", "x", "--model_name_or_path", "y"]
    with pytest.raises(BadInput, match=message) as refusal:
        parse([*needed, "--push_to_hub", "true", *flags])
    assert "hf_secret" not in str(refusal.value)


def test_a_test_of_a_translation_model_has_nothing_to_push() -> None:
    flags = ["--model_name_or_path", "m", "--test_file", "t", "--source_lang", "de", "--target_lang", "en"]
    with pytest.raises(BadInput, match="push_to_hub shares the model that a run has trained"):
        parse_translation_arguments([*flags, "--push_to_hub", "true", "--hub_model_id", "me/x"])


def test_a_name_without_an_owner_is_of_the_account(hub: Hub, run: Path) -> None:
    """HF's Trainer reads such a name so; the cards name the repository with its owner."""
    assert push(run, "x", encoder_repository="y").startswith(f"{hub.url}/me/x/")
    assert hub.repositories.keys() == {"me/x", "me/y"} and b"me/y" in hub.repositories["me/x"]["README.md"]
    hub.interruptions["/api/whoami-v2"] = "refuse"
    with pytest.raises(BadInput, match="^x: has no owner, and the account is not known .*log in by `hf auth login`"):
        push(run, "x")


def test_a_run_that_could_not_be_pushed_does_not_begin(hub: Hub, tmp_path: Path) -> None:
    hub.interruptions["/repos/create"] = "refuse"
    flags = ["--train_file", "nowhere.jsonl", "--push_to_hub", "true", "--hub_model_id", "me/x", "--output_dir"]
    with pytest.raises(BadInput, match="me/x: .*log in by `hf auth login`"):
        run_pretraining.main([*flags, str(tmp_path / "run")])


# --- hostile and broken folders ---------------------------------------------------------------------------------------


def spoil(run: Path, case: str) -> None:
    checkpoint = run / "checkpoint"
    if case == "no run":
        shutil.rmtree(checkpoint)
    elif case == "no end":
        (run / "results.json").unlink()
    elif case == "results that are none":
        (run / "results.json").write_text("[1, 2", "utf-8")
    elif case == "pickle":
        (checkpoint / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch executed'\ntR.")
    elif case == "link to a file":
        (checkpoint / "vocab.txt").symlink_to(Path.home().parent / "etc" / "passwd")
    elif case == "link to a folder":
        (run / "encoder" / "more").symlink_to(Path("/etc"), target_is_directory=True)
    elif case == "both kinds":
        shutil.copytree(checkpoint, run / "model")
    else:
        write_json(run / "results.json", {})


REFUSED = {
    "no run": "holds no model in safetensors; allowed is the output folder",
    "no end": "results.json: cannot be read",
    "results that are none": "results.json: cannot be read",
    "pickle": "pytorch_model.bin: is a pickle",
    "link to a file": "vocab.txt: is a link to .*passwd",
    "link to a folder": "more: is a link to /etc",
    "both kinds": "holds checkpoint and model",
}


@pytest.mark.parametrize("case", REFUSED)
def test_folders_that_must_not_be_shared_are_refused_before_anything_is_sent(
    hub: Hub, run: Path, tmp_path: Path, case: str
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    spoil(folder, case)
    with pytest.raises(BadInput, match=REFUSED[case]):
        push(folder, "me/x")
    assert hub.requests == []


def test_what_is_no_run_is_told_for_what_it_is(run: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(run / "encoder", tmp_path / "encoder")
    for folder, message in (
        (run / "encoder", f"encoder: is a part of a run; .* Publish the run: {run}"),
        (alone, "encoder: is a model, not a run; .* `hf upload "),
        (tmp_path / "encodr", "encodr: no such folder; .* Did you mean .*/encoder?"),
    ):
        with pytest.raises(BadInput, match=message):
            push(folder, "me/x")


def test_a_link_within_the_run_is_pushed_as_what_it_names(hub: Hub, run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "encoder" / "tokenizer.json").unlink()
    (folder / "encoder" / "tokenizer.json").symlink_to("../checkpoint/tokenizer.json")
    push(folder, "me/x")
    assert without_cards(hub.repositories["me/x"]) == expected(run)


@pytest.mark.parametrize("flags", [["--encoder_repository", "me/x"], []])
def test_an_encoder_needs_another_repository(hub: Hub, run: Path, tmp_path: Path, flags: Sequence[str]) -> None:
    folder = run
    if not flags:
        folder = tmp_path / "translation"
        shutil.copytree(run / "checkpoint", folder / "model")
        shutil.copy(run / "results.json", folder)
        flags = ["--encoder_repository", "me/e"]
    with pytest.raises(BadInput, match="allowed is another repository than that of the model"):
        main([str(folder), "me/x", *flags])
    assert hub.requests == []
