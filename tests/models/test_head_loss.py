"""Under gradient accumulation HF's Trainer trains the heads of all families on the mean over all labels."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from toy_families import SHAPES
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import MaskedLMOutput

from hictl_hf.models.configuration_hictl import CONFIGS, KINDS
from hictl_hf.models.head_loss import divide_by_items

ROWS, LENGTH, WORDS = 4, 6, 40
HEADS = [
    (family, auto)
    for family in SHAPES
    for auto in CONFIGS[family].code_on_the_hub
    if auto.startswith("AutoModelFor") and KINDS[auto] not in ("ForPreTraining", "ForConditionalGeneration")
]


def make_head(family: str, auto: str) -> Any:
    torch.manual_seed(0)
    size = {"vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 0, "initializer_range": 0.3}
    labels = 2 if "QuestionAnswering" in auto else 3
    shape = {**SHAPES[family], **size, "num_labels": labels, "bos_token_id": 1, "eos_token_id": 2}
    return getattr(transformers, auto).from_config(CONFIGS[family](**shape))


def make_batch(auto: str) -> dict[str, torch.Tensor]:
    """Rows of which the first has one label, the others one for each token, where tokens are labelled."""
    generator = torch.Generator().manual_seed(1)
    shape = (ROWS, 2, LENGTH) if "MultipleChoice" in auto else (ROWS, LENGTH)
    ids = torch.randint(6, WORDS, shape, generator=generator)
    if "QuestionAnswering" in auto:
        return {"input_ids": ids, "start_positions": torch.arange(ROWS), "end_positions": torch.arange(ROWS) + 1}
    if "MaskedLM" not in auto and "Token" not in auto:
        return {"input_ids": ids, "labels": torch.arange(ROWS) % 2}
    labels = ids % (WORDS if "MaskedLM" in auto else 3)
    labels[0, 1:] = -100
    return {"input_ids": ids, "labels": labels}


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(("family", "auto"), [each for each in HEADS if "QuestionAnswering" not in each[1]])
def test_losses_of_micro_batches_sum_to_that_of_the_batch(family: str, auto: str) -> None:
    model, batch = make_head(family, auto), make_batch(auto)
    assert model.accepts_loss_kwargs, "the Trainer would not pass the number of labels"
    whole = model(**batch).loss
    whole.backward()
    expected, loss = gradients(model), 0.0
    for rows in (slice(0, 1), slice(1, ROWS)):
        part = model(
            **{name: each[rows] for name, each in batch.items()}, num_items_in_batch=(batch["labels"] != -100).sum()
        ).loss
        part.backward()
        loss += part.item()
    assert loss == pytest.approx(whole.item(), rel=1e-5)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("auto", ["AutoModelForMaskedLM", "AutoModelForSequenceClassification"])
def test_the_trainer_logs_the_loss_of_the_batch(auto: str, tmp_path: Path) -> None:
    model, batch = make_head("xlm-roberta", auto), make_batch(auto)
    rows = [{name: each[at] for name, each in batch.items()} for at in range(ROWS)]
    args = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=1, logging_steps=1,
        report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    expected = model(**batch).loss.item()
    trainer = Trainer(model, args, train_dataset=rows)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", [family for family, auto in HEADS if "QuestionAnswering" in auto])
def test_answers_are_left_to_the_trainer(family: str) -> None:
    """It has no labels to count, so it divides the mean by the number of micro-batches."""
    model = make_head(family, "AutoModelForQuestionAnswering")
    assert not model.accepts_loss_kwargs
    assert model(**make_batch("AutoModelForQuestionAnswering")).loss > 0


def test_a_call_without_labels_adds_nothing() -> None:
    """The mean over no label is not a number; a micro-batch may have no masked token."""
    model = make_head("bert", "AutoModelForMaskedLM")
    ids = torch.full((1, LENGTH), 7)
    loss = model(ids, labels=torch.full_like(ids, -100), num_items_in_batch=3).loss
    loss.backward()
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(model).values())


def test_labels_may_be_on_another_device_than_the_loss() -> None:
    """device_map on several GPUs puts them so; transformers' heads move their labels to the logits."""
    with FakeTensorMode():  # knows devices, and computes nothing
        labels, items = (torch.zeros(size, dtype=torch.long, device="cuda:0") for size in ((3,), ()))

        def forward(self: Any, labels: Any = None) -> Any:
            return MaskedLMOutput(loss=torch.zeros((), device="cuda:1"))

        for number in (items, 4):
            assert divide_by_items(forward)(None, labels, num_items_in_batch=number).loss.device.index == 1


def test_in_half_precision_a_large_batch_has_its_mean() -> None:
    """The sum over its labels, 108,000, is above what fp16 holds."""
    labels = torch.zeros(40_000, dtype=torch.long)
    forward = divide_by_items(lambda self, labels=None: (torch.tensor(2.7, dtype=torch.float16),))
    assert forward(None, labels, num_items_in_batch=torch.tensor(40_000))[0].item() == pytest.approx(2.7, rel=1e-3)
    assert forward(None, labels[:13_333], num_items_in_batch=40_000)[0].item() == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize("return_dict", [True, False])
def test_labels_may_be_positional_and_the_output_a_tuple(return_dict: bool) -> None:
    def forward(self: Any, input_ids: Any, labels: Any = None, return_dict: bool = True) -> Any:
        loss = torch.tensor(6.0)
        return MaskedLMOutput(loss=loss, logits=input_ids) if return_dict else (loss, input_ids)

    divided, labels = divide_by_items(forward), torch.tensor([1, -100, 2])
    for items in (4, torch.tensor(4)):
        positional = divided(None, labels, labels, return_dict=return_dict, num_items_in_batch=items)
        named = divided(None, labels, labels=labels, return_dict=return_dict, num_items_in_batch=items)
        assert positional[0] == named[0] == 3 and positional[1] is named[1] is labels
    assert divided(None, labels, labels, return_dict=return_dict)[0] == 6
    assert divided(None, labels, return_dict=return_dict, num_items_in_batch=4)[0] == 6
