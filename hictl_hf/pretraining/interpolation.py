"""Average the weights after training with those of the start: what was gained is mostly kept, what was lost comes back.

    weights = (1 - α) start + α trained

The share α of the trained weights is given, or chosen on held-out pairs: no training, one evaluation for each share
(Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022).
"""

import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .corpora import Corpora
from .results import Interpolation, ShareAccuracy
from .scoring import DevScores, score_dev
from .trainer import HictlTrainer

logger = logging.getLogger(__name__)

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the trained weights, for keep_start "auto"
Weights = Mapping[str, Tensor]


def copy_of_weights(model: nn.Module, new: Sequence[str] = ()) -> dict[str, Tensor]:
    """A copy of the parameters on the CPU, by name, without those that training began with at random."""
    return {name: weight.detach().to("cpu", copy=True) for name, weight in model.named_parameters() if name not in new}


def hash_of_weights(weights: Weights) -> str:
    """Hash of the names and values."""
    digest = blake2b(digest_size=16)
    for name, weight in sorted(weights.items()):
        digest.update(name.encode() + b"\0")
        digest.update(weight.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@torch.no_grad()
def set_weights(model: nn.Module, start: Weights, trained: Weights, share: float) -> None:
    """Set the parameters that are in `start` to (1 - share) start + share trained."""
    for name, weight in model.named_parameters():
        if name in start:
            weight.copy_(start[name].lerp(trained[name], share))  # to the bit those of one side at 0 and 1


def interpolate(
    trainer: HictlTrainer, start: Weights, keep_start: str, corpora: Corpora, before: DevScores | None
) -> tuple[Interpolation, DevScores | None]:
    """Average the trainer's model with the start in place; also return its scores on dev if they were measured.

    Args:
        start: weights of `copy_of_weights` before training.
        keep_start: the share of the start as a number, or "auto": the share with the best mean of dev and guard
            accuracy, among those at which the guard is not below the start; of equal ones that nearest the start.
        before: scores of the start on dev, needed for "auto".
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    trained = copy_of_weights(model)
    grid: list[ShareAccuracy] = []
    scores: dict[float, DevScores] = {}
    if keep_start == "auto":
        assert before is not None
        scores[0.0] = before
        for share in SHARES[1:]:
            set_weights(model, start, trained, share)
            scores[share] = score_dev(trainer, corpora)
        grid = [accuracy_of(share, found) for share, found in scores.items()]
        share = best_share(grid).share
    else:
        share = 1 - float(keep_start)
    set_weights(model, start, trained, share)
    logger.info("weights: %g of the trained ones, %g of the start", share, 1 - share)
    return Interpolation(share=share, grid=grid), scores.get(share)


def accuracy_of(share: float, scores: DevScores) -> ShareAccuracy:
    """The means of a share's scores."""
    guard = None if scores.guard is None else scores.guard.mean
    return ShareAccuracy(share=share, dev=scores.dev[scores.pooling].mean, guard=guard)


def best_share(grid: Sequence[ShareAccuracy]) -> ShareAccuracy:
    """The share with the best mean of dev and guard, if its guard is not below the start's; ties go to the start.

    Args:
        grid: by ascending share, the first one the start (share 0).
    """
    start = grid[0].guard
    allowed = [row for row in grid if row.guard is None or start is None or row.guard >= start]
    best = max(allowed, key=lambda row: (row.dev or 0) + (row.guard or 0))
    if best.share == 0:
        logger.warning(
            "keep_start auto keeps nothing of the training, as no share of it was better on held-out and guard pairs: "
            "the result is the start. Train for more steps or on more pairs, or choose the share: --keep_start 0.5"
        )
    return best


def check_can_choose(keep_start: str | None, corpora: Corpora) -> None:
    """Raise `BadInput` if nothing is held out to choose the share by; warn if there is no guard."""
    if keep_start != "auto":
        return
    if corpora.dev is None or corpora.test is None:
        raise BadInput(
            "keep_start auto chooses on held-out pairs, and there are none; give keep_start a number, or pairs"
        )
    if corpora.guard_dev is None:
        logger.warning(
            "keep_start auto without a guard: chosen on the kind of pairs trained on, which says nothing about other "
            "languages and domains; give --guard_data or --guard_languages"
        )
