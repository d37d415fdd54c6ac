"""What we show, we run: the Python of README and docs, examples, recipes; and every name, flag and link exists."""

import ast
import gzip
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import reduce
from itertools import chain
from pathlib import Path
from runpy import run_path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml
from parsers import parse_arguments
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlConfig, __version__, export_encoder
from hictl_hf.cli.main import COMMANDS, parser_of
from hictl_hf.data.cleaning import Cleaning
from hictl_hf.data.corpus import load_corpus
from hictl_hf.former_names import ARGUMENTS
from hictl_hf.models.configuration_hictl import config_class
from hictl_hf.models.configuration_objective import ObjectiveConfig
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.models.supported_versions import NEWEST, OLDEST
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.recipe_files import read_recipe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))}
PAGES |= {name: (ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").rglob("*.json"))
RECIPES = [name for name in RECIPES if not {"translation", "xtreme", "data"} & {*Path(name).parts}]  # tested apart
TAKING_ARGUMENTS = [path.name for path in (ROOT / "examples").glob("*.py") if "*sys.argv" in path.read_text("utf-8")]
ON_THIS_MACHINE = ["--use_cpu", "true", "--bf16", "false"]
LETTER = {  # settings of the paper where the defaults are others
    "sentence_temperature": 1.0, "word_temperature": 1.0, "word_sampling_temperature": 1.0,
    "hard_negative_space": "raw", "duplicates": "keep", "word_level_input": "clean",
}  # fmt: skip
LETTER_OF_THE_RUN = {"reordering": "subwords", "join_reordered": True, "pair_separators": 1}
SIZES = ("base", "large")
HYPERPARAMETERS = (
    (ROOT / "tests/paper_tables.tsv").read_text("utf-8").split("# Table 9\n")[1].split("# Table")[0].splitlines()
)
PAIRED = {
    "ar",
    "bg",
    "de",
    "el",
    "es",
    "fr",
    "hi",
    "ru",
    "sw",
    "th",
    "tr",
    "ur",
    "vi",
    "zh",
}  # with English, in Table 8


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def code(text: str) -> str:
    """All that a page sets as code, in blocks and in lines."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return "\n".join(blocks(text, r"\w*") + spans)


@pytest.fixture
def workplace(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sentences: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel],
    xtreme_folder: Path,
) -> Path:
    """A folder as the pages suppose it: a demo run, a translation model, pairs, a Swahili file, XTREME's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    model = model_for_text()
    model.save_pretrained("runs/demo/checkpoint")
    export_encoder(model, "runs/demo/encoder")
    for folder in ("checkpoint", "encoder"):
        tokenizer.save_pretrained(f"runs/demo/{folder}")
    translator = HictlForConditionalGeneration.from_encoder(model, target_languages=["en"], decoder_layers=1)
    for part in (translator, tokenizer):
        part.save_pretrained("runs/de-en-2/model")
    pairs = [{"en": en, other: sentences[other][at]} for at, en in enumerate(sentences["en"]) for other in ("de", "sw")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), "utf-8")
    (tmp_path / "swahili.txt").write_text("\n".join(sentences["sw"]), "utf-8")
    (tmp_path / "xtreme").symlink_to(xtreme_folder)
    return tmp_path


# docs/data_formats.md is run by test_data_corpus.py, which has the files for it
WITH_PYTHON = [name for name, text in PAGES.items() if blocks(text, "python") and name != "docs/data_formats.md"]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_on_a_page_runs_from_top_to_bottom(name: str, workplace: Path) -> None:
    space: dict[str, Any] = {"__name__": name}
    for block in blocks(PAGES[name], "python"):
        exec(compile(block, name, "exec"), space)
    if name == "README.md":
        assert space["vectors"].shape == (2, 32)
    if name == "docs/api/objectives.md":
        assert space["loss"] > 0
    if name == "docs/pretraining.md":
        assert (workplace / "runs/mine/report.html").is_file() and 0 <= space["results"].retrieval.hictl <= 100
    if name == "docs/xtreme.md":
        scores = space["results"].tasks["lareqa"].languages
        assert {*scores} == {"en", "de", "zh"} and 0 <= scores["de"]["accuracy"] <= 100


def test_the_readme_shows_python() -> None:
    assert "README.md" in WITH_PYTHON and len(blocks(README, "python")) >= 2


# --- examples --------------------------------------------------------------------------------------------------------


def test_surer_models_get_harder_negatives_in_the_example() -> None:
    table = np.array(run_path(str(ROOT / "examples/compare_hard_negatives.py"))["main"]())
    p_avg, mean_lambda, hardest, loss = table.T
    assert mean_lambda[0] == 1 and (np.diff(mean_lambda) < 0).all()
    assert (np.diff(p_avg) > 0).all() and (np.diff(hardest) > 0).all() and (np.diff(loss) > 0).all()


@pytest.mark.parametrize("steps", [2, pytest.param(120, marks=pytest.mark.slow)])
def test_the_tiny_run_learns_to_find_translations(steps: int, workplace: Path) -> None:
    before, after = run_path(str(ROOT / "examples/pretrain_tiny.py"))["main"](steps)
    assert 0 <= before <= 50 and 0 <= after <= 100
    assert steps < 100 or after > before + 25


def test_a_learning_rate_is_searched(workplace: Path) -> None:
    pytest.importorskip("optuna")
    best = run_path(str(ROOT / "examples/search_learning_rate.py"))["main"](trials=2, steps=1)
    assert 1e-5 <= best.hyperparameters["learning_rate"] <= 1e-3 and 0 <= best.objective <= 100


@pytest.mark.parametrize("name", TAKING_ARGUMENTS)
def test_an_example_without_its_arguments_says_how_it_is_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit, match=f"(?s): python examples/{name} "):
        run_path(str(ROOT / "examples" / name), run_name="__main__")


