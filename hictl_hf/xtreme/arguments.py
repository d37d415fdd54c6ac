"""Arguments of a run on XTREME."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from ..data.languages import wanted_language
from ..errors import BadInput
from ..training.arguments import precision_of_launcher
from ..training.model_and_data import ModelArguments, make_lists
from .data import DataSource, Splits, split_of
from .paper import SETTINGS
from .tasks import TASKS, XtremeTask

SIZES = ("base", "large")
POOLINGS = ("mean", "mean without special tokens", "cls")
MUST_STAY = "Must stay true:"
SELECT_ON = ("english", "target")
NAMES = tuple(task.name for task in TASKS)


@dataclass
class XtremeArguments(ModelArguments):
    """Arguments of `run_xtreme.py`; the defaults of a task are in its row of `tasks.TASKS`."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Folder or Hub name of the encoder: HiCTL, XLM-R, mBERT or another; tagging and question answering "
            "need a fast tokenizer."
        },
    )
    data: str = field(
        default="hub", metadata={"help": "Folder made by XTREME's download_data.sh, or hub: the Hugging Face Hub."}
    )
    tasks: list[str] = field(default_factory=lambda: ["all"], metadata={"help": f"all, or some of {', '.join(NAMES)}."})
    setting: str = field(default="zero-shot", metadata={"help": f"Training data: {', '.join(SETTINGS)}."})
    languages: list[str] = field(
        default_factory=list,
        metadata={"help": "Languages to score, and in translate-train-all to train on; all of a task without it."},
    )
    output_dir: str = field(default="runs/xtreme", metadata={"help": "Folder of the run; an interrupted run goes on."})
    size: str | None = field(
        default=None, metadata={"help": "Settings of base or large; by default large from 24 layers on."}
    )
    learning_rate: list[float] = field(
        default_factory=list, metadata={"help": "Peak learning rates to choose from; by default the task's own."}
    )
    per_device_train_batch_size: list[int] = field(
        default_factory=list,
        metadata={"help": "Examples of a step, several to choose from; by default the task's own."},
    )
    seed: list[int] = field(default_factory=lambda: [42], metadata={"help": "Seeds of fine-tuning to choose from."})
    num_train_epochs: float | None = field(
        default=None, metadata={"help": "Epochs of fine-tuning; by default the task's own."}
    )
    select_on: str = field(
        default="english",
        metadata={"help": "Dev set a model is chosen on: english, or target (then it is not zero-shot)."},
    )
    train_split: str = field(default="train", metadata={"help": "Examples to train on, such as train[1000:]."})
    select_split: str = field(default="dev", metadata={"help": "Examples to choose by, such as train[:1000]."})
    score_split: str = field(default="test", metadata={"help": "Examples to score, such as dev[80%%:]."})
    labels: str | None = field(
        default=None, metadata={"help": "Folder TASK/test-LANGUAGE.tsv of the labels that XTREME's test files lack."}
    )
    layer: int | None = field(
        default=None,
        metadata={"help": "Layer of the retrieval tasks, 0 the embeddings; by default 8 of 12 and 14 of 24."},
    )
    pooling: str = field(default="mean", metadata={"help": f"Pooling of the retrieval tasks: {', '.join(POOLINGS)}."})
    sweep_layers: bool = field(default=False, metadata={"help": "Score retrieval at all layers and poolings, on dev."})
    compat: bool = field(
        default=False, metadata={"help": "Read quotes, in files, and extract answers like the official scripts."}
    )
    bf16: bool = field(default=False, metadata={"help": "Fine-tune and predict in bf16; retrieval stays in fp32."})
    micro_batches: int = field(
        default=1, metadata={"help": "Parts of a batch that are computed one by one, for less memory."}
    )
    similar_lengths: bool = field(
        default=False,
        metadata={"help": "Train on examples of similar length together: faster, not the official order."},
    )
    per_device_eval_batch_size: int = field(
        default=64, metadata={"help": "Examples that a fine-tuned model predicts at a time."}
    )
    do_train: bool = field(default=True, metadata={"help": f"{MUST_STAY} fine-tuned models are trained."})
    do_eval: bool = field(default=True, metadata={"help": f"{MUST_STAY} the best state on dev is chosen."})
    do_predict: bool = field(default=True, metadata={"help": f"{MUST_STAY} test is predicted and scored."})
    score: str | None = field(
        default=None, metadata={"help": "Only score this folder of predictions against --labels, and print JSON."}
    )

    def __post_init__(self) -> None:
        make_lists(self, ("tasks", "languages"))
        self.tasks = list(NAMES) if "all" in self.tasks else self.tasks
        for name, allowed in (
            ("setting", SETTINGS), ("size", (None, *SIZES)), ("select_on", SELECT_ON), ("pooling", POOLINGS),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                names = ", ".join(value for value in allowed if value)
                raise BadInput(f"{name} is {getattr(self, name)!r}; allowed are {names}")
        if unknown := [name for name in self.tasks if name not in NAMES]:
            raise BadInput(f"no task is called {', '.join(unknown)}; allowed are all, {', '.join(NAMES)}")
        known = {language for task in self.chosen_tasks for language in task.languages}
        if unknown := [language for language in self.languages if not wanted_language(language, sorted(known))]:
            raise BadInput(f"no task has the language {', '.join(unknown)}; allowed are {', '.join(sorted(known))}")
        self.languages = [*dict.fromkeys(wanted_language(language, sorted(known)) for language in self.languages)]
        if (precision := precision_of_launcher()) == "fp16" and not self.bf16:
            raise BadInput("mixed_precision of accelerate is fp16; allowed are no and bf16 on XTREME; choose one there")
        self.bf16 |= precision == "bf16"  # or HF's Trainer would take it, unrecorded
        for name in ("num_train_epochs", "micro_batches", "per_device_eval_batch_size"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise BadInput(f"{name} is {value}; allowed are numbers above 0")
        for name in ("seed", "learning_rate", "per_device_train_batch_size"):  # one given twice would be trained twice
            setattr(self, name, [*dict.fromkeys(getattr(self, name))])
        if not self.seed or min(self.seed) < 0 or max(self.seed) >= 2**32:
            raise BadInput(f"seed is {self.seed}; allowed are one or more numbers from 0 to 2**32 - 1")
        if not all(0 < rate < math.inf for rate in self.learning_rate):
            raise BadInput(f"learning_rate is {self.learning_rate}; allowed are numbers above 0")
        if self.score and not self.labels:
            raise BadInput("--score needs --labels, a folder TASK/test-LANGUAGE.tsv or .json of labels")
        if self.score and self.languages:
            raise BadInput("--score scores all languages of a task, as XTREME does; leave --languages out")
        if self.labels and not self.score and split_of(self.score_split) != "test":
            raise BadInput(
                f"score_split is {self.score_split!r}, and --labels {self.labels} has the labels of test; leave "
                "--labels out, the files of other splits have labels"
            )
        if not (self.score or self.model_name_or_path):
            raise BadInput(
                "there is no encoder; give --model_name_or_path, such as xlm-roberta-base or runs/hictl/checkpoint"
            )
        self.check_revision()
        if off := [name for name in ("do_train", "do_eval", "do_predict") if not getattr(self, name)]:
            raise BadInput(
                f"{', '.join(off)} is false, but a task is trained, chosen on dev and predicted; leave it out, or "
                "score predictions that exist by --score"
            )
        for name in ("labels", *(["data"] if self.data != "hub" else [])):
            if (folder := getattr(self, name)) and not Path(folder).is_dir():
                raise BadInput(f"--{name} {folder}: no such folder; give one that exists")

    @property
    def chosen_tasks(self) -> list[XtremeTask]:
        """The tasks to run, in the order of the paper's table."""
        return [task for task in TASKS if task.name in self.tasks]

    @property
    def splits(self) -> Splits:
        return Splits(self.train_split, self.select_split, self.score_split)

    @property
    def source(self) -> DataSource:
        return DataSource(None if self.data == "hub" else Path(self.data), self.compat)
