"""What the benchmarks do besides timing: interrupted runs keep their parts, memory is given back, floors are right."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hictl_hf import HictlConfig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

with pytest.MonkeyPatch.context() as patch:  # they are no package
    patch.syspath_prepend(BENCHMARKS)
    measure, run = importlib.import_module("measure"), importlib.import_module("run")
    cells, variants = importlib.import_module("cells"), importlib.import_module("variants")
    floor, workload = importlib.import_module("floor"), importlib.import_module("workload")
    gpu, compare = importlib.import_module("gpu"), importlib.import_module("compare")
    translation, step_parts = importlib.import_module("translation"), importlib.import_module("parts")
    hard_negatives, gradient_cache = (
        importlib.import_module("hard_negatives"),
        importlib.import_module("gradient_cache"),
    )

PART, BLOCK = 250, 64 * 1024  # megabytes; bytes of a block that glibc keeps when it is freed below another


class Parts:
    """The parts of a benchmark, which note that they were called; translating is interrupted once."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def cells(self, arguments: Any, workload: Any, results: dict[str, Any]) -> None:
        self.calls.append("cells")
        results["ratios"] = {"step": 2.0}

    def inside(self, arguments: Any, workload: Any, results: dict[str, Any]) -> None:
        self.calls.append("inside")
        results["hard_negatives"] = [{"pairs": 64, "form": "ours", "cpu_seconds": 0.5}]

    def translation(self, pairs: Any, quick: bool) -> dict[str, Any]:
        self.calls.append("translation")
        if self.calls.count("translation") == 1:
            raise KeyboardInterrupt
        return {"ratios": {"decode": 3.0}}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    parts = Parts()
    monkeypatch.setattr(run.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(run, "machine", lambda: {"cpu": "a CPU"})
    monkeypatch.setattr(run, "make_workload", lambda *_: SimpleNamespace(texts={"real": []}))
    monkeypatch.setattr(run, "write_report", lambda results, path: path.write_text(json.dumps(results)))
    for part in ("cells", "inside", "translation"):
        monkeypatch.setattr(run, f"measure_{part}", getattr(parts, part))
    return parts


def test_run_interrupted_while_translating_keeps_what_it_measured_inside_the_step(parts: Parts, tmp_path: Path) -> None:
    command = ["--output", str(tmp_path / "results.json")]
    with pytest.raises(KeyboardInterrupt):
        run.main(command)
    results = run.main(command)
    assert parts.calls == ["cells", "inside", "translation", "cells", "translation"]
    assert results["ratios"] == {"step": 2.0, "decode": 3.0}
    assert results["hard_negatives"] == [{"pairs": 64, "form": "ours", "cpu_seconds": 0.5}]
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert results["finished"]
    run.main(command)
    assert parts.calls.count("inside") == 2  # a finished run is begun anew


@pytest.mark.skipif(not measure.WEIGHABLE, reason="needs /proc")
def test_memory_that_nobody_holds_is_given_back() -> None:
    blocks = [bytearray(BLOCK) for _ in range(PART * 10**6 // BLOCK)]
    last = bytearray(BLOCK)
    held = measure.resident("VmRSS")
    del blocks
    assert measure.resident("VmRSS") > held - 0.2 * PART  # glibc keeps what lies below the last block
    measure.give_back_memory()
    assert measure.resident("VmRSS") < held - 0.8 * PART
    assert len(last) == BLOCK


def test_the_floors_are_as_worked_out_by_hand() -> None:
    config = HictlConfig(vocab_size=98, hidden_size=2, num_hidden_layers=3, intermediate_size=5, num_attention_heads=1)
    size = workload.Size(tokens=100, padded_tokens=0, masked_words=7, read_tokens=10, squared_lengths=1000, sentences=4)
    weights, attention = 4 * 4 + 2 * 10, 4 * 1000  # of a layer: 4 d² + 2 d inner; 2 d Σ length²
    layer = weights * 100 + attention
    last = 8 * 100 + 28 * 10  # keys and values of all; query, output and feed-forward part of those that are read
    counted, least = (floor.count_operations(size, config, least) for least in (False, True))
    assert counted["encoder"] == 6 * 3 * layer and least["encoder"] == 6 * (2 * layer + last)
    assert counted["head"] == least["head"] == 6 * 7 * 100 * 2


def test_the_batch_that_is_weighed_is_that_of_median_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "size_of", lambda size: SimpleNamespace(padded_tokens=size[0], tokens=size[1]))
    assert cells.of_median_padding([(90, 30), (100, 90), (80, 40)]) == (80, 40)  # 3, 1.1 and 2 times the tokens


def test_short_steps_are_timed_several_times_after_gradients_that_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, int]] = []

    class Step:
        def __init__(self, variant: Any, _: Any) -> None:
            self.row = variant.row

        def gradients(self, batch: int) -> None:
            calls.append((f"{self.row}, not timed", batch))

        def __call__(self, batch: int) -> dict[str, measure.Seconds]:
            calls.append((self.row, batch))
            return {self.row: measure.Seconds(batch + len(calls), batch)}

    monkeypatch.setattr(cells, "Step", Step)
    monkeypatch.setattr(cells, "size_of", lambda batch: batch)
    monkeypatch.setattr(cells, "measure_rates", lambda *_: floor.Rates(1, None, 1))
    monkeypatch.setattr(cells, "ideal_step", lambda *_: measure.Seconds(0, 0))
    compared = [variants.Variant("ours", "ours"), variants.Variant("naive", "naive")]
    rows, *_ = cells.time_steps(SimpleNamespace(config=None), compared, (), [2, 16], 3, print)
    assert calls == [(row, batch) for batch in (2, 16) for row in ("ours, not timed", *["ours"] * 3, "naive")]
    assert [seconds.cpu for seconds in rows["ours"]] == [16 + 8]  # the second of calls 7, 8 and 9
    assert [seconds.cpu for seconds in rows["naive"]] == [16 + 10]


