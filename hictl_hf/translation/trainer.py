"""Training of a translation model: the loss over an optimizer step's target tokens, the frozen encoder of step 1,
validation by translating, and the mean of several checkpoints."""

import importlib
import logging
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from time import time
from typing import Any

from accelerate.utils import gather_object
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, speed_metrics
from transformers.utils import SAFE_WEIGHTS_NAME

from ..data.languages import main_part
from ..data.lines import one_line
from ..errors import BadInput
from ..training.callbacks import TrainingTime
from ..training.checkpoints import last_complete_checkpoint, newest_first, resume_choice, verify_checkpoint
from ..training.trainer import TERMINATED, RobustTrainer, nan_unless_finite
from .arguments import TranslationArguments
from .beam_search import BeamSearchConfig
from .corpus import Direction, Pair, TokenBudgetBatchSampler
from .decoding import Translation, translate
from .moses import MosesTokenizer
from .results import ChosenState
from .scores import Score, score_translations

logger = logging.getLogger(__name__)

PAPER = BeamSearchConfig()  # 5 beams, penalty 1
ALWAYS = ("sacrebleu", "chrf")  # reported in every run
SPECIAL_IDS = ("bos_token_id", "pad_token_id", "eos_token_id")
FIXES = {  # for a run whose metric cannot be computed
    "sacrebleu": 'Install it: pip install "sacrebleu[{language}]", or leave {direction} out of --test_file and '
    "--validation_file",
    "multi-bleu": "Correct moses_dir in --multi_bleu, install perl, or leave moses_dir out to use sacremoses",
    "comet": "Choose another --metric, and score generated_predictions.txt by COMET in a separate environment",
}


