"""One command with sub-commands: each runs the `main` of its module, as the scripts do, and a shell completes them."""

import errno
import json
import logging
import os
import re
import resource
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.debug_utils import DebugOption

from hictl_hf import __version__
from hictl_hf.cli import completion
from hictl_hf.cli import main as cli
from hictl_hf.cli.logs import PlainFormatter, level_of
from hictl_hf.errors import HF_DEBUG, BadInput, nearest_name, run
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.parsing import parse_flags, parse_flags_or_recipe
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.processes import LOCAL_RANKS, RANKS

ROOT = Path(__file__).parents[2]
LIGHT = """
import sys
from hictl_hf.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print({"torch", "transformers", "datasets", "numpy"} & set(sys.modules))
"""


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands rename the program; afterwards it has its own name again."""
    monkeypatch.setattr(sys, "argv", ["hictl"])


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments that the command `translate`, which does nothing else, was called with."""
    calls: list[Any] = []
    monkeypatch.setattr("hictl_hf.cli.translate.main", calls.append)
    return calls


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_main_that_lists_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert f"usage: hictl {name} " in told
    assert ("[RECIPE]" in told) == (name in ("pretrain", "xtreme", "train-translation"))


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    told = capsys.readouterr().out
    assert ended.value.code == 0
    assert [line.split()[0] for line in told.partition("commands:\n")[2].splitlines()[:-2]] == list(cli.COMMANDS)


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["tranlate"], ["completion", "bash"], ["completion", "zsh"], ["completion", "--help"]]
)
def test_help_completion_and_typing_errors_wait_for_no_library(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.endswith("set()\n"), done.stderr
    assert "Traceback" not in done.stderr and (done.stdout + done.stderr).count("hictl") > 1


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"hictl_hf {__version__}\n"


def test_the_commands_after_a_run_can_be_pasted_though_its_folder_has_a_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hictl_hf.cli.pretrain.pretrain", lambda *_, **__: SimpleNamespace(as_dict=dict))
    monkeypatch.setattr("hictl_hf.cli.pretrain.retrieval_table", lambda results: "")
    cli.main_of("pretrain")(
        ["--model_name_or_path", "m", "--train_file", "a.tsv", "--output_dir", f"{tmp_path}/my run"]
    )
    words = [shlex.split(line) for line in capsys.readouterr().out.splitlines()[-2:]]
    assert words[0][:5] == ["next:", "hictl", "embed", "--model", f"{tmp_path}/my run/encoder"]
    assert words[1][:3] == ["hictl", "publish", f"{tmp_path}/my run"]


def test_what_is_no_command_is_refused_and_the_commands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["tranlate", "--model", "m"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and "'tranlate'" in told and "explain" in told
    assert "did you mean hictl translate?" in told
    with pytest.raises(SystemExit):
        cli.main(["zzz"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if hasattr(cli.parser_of(name), "examples")])
def test_help_ends_with_commands_that_have_its_flags(name: str) -> None:
    parser = cli.parser_of(name)
    told = parser.format_help()
    examples = told.partition("\nexamples:\n")[2].splitlines()
    assert examples and all(f"hictl {name}" in example for example in examples)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert {word for example in examples for word in example.split() if word.startswith("--")} <= flags
    assert "default: None" not in " ".join(told.split()) and "(default: [])" not in told
    for action in parser._actions:
        if action.option_strings and action.required:
            assert action.help.endswith("(required)")


def test_what_is_missing_is_told_with_an_example_in_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["embed", "--model", "m"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and "are required: --output; for example: hictl embed --model " in told
    assert told.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pretrain", "--train_file", "a.tsv", "--output", "o"], "output is called output_dir here"),
        (["embed", "--output_dir", "o"], "output_dir is called output here"),
        (["pretrain", "--data", "a.tsv"], "data is called train_file here"),
    ],
)
def test_habits_of_other_commands_are_answered(arguments: list[str], told: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert told in str(ended.value.code)


@pytest.mark.parametrize("rest", [[], ["--help"], ["--version", "-h", "--", "a b"], ["explain", "--model=x"]])
def test_a_command_gets_all_that_stands_after_its_name(rest: list[str], called: list[Any]) -> None:
    cli.main(["translate", *rest])
    assert called == [rest] and sys.argv == ["hictl translate", *rest]


def test_what_one_process_does_is_done_by_the_first_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*RANKS, *LOCAL_RANKS):
        monkeypatch.delenv(name, raising=False)
    calls: list[Any] = []
    monkeypatch.setattr("hictl_hf.cli.compare.main", calls.append)
    monkeypatch.setattr("hictl_hf.cli.pretrain.main", calls.append)
    found = {"RANK": "1"}, {"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}  # the first: of a machine
    others = ({"OMPI_COMM_WORLD_RANK": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},)
    for number, variables in enumerate((*found, *others)):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            cli.main(["compare", str(number)])
            cli.main(["pretrain", "any"])
    assert calls == [["0"], ["any"], ["1"], ["any"], ["any"], ["any"]]
    assert capsys.readouterr().err == "hictl compare: done by the first process alone; this one ends\n" * 2


def test_without_arguments_those_of_the_command_line_are_taken(
    called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/hictl", "translate", "--num_beams", "2"])
    cli.main()
    assert called == [["--num_beams", "2"]]


BY_ARGPARSE = ("score", "compare", "completion", "prepare-xtreme", "prepare-translation", "doctor")
WITH_DATACLASS = [name for name in cli.COMMANDS if name not in (*BY_ARGPARSE, "demo")]  # demo passes them to pretrain
REQUIRED = {  # what a command needs before it looks at anything else
    "embed": ["--model", "m", "--output", "x.npy"],
    "export-onnx": ["--model", "m", "--output", "x"],
    "export-ctranslate2": ["--model", "m", "--output", "x"],
    "explain": ["a sentence", "--model", "m"],
    "mine": ["a", "b", "--output", "x"],
    "mteb": ["--model", "m", "--output", "x"],
    "page": ["--model", "m"],
    "publish": ["runs/x", "a/b"],
    "translate": ["--model", "m"],
    "score-retrieval": ["a", "--test_file", "x"],
    "tsne": ["a", "b", "--sentences", "x", "--output", "y.png"],
}


@pytest.mark.parametrize("name", WITH_DATACLASS)
def test_an_argument_that_nobody_reads_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(BadInput, match=r"^--no_such_flag 3: unknown argument; --help lists all arguments$"):
        cli.main_of(name)([*REQUIRED.get(name, []), "--no_such_flag", "3"])


def test_the_flag_that_was_meant_is_named() -> None:
    with pytest.raises(BadInput, match="--modle=m: unknown argument; did you mean --model"):
        cli.main_of("translate")(["--model", "m", "--modle=m"])
    for name in ("translate", "embed", "explain"):  # also where it leaves something missing
        with pytest.raises(BadInput, match=r"--modle( m)?: unknown argument; did you mean --model"):
            cli.main_of(name)(["--modle", "m"])
    for word, meant in (
        ("\u2014input", "--input"),
        ("--NORMALIZE", "--normalize"),
        ("--max_seq_lenght", "--max_seq_length"),
        ("--no-normalize", "--normalize false"),
    ):
        with pytest.raises(BadInput, match=rf"{word}: unknown argument; did you mean {meant}\? --help"):
            cli.main_of("embed")([*REQUIRED["embed"], word])
    with pytest.raises(BadInput, match="lines.txt: unknown argument; files are named by --input; --help"):
        cli.main_of("embed")([*REQUIRED["embed"], "lines.txt"])
    with pytest.raises(BadInput, match=r"a\.yaml: unknown argument; a recipe is the first argument; --help"):
        cli.main_of("pretrain")(["--seed", "1", "a.yaml"])


@pytest.mark.parametrize("message", ["a.txt:3: is wrong", "Caught in worker 0.\nhictl_hf.BadInput: a.txt:3: is wrong"])
def test_bad_input_ends_with_one_line(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: Sequence[str]) -> None:
        raise BadInput(message)

    monkeypatch.setattr("hictl_hf.cli.translate.main", refuse)
    with pytest.raises(SystemExit) as ended:
        cli.main(["translate"])
    assert ended.value.code == "error: a.txt:3: is wrong"


PRINT = """
from hictl_hf.cli.main import run
from hictl_hf.data.lines import open_output
def main(argv):
    with open_output(None) as output:
        for number in range(100_000):
            print("ж", file=output)
run(main)
"""


def test_output_is_utf_8_and_may_be_cut_off_by_who_reads_it() -> None:
    command = [sys.executable, "-c", PRINT]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout and process.stderr and process.stdout.readline() == "ж\n".encode()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read() and process.wait() == 128 + signal.SIGPIPE


SHORT = "from hictl_hf.cli.main import run\nrun(lambda argv: print('a \u2581'))"


@pytest.mark.parametrize("place, status, message", [("/dev/full", 1, b"error: No space left"), ("a pipe", 141, b"")])
def test_a_short_output_that_cannot_be_written_is_told_once(place: str, status: int, message: bytes) -> None:
    """It is written when Python ends, after all handlers: status 120 and another message."""
    if place == "a pipe":
        reader, output = os.pipe()
        os.close(reader)
    else:
        output = os.open(place, os.O_WRONLY)
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    ended = subprocess.run([sys.executable, "-c", SHORT], stdout=output, stderr=subprocess.PIPE, env=environment)
    os.close(output)
    assert ended.returncode == status and ended.stderr.startswith(message)
    assert len(ended.stderr.splitlines()) == bool(message)


def test_a_character_that_standard_output_lacks_is_written_as_an_escape() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    assert subprocess.check_output([sys.executable, "-c", SHORT], env=environment) == b"a \\u2581\n"


READ = """
import sys
from hictl_hf.cli.main import run
from hictl_hf.data.lines import open_output, read_texts
def main(argv):
    sys.stderr.write("")  # as a progress bar does
    with open_output(None) as output:
        output.writelines(read_texts([]))
run(main)
"""


@pytest.mark.parametrize(
    "closed, status, message",
    [("<&-", 0, ""), (">&-", 1, "error: standard output is closed.*"), ("2>&-", 0, ""), ("<&- 2>&-", 0, "")],
)
def test_a_standard_stream_that_the_shell_closed_is_no_traceback(closed: str, status: int, message: str) -> None:
    command = ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, READ]
    ended = subprocess.run(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert ended.returncode == status and re.fullmatch(message, ended.stderr.strip())


def test_an_interrupt_ends_without_a_traceback() -> None:
    def interrupt(argv: Sequence[str]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        cli.run(interrupt, [])
    assert ended.value.code == 128 + signal.SIGINT


def test_a_file_that_cannot_be_opened_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hictl_hf.cli.translate.main", lambda _: tmp_path.write_text("x"))
    with pytest.raises(SystemExit, match=f"^error: {tmp_path}: Is a directory; allowed is .* Check the path.$"):
        cli.main(["translate"])


@pytest.mark.parametrize(
    ("place", "fix"),
    [("", "HF_HOME"), ("cache", "HF_HOME"), ("cache/datasets", "HF_HOME"), ("runs", "Check the path")],
)
def test_a_cache_that_cannot_be_written_to_is_moved_by_hf_home(
    place: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / place))

    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit, match=f"^error: {tmp_path / place}: Permission denied; .*{fix}"):
        cli.run(write, [])


def test_a_folder_that_cannot_be_read_has_no_name_like_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def glob(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    monkeypatch.setattr(Path, "glob", glob)
    assert nearest_name(tmp_path / "x") == ""


def test_a_link_to_what_is_missing_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to("gone")
    assert nearest_name(tmp_path / "model") == "It is a link to gone, which does not exist. "


def test_a_name_that_is_too_long_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="^error: .*xxx: File name too long; allowed"):
        cli.run(lambda _: (tmp_path / ("x" * 300)).read_text())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_is_told_in_one_line_also_without_the_name_of_a_file(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(_: object) -> None:
        raise OSError(number, f"Error writing bytes to file. Detail: {os.strerror(number)}")  # as pyarrow raises it

    monkeypatch.setattr("hictl_hf.cli.translate.main", fill)
    with pytest.raises(SystemExit, match=f"^error: .*{os.strerror(number)}; allowed is a disk with room .*TMPDIR"):
        cli.main(["translate"])


def test_an_array_that_finds_no_room_is_told_as_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's error has no number."""

    def fill(_: object) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with (tmp_path / "a.npy").open("wb") as file:
                np.save(file, np.zeros(4096))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr("hictl_hf.cli.translate.main", fill)
    with pytest.raises(SystemExit, match="^error: 4096 requested and .* written; allowed is a disk with room"):
        cli.main(["translate"])


OUTPUTS = {  # a command and what stands before its output
    "embed": ["--model", "m", "--input", "file", "--output"],
    "mine": ["file", "file", "--model", "m", "--output"],
    "translate": ["--model", "m", "--input", "file", "--output"],
    "export-onnx": ["--model", "m", "--output"],
    "pretrain": ["--train_file", "x", "--output_dir"],
    "xtreme": ["--model_name_or_path", "m", "--output_dir"],
    "train-translation": [
        "--train_file", "c.{de,en}", "--source_lang", "de", "--target_lang", "en", "--model_name_or_path", "m",
        "--output_dir",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_is_told_before_any_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("a line\n")
    Path("folder.npy").mkdir()
    a_file = name in ("embed", "mine", "translate")
    there, wanted = ("folder.npy", "file") if a_file else ("file", "folder")
    for output in (there, "file/below/a.npy"):
        with pytest.raises(
            BadInput, match=f"^{output}: (.*/file )?is a (file|folder); allowed is a path where a {wanted}"
        ):
            cli.main_of(name)([*OUTPUTS[name], output])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.npy"]


@pytest.mark.parametrize("name", ["embed", "translate", "pretrain", "xtreme", "train-translation"])
def test_the_folder_of_a_run_is_not_its_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parts = ["checkpoint", "encoder"] if name != "translate" else ["model"]
    for part in parts:
        Path("run", part).mkdir(parents=True)
        Path("run", part, "config.json").touch()
    arguments = ["run" if word == "m" else word for word in (*OUTPUTS[name], "out.npy")]
    if name == "pretrain":
        arguments += ["--model_name_or_path", "run"]
    meant = " or ".join(f"run/{part}" for part in parts)
    with pytest.raises(BadInput, match=rf"^run: is the folder of a run; allowed is .* Did you mean {meant}\?$"):
        cli.main_of(name)(arguments)


@pytest.mark.parametrize("name", ["embed", "mine", "translate", "pretrain"])
def test_a_model_folder_that_does_not_exist_is_told_with_the_commands_that_make_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the demo may have been run in the checkout
    for folder in ("runs/demo/encoder", "./none", "/none/m"):
        arguments = [folder if word == "m" else word for word in (*OUTPUTS[name], "out.npy")]
        arguments += ["--model_name_or_path", folder] if name == "pretrain" else []
        with pytest.raises(BadInput, match=f"^{folder}: does not exist; .* `hictl demo` makes runs/demo/checkpoint"):
            cli.main_of(name)(arguments)


@pytest.mark.parametrize("name", ["embed", "mine", "translate"])
@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there_is_told(name: str, device: str) -> None:
    with pytest.raises(BadInput, match=f"^device is '{device}', which cannot be used .*; allowed .*cpu.* leave it out"):
        cli.main_of(name)([*OUTPUTS[name], "out.npy", "--device", device])


def test_a_translator_into_several_languages_is_told_which_by_a_flag(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    for part in (model_for_text(HictlForConditionalGeneration, target_languages=["de", "fr"]), tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "in").write_text("a dog\n")
    given = ["--model", str(tmp_path / "model"), "--input", str(tmp_path / "in"), "--max_length", "3"]
    output = tmp_path / "new" / "out"
    cases = [([], "is not given", "de"), (["--target_lang", "sw"], "is 'sw'", "de")]
    cases += [(["--target_lang", "fr_CA"], "is 'fr_CA'", "fr")]
    for more, found, example in cases:
        with pytest.raises(
            BadInput,
            match=f"^target_lang {found}; allowed for .* are de, fr. Give it, for example --target_lang {example}.",
        ):
            cli.main_of("translate")([*given, *more])
    cli.main_of("translate")([*given, "--target_lang", "fr", "--output", str(output)])
    assert output.read_text("utf-8").count("\n") == 1


# --- groups and --debug -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_DATACLASS)
def test_every_argument_of_ours_is_in_a_group(name: str) -> None:
    module = cli.module_of(name)
    (kind,) = module.make_parser().dataclass_types
    own = known = {item.name for item in fields(kind) if item.init}
    if issubclass(kind, TrainingArguments):  # the others are HF's
        data, model, _ = kind.__bases__
        declared = {*kind.__annotations__, *(item.name for base in (data, model) for item in fields(base))}
        own = {name for name in known if name in declared}
    grouped = [name for names in module.GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped)) and own <= set(grouped) <= known
    told = module.make_parser().format_help()
    assert all(f"\n{title}:\n" in told for title in module.GROUPS)
    assert ("\nHugging Face's TrainingArguments:\n" in told) == issubclass(kind, TrainingArguments)
    if issubclass(kind, TrainingArguments):
        assert max(told.index(f"\n{title}:\n") for title in module.GROUPS) < told.index("\nHugging Face's Tr")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_can_show_the_traceback(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = " ".join(cli.parser_of(name).format_help().split())
    assert "--debug" in shown and "Show the Python traceback of an error" in shown

    def refuse(argv: Sequence[str]) -> None:
        raise BadInput("a.txt:3: is wrong")

    monkeypatch.setattr(cli.module_of(name), "main", refuse)
    with pytest.raises(BadInput, match="a.txt:3: is wrong"):
        cli.main([name, "--debug"])
    with pytest.raises(BadInput, match="a.txt:3: is wrong"):
        cli.main([name, "--debug", "a"])  # a positional argument, or a value that the parser of the command refuses
    with pytest.raises(SystemExit, match="error: a.txt:3: is wrong"):
        cli.main([name])


def test_debug_is_a_plain_flag_without_training_arguments() -> None:
    args = parse_flags(cli.parser_of("translate"), ["--debug", "--model", "m"])
    assert args.model == "m" and not hasattr(args, "debug")
    args, positional = parse_flags(cli.parser_of("mine"), ["--output", "o", "--debug", "a", "b"])
    assert positional.files == ["a", "b"] and not hasattr(args, "debug") and not hasattr(positional, "debug")
    assert cli.parser_of("compare").parse_args(["--debug", "runs/a"]).runs == ["runs/a"]


WITH_TRAINING_ARGUMENTS = ("pretrain", "train-translation")


@pytest.mark.parametrize("name", WITH_TRAINING_ARGUMENTS)
def test_debug_without_a_value_shows_the_traceback_and_with_one_is_that_of_transformers(name: str) -> None:
    assert issubclass(cli.parser_of(name).dataclass_types[0], TrainingArguments)
    needed = {"pretrain": ["--train_file", "x"], "train-translation": OUTPUTS["train-translation"][:-1]}[name]

    def debug(*words: str) -> Any:
        return parse_flags(cli.parser_of(name), ["--use_cpu", "true", *words, *needed]).debug

    assert debug() == debug("--debug") == []
    if name == "pretrain":
        assert debug("--debug", "underflow_overflow") == [DebugOption.UNDERFLOW_OVERFLOW]
    for value in ("underflow_overflow",) if name != "pretrain" else ("tpu_metrics_debug",):
        with pytest.raises(BadInput, match=f"debug is {value}"):
            debug("--debug", value)


@pytest.mark.parametrize("name", WITH_TRAINING_ARGUMENTS)
def test_a_value_of_transformers_debug_shows_no_traceback(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: Sequence[str]) -> None:
        raise BadInput("a.txt:3: is wrong")

    monkeypatch.setattr(cli.module_of(name), "main", refuse)
    assert set(HF_DEBUG) == {option.value for option in DebugOption}
    for option in HF_DEBUG:
        with pytest.raises(SystemExit, match="error: a.txt:3: is wrong"):
            cli.main([name, "--debug", option, "--seed", "1"])


def test_debug_may_be_in_a_recipe(tmp_path: Path) -> None:
    for value in ("underflow_overflow", ["underflow_overflow"]):
        (tmp_path / "recipe.json").write_text(json.dumps({"train_file": "x", "debug": value, "use_cpu": True}))
        args = parse_flags_or_recipe([str(tmp_path / "recipe.json")], PretrainingArguments)
        assert args.debug == [DebugOption.UNDERFLOW_OVERFLOW]


# --- the scripts ------------------------------------------------------------------------------------------------------

SCRIPTS = {
    "pretrain": ("run_pretraining.py", "cli.pretrain.pretrain", ["--train_file", "a b.jsonl"]),
    "xtreme": ("run_xtreme.py", "cli.xtreme.run_xtreme", ["--model_name_or_path", "a b"]),
    "train-translation": (
        "run_translation.py", "cli.train_translation.run_translation",
        ["--train_file", "c.{de,en}", "--source_lang", "de", "--target_lang", "en", "--model_name_or_path", "a b"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_and_its_command_run_the_same_and_record_what_was_typed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, function, arguments = SCRIPTS[name]
    runs: list[tuple[Any, str]] = []

    def run(args: Any, command: str, **_: Any) -> None:
        runs.append((args, command))
        raise BadInput("stop here")

    monkeypatch.setattr(f"hictl_hf.{function}", run)
    with pytest.raises(SystemExit, match="error: stop here"):
        cli.main([name, *arguments])
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit, match="error: stop here"):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    (args, command), (args_of_script, command_of_script) = runs
    assert command.startswith(f"hictl {name} --") and command_of_script.startswith(f"python {script} --")
    assert command.removeprefix(f"hictl {name}") == command_of_script.removeprefix(f"python {script}")
    assert "'a b" in command  # can be typed again
    assert str(args) == str(args_of_script)


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", completion.SCRIPTS)
def test_the_scripts_are_those_of_todays_parsers(shell: str) -> None:
    """They also list the arguments of transformers, which differ between its releases."""
    if f"transformers=={transformers.__version__}\n" not in (ROOT / "constraints.txt").read_text("utf-8"):
        pytest.skip("another transformers than the scripts were made with")
    made, kept = completion.make_script(shell), completion.SCRIPTS[shell].read_text("utf-8")
    assert made == kept, "run make completions"


@pytest.fixture(scope="module")
def bash_completion() -> Path:
    return completion.SCRIPTS["bash"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["tra"], ["train-translation", "translate"]),
        (["explain", "--wor"], ["--words"]),
        (["translate", "--target_lan"], ["--target_lang"]),
        (["completion", ""], ["bash", "zsh"]),
        (["pretrain", "--save_strat"], ["--save_strategy"]),
        (["pretrain", "--save_strategy", "ep"], ["epoch"]),
        (["translate", "--model", "run_trans"], ["run_translation.py"]),
        (["translate", "--input", "README.md", "--target_lan"], ["--target_lang"]),
        (["pretrain", "run_trans"], ["run_translation.py"]),
        (["pretrain", "a.json", "--train_file", "README.md", "--save_strat"], ["--save_strategy"]),
    ],
)
def test_bash_completes_commands_flags_choices_and_files(
    typed: list[str], expected: list[str], bash_completion: Path
) -> None:
    words = " ".join(f"'{word}'" for word in ["hictl", *typed])
    function = f"source {bash_completion}; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; "
    ask = 'eval "$(complete -p hictl | sed "s/.*-F \\([^ ]*\\).*/\\1/") hictl"; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", function + ask], cwd=ROOT, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == sorted(expected), done.stderr


def test_the_help_of_completion_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        completion.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("hictl completion zsh > ")] and not any(
        "/hictl hi" in x for x in lines
    )


def test_the_completion_of_zsh_is_for_hictl_and_zsh_understands_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    completion.main(["zsh"])
    text = capsys.readouterr().out
    assert text.startswith("#compdef hictl\n") and "train-translation" in text
    if shutil.which("zsh"):
        (tmp_path / "_hictl").write_text(text, "utf-8")
        done = subprocess.run(["zsh", "-n", tmp_path / "_hictl"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_names_with_control_characters_do_not_act_on_the_terminal() -> None:
    def fail(argv: Sequence[str]) -> None:
        raise BadInput("a\x1b[2J.zip: is empty")

    with pytest.raises(SystemExit, match=r"^error: a\\x1b\[2J\.zip: is empty$"):
        run(fail, [])
    record = logging.LogRecord("hictl_hf", logging.INFO, "", 1, "%s: read\nand more", ("b\x07",), None)
    assert PlainFormatter("%(message)s").format(record) == "b\\x07: read\nand more"


@pytest.mark.parametrize(
    ("flags", "main", "replica"),
    [
        ("", logging.INFO, logging.WARNING),
        ("--log_level error --log_level_replica critical", logging.ERROR, logging.CRITICAL),
        ("--log_level debug --log_level_replica debug", logging.INFO, logging.WARNING),
    ],
)
def test_the_level_of_logs_is_also_that_of_this_package(
    flags: str, main: int, replica: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = parse_flags_or_recipe(["--train_file", "x", *flags.split()], PretrainingArguments)
    assert level_of(args) == main
    monkeypatch.setattr(TrainingArguments, "should_log", False)
    assert level_of(args) == replica
