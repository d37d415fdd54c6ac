"""Run what depends on other libraries on the oldest and the newest releases that setup.cfg admits.

    python tests/run_versions.py            # `make test-versions`: oldest and newest of all libraries
    python tests/run_versions.py --quick    # in CI: PyTorch of constraints.txt, the tests that silent changes fail

Each set of releases has an environment of its own, `.venv-versions/NAME`. "oldest" are the lower bounds of setup.cfg;
"newest" what pip finds today, with --quick what the last complete run found. Releases on which all tests passed enter
`hictl_hf/tested_versions.json`, and README's table from it (not with --quick). Exit status 1: tests failed; the last
lines say on which releases.
"""

import argparse
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPORT, README = ROOT / "hictl_hf/tested_versions.json", ROOT / "README.md"
TABLE = re.compile(r"(?<=<!-- versions -->\n).*?(?=<!-- /versions -->)", re.DOTALL)
SHOWN = ("python", "torch", "transformers", "accelerate", "datasets", "huggingface-hub", "sentence-transformers")
QUICK = (
    "test_contracts.py", "models/test_supported_versions.py", "models/test_modeling_hictl_translation.py",
    "translation/test_beam_search.py", "xtreme/test_fine_tuning.py", "end_to_end/test_fast_step.py",
)  # fmt: skip
COMPLETE = (
    "test_contracts.py", "test_parsing.py", "models", "data/test_streaming.py", "data/test_tokenization.py", "training",
    "hub/test_publishing.py", "embedding", "gpu", "pretraining", "retrieval/test_index_search.py",
    "xtreme/test_fine_tuning.py", "translation/test_beam_search.py", "translation/test_ctranslate2_export.py",
    "translation/test_decoding.py", "translation/test_translation_trainer.py", "end_to_end/test_common_model_suite.py",
    "end_to_end/test_fast_step.py", "end_to_end/test_pretended_gpu.py", "end_to_end/test_resuming.py",
    "end_to_end/test_run_pretraining.py", "end_to_end/test_run_translation.py", "end_to_end/test_scale.py",
    "end_to_end/test_training_features.py",
)  # fmt: skip
OF_COMPLETE = ("ctranslate2", "mining", "mteb", "onnx", "page")  # extras that these tests need, too
IMPORTED = ("ctranslate2", "faiss", "gradio", "mteb", "onnxruntime", "onnxscript", "sentence_transformers")  # of them


def floors(extras: Sequence[str]) -> dict[str, str]:
    """The lower bound of each library of setup.cfg and of these extras that has one: {"torch": "2.11", …}."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    of_extras = (config["options.extras_require"][name] for name in extras)
    lines = "\n".join([config["options"]["install_requires"], *of_extras])
    return dict(re.findall(r"^([\w.-]+)>=([\d.]+)", lines, re.MULTILINE))


def find_python(names: Sequence[str]) -> str:
    """The first of several interpreters that runs here, else this one."""
    for name in names:
        path = shutil.which(name)
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return sys.executable


def make_environment(name: str, quick: bool) -> Path:
    """The interpreter of a new environment with these releases."""
    extras = ("test-versions", "sentence-transformers", *(() if quick else OF_COMPLETE))
    pins = [f"{library}=={version}" for library, version in floors(extras).items()] if name == "oldest" else []
    python = find_python(("python3.11",) if name == "oldest" else ("python3.14", "python3.13", "python3.12"))
    if quick and name == "newest" and REPORT.exists():
        known = json.loads(REPORT.read_text("utf-8"))["newest"]
        pins = [f"{library}=={known[library]}" for library in SHOWN[2:]]
    if quick:
        pinned = re.search(r"^torch==[^\s;]+", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
        assert pinned, "constraints.txt pins torch"
        pins = [pinned[0], *(pin for pin in pins if not pin.startswith("torch=="))]
        python = sys.executable
    folder = ROOT / ".venv-versions" / name
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = folder / "bin/python"
    pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, *pins, "-e", f".[{','.join(extras)}]"], cwd=ROOT, check=True)
    if not quick:  # tests skip what cannot be imported
        subprocess.run([str(own), "-c", f"import {', '.join(IMPORTED)}"], check=True)
    return own


def installed(python: Path) -> dict[str, str]:
    """The releases of an environment, of the libraries that README shows."""
    code = (
        "import json, platform; from importlib.metadata import version; "
        f"print(json.dumps({{'python': platform.python_version(), **{{n: version(n) for n in {SHOWN[1:]!r}}}}}))"
    )
    found: dict[str, str] = json.loads(subprocess.check_output([str(python), "-c", code], text=True))
    return found


def run_tests(python: Path, quick: bool) -> tuple[int, str]:
    """Exit status of pytest, and its last line."""
    files = [f"tests/{name}" for name in (QUICK if quick else COMPLETE)]
    workers = str(min(4, os.cpu_count() or 1))
    command = [str(python), "-m", "pytest", "--quiet", "--numprocesses", workers, "--dist", "loadfile", *files]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    return process.wait(), last


def table(report: dict[str, dict[str, str]]) -> str:
    """README's table of the releases that passed.

    >>> print(table({"oldest": {"torch": "2.11.0"}, "newest": {"torch": "2.15.0"}}))
    | | torch |
    |---|---|
    | oldest | 2.11.0 |
    | newest | 2.15.0 |
    """
    names = [name for name in SHOWN if name in next(iter(report.values()))]
    rows = [[name, *(releases[each] for each in names)] for name, releases in report.items()]
    return "\n".join(
        [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names), *(f"| {' | '.join(row)} |" for row in rows)]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="PyTorch of constraints.txt, the most telling tests")
    parser.add_argument("--only", choices=("oldest", "newest"), help="one set of releases")
    args = parser.parse_args(argv)
    names = [args.only] if args.only else ["oldest", "newest"]
    report: dict[str, dict[str, str]] = json.loads(REPORT.read_text("utf-8")) if REPORT.exists() else {}
    failed = []
    for name in names:
        started = time.monotonic()
        python = make_environment(name, args.quick)
        releases = installed(python)
        told = ", ".join(f"{library} {version}" for library, version in releases.items())
        print(f"{name}: {told}", flush=True)
        status, last = run_tests(python, args.quick)
        print(f"{name}: {last} ({told}; {time.monotonic() - started:.0f} s with the installation)", flush=True)
        if status:
            failed.append(f"{name}: tests fail on {told}")
        elif not args.quick:
            report[name] = releases | {"tests": last.split(" in ")[0], "date": f"{datetime.now(UTC):%Y-%m-%d}"}
            write_report({each: report[each] for each in ("oldest", "newest") if each in report})
    print("\n".join(failed or ["all releases pass"]))
    return bool(failed)


def write_report(report: dict[str, dict[str, str]]) -> None:
    """The releases that passed, as JSON and in README."""
    REPORT.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    README.write_text(TABLE.sub(lambda _: table(report) + "\n", README.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
