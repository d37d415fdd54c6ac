"""A checkpoint knows the settings and examples of its run, also one that release 0.7.5 left; the best state is saved.

What SIGTERM does is tested in `test_training_trainer.py`, with runs that are interrupted.
"""

import json
import math
import shutil
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
from test_training_trainer import STEPS, differing, state_of, toy_trainer, trained

from hictl_hf.errors import BadInput
from hictl_hf.training.callbacks import EXAMPLES, RunFingerprint, StepGuard, TrainingTime
from hictl_hf.training.checkpoints import write_manifest
from hictl_hf.training.fingerprint import VERSION
from hictl_hf.version import __version__

SETTINGS = {"mlm_probability": 0.15, "learning_rate": 0.01, "model_config": {"embedding_pooling": "cls"}}
SETTINGS_075 = {"text_mask_rate": 0.15, "learning_rate": 0.01, "model_config": {"embedding_pooling": "first token"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run with checkpoints, and its last state."""
    folder = tmp_path_factory.mktemp("run")
    return folder, state_of(trained(toy_trainer(folder, callbacks=[RunFingerprint(SETTINGS, "abc")])))


def callbacks_of(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))["stateful_callbacks"]
    return found


@pytest.fixture
def checkpoint(run: tuple[Path, Any], tmp_path: Path) -> Path:
    """A checkpoint whose run can be continued."""
    shutil.copytree(run[0] / "checkpoint-4", tmp_path / "checkpoint-4")
    return tmp_path / "checkpoint-4"


def make_old(checkpoint: Path) -> None:
    """Store settings and examples as release 0.7.5 did."""
    state = json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
    del state["stateful_callbacks"]["RunFingerprint"]
    state["stateful_callbacks"] |= {
        "SameRows": {"args": {"rows": "abc"}, "attributes": {}},
        "SameSettings": {"args": {"settings": SETTINGS_075}, "attributes": {}},
    }
    (checkpoint / "trainer_state.json").write_text(json.dumps(state), encoding="utf-8")
    write_manifest(checkpoint)


def test_a_checkpoint_stores_settings_examples_and_release(run: tuple[Path, Any]) -> None:
    stored = callbacks_of(run[0] / "checkpoint-4")["RunFingerprint"]
    assert stored["args"]["settings"] == {**SETTINGS, EXAMPLES: "abc", VERSION: __version__}


@pytest.mark.parametrize("old", [False, True], ids=["this release", "0.7.5"])
def test_a_run_is_continued_with_its_settings_and_examples_alone(
    run: tuple[Path, Any], checkpoint: Path, old: bool
) -> None:
    if old:
        make_old(checkpoint)
    release = "0.7 or older" if old else __version__
    for settings, examples, told in (
        ({**SETTINGS, "learning_rate": 0.02}, "abc", "learning_rate was 0.01 and is 0.02"),
        ({**SETTINGS, "mlm_probability": 0.2}, "abc", "mlm_probability was 0.15 and is 0.2"),
        (SETTINGS, "xyz", "hash of the training examples was 'abc' and is 'xyz'"),
    ):
        trainer = toy_trainer(checkpoint.parent, callbacks=[RunFingerprint(settings, examples)])
        with pytest.raises(BadInput, match=f"by hictl_hf {release}: {told}; give the same settings and data"):
            trained(trainer, resume=True)
    trainer = toy_trainer(checkpoint.parent, callbacks=[RunFingerprint(SETTINGS, "abc")])
    assert not differing(state_of(trained(trainer, resume=True)), run[1])
    last = callbacks_of(checkpoint.parent / f"checkpoint-{STEPS}")
    assert last["RunFingerprint"] == callbacks_of(run[0] / "checkpoint-4")["RunFingerprint"]


def test_a_process_with_other_examples_than_the_main_one_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with other files it would make another number of steps, in which the others would wait for it."""
    trainer = toy_trainer(tmp_path, callbacks=[RunFingerprint(SETTINGS, "abc")])
    main = RunFingerprint(SETTINGS, "xyz").settings
    monkeypatch.setattr(trainer, "from_main", lambda value: main if value is not None else value)
    told = "process 0 has other settings or examples than process 0: hash of the training examples was 'xyz' and is 'ab"
    with pytest.raises(BadInput, match=told):
        trained(trainer)


def test_a_checkpoint_that_stores_no_settings_is_continued(tmp_path: Path) -> None:
    trained(toy_trainer(tmp_path, max_steps=2))
    trained(toy_trainer(tmp_path, max_steps=4, callbacks=[RunFingerprint(SETTINGS, "abc")]), resume=True)
    assert "RunFingerprint" in callbacks_of(tmp_path / "checkpoint-4")


def test_settings_that_older_checkpoints_did_not_store_are_compared_where_they_are(
    checkpoint: Path, tmp_path: Path
) -> None:
    def fingerprint(optimizer: str) -> RunFingerprint:
        return RunFingerprint(SETTINGS, "abc", {"optim": optimizer})

    trained(toy_trainer(checkpoint.parent, callbacks=[fingerprint("sgd")]), resume=True)
    trained(toy_trainer(tmp_path / "new", max_steps=2, callbacks=[fingerprint("sgd")]))
    with pytest.raises(BadInput, match="checkpoint-2: was begun with other settings.*optim was 'sgd' and is 'adam'"):
        trained(toy_trainer(tmp_path / "new", max_steps=4, callbacks=[fingerprint("adam")]), resume=True)


def test_other_settings_are_refused_before_weights_of_another_shape(tmp_path: Path) -> None:
    trained(toy_trainer(tmp_path, max_steps=2, callbacks=[RunFingerprint(SETTINGS, "abc")]))
    other = toy_trainer(tmp_path, vocabulary=90, max_steps=4, callbacks=[RunFingerprint(SETTINGS, "xyz")])
    with pytest.raises(BadInput, match="hash of the training examples was 'abc' and is 'xyz'"):
        trained(other, resume=True)


def test_a_resumed_run_saves_logs_and_evaluates_when_it_is_asked_to(checkpoint: Path) -> None:
    every = {"save_steps": 1, "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 1}
    trainer = trained(toy_trainer(checkpoint.parent, max_steps=8, **every), resume=True)
    history = trainer.state.log_history
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [5, 6, 7, 8]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3, 4, 6]
    assert {path.name for path in checkpoint.parent.glob("checkpoint-*")} == {f"checkpoint-{at}" for at in range(4, 9)}


def test_a_checkpoint_with_more_steps_than_the_run_is_to_have_is_refused(checkpoint: Path) -> None:
    with pytest.raises(BadInput, match="checkpoint-4: has 4 steps, and this run is to have 3; allowed are as many"):
        trained(toy_trainer(checkpoint.parent, max_steps=3), resume=True)


def test_training_time_goes_on_from_the_checkpoint() -> None:
    saved = {"seconds": 100.0, "cpu_seconds": 50.0}
    clock, state = TrainingTime(), SimpleNamespace(global_step=4, stateful_callbacks={"TrainingTime": {"args": saved}})
    clock.on_train_begin(None, state, None)
    clock.on_train_end(None, state, None)
    assert 100 <= clock.seconds < 101 and 50 <= clock.cpu_seconds < 51


def test_time_before_training_is_none_of_training(tmp_path: Path) -> None:
    """A run scores the start first; HF's state of a training that begins has the time since the callback was made."""
    clock = TrainingTime()
    clock.began, clock.cpu_began = clock.began - 1000, clock.cpu_began - 1000
    trained(toy_trainer(tmp_path, max_steps=2, callbacks=[clock]))
    stored = callbacks_of(tmp_path / "checkpoint-2")["TrainingTime"]["args"]
    for name in ("seconds", "cpu_seconds"):
        assert 0 < stored[name] < getattr(clock, name) < 500


def test_cpu_time_does_not_grow_while_the_process_sleeps() -> None:
    clock = TrainingTime()
    clock.on_train_begin(None, SimpleNamespace(global_step=0, stateful_callbacks={}), None)
    sleep(0.2)
    clock.on_train_end(None, None, None)
    assert clock.seconds >= 0.2 > clock.cpu_seconds >= 0


@pytest.mark.parametrize(
    ("value", "best", "greater", "ties", "saved"),
    [
        (2.0, None, True, False, True), (2.0, 1.0, True, False, True), (1.0, 1.0, True, False, False),
        (0.5, 1.0, True, False, False), (0.5, 1.0, False, False, True), (1.0, 1.0, True, True, True),
        (1.0, 1.0, False, True, True), (math.nan, None, True, False, False), (None, None, True, False, False),
    ],
)  # fmt: skip
def test_a_new_best_state_is_saved(
    value: float | None, best: float | None, greater: bool, ties: bool, saved: bool
) -> None:
    guard = StepGuard(SimpleNamespace(ties_go_to_the_later=ties))  # type: ignore[arg-type]
    args = SimpleNamespace(metric_for_best_model="score", greater_is_better=greater, load_best_model_at_end=True)
    state = SimpleNamespace(best_metric=best)
    metrics = {"eval_other": 9.0} | ({} if value is None else {"eval_score": value})
    for load_best in (True, False):
        args.load_best_model_at_end, control = load_best, SimpleNamespace(should_save=False)
        guard.on_evaluate(args, state, control, metrics=metrics)
        assert control.should_save is (saved and load_best)
    assert state.best_metric == (None if ties else best)
