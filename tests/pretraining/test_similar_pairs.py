"""Groups of similar pairs: each micro-batch has complete ones, nothing is drawn twice, and epochs repeat themselves."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from numpy.typing import NDArray
from parsers import parse_arguments
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from two_processes import found_by_two

from hictl_hf.data import sampling
from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.sampling import PretrainingExamples, TemperatureSampler
from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.pretraining import similar_pairs
from hictl_hf.pretraining.corpora import Corpora
from hictl_hf.pretraining.setup import make_trainer
from hictl_hf.pretraining.similar_pairs import (
    groups_of_similar,
    mean_vectors,
    order_of_groups,
    second_is_compared,
    sentences_compared,
    vectors_of_start,
)
from hictl_hf.pretraining.trainer import HictlTrainer
from hictl_hf.training.callbacks import TrainingTime

EXAMPLES, MEANINGS = 120, 12  # example i has meaning i mod 12


def sampler(batch_size: int = 16, micro_batches: int = 1, process: int = 0, processes: int = 1) -> TemperatureSampler:
    groups = {("en", "de"): np.arange(80), ("el", "en"): np.arange(80, 110), ("sw", None): np.arange(110, EXAMPLES)}
    lengths = np.random.default_rng(3).integers(3, 30, EXAMPLES)
    shares = {languages: len(members) / EXAMPLES for languages, members in groups.items()}
    return TemperatureSampler(lengths, groups, shares, batch_size, 1, micro_batches, process, processes)


def grouped(size: int, **settings: int) -> TemperatureSampler:
    """The compared side (x, of el-en y) has meaning and number of its example as tokens, the other side noise."""
    made = sampler(**settings)
    texts = [[number % MEANINGS] * 9 + [MEANINGS + number] for number in range(EXAMPLES)]
    noise = np.random.default_rng(4).permutation(EXAMPLES).tolist()
    second = (np.arange(EXAMPLES) >= 80) & (np.arange(EXAMPLES) < 110)
    rows = [
        (other, own) if is_y else (own, other) for own, other, is_y in zip(texts, map(texts.__getitem__, noise), second)
    ]
    examples = PretrainingExamples(Dataset.from_dict({"x": [x for x, _ in rows], "y": [y for _, y in rows]}), 1)
    words = torch.eye(MEANINGS + EXAMPLES).half()
    compared = partial(sentences_compared, examples, second_is_compared(made))
    made.grouping = partial(order_of_groups, compared, partial(mean_vectors, words), size)
    return made


def slow_groups(
    vectors: NDArray[np.float32], texts: NDArray[np.int64], size: int, random: np.random.Generator
) -> list[list[int]]:
    """One at a time, by definition."""
    free, groups = list(range(len(vectors))), []
    for anchor in random.permutation(len(vectors)).tolist():
        if anchor not in free:
            continue
        group: list[int] = []
        while len(group) < size and free:
            known = {texts[other] for other in group}
            keys = {
                other: (texts[other] in known, other != anchor, -float(vectors[anchor] @ vectors[other]), other)
                for other in free
            }
            group.append(min(free, key=keys.__getitem__))
            free.remove(group[-1])
        groups.append(group)
    return [groups[number] for number in random.permutation(len(groups)).tolist()]


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en")])
def test_of_two_languages_that_are_equally_common_the_first_is_compared(languages: tuple[str, str]) -> None:
    # the order of a set of texts is another in each process, and with it the batches of a resumed run would be
    made = TemperatureSampler(np.ones(4, int), {languages: np.arange(4)}, {languages: 1.0}, 2, seed=1)
    assert not second_is_compared(made).any()


def test_the_language_of_most_examples_is_compared_not_that_of_most_pairs_of_languages() -> None:
    groups = {("en", "de"): np.arange(90), ("el", "sw"): np.arange(90, 105), ("sw", None): np.arange(105, EXAMPLES)}
    shares = {languages: len(members) / EXAMPLES for languages, members in groups.items()}
    made = TemperatureSampler(np.full(EXAMPLES, 3), groups, shares, 16, 1)
    assert not second_is_compared(made).any(), "en, of 90; sw is of two groups, but of 30"


@pytest.mark.parametrize("size", [2, 5, 8, 40])
@pytest.mark.parametrize("different", [40, 9, 3])
def test_groups_are_those_of_the_slow_definition(size: int, different: int) -> None:
    # small whole numbers: products are exact, and many are equal
    vectors = np.random.default_rng(size).integers(-3, 4, (40, 6)).astype(np.float32)
    texts = np.random.default_rng(different).integers(0, different, 40) if different < 40 else np.arange(40)
    expected = slow_groups(vectors, texts, size, np.random.default_rng(9))
    found = groups_of_similar(vectors, texts, size, np.random.default_rng(9))
    assert found.tolist() == [index for group in expected for index in group]


@pytest.mark.parametrize(("micro_batches", "processes"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_each_micro_batch_has_complete_groups_and_nothing_is_drawn_twice(micro_batches: int, processes: int) -> None:
    drawn, mixed = [], 0
    for process in range(processes):
        for batch in grouped(4, micro_batches=micro_batches, process=process, processes=processes):
            drawn += batch[:, 0].tolist()
            if len(batch) == 16 // micro_batches // processes:  # not the rest of the epoch
                groups = (batch[:, 0] % MEANINGS).reshape(-1, 4)
                mixed += np.count_nonzero(groups.max(1) != groups.min(1))
    assert sorted(drawn) == list(range(EXAMPLES))
    assert mixed <= 9  # of 112 examples at most 3 of each of 12 meanings are left for the last groups


@pytest.mark.parametrize("gathered", [True, False])
def test_a_group_of_several_processes_or_micro_batches_is_not_divided(gathered: bool) -> None:
    """Groups of 8 in batches of 16: of the same micro-batch in both processes, or of one process in both."""
    found = []
    for process in range(2):
        made = sampler(micro_batches=2, process=process, processes=2)
        made.grouping = lambda chosen, _: np.argsort(chosen)
        made.grouped_over_processes = gathered
        found.append([batch[:, 0].tolist() for batch in made][:14])  # not the rest of the epoch
    drawn = sorted(number for batches in found for batch in batches for number in batch)
    groups = [drawn[start : start + 8] for start in range(0, len(drawn), 8)]
    if gathered:
        contrasted = [sorted(x + y) for x, y in zip(*found, strict=True)]
    else:
        contrasted = [sorted(x + y) for batches in found for x, y in zip(batches[::2], batches[1::2], strict=True)]
    assert sorted(contrasted) == groups


def test_without_grouping_most_groups_would_be_mixed() -> None:
    groups = np.concatenate([batch[:, 0] for batch in sampler()])[:112].reshape(-1, 4) % MEANINGS
    assert np.count_nonzero(groups.max(1) != groups.min(1)) > 20


def test_translations_of_one_sentence_come_into_different_batches() -> None:
    vectors = np.repeat(np.eye(4, dtype=np.float32), 8, 0)  # four sentences, each in eight languages
    groups = groups_of_similar(vectors, np.repeat(np.arange(4), 8), 4, np.random.default_rng(0)).reshape(8, 4)
    assert all(sorted(group // 8) == [0, 1, 2, 3] for group in groups)


def test_epochs_differ_and_repeat_themselves() -> None:
    first, again, second = grouped(4), grouped(4), grouped(4)
    second.set_epoch(1)
    orders = [np.concatenate([*each])[:, 0].tolist() for each in (first, again, second)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == sorted(orders[0])


def test_a_group_is_looked_for_among_the_batches_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "GROUPED_EXAMPLES", 48)
    monkeypatch.setattr(sampling, "GROUPED_BATCHES", 2)
    plain, made = (np.concatenate([*each])[:, 0] for each in (sampler(), grouped(4)))
    for window in (slice(0, 48), slice(48, 96), slice(96, 112)):
        assert sorted(made[window]) == sorted(plain[window]) and made[window].tolist() != plain[window].tolist()
    assert made[112:].tolist() == plain[112:].tolist()  # the incomplete batch


def test_a_vector_is_the_mean_of_the_embeddings() -> None:
    words = torch.randn(9, 5, generator=torch.Generator().manual_seed(1)).half()
    vectors = mean_vectors(words, [[1, 2, 2], [], [8]])
    mean = (words[1].float() + 2 * words[2].float()) / 3
    np.testing.assert_allclose(vectors[0], mean / mean.norm(), rtol=1e-5)
    np.testing.assert_allclose(vectors[2], words[8].float() / words[8].float().norm(), rtol=1e-5)
    assert not vectors[1].any()


def test_only_what_the_run_reads_is_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of 16: an epoch of 120 draws, which is seven steps and a smaller one, and two steps of the next."""
    plain, made = sampler(), grouped(4)
    made.grouped_draws = made.draws_in(10)
    assert made.grouped_draws == 120 + 2 * 16
    orders = []
    for epoch in (0, 1, 2):
        plain.set_epoch(epoch)
        made.set_epoch(epoch)
        orders.append([np.concatenate([*each])[:, 0] for each in (plain, made)])
    assert orders[0][0].tolist() != orders[0][1].tolist()
    assert orders[1][0][:32].tolist() != orders[1][1][:32].tolist()
    assert sorted(orders[1][0][:32]) == sorted(orders[1][1][:32])
    assert orders[1][0][32:].tolist() == orders[1][1][32:].tolist() and orders[2][0].tolist() == orders[2][1].tolist()
    read = {*orders[0][1].tolist(), *orders[1][1][:32].tolist()}
    assert made.examples_in(made.grouped_draws).tolist() == sorted(read)
    assert made.examples_in(48).tolist() == sorted(orders[0][0][:48])


