"""The files that GitHub and pre-commit read: valid YAML, existing make targets, the versions of constraints.txt."""

import configparser
import re
from pathlib import Path
from typing import Any

import yaml

from hictl_hf.cli.main import module_of

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def make_targets(text: str) -> set[str]:
    return set(re.findall(r"\bmake ([a-z-]+)", text))


def steps(job: str) -> list[dict[str, Any]]:
    return WORKFLOW["jobs"][job]["steps"]


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {path: make_targets(path.read_text("utf-8")) for path in (ROOT / ".github").rglob("*.*")}
    assert {"lint", "test", "test-slow"} <= set().union(*named.values()) <= targets


def test_each_push_is_linted_and_tested_and_each_night_has_the_slow_tests() -> None:
    commands = {job: [step["run"] for step in steps(job) if "run" in step] for job in WORKFLOW["jobs"]}
    assert commands == {"test": ["make lint", "make test"], "slow": ["make test-slow"]}
    assert {"push", "pull_request", "schedule"} <= WORKFLOW[True].keys()  # YAML reads the key `on` as true
    assert WORKFLOW["jobs"]["slow"]["if"].startswith("github.event_name == 'schedule'")


def test_the_workflow_runs_the_oldest_and_newest_python_that_the_package_names() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    named = re.findall(r"Python :: (3\.\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == [named[0], named[-1]]


def test_actions_have_exact_versions_and_no_secret_is_used() -> None:
    text = (ROOT / ".github/workflows/tests.yml").read_text("utf-8")
    actions = [step["uses"] for job in WORKFLOW["jobs"] for step in steps(job) if "uses" in step]
    assert len(actions) == 4 and all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", action) for action in actions)
    assert "secrets." not in text and WORKFLOW["permissions"] == {"contents": "read"}


def test_hooks_have_the_versions_of_the_constraints() -> None:
    pinned = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    ruff, local = HOOKS["repos"]
    assert ruff["repo"].endswith("/ruff-pre-commit") and ruff["rev"] == f"v{pinned['ruff']}"
    (mypy,) = local["hooks"]
    assert "mypy" in pinned and mypy["entry"] == ".venv/bin/mypy", "that of make, installed from constraints.txt"
    assert re.search(r"^PIP = .* -c constraints.txt$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_issues_are_asked_for_what_is_needed_to_repeat_them() -> None:
    forms = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in FORMS}
    assert forms.keys() == {"bug_report", "feature_request"}
    required = {
        name: [field["id"] for field in form["body"] if field.get("validations", {}).get("required")]
        for name, form in forms.items()
    }
    assert required == {"bug_report": ["command", "output", "versions"], "feature_request": ["task"]}


def test_the_bug_report_asks_for_versions_by_a_command_that_runs() -> None:
    (form,) = [path.read_text("utf-8") for path in FORMS if path.stem == "bug_report"]
    (command,) = re.findall(r"Output of `hictl (\S+)`", form)
    topics = {finding.topic for finding in module_of(command).examine()}
    assert {"hictl_hf", "system", "python", "torch", "transformers", "datasets", "accelerate", "device"} <= topics
