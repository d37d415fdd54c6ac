"""Training of a translation model: the loss of an optimiser step's target tokens, the encoder that stands still in step
1, validation by translating, and the mean of several checkpoints. What a batch is, is decided by `translation_corpus`;
how sentences are translated, by `decoding`; what makes a checkpoint whole, by `training.trainer`."""

import importlib
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from time import time
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, speed_metrics
from transformers.utils import SAFE_WEIGHTS_NAME

from ..data.formats import main_part
from ..errors import BadInput
from ..training.checkpoints import newest_first, verify_checkpoint
from ..training.trainer import RobustTrainer, nan_unless_finite
from .beam_search import BeamSearchConfig
from .corpus import Direction, Pair, TokenBudgetBatchSampler
from .decoding import Translation, translate
from .moses import MosesTokenizer
from .scores import Score, score_translations

PAPER = BeamSearchConfig()  # 5 beams, penalty 1
ALWAYS = ("sacrebleu", "chrf")  # reported whatever the paper reports
FIXES = {  # of what a metric lacks, for a run
    "sacrebleu": 'Install it: pip install "sacrebleu[{language}]", or leave {direction} out of --test and --validation',
    "multi-bleu": "Correct moses_dir in --multi_bleu, install perl, or leave moses_dir out to use sacremoses",
    "comet": "Choose another --metric, and score generated_predictions.txt by COMET in an environment of its own",
}