def make(
    folder: Path, corpus: Dataset, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, *flags: str
) -> HictlTrainer:
    """The trainer of three steps of eight, with a prompt and cut sentences."""
    needed = ["--train_file", "x", "--output_dir", str(folder), "--max_steps", "3", "--max_seq_length", "16"]
    usual = ["--per_device_train_batch_size", "8", "--prompt", "the: ", "--use_cpu", "true", "--learning_rate", "1e-4"]
    args = parse_arguments([*needed, *usual, *flags])
    corpora = Corpora(corpus, None, None, CorpusReport(hash="of the rows"))
    return make_trainer(args, model, tokenizer, corpora, TrainingTime())


def as_one_of_two(*arguments: Any) -> list[list[int]]:
    """The examples of each micro-batch of this process."""
    flags = ["--per_device_train_batch_size", "4", "--group_by_similarity", "sentences", "--ddp_backend", "gloo"]
    trainer = make(*arguments, *flags)
    assert trainer.batches is not None
    return [batch[:, 0].tolist() for batch in trainer.batches]


@pytest.mark.parametrize("length", [("--max_steps", "13"), ("--max_steps", "-1", "--num_train_epochs", "1.23")])
def test_all_steps_of_a_run_are_grouped(
    length: tuple[str, ...], corpus: Dataset, tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel], tmp_path: Path,
) -> None:  # fmt: skip
    model = model_for_text(lm_weight=0.0, word_weight=0.0)
    trainer = make(tmp_path, corpus, tokenizer, model, *length, "--group_by_similarity", "words")
    trainer.train()
    assert isinstance(trainer.batches, TemperatureSampler) and trainer.state.global_step == 13
    assert trainer.batches.grouped_draws == len(corpus) + 3 * 8, "ten steps of eight are an epoch"
    assert not trainer.batches.grouped_over_processes, "which only gathered sentences are"


