"""Score an encoder on MTEB's bitext mining tasks: an adapter for `embed_sentences`, and tasks from local files.

Queries, search and metrics are MTEB's: the foreign sentences are the queries, and the main score is a weighted F1.
XTREME differs in both (`xtreme`).
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.formats import refuse_unequal
from ..data.lines import read_lines
from ..data.records import Cursor
from ..errors import BadInput, as_bad_input
from ..reports.tables import Cell, Table
from .encoder import embed_sentences
from .pooling import Pooling, chosen_prompt, length_read, own_pooling

KIND = "BitextMining"
METRICS = ("f1", "accuracy")  # the first is MTEB's main score


def load_task(name: str, subsets: Sequence[str] = (), folder: str | Path | None = None) -> Any:
    """Load a task of MTEB by name, with its data if they come from a folder.

    Raises:
        BadInput: mteb cannot be imported, or the task is unknown, of another type or not in the folder.
    """
    try:
        import mteb
    except ImportError as error:
        raise BadInput(f"mteb cannot be imported ({error}); pip install --upgrade 'hictl_hf[mteb]'") from error
    with as_bad_input(name, f"MTEB's name of a task of the type {KIND}, and of its subsets", "Check the names."):
        kind = mteb.get_task(name).metadata.type
        if kind != KIND:
            raise BadInput(f"{name}: is a task of the type {kind}; allowed is {KIND}.")
        pairs = None if folder is None else local_pairs(name, Path(folder), subsets)
        task = mteb.get_task(name, hf_subsets=list(subsets if pairs is None else pairs) or None)
    if pairs is not None:
        task.dataset, task.data_loaded = {subset: {"test": rows} for subset, rows in pairs.items()}, True
    return task


def local_pairs(name: str, folder: Path, subsets: Sequence[str]) -> dict[str, Dataset]:
    """The language pairs of LASER's Tatoeba in a folder, by MTEB's name; the foreign sentences are the queries."""
    if name != "Tatoeba":
        raise BadInput(f"{name}: was asked for from {folder}; allowed there is Tatoeba. Leave --data out.")
    found = {path.name.split(".")[1]: path for path in sorted(folder.glob("tatoeba.???-eng.eng"))}
    if lacking := [subset for subset in subsets if subset not in found] or ([] if found else ["deu-eng"]):
        raise BadInput(f"{folder}: has no tatoeba.{lacking[0]}.eng; allowed is a folder of LASER's, tatoeba/v1.")
    pairs = {}
    for subset in subsets or found:
        files = {side: folder / f"tatoeba.{subset}.{side}" for side in subset.split("-")}
        foreign, english = ([line for _, line in read_lines(str(path), Cursor())] for path in files.values())
        refuse_unequal({str(path): str(len(side)) for path, side in zip(files.values(), (foreign, english))})
        pairs[subset] = Dataset.from_dict({"sentence1": foreign, "sentence2": english})
    return pairs


def evaluate_mteb(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Iterable[Any],
    output: str | Path,
    max_length: int | None = None,
    pooling: Pooling | None = None,
) -> dict[str, Any]:
    """Score tasks of `load_task`, and write a file with MTEB's results of each to the folder `output`.

    Args:
        max_length, pooling: as in `embed_sentences`.

    Returns:
        "protocol": how it was scored; "tasks": by task the scores in percent, "subsets" of each and the "mean".
    """
    import mteb

    encoder: Any = MtebEncoder(model, tokenizer, max_length, pooling)
    scores: dict[str, Any] = {}
    for task in tasks:
        result = mteb.evaluate(encoder, task, cache=None, co2_tracker=False, encode_kwargs={}).task_results[0]
        Path(output).mkdir(parents=True, exist_ok=True)
        result.to_disk(Path(output) / f"{result.task_name}.json")
        subsets = {
            entry["hf_subset"] + f", {split}" * (len(result.scores) > 1): {name: 100 * entry[name] for name in METRICS}
            for split, entries in result.scores.items()
            for entry in entries
        }
        mean = {metric: fmean(each[metric] for each in subsets.values()) for metric in METRICS}
        scores[result.task_name] = {"mean": mean, "subsets": subsets}
    protocol = {
        "mteb": version("mteb"), "metrics": METRICS, "pooling": encoder.pooling._asdict(),
        "max_length": encoder.max_length, "prompt": chosen_prompt(model.config),
        "search": "nearest neighbour by cosine, of the first sentence of each pair among all second ones",
    }  # fmt: skip
    return {"protocol": protocol, "tasks": scores}


class MtebEncoder:
    """MTEB's encoder interface on `embed_sentences`, by default as the model's configuration says."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        from mteb.models import ModelMeta

        self.model, self.tokenizer = model, tokenizer
        self.max_length = length_read(model.config, max_length)
        self.pooling: Pooling = pooling or own_pooling(model.config)
        self.mteb_model_meta = ModelMeta.create_empty()

    def encode(self, inputs: Iterable[dict[str, Any]], **_: Any) -> NDArray[np.float32]:
        """(sentences, d) unit vectors of batches of texts."""
        texts = [text for batch in inputs for text in batch["text"]]
        return embed_sentences(
            self.model, self.tokenizer, texts, self.pooling, normalize=True, max_length=self.max_length
        )

    def similarity(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float32]:
        """(x, y) the cosines of unit vectors."""
        return x @ y.T

    def similarity_pairwise(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float32]:
        """(pairs,) the cosines of unit vectors."""
        return (x * y).sum(-1)


def as_table(results: dict[str, Any]) -> Table:
    """Tabulate the results of `evaluate_mteb`, one section per task."""
    sections = {
        name: [
            [Cell(subset), *(Cell(f"{scores[metric]:.1f}") for metric in METRICS)]
            for subset, scores in [*task["subsets"].items(), ("mean", task["mean"])]
        ]
        for name, task in results["tasks"].items()
    }
    return Table("MTEB", "Bitext mining, percent.", [Cell(""), *map(Cell, METRICS)], sections)
