"""What the tests share: no network, one thread, a toy model and batches for it, all made in memory."""

import os

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from hictl_hf import HictlConfig, HictlForPreTraining, parsing
from hictl_hf.data.tokenization import tokenize_corpus, train_tokenizer
from hictl_hf.processes import Processes

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start: their runs are compared to the bit

collect_ignore = ["end_to_end/pretended_gpu.py", "end_to_end/pretended_kernels.py", "end_to_end/on_pretended_gpu.py"]

BEGIN, PADDING, END, FIRST_WORD = 0, 1, 2, 4  # ids of XLM-R's vocabulary; its last id is <mask>
TOY = {
    "vocab_size": 200,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,  # 64 tokens
    "type_vocab_size": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "word_negatives": 16,
    "hard_negative_window": 3,
}


def pytest_configure(config: pytest.Config) -> None:
    """The marks of transformers' own tests are known where those are run (`test_common_model_suite.py`)."""
    folder = Path(os.environ.get("TRANSFORMERS_TESTS", "")) / "tests"
    for file in ("test_modeling_common.py", "exporters/test_export.py", "generation/test_utils.py"):
        text = (folder / file).read_text("utf-8") if (folder / file).is_file() else ""
        for mark in sorted({*re.findall(r"\bmark\.(\w+)", text)}):
            config.addinivalue_line("markers", f"{mark}: a mark of transformers' own tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu`, before its fixtures are made, where there are fewer CUDA GPUs than it needs."""
    for mark in item.iter_markers("gpu"):
        needed, found = mark.kwargs.get("number", 1), torch.cuda.device_count()
        if found < needed:
            pytest.skip(f"needs {needed} CUDA GPU{'s' * (needed > 1)}, and PyTorch {torch.__version__} sees {found}")


@pytest.fixture
def models_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes may name models that another recipe trains first."""
    monkeypatch.setattr(parsing, "refuse_missing", lambda _: None)


@pytest.fixture(scope="session")
def toy_config() -> Callable[..., HictlConfig]:
    """`toy_config(**changes)`: the configuration of the toy model, dropout off."""
    return lambda **changes: HictlConfig(**{**TOY, **changes})


@pytest.fixture(scope="session")
def toy_model(toy_config: Callable[..., HictlConfig]) -> Callable[..., PreTrainedModel]:
    """`toy_model(cls=HictlForPreTraining, seed=0, **changes)`: a new model, the same for the same arguments."""

    def make(cls: type[PreTrainedModel] = HictlForPreTraining, seed: int = 0, **changes: Any) -> PreTrainedModel:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return cls(toy_config(**changes)).eval()

    return make


@pytest.fixture(scope="session")
def toy_batch() -> Callable[..., dict[str, Tensor]]:
    """`toy_batch(pairs=4, seed=0, padding=0)`: all that `HictlForPreTraining.forward` takes, of random sentence pairs.

    Sentences have 3 to 8 words; `padding` columns are added at the right of everything that is padded.
    """

    def make(pairs: int = 4, seed: int = 0, padding: int = 0, vocab_size: int = TOY["vocab_size"]) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(seed)

        def sentence() -> list[int]:
            length = int(torch.randint(3, 9, (), generator=random))
            return torch.randint(FIRST_WORD, vocab_size - 1, (length,), generator=random).tolist()

        def padded(rows: list[list[int]], filler: int) -> Tensor:
            longest = max(map(len, rows)) + padding
            return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])

        def with_mask(name: str, mask: str, rows: list[list[int]]) -> dict[str, Tensor]:
            return {name: padded(rows, PADDING), mask: padded([[1] * len(row) for row in rows], 0)}

        x, y = [sentence() for _ in range(pairs)], [sentence() for _ in range(pairs)]
        joined = [[BEGIN, *a, END, END, *b, END] for a, b in zip(x, y)]
        batch = with_mask("clean_input_ids", "attention_mask", joined)
        batch |= with_mask("sentence_input_ids", "sentence_attention_mask", [[BEGIN, *s, END] for s in x + y])
        hidden = padded([[1, *([0, 0, 1] * len(row))[: len(row) - 1]] for row in joined], 0).bool()
        hidden &= batch["clean_input_ids"] >= FIRST_WORD  # every third word
        return batch | {
            "input_ids": batch["clean_input_ids"].masked_fill(hidden, vocab_size - 1),
            "labels": batch["clean_input_ids"].masked_fill(~hidden, -100),
            "bag": padded([sorted(set(a + b)) for a, b in zip(x, y)], -1),
            "sentence_hashes": torch.arange(2 * pairs),
            "example_seeds": torch.arange(100, 100 + pairs),
        }

    return make


@pytest.fixture
def transformers_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What transformers warns of in this test: the `caplog` that sees its loggers."""
    transformers_logging.enable_propagation()
    with caplog.at_level(logging.WARNING, logger="transformers"):
        yield caplog
    transformers_logging.disable_propagation()


@pytest.fixture
def on_apple(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch finds an accelerator that is none of CUDA's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("mps"))


@pytest.fixture
def full_of_garbage() -> Iterator[None]:
    """Memory that nobody initialises holds NaN or the largest integer, as it may."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Runs are compared to the bit with runs in other threads and processes: nobody may change how many there are."""
    yield
    assert torch.get_num_threads() == 1


# --- several processes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreadOfSeveral(Processes):
    """Stands for one of several processes, which are threads here."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    values: list[Any] = field(default_factory=list)

    def wait(self) -> None:
        self.barrier.wait(60)

    def from_main(self, value: Any) -> Any:
        if self.is_main:
            self.values[:] = [value]
        self.wait()
        found = self.values[0]
        self.wait()
        return found


@pytest.fixture
def shared_by() -> Callable[..., list[Any]]:
    """`shared_by(number, function)`: what the function returns for each of that many processes, which run at once.

    An error of one ends all; the error of the first that has its own is raised.
    """

    def share(number: int, function: Callable[[Processes], Any]) -> list[Any]:
        barrier, values = threading.Barrier(number), list[Any]()

        def run(index: int) -> Any:
            try:
                return function(ThreadOfSeveral(index, number, barrier=barrier, values=values))
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(number) as threads:
            runs = [threads.submit(run, index) for index in range(number)]
        errors = [error for each in runs if (error := each.exception()) is not None]
        for error in sorted(errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
            raise error
        return [each.result() for each in runs]

    return share


# --- tokenizer and text ----------------------------------------------------------------------------------------------

TOY_LANGUAGES = {  # every sentence is who + does + what; equal positions in two languages mean the same
    "en": (
        ("the cat", "a dog", "my sister", "the old man"),
        ("sees", "likes", "buys"),
        ("the house", "a red apple", "cold water", "two books"),
    ),
    "de": (
        ("die Katze", "ein Hund", "meine Schwester", "der alte Mann"),
        ("sieht", "mag", "kauft"),
        ("das Haus", "einen roten Apfel", "kaltes Wasser", "zwei Bücher"),
    ),
    "sw": (
        ("paka", "mbwa", "dada yangu", "mzee"),
        ("anaona", "anapenda", "ananunua"),
        ("nyumba", "tufaha jekundu", "maji baridi", "vitabu viwili"),
    ),
    "zh": (
        ("猫", "一只狗", "我的妹妹", "老人"),
        ("看见", "喜欢", "买"),
        ("房子", "一个红苹果", "冷水", "两本书"),
    ),
}


@pytest.fixture(scope="session")
def sentences() -> dict[str, list[str]]:
    """48 sentences in each of four languages, translations at equal positions."""
    spaces = {language: "" if language == "zh" else " " for language in TOY_LANGUAGES}
    return {name: [spaces[name].join(parts) for parts in product(*words)] for name, words in TOY_LANGUAGES.items()}


@pytest.fixture(scope="session")
def tokenizer(sentences: dict[str, list[str]]) -> PreTrainedTokenizerBase:
    """A toy XLM-R tokenizer of 120 pieces, for inputs of up to 62 tokens."""
    return train_tokenizer((text for texts in sentences.values() for text in texts), vocab_size=160, max_length=62)


@pytest.fixture(scope="session")
def corpus(sentences: dict[str, list[str]]) -> Dataset:
    """48 pairs (en-de 24, en-sw 16, en-zh 8) and 32 monolingual texts (en 16, sw 8, zh 8), columns as of `corpus`."""
    pairs = [("de", 24), ("sw", 16), ("zh", 8)]
    rows = [(sentences["en"][at], sentences[name][at], "en", name) for name, number in pairs for at in range(number)]
    texts = [("en", 16), ("sw", 8), ("zh", 8)]
    rows += [(text, None, name, None) for name, number in texts for text in sentences[name][-number:]]
    return Dataset.from_dict(dict(zip(("x", "y", "x_lang", "y_lang"), map(list, zip(*rows)), strict=True)))


@pytest.fixture(scope="session")
def tokens(corpus: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """The rows of `corpus` as token ids."""
    return tokenize_corpus(corpus, tokenizer, max_length=62)[0]


@pytest.fixture(scope="session")
def model_for_text(
    toy_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> Callable[..., PreTrainedModel]:
    """`model_for_text(cls=HictlForPreTraining, seed=0, **changes)`: a new toy model for the ids of `tokenizer`."""
    return partial(toy_model, vocab_size=len(tokenizer))


@pytest.fixture(scope="session")
def saved_model(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> Callable[..., Path]:
    """`saved_model(folder, **changes)`: the folder, with a model of `model_for_text` and `tokenizer` in it."""

    def save(folder: Path, **changes: Any) -> Path:
        model_for_text(**changes).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


# --- XTREME -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def xtreme_folder(tmp_path_factory: pytest.TempPathFactory, sentences: dict[str, list[str]]) -> Path:
    """XTREME's download folder with a few rows of some languages of each task, the test files labelled."""
    root = tmp_path_factory.mktemp("xtreme")
    labels_of_xnli = ("contradiction", "entailment", "neutral")

    def write(name: str, lines: Sequence[str]) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def tagged(language: str, tag: Callable[[str], str], number: int) -> list[str]:
        words = [list(text) if language == "zh" else text.split() for text in sentences[language][:number]]
        return [line for sentence in words for line in (*(f"{word}\t{tag(word)}" for word in sentence), "")]

    def questions(name: str, language: str, number: int) -> None:
        texts = sentences[language][:number]
        paragraphs = [
            {
                "context": text,
                "qas": [
                    {"id": f"{language}-{at}", "question": text, "answers": [{"text": text[:4], "answer_start": 0}]}
                ],
            }
            for at, text in enumerate(texts)
        ]
        write(name, [json.dumps({"data": [{"paragraphs": paragraphs}]}, ensure_ascii=False)])

    for task, labels, languages in (
        ("xnli", labels_of_xnli, ("en", "de", "sw")),
        ("pawsx", ("0", "1"), ("en", "de", "zh")),
    ):
        for split, number in (("train", 24), ("dev", 8), ("test", 8)):
            for language in languages if split == "test" else ["en"]:
                pairs = zip(sentences[language], sentences[language][::-1])
                rows = [f"{a}\t{b}\t{labels[at % len(labels)]}" for at, (a, b) in enumerate(pairs)]
                write(f"{task}/{split}-{language}.tsv", rows[:number])
    for task, tag in (
        ("udpos", lambda w: "NOUN" if len(w) > 3 else "DET"),
        ("panx", lambda w: "B-LOC" if "s" in w else "O"),
    ):
        for split, number in (("train", 24), ("dev", 8), ("test", 8)):
            for language in ("en", "de", "zh") if split == "test" else ["en"]:
                write(f"{task}/{split}-{language}.tsv", tagged(language, tag, number))
    questions("squad/train-v1.1.json", "en", 16)
    questions("tydiqa/tydiqa-goldp-v1.1-train/tydiqa.goldp.en.train.json", "en", 16)
    for language in ("en", "de", "zh"):
        questions(f"xquad/xquad.{language}.json", language, 6)
        questions(f"mlqa/MLQA_V1/test/test-context-{language}-question-{language}.json", language, 6)
    for language in ("en", "sw"):
        questions(f"tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.goldp.{language}.dev.json", language, 6)
    for language in ("de", "zh"):
        for split, rows in (("dev", slice(0, 12)), ("test", slice(12, 30))):
            for name in (language, "en"):
                texts = [f"{name}-{at}\t{text}" for at, text in enumerate(sentences[name])]
                write(f"bucc2018/{language}-en.{split}.{name}", texts[rows])
            pairs = [f"{language}-{at}\ten-{at}" for at in range(48)]
            write(f"bucc2018/{language}-en.{split}.gold", pairs[rows])
    for language, code in {"de": "deu", "sw": "swh", "zh": "cmn"}.items():
        for name, texts in ((code, sentences[language]), ("eng", sentences["en"])):
            write(f"tatoeba/tatoeba.{code}-eng.{name}", texts)
    return root