def test_every_example_is_run_here() -> None:
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    examples = [path.name for path in (ROOT / "examples").glob("*.py")]
    run = set(re.findall(r'run_path\(str\(ROOT / "examples/(\w+\.py)"\)\)|\bexample\("(\w+)', tests))
    names = {name or f"{other.removesuffix('.py')}.py" for name, other in run}
    assert len(examples) > 1 and sorted(set(examples) - names) == []


# --- recipes ---------------------------------------------------------------------------------------------------------


def read(recipe: str) -> dict[str, Any]:
    """A recipe of pre-training with those that it is based on; another one as it is."""
    if "translation" in recipe:
        return json.loads((ROOT / recipe).read_text("utf-8"))
    return read_recipe(str(ROOT / recipe), PretrainingArguments)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_parses(recipe: str) -> None:
    settings = read(recipe)
    data = [] if "train_file" in settings else ["--train_file", "x"]
    args = parse_arguments([str(ROOT / recipe), *data, *ON_THIS_MACHINE])
    assert args.output_dir == settings["output_dir"] and args.max_steps == settings["max_steps"]
    given = {name: value for name, value in settings["config_overrides"].items() if name != "model_type"}
    kind = config_class(settings["config_overrides"].get("model_type"))
    assert kind(**given).to_dict().items() >= given.items()
    assert given.keys() <= {field.name for field in fields(kind)}
    Cleaning(**args.cleaning)


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if "/encoders/" in recipe])
def test_the_demo_of_another_encoder_differs_from_the_demo_in_its_encoder_alone(recipe: str) -> None:
    ours, demo = read(recipe), read("recipes/demo.json")
    encoders = ours.pop("config_overrides"), demo.pop("config_overrides")
    for size in ("vocab_size", "hidden_size", "num_hidden_layers"):
        assert encoders[0][size] == encoders[1][size]
    assert Path(recipe).stem == f"demo-{encoders[0]['model_type']}" == Path(ours.pop("output_dir")).name
    assert ours == {name: value for name, value in demo.items() if name != "output_dir"}


@pytest.mark.parametrize(
    "recipe", [f"{folder}paper-{size}" for folder in ("", "ccnet100-mt/", "wiki15-mt/") for size in SIZES]
)
def test_recipes_of_the_paper_differ_from_it_in_nothing_but_what_choices_says(recipe: str) -> None:
    argv = [str(ROOT / f"recipes/{recipe}.json"), *([] if "/" in recipe else ["--train_file", "x"]), *ON_THIS_MACHINE]
    args = parse_arguments(argv)
    default, config = HictlConfig(), HictlConfig(**args.config_overrides)
    assert [name for name, value in LETTER.items() if getattr(default, name) == value] == []
    assert {name: getattr(config, name) for name in LETTER} == LETTER
    plain = PretrainingArguments(train_file=["x"], use_cpu=True)
    assert [name for name, value in LETTER_OF_THE_RUN.items() if getattr(plain, name) == value] == []
    assert {name: getattr(args, name) for name in LETTER_OF_THE_RUN} == LETTER_OF_THE_RUN
    assert not args.load_best_model_at_end, "the last checkpoint"
    as_the_paper = {
        "lm_weight": 1, "sentence_weight": 1, "word_weight": 1, "hard_negative_zeta": 0.9, "hard_negative_window": 100,
        "word_negatives": 512, "same_side_negatives": True, "sentence_pooling": "cls", "sentence_projection": True,
        "hard_negatives": "wiki15" not in recipe,  # the tables of appendix C add them to CCNet-100 only
    }  # fmt: skip
    assert {name: getattr(config, name) for name in as_the_paper} == as_the_paper
    number = SIZES.index(recipe.rpartition("-")[2])
    rows = dict(
        (line.split("\t")[0], line.split("\t")[1 + number]) for line in HYPERPARAMETERS if line.count("\t") == 2
    )
    batch = 8 * args.per_device_train_batch_size * args.gradient_accumulation_steps
    found = {
        "Mask percent (monolingual/bilingual)": f"{args.mlm_probability:.0%}/{args.tlm_probability:.0%}",
        "Adam epsilon": f"{args.adam_epsilon:.0e}".replace("e-0", "e-"),
        "Adam beta": str((args.adam_beta1, args.adam_beta2)),
        "Learning rate": f"{1e4 * args.learning_rate:g}e-4",
        "Learning rate schedule": str(args.lr_scheduler_type.value),
        "Warmup steps": f"{args.warmup_steps:,.0f}", "Dropout": str(config.hidden_dropout_prob),
        "Attention dropout": str(config.attention_probs_dropout_prob), "Batch size": str(batch),
        "Max sequence length (monolingual/bilingual)": str(args.max_seq_length),
        "Training steps": f"{args.max_steps // 1000}k",
    }  # fmt: skip
    assert found == {name: rows[name] for name in found}
    sizes = {"Number of layers", "Hidden size", "FFN inner hidden size", "Attention heads", "Hyperparameters"}
    assert rows.keys() - found.keys() == sizes and args.model_name_or_path == f"xlm-roberta-{SIZES[number]}"