# --- on a GPU, tried on the CPU ---------------------------------------------------------------------------------------


@pytest.fixture
def small_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few words, few letters, few parameters that the speed of memory is measured on; no minutes of compiling."""
    monkeypatch.setattr(torch, "compile", lambda network: network)
    monkeypatch.setattr(variants, "VOCABULARY", 700)
    monkeypatch.setattr(workload, "RANDOM_WORDS", 300)
    monkeypatch.setattr(workload, "LONGEST", 40)
    monkeypatch.setattr(floor, "STREAMED", 1000)
    monkeypatch.setattr(floor, "SCORED_WORDS", 64)


@pytest.mark.usefixtures("small_benchmark")
def test_the_gpu_benchmark_runs_to_its_end_on_a_cpu(tmp_path: Path) -> None:
    argv = ["--device", "cpu", "--layers", "1", "--hidden_size", "48", "--steps", "2", "--output", str(tmp_path / "x")]
    results = gpu.main([*argv, "--pairs_per_batch", "2", "3"])
    assert results == json.loads((tmp_path / "x.json").read_text()) and results["finished"]
    rows = results["rows"]
    assert [(row["method"], row["pairs"], row["dropout"]) for row in rows] == [
        (method, pairs, dropout) for method in gpu.METHODS for pairs in (2, 3) for dropout in (0.0, 0.1)
    ]
    for row in rows:
        middle = sum(row["seconds"]) / 2
        assert len(row["seconds"]) == 2 and row["pairs_per_second"] == pytest.approx(row["pairs"] / middle)
        assert row["fits"] and row["share_of_peak"] is None and row["gigabytes"] is None
    assert results["peak"] == "unknown" and results["card"].startswith("CPU")
    assert results["profile"]["pairs"] == 3 and results["profile"]["dropout"] == 0.1
    times = [each["milliseconds"] for each in results["profile"]["operations"]]
    assert len(times) == gpu.PROFILED and times == sorted(times, reverse=True)
    table = (tmp_path / "x.md").read_text()
    assert "| naive HiCTL, all losses | 3 | 0.1 |" in table and "Peak in bf16 unknown" in table


def test_a_batch_that_does_not_fit_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Stepping:
        method, networks = "ours", SimpleNamespace(device="cpu", network=lambda _: SimpleNamespace(zero_grad=print))

        def __call__(self, batch: int) -> None:
            calls.append(batch)
            if batch:
                raise torch.OutOfMemoryError("no room")

    emptied: list[str] = []
    monkeypatch.setattr(gpu, "free_memory", emptied.append)
    assert gpu.measure(Stepping(), [0, 1, 2], "unknown") == {"fits": False}
    assert calls == [0, 1] and emptied == ["cpu"]
    row = {"method": "naive", "pairs": 1024, "dropout": 0.1, "fits": False}
    assert gpu.line(row) == (gpu.METHODS["naive"], "1,024", 0.1, "does not fit", "–", "–")


def test_the_contrast_of_sentence_transformers_encodes_each_side_once() -> None:
    """A gradient cache would encode twice, which batches that fit into memory do not need."""
    pytest.importorskip("sentence_transformers")
    words = workload.random_workload()
    (batch,), _ = words.draw("lognormal", 4, 1, lambda _: True)
    networks = variants.Networks(variants.make_config(words.tokenizer, 1, 24), words.tokenizer)
    calls: list[torch.Size] = []
    networks.naive.roberta.embeddings.register_forward_pre_hook(
        lambda _, positional, named: calls.append(named["input_ids"].shape), with_kwargs=True
    )
    networks.loss("sentence_transformers", batch).backward()
    longest = [int(mask.sum(-1).max()) for mask in batch["sentence_attention_mask"].chunk(2)]
    assert calls == [(4, longest[0]), (4, longest[1])] and longest[0] != longest[1], "each padded as by its collator"


def test_every_part_of_the_step_is_timed_and_has_a_floor() -> None:
    words = workload.random_workload()
    (batch,), _ = words.draw("lognormal", 4, 1, lambda _: True)
    networks = variants.Networks(variants.make_config(words.tokenizer, 1, 24), words.tokenizer)
    measured = step_parts.measure_parts(networks, batch, rounds=2)
    inside = {"encoder", "head", "sentence level", "word level", "optimiser", "rest"}
    assert {*measured["seconds"]} == inside | {"step"} and {*measured["floor"]} < inside | {"step"}
    assert sum(measured["seconds"][name] for name in inside) == pytest.approx(measured["seconds"]["step"])
    assert {*measured["share_of_contrasts"]} == {"1.0", "0.05"}


@pytest.mark.parametrize("form", hard_negatives.FORMS[64])
def test_every_form_of_the_sentence_level_is_timed(form: str) -> None:
    hard_negatives.make_call(form, 4)()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "mining.py --quick",
        "stream.py --rows 300",
        "gradient_cache.py --batch 4 --micro_batch 2 --layers 1 --hidden_size 24 --rounds 1 --pairs {pairs}",
    ],
)
def test_the_other_benchmarks_run_to_their_end(command: str, tmp_path: Path) -> None:
    if command.startswith("mining.py"):
        pytest.importorskip("faiss", reason="pip install 'hictl_hf[mining]'")
    words = [
        f"{color} {thing} {number}" for color in ("red", "blue") for thing in ("house", "boat") for number in range(9)
    ]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        "".join(json.dumps({"translation": {"en": f"the {text}", "de": f"das {text}"}}) + "\n" for text in words)
    )
    name, *flags = command.format(pairs=pairs).split()
    subprocess.run(
        [sys.executable, BENCHMARKS / name, *flags],
        cwd=tmp_path,
        check=True,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS.parent)},
    )


def test_a_system_that_cannot_tell_its_memory_has_no_ratio_of_it() -> None:
    known = {"transient_mb": 3.0, "peak_mb": 8.0}
    memory = {form: measure.UNKNOWN for form in gradient_cache.FORMS} | {gradient_cache.FORMS[2]: known}
    assert gradient_cache.ratio_of(memory, "peak_mb") is None
    memory[gradient_cache.FORMS[0]] = {"transient_mb": 2.0, "peak_mb": 4.0}
    assert [gradient_cache.ratio_of(memory, kind) for kind in known] == [1.5, 2.0]


def test_embedding_is_compared_on_the_same_text_whatever_the_encoder_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapted encoder has a prompt, which the baseline, made of its parts, does not have."""
    pytest.importorskip("sentence_transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        embedding = importlib.import_module("embedding")
    small = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 24}
    for name, value in (("SIZES", small), ("VOCABULARY", 400), ("TRAINED_VOCABULARY", 300)):
        monkeypatch.setattr(embedding, name, value)
    texts = [f"the {color} house of {person}" for color in ("red", "blue", "old") for person in ("Ann", "Bob", "Eve")]
    with embedding.encoder_folder(None, texts) as folder:
        config = json.loads((Path(folder) / "config.json").read_text())
        own = {"embedding_prompt": "the house ", "embedding_normalize": False, "embedding_max_length": 5}
        (Path(folder) / "config.json").write_text(json.dumps(config | own))
        encoders = embedding.make_encoders(folder)
        torch.testing.assert_close(encoders["fp32"](texts), encoders[embedding.BASELINE](texts), atol=1e-5, rtol=0)


