"""Names that checkpoints of hictl_hf 0.7.5 or before use, replaced when a run resumes from one."""

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from .trainer import ExamplesFingerprint, SettingsFingerprint

CALLBACKS = {"SameRows": ExamplesFingerprint.__name__, "SameSettings": SettingsFingerprint.__name__}


class FormerNames(TrainerCallback):
    """Rename saved callbacks and settings in the state that a run resumes from; stands before the fingerprints.

    Without it the fingerprints of such a checkpoint would not be found, and other examples and settings not be refused.

    Args:
        settings: former names of settings, and today's.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = dict(settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = state.stateful_callbacks
        for former, name in CALLBACKS.items():
            if former in saved:
                saved[name] = saved.pop(former)
        values = saved.get(SettingsFingerprint.__name__, {"args": {"settings": {}}})["args"]["settings"]
        for former, name in self.settings.items():
            if former in values:
                values[name] = values.pop(former)