@pytest.mark.parametrize("recipe", sorted(path.name for path in (ROOT / "recipes/translation").glob("step1-*.json")))
def test_recipes_of_the_papers_translation_add_the_cosine_itself(recipe: str) -> None:
    settings = read(f"recipes/translation/{recipe}")
    assert (settings["cls_bias"], settings["cls_bias_scale"]) == ("cosine", "fixed")
    assert settings["config_overrides"] == {"cls_bias_temperature": 1.0}


def test_recipes_write_to_folders_of_their_own() -> None:
    folders = [read(recipe)["output_dir"] for recipe in RECIPES]
    assert len(RECIPES) > 8 and len(set(folders)) == len(folders)


def test_the_processes_of_the_slurm_job_have_together_the_batch_of_its_recipe() -> None:
    job = (ROOT / "recipes/slurm/pretrain.sbatch").read_text("utf-8")
    flags = ("nodes=", "ntasks-per-node=", "per_device_train_batch_size ")
    nodes, processes, pairs = (int(re.search(rf"--{flag}(\d+)", job)[1]) for flag in flags)
    assert nodes * processes * pairs == 8 * read("recipes/base.json")["per_device_train_batch_size"] == 1024


@pytest.mark.parametrize(("name", "texts"), [("ccnet100-mt", 94), ("ccnet100", 94), ("wiki15-mt", 15)])
def test_sources_of_the_papers_data_are_read_in_its_languages(
    name: str, texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each source is given two rows; of the Hub's real datasets this says nothing."""

    def on_the_hub(name: str, config: str | None, **_: Any) -> list[dict[str, Any]]:
        if name == "allenai/c4":
            return [{"text": f"{config} {row}"} for row in "ab"]
        languages = (config or "en-hi").split("-")
        return [
            {"id": str(row), "translation": {language: f"{language} {row}" for language in languages}} for row in "ab"
        ]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", on_the_hub)
    recipe = read(f"recipes/data/{name}.json")
    for source in recipe["train_file"]:
        path = Path(source.rpartition(":")[2])
        path.parent.mkdir(exist_ok=True)
        if source.startswith("opus/"):
            before, languages = source.removesuffix("}").split("{")
            for language in languages.split(","):
                Path(before + language).write_text(f"{language} c\n{language} d\n", "utf-8")
        elif "hub:" not in source:
            path.write_bytes(gzip.compress(f"{source[:2]} c\n{source[:2]} d\n".encode()))
    rows = load_corpus(recipe["train_file"], Cleaning(drop_duplicates=False), cache_dir=tmp_path)[0]
    assert len({row["x_lang"] for row in rows if row["y_lang"] is None}) == texts
    pairs = [{row["x_lang"], row["y_lang"]} - {"en"} for row in rows if row["y_lang"] is not None]
    assert len(pairs) == (30 if "mt" in name else 0)
    assert {*chain(*pairs)} == (PAIRED if pairs else set())
    assert all(
        "en" in (row["x_lang"], row["y_lang"]) for row in load_corpus(recipe["validation_file"], cache_dir=tmp_path)[0]
    )


# --- names, flags, links ---------------------------------------------------------------------------------------------


def tracked_files() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout: what is tracked is not known")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip(f"git lists no files: {listed.stderr.strip()}")
    return listed.stdout.splitlines()


def tree() -> list[str]:
    """The paths in the tree of docs/architecture.md; modules are indented below their package."""
    (block,) = blocks(PAGES["docs/architecture.md"], "text")
    names, folder = [], ""
    for line in block.splitlines():
        indented, name, words = re.fullmatch(r"( *)(\S+) +(\S.*)", line).groups()
        assert len(words) > 4
        folder = folder if indented else name
        names.append(folder + name if indented else name)
    return names


def test_everything_in_the_tree_exists() -> None:
    assert [name for name in tree() if not (ROOT / name).exists()] == []
    assert len(set(tree())) == len(tree()) > 25


def test_the_tree_names_everything_tracked() -> None:
    files = tracked_files()
    top = {name.split("/")[0] + ("/" if "/" in name else "") for name in files}
    inside = {name for name in files if name.startswith("hictl_hf/")}
    inside -= {name for name in inside if name.count("/") > 1 and name.endswith(("/__init__.py", "/__init__.pyi"))}
    inside = {
        name.partition("completions/")[0] + "completions/" if "/completions/" in name else name for name in inside
    }
    assert sorted((top | inside) - set(tree())) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_make_target_on_a_page_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", code(PAGES[name]))) <= targets


def flags_of(command: str) -> set[str]:
    """The flags of a command."""
    return {action.dest for action in parser_of(command)._actions if action.option_strings}


@pytest.mark.parametrize("name", PAGES)
def test_every_flag_and_file_of_a_command_on_a_page_exists(name: str) -> None:
    known = {"nproc_per_node", "no"}.union(*map(flags_of, COMMANDS))  # of torchrun, and pip's --no-deps
    for file in (*ROOT.glob("benchmarks/*.py"), *ROOT.glob("studies/*.py")):
        known |= set(re.findall(r'"--(\w+)"', file.read_text("utf-8")))
    # of torchrun and accelerate, whose own parsers read these commands in test_scale.py
    known |= {"config_file", "machine_rank", "main_process_ip", "nnodes", "rdzv_backend", "rdzv_endpoint", "rdzv_id",
        "num_processes",
    }  # fmt: skip
    known |= {"fsys", "wildcards"}  # of dpkg and tar
    known |= {*ARGUMENTS} if name == "CHANGELOG.md" else set()  # former names
    assert set(re.findall(r"(?<![\w-])--(\w+)", code(PAGES[name]))) <= known
    commands = "\n".join(blocks(PAGES[name], "bash"))
    ours = re.findall(r"(?<![\w/.])((?:recipes|examples|studies|tests)/[\w./-]+|\w+\.py)", commands)
    assert [path for path in ours if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", PAGES[name])
    relative = [link for link in links if not link.startswith(("http:", "https:", "mailto:"))]
    assert [link for link in relative if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_the_paper_map_leads_to_functions_and_tests_that_exist() -> None:
    functions = re.findall(r"\[`([\w.]+)`\]\(\.\./hictl_hf/([\w/]+)\.py\)", PAGES["docs/paper_map.md"])
    tests = re.findall(r"\[`(\w+)\.py::(\w+)`\]\(\.\./tests/([\w/]+)\.py\)", PAGES["docs/paper_map.md"])
    assert len(functions) > 20 and len(tests) > 20
    for label, module in functions:
        start, *path = label.split(".")
        assert start == module.split("/")[-1]
        if path != ["py"]:
            reduce(getattr, path, importlib.import_module(f"hictl_hf.{module.replace('/', '.')}"))
    defined = {
        file: {node.name for node in ast.walk(ast.parse((ROOT / f"tests/{file}.py").read_text("utf-8")))
               if isinstance(node, ast.FunctionDef)}
        for _, _, file in tests
    }  # fmt: skip
    assert [
        (label, test) for label, test, file in tests if label != file.split("/")[-1] or test not in defined[file]
    ] == []


def test_every_setting_of_the_objectives_is_among_the_choices() -> None:
    own = [field.name for field in fields(ObjectiveConfig)]
    assert len(own) > 10
    assert [name for name in own if f"`{name}`" not in PAGES["docs/choices.md"]] == []


def test_changelog_and_citation_name_this_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", PAGES["CHANGELOG.md"], re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == __version__ and citation["license"] == "Apache-2.0"
    assert str(citation["date-released"]) in PAGES["CHANGELOG.md"]


def test_readme_shows_the_releases_that_passed() -> None:
    """`make test-versions` writes both; nobody else does."""
    report = json.loads((ROOT / "hictl_hf/tested_versions.json").read_text("utf-8"))
    assert report["oldest"]["transformers"] == OLDEST and report["newest"]["transformers"] == NEWEST
    assert len(README.splitlines()) <= 150
    for releases in report.values():
        assert f"| {releases['python']} | {releases['torch']} | {releases['transformers']} |" in README