class TranslationTrainer(RobustTrainer):
    """Trainer of `HictlForConditionalGeneration` on the mean loss over an optimizer step's target tokens.

    The mean is over all tokens of all micro-batches and processes, however the examples are divided among them.

    Args (in addition to the Trainer's):
        batches: the sampler of this process's batches.
        validation: pairs that are translated and scored in evaluation; the mean over directions counts.
        metric: chooses the best state; reported in addition to sacreBLEU and chrF.
        multi_bleu: arguments of its tokenizer, see `score_directions`.
        beam: settings of the search.
        freeze_encoder: do not train the encoder, and use it without dropout: step 1.
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
        self.freeze_encoder = freeze_encoder
        super().__init__(*args, eval_dataset=(), **kwargs)
        self.batches, self.validation, self.beam = batches, list(validation), beam
        self.metrics, self.multi_bleu = reported_metrics(metric), multi_bleu
        self.add_callback(KeepTargetIds(self))

    def prepare_model(self, model: PreTrainedModel) -> None:
        super().prepare_model(model)
        self.target_ids = {name: getattr(model.generation_config, name) for name in SPECIAL_IDS}
        model.base_model.requires_grad_(not self.freeze_encoder)

    def get_train_dataloader(self) -> DataLoader[Any]:
        assert self.batches is not None
        return self.make_loader(batch_sampler=self.batches, collate_fn=self.data_collator)

    @staticmethod
    def count_items(batch: dict[str, Any]) -> Tensor:
        """The number of target tokens, ()."""
        tokens: Tensor = (batch["labels"] != -100).sum()
        return tokens

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self.freeze_encoder:
            self.model.base_model.eval()
        smoothing = self.args.label_smoothing_factor
        outputs = model(**inputs, label_smoothing=smoothing, num_items_in_batch=num_items_in_batch)
        # DDP averages gradients over processes; here they are to be summed
        loss = nan_unless_finite(outputs.loss * self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss

    # --- validation ---------------------------------------------------------------------------------------------------

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate by `validate`; metrics are named `eval_<metric>`."""
        started = time()
        metrics = {f"eval_{name}": value for name, value in self.validate().items()}
        return self.finish_evaluation(metrics | speed_metrics("eval", started, len(self.validation)))

    def validate(self) -> dict[str, float]:
        """Scores of the validation set; for several directions their mean, and each."""
        translations = self.translate(self.validation)
        scores = score_directions(self.validation, translations, self.metrics, self.multi_bleu)
        means: dict[str, float] = self.from_main(mean_scores(scores))
        return means

    def remove_old_checkpoints(self, run: str, limit: int | None) -> None:
        """Remove the oldest checkpoints; one that only SIGTERM saved does not count, and goes once the next regular one
        is complete."""
        strategy, due = self.args.save_strategy, is_due(self.state, self.args.save_strategy)
        complete = [path for path in newest_first(run) if verify_checkpoint(path, contents=False) is None]
        older = [path for path in complete if path.name != f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"]
        stopgaps = [path for path in older if not is_due(state_of(path), strategy)]
        super().remove_old_checkpoints(run, limit and limit + len(stopgaps) + (not due))
        for path in stopgaps if due else ():
            shutil.rmtree(path, ignore_errors=True)

    def translate(self, pairs: Sequence[Pair], progress: bool = False) -> list[Translation]:
        """The best translation of each source, in order and in one line, as files of lines are scored; processes share
        the work, and each returns all."""
        place, processes = self.args.process_index, self.args.world_size
        own = pairs[place::processes]
        shown = progress and place == 0 and not self.args.disable_tqdm
        found = translate(
            self.accelerator.unwrap_model(self.model), self.processing_class, [pair.source for pair in own], self.beam,
            [pair.direction.target for pair in own], progress=shown, cut=True,
        )  # fmt: skip
        everyone: list[Any] = [None] * len(pairs)
        lines = [replace(best, text=one_line(best.text)) for best, *_ in found]
        for process, part in enumerate(gather_object([lines])):
            everyone[process::processes] = part
        return everyone


class KeepTargetIds(TrainerCallback):
    """Keep the target ids in `generation_config`: transformers puts the ids of the tokenizer there before training."""

    def __init__(self, trainer: TranslationTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        model.generation_config.update(**self.trainer.target_ids)


def reported_metrics(metric: str) -> list[str]:
    """The metric and those that are always reported."""
    return list(dict.fromkeys((metric, *ALWAYS)))


def check_metrics(pairs: Sequence[Pair], metric: str, multi_bleu: Mapping[str, Any] | None = None) -> None:
    """Score a word in each direction before training, to find metrics that cannot be computed; not COMET.

    Raises:
        BadInput: a metric cannot be computed here.
    """
    names = [name for name in reported_metrics(metric) if name != "comet"]
    for direction, name in product(dict.fromkeys(pair.direction for pair in pairs), names):
        tokenizer = MosesTokenizer(direction.target, **(multi_bleu or {}))
        try:
            score_translations(["a"], [["a"]], direction.target, [name], tokenizer=tokenizer)
        except BadInput as error:  # its last sentence is a fix for other commands
            fix = FIXES[name].format(language=main_part(direction.target), direction=direction)
            raise BadInput(f"{str(error).rpartition('. ')[0]}. {fix}.") from error


def check_comet(metrics: Sequence[str]) -> None:
    """Raise `BadInput` if COMET is among the metrics and is not installed."""
    if "comet" not in metrics:
        return
    try:
        importlib.import_module("comet")
    except ImportError as error:
        found = f"--metric comet: the package unbabel-comet cannot be imported ({error})"
        raise BadInput(f"{found}. {FIXES['comet']}.") from error


def score_directions(
    pairs: Sequence[Pair],
    translations: Sequence[Translation],
    metrics: Sequence[str],
    multi_bleu: Mapping[str, Any] | None = None,
    about: Mapping[Direction, Mapping[str, str]] | None = None,
) -> dict[Direction, dict[str, Score]]:
    """Scores by metric of each direction, each a separate corpus.

    Args:
        multi_bleu: arguments of its `MosesTokenizer`.
        about: by direction, more entries of the signatures.
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
    """The mean of each metric over directions; for several directions also each, as `<metric>_<direction>`."""
    names = next(iter(scores.values()))
    means = {name: fmean(of_one[name].value for of_one in scores.values()) for name in names}
    if len(scores) > 1:
        means |= {
            f"{name}_{direction}": score.value for direction, row in scores.items() for name, score in row.items()
        }
    return means


# --- the steps of a run -----------------------------------------------------------------------------------------------


def train(args: TranslationArguments, trainer: TranslationTrainer) -> ChosenState:
    """Train, or go on from the last checkpoint of an interrupted run; leave the chosen state in the trainer's model."""
    checkpoint = resume_choice(args.resume_from_checkpoint)
    if not isinstance(checkpoint, str):  # all resume from the same one
        checkpoint = trainer.from_main(args.process_index == 0 and last_complete_checkpoint(args.output_dir))
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.terminated:
        raise SystemExit(TERMINATED)
    state, best = trainer.state, trainer.state.best_metric
    if best is None and args.load_best_model_at_end:
        logger.warning("nothing was validated, so the last state is kept: eval_delay or eval_steps is beyond the run")
    last, of_best = f"step {state.global_step}, the last", f"step {state.best_global_step}, the best on validation"
    seconds = trainer.pop_callback(TrainingTime).seconds
    chosen = ChosenState(state=last if best is None else of_best, validation=best, seconds=seconds)
    return average_checkpoints(args, trainer, chosen) if args.average_checkpoints > 1 else chosen


def average_checkpoints(args: TranslationArguments, trainer: TranslationTrainer, chosen: ChosenState) -> ChosenState:
    """Replace the state by the mean of the last checkpoints, unless that is not better on validation."""
    checkpoints = checkpoints_to_average(args.output_dir, args.average_checkpoints, args.save_strategy)
    if len(checkpoints) < args.average_checkpoints:
        found = "average_checkpoints is %d, and %s has %d complete ones: the mean is of these"
        logger.warning(found, args.average_checkpoints, args.output_dir, len(checkpoints))
    model = trainer.accelerator.unwrap_model(trainer.model)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(average_weights(checkpoints), strict=False)
    steps = ", ".join(path.name.removeprefix("checkpoint-") for path in reversed(checkpoints))
    mean = replace(chosen, state=f"mean of steps {steps}")
    if chosen.validation is None:
        return mean
    value = trainer.validate()[args.metric]
    if value > chosen.validation:
        return replace(mean, validation=value)
    model.load_state_dict(before)
    return replace(chosen, validation_of_mean=value)


# --- averaging --------------------------------------------------------------------------------------------------------


def checkpoints_to_average(folder: str | Path, number: int, strategy: str | None) -> list[Path]:
    """The last complete checkpoints, newest first, without those that only an interruption saved."""
    complete = (path for path in newest_first(folder) if verify_checkpoint(path) is None)
    return list(islice((path for path in complete if is_due(state_of(path), strategy)), number))


def state_of(checkpoint: Path) -> TrainerState:
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def is_due(state: TrainerState, strategy: str | None) -> bool:
    """Whether a run saves in this state without SIGTERM: by its schedule, at its end, or because it is the best."""
    step = state.global_step
    if step == state.best_global_step or strategy == "best":
        return step == state.best_global_step
    if step >= state.max_steps:
        return True
    return step % state.save_steps == 0 if strategy == "steps" else state.epoch % 1 == 0


def average_weights(checkpoints: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of each weight over checkpoints, summed in float64; integer tensors must be equal in all."""
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