def test_a_step_with_the_encoder_frozen_is_compared_with_such_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "VOCABULARY", 40)
    monkeypatch.setattr(translation, "CUT", 20)
    monkeypatch.setattr(translation, "SIZES", translation.SIZES | {"hidden_size": 12, "intermediate_size": 12})
    monkeypatch.setattr(translation, "NETWORKS", {})
    trained = {}
    for name in translation.RATIOS["translation_step_vs_hf_frozen_encoder"]:
        translation.make_step(name)([([0, 5, 6, 2], [0, 7, 2])])
        encoder = getattr(translation.NETWORKS[name], "encoder" if name.startswith("hf") else "roberta")
        trained[name] = any(weight.requires_grad for weight in encoder.parameters())
    assert trained == {"hf_step_frozen_encoder": False, "ours_step_frozen_encoder": False}


def test_each_method_is_credited_with_what_its_losses_need() -> None:
    """Two pairs: x of 3 and 2 tokens, y of 4 and 3, so x∘y of 7 and 5; three masked words."""
    lengths = {"sentence_attention_mask": [3, 2, 4, 3], "attention_mask": [7, 5]}
    batch = {name: torch.arange(8) < torch.tensor(each)[:, None] for name, each in lengths.items()}
    batch["labels"] = torch.tensor([[-100, 5, 6, -100], [-100, 8, -100, -100]])
    found = {method: gpu.needed(method, batch) for method in gpu.METHODS}
    sizes = {method: (size.tokens, size.squared_lengths, size.read_tokens) for method, size in found.items()}
    assert sizes["ours"] == sizes["compiled"] == sizes["naive"] == (12 + 12, 38 + 74, 4 + 2 + 3)
    assert sizes["translation_lm"] == (12, 49 + 25, 3) and sizes["sentence_transformers"] == (12, 9 + 4 + 16 + 9, 4)
    counts = {method: (size.masked_words, size.sentences) for method, size in found.items()}
    assert counts == dict.fromkeys(("ours", "compiled", "naive"), (3, 4)) | {
        "translation_lm": (3, 0),
        "sentence_transformers": (0, 4),
    }


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA L4", 121e12), ("NVIDIA L40S", 362e12), ("NVIDIA L40", "unknown"),
        ("NVIDIA A10", "unknown"), ("Tesla T4", "unknown"), ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "unknown"),
    ],
)  # fmt: skip
def test_the_peak_is_that_of_the_card_or_unknown(card: str, peak: float | str) -> None:
    assert gpu.peak_of(card) == peak