@pytest.mark.parametrize(("cached", "size"), [("false", 8), ("true", 16)])
def test_a_group_has_all_pairs_that_are_contrasted_with_each_other(
    cached: str, size: int, corpus: Dataset, tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    sizes: list[int] = []
    monkeypatch.setattr(similar_pairs, "groups_of_similar", lambda *given: sizes.append(given[2]) or np.arange(80))
    several = "--gradient_accumulation_steps", "2", "--gradient_cache", cached
    trainer = make(tmp_path, corpus, tokenizer, model_for_text(), *several, "--group_by_similarity", "words")
    next(iter(trainer.batches or ()))
    assert sizes == [size]


def test_only_sentences_that_the_run_reads_are_embedded(
    corpus: Dataset, tokenizer: PreTrainedTokenizerBase, model_for_text: Callable[..., PreTrainedModel],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    embedded: list[Any] = []
    monkeypatch.setattr(similar_pairs, "vectors_of_start", lambda *given: embedded.append(given[2]))
    trainer = make(tmp_path, corpus, tokenizer, model_for_text(), "--group_by_similarity", "sentences")
    assert isinstance(trainer.batches, TemperatureSampler)
    assert embedded[0].tolist() == trainer.batches.examples_in(3 * 8).tolist() and len(embedded[0]) <= 24


@pytest.mark.parametrize("at_once", [3, 1000])
def test_sentences_are_compared_by_the_vectors_that_the_start_has(
    at_once: int, corpus: Dataset, tokenizer: PreTrainedTokenizerBase, model_for_text: Callable[..., PreTrainedModel],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(similar_pairs, "TEXTS_AT_ONCE", at_once)
    model = model_for_text(sentence_pooling="mean", sentence_projection=False)
    trainer = make(tmp_path, corpus, tokenizer, model)
    assert isinstance(examples := trainer.train_dataset, PretrainingExamples)
    compared = partial(sentences_compared, examples, np.arange(len(corpus)) < 10)  # y of the first ten
    read = np.array([2, 9, 10, 11, 40, 79])
    texts = [*corpus[2:11:7]["y"], *corpus[[10, 11, 40, 79]]["x"]]
    expected = embed_sentences(model, tokenizer, texts, prompt="the: ", max_length=16)
    found = vectors_of_start(trainer, compared, read)
    np.testing.assert_allclose(found(compared(read)), expected, atol=1e-3)
    np.testing.assert_allclose(found(compared(read[[3, 0]])), expected[[3, 0]], atol=1e-3)


@pytest.mark.parametrize("micro_batches", ["1", "2"])
def test_two_processes_make_the_batches_of_one(
    micro_batches: str, corpus: Dataset, tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel], tmp_path: Path,
) -> None:  # fmt: skip
    model = model_for_text(sentence_pooling="mean", sentence_projection=False)
    several = "--gradient_accumulation_steps", micro_batches
    alone = make(tmp_path, corpus, tokenizer, model, "--group_by_similarity", "sentences", *several)
    assert alone.batches is not None
    batches = [sorted(batch[:, 0].tolist()) for batch in alone.batches]
    found = found_by_two(tmp_path, as_one_of_two, tmp_path, corpus, tokenizer, model, *several)
    assert [sorted(first + second) for first, second in zip(*found, strict=True)] == batches