class TranslationTrainer(RobustTrainer):
    """Trains `HictlForConditionalGeneration` on the mean loss of an optimiser step's target tokens.

    The mean is over all tokens of all micro-batches and processes, however the rows are divided among them.

    Args (beside the Trainer's):
        batches: gives this process its batches of rows.
        validation: what is translated and scored in evaluation, in all directions; the mean of these counts.
        metric: what the best state is best in; it is reported beside sacreBLEU and chrF.
        multi_bleu: how its words are made, see `score_directions`.
        beam: how the decoder searches.
        freeze_encoder: leave the encoder as it is, without dropout: step 1.
    """

    ties_go_to_the_later = True  # BLEU is 0 for a while, and the model learns
    loss_is_scaled_for_ga = True  # the model divides by the tokens of all micro-batches and processes

    def __init__(
        self,
        *args: Any,
        batches: TokenBudgetBatchSampler | None = None,
        validation: Sequence[Pair] = (),
        metric: str = "sacrebleu",
        multi_bleu: Mapping[str, Any] | None = None,
        beam: BeamSearchConfig = PAPER,
        freeze_encoder: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, eval_dataset=(), **kwargs)
        self.batches, self.validation, self.beam = batches, list(validation), beam
        self.metrics, self.multi_bleu = metrics_beside(metric), multi_bleu
        self.freeze_encoder = freeze_encoder
        self.model.roberta.requires_grad_(not freeze_encoder)

    def get_train_dataloader(self) -> DataLoader[Any]:
        assert self.batches is not None
        return self.make_loader(batch_sampler=self.batches, collate_fn=self.data_collator)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The micro-batches of one optimiser step, and how many target tokens all of them have together."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        tokens = torch.tensor(sum(int((batch["labels"] != -100).sum()) for batch in batches), device=device)
        return batches, self.accelerator.reduce(tokens, "sum")

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self.freeze_encoder:
            self.model.roberta.eval()
        smoothing = self.args.label_smoothing_factor
        outputs = model(**inputs, label_smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        # DDP averages what is to be a sum over processes
        loss = nan_unless_finite(outputs.loss * self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss

    # --- validation ---------------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """`validate`, as the Trainer's evaluation: `eval_<metric>`."""
        started = time()
        metrics = {f"eval_{name}": value for name, value in self.validate().items()}
        metrics |= speed_metrics("eval", started, len(self.validation))
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def validate(self) -> dict[str, float]:
        """The scores of the validation set; of several directions their mean, and those of each."""
        translations = self.translate(self.validation)
        return mean_scores(score_directions(self.validation, translations, self.metrics, self.multi_bleu))

    def remove_old_checkpoints(self, run: str, limit: int | None) -> None:
        """A checkpoint that only SIGTERM saved takes no other's place, and is removed when the next regular one is
        complete."""
        strategy, due = self.args.save_strategy, is_due(self.state, self.args.save_strategy)
        whole = [path for path in newest_first(run) if verify_checkpoint(path, contents=False) is None]
        older = [path for path in whole if path.name != f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"]
        stopgaps = [path for path in older if not is_due(state_of(path), strategy)]
        super().remove_old_checkpoints(run, limit and limit + len(stopgaps) + (not due))
        for path in stopgaps if due else ():
            shutil.rmtree(path, ignore_errors=True)

    def translate(self, pairs: Sequence[Pair], progress: bool = False) -> list[Translation]:
        """The best translation of each source, in order; the processes share the work, and each has the result."""
        place, processes = self.args.process_index, self.args.world_size
        own = pairs[place::processes]
        found = translate(
            self.accelerator.unwrap_model(self.model), self.processing_class, [pair.source for pair in own], self.beam,
            [pair.direction.target for pair in own], progress=progress and place == 0, cut=True,
        )  # fmt: skip
        everyone: list[Any] = [None] * len(pairs)
        for process, part in enumerate(gather_object([[best for best, *_ in found]])):
            everyone[process::processes] = part
        return everyone


def metrics_beside(metric: str) -> list[str]:
    """It, and what is reported always."""
    return list(dict.fromkeys((metric, *ALWAYS)))


def check_metrics(pairs: Sequence[Pair], metric: str, multi_bleu: Mapping[str, Any] | None = None) -> None:
    """Score a word in each direction, so that what a metric lacks is missed before training; of COMET only the import.

    Raises:
        BadInput: a metric cannot be computed here.
    """
    names = metrics_beside(metric) if pairs else []
    if "comet" in names:
        names.remove("comet")
        try:
            importlib.import_module("comet")
        except ImportError as error:
            found = f"--metric comet: the package unbabel-comet cannot be imported ({error})"
            raise BadInput(f"{found}. {FIXES['comet']}.") from error
    for direction, name in product(dict.fromkeys(pair.direction for pair in pairs), names):
        tokenizer = MosesTokenizer(direction.target, **(multi_bleu or {}))
        try:
            score_translations(["a"], [["a"]], direction.target, [name], tokenizer=tokenizer)
        except BadInput as error:  # its last sentence is a fix for others
            fix = FIXES[name].format(language=main_part(direction.target), direction=direction)
            raise BadInput(f"{str(error).rpartition('. ')[0]}. {fix}.") from error


def score_directions(
    pairs: Sequence[Pair],
    translations: Sequence[Translation],
    metrics: Sequence[str],
    multi_bleu: Mapping[str, Any] | None = None,
    about: Mapping[Direction, Mapping[str, str]] | None = None,
) -> dict[Direction, dict[str, Score]]:
    """Scores by metric of each direction, which is a corpus of its own.

    Args:
        multi_bleu: what its `MosesTokenizer` is to do.
        about: what the signatures of a direction say beside.
    """
    rows: dict[Direction, list[int]] = defaultdict(list)
    for row, pair in enumerate(pairs):
        rows[pair.direction].append(row)
    scores = {}
    for direction, numbers in rows.items():
        found = score_translations(
            [translations[row].text for row in numbers], [[pairs[row].target for row in numbers]], direction.target,
            metrics, sources=[pairs[row].source for row in numbers], about=(about or {}).get(direction),
            tokenizer=MosesTokenizer(direction.target, **(multi_bleu or {})),
        )  # fmt: skip
        scores[direction] = dict(zip(metrics, found, strict=True))
    return scores


def mean_scores(scores: Mapping[Direction, Mapping[str, Score]]) -> dict[str, float]:
    """The mean of each metric over directions; where there are several, each beside it as `<metric>_<direction>`."""
    names = next(iter(scores.values()))
    means = {name: fmean(of_one[name].value for of_one in scores.values()) for name in names}
    if len(scores) > 1:
        means |= {
            f"{name}_{direction}": score.value for direction, row in scores.items() for name, score in row.items()
        }
    return means


# --- averaging --------------------------------------------------------------------------------------------------------


def checkpoints_to_average(folder: str | Path, number: int, strategy: str | None) -> list[Path]:
    """The last whole checkpoints, newest first, that a run without interruptions has, too."""
    whole = (path for path in newest_first(folder) if verify_checkpoint(path) is None)
    return list(islice((path for path in whole if is_due(state_of(path), strategy)), number))


def state_of(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def is_due(state: TrainerState, strategy: str | None) -> bool:
    """Whether a run saves in this state also without SIGTERM: by its schedule, at its end, or as it is the best."""
    step = state.global_step
    if step == state.best_global_step or strategy == "best":
        return step == state.best_global_step
    if step >= state.max_steps:
        return True
    return step % state.save_steps == 0 if strategy == "steps" else state.epoch % 1 == 0


def average_weights(checkpoints: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of each weight over checkpoints, summed in float64; what is no weight must be the same in all."""
    total: dict[str, Tensor] = {}
    for number, checkpoint in enumerate(checkpoints):
        weights = load_file(Path(checkpoint) / SAFE_WEIGHTS_NAME)
        for name, weight in weights.items():
            if not weight.is_floating_point():
                assert number == 0 or weight.equal(total[name]), f"{checkpoint}: {name} differs"
                total[name] = weight
            else:
                total[name] = total[name] + weight.double() if number else weight.double()
    return {
        name: (weight / len(checkpoints)).to(weights[name].dtype) if weight.is_floating_point() else weight
        for name, weight in total.items()
    }