def test_two_checkouts_take_turns_and_the_first_step_of_each_is_dropped() -> None:
    taken: list[tuple[str, int]] = []

    def steps_of(name: str, seconds: list[float]) -> Callable[[int], Any]:
        return lambda number: taken.append((name, number)) or measure.Seconds(seconds[number], 0.0)

    steps = {"here": steps_of("here", [9.0, 2.0, 3.0]), "there": steps_of("there", [1.0, 1.0, 2.0])}
    assert compare.compare(steps, 3) == [2.0, 1.5]
    assert taken == [(name, number) for number in range(3) for name in ("here", "there")]


@pytest.mark.slow
def test_a_slower_checkout_is_found_and_a_folder_without_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "VOCABULARY", 8200)  # the tokenizer has 8,192 words
    shutil.copytree(compare.HERE / "hictl_hf", tmp_path / "hictl_hf")
    objective = tmp_path / "hictl_hf/models/objective.py"
    slower = objective.read_text("utf-8").replace("read: dict", "sum(range(10**8))\n        read: dict", 1)
    assert slower != objective.read_text("utf-8")
    objective.write_text(slower, "utf-8")
    small = ["--layers", "1", "--hidden_size", "24", "--pairs_per_batch", "2", "--steps", "2"]
    assert compare.main([str(tmp_path), *small]) < 0.5
    with pytest.raises(SystemExit):
        compare.main([str(tmp_path), *small, "--at_most", "0.0001"])
    with pytest.raises(SystemExit, match="holds no hictl_hf/"):
        compare.main([str(tmp_path / "nothing"), *small])
