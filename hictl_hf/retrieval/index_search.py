"""Approximate k nearest neighbours in a FAISS index on disk, for sides that are larger than the memory.

    search = IndexSearch(UnitRows(x), UnitRows(y), 4, "IVF1024,PQ32np", Path("index"))
    search.run()
    neighbours_of_x = search.neighbours()

1. An empty index is trained on a sample of the keys.
2. Shards, as many rows each as fit in `max_memory`, are added to copies of it; inverted lists are then merged on disk.
3. Of each query the `CANDIDATES` · k keys are taken that the index says are nearest, over all shards.
4. The cosines of these candidates are computed from the vectors; the k highest are the neighbours.

Shards and blocks of queries are files, which several processes share and from which an interrupted search continues.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm

from ..errors import BadInput, short_repr
from ..files import atomic_file, flush, write_json
from ..processes import ALONE, Processes, hides_progress
from ..training.partial_output import reading_part
from .bitext import UnitRows, rows_at
from .nearest_neighbours import MEMORY, Neighbours, Rows, Vectors, fine_kind, inner_products

QUERIES_AT_ONCE = 2**16  # of a file of neighbours
ROWS_AT_ONCE = 2**12  # added to an index, or ranked again
CANDIDATES = 8  # ranked again, for each neighbour
LISTS_SEARCHED = 32  # of an inverted file
GRAPH_CANDIDATES = 128  # of HNSW
SAMPLE = 256  # rows of the training sample for each list, as many as FAISS looks at
CODES = 256  # centroids of a product quantizer, which also need a sample
MERGED = "merged.index"
KIND = "a factory string of FAISS, such as IVF1024,PQ32np"


@dataclass(frozen=True)
class IndexSearch:
    """For each query the keys with the highest cosine, of those that an index proposes.

    Attributes:
        queries, keys: (rows, d).
        k: number of neighbours; fewer if there are fewer keys.
        factory: string for `faiss.index_factory`.
        folder: of the index and of what is found.
        parameters: of the search, such as "nprobe=64"; by default `LISTS_SEARCHED` and `GRAPH_CANDIDATES`.
        max_memory: bytes of a shard, and of the training sample.
    """

    queries: UnitRows
    keys: UnitRows
    k: int
    factory: str
    folder: Path
    parameters: str | None = None
    max_memory: int = MEMORY

    def run(self, processes: Processes = ALONE) -> None:
        """Find the neighbours of all queries, or of this process's share; all processes return together."""
        rows = processes.on_main(self._plan)
        missing = processes.from_main([part for part in self._shards(rows) if not part.path.exists()])
        for part in self._bar("index", processes.share(missing)):
            self._build(part)
        processes.wait()
        files = processes.on_main(lambda: self._merge(self._shards(rows)))
        blocks = processes.from_main([part for part in self._blocks() if not part.path.exists()])
        opened: dict[Path, Any] = {}
        for part in self._bar("search", processes.share(blocks)):
            found = self._candidates(part, files, opened)
            keep(dict(zip(("rows", "similarities"), self._rank(part, found))), part.path)
        processes.wait()

    def neighbours(self) -> Neighbours:
        """What all processes have found.

        Raises:
            BadInput: nothing was found for a query.
        """
        parts = []
        for part in self._blocks():
            with reading_part(part.path), np.load(part.path) as saved:
                parts.append((saved["rows"], saved["similarities"]))
        rows, similarities = map(np.concatenate, zip(*parts))
        if (rows[:, 0] < 0).any():
            raise BadInput(
                f"index is {self.factory}: finds no neighbour of {(rows[:, 0] < 0).sum():,} sentences; search more by "
                "--index_parameters, for example nprobe=256, or omit --index for an exact search"
            )
        missed = rows < 0  # the first one fills their places
        return Neighbours(np.where(missed, rows[:, :1], rows), np.where(missed, similarities[:, :1], similarities))

    # --- files --------------------------------------------------------------------------------------------------------

    def _shards(self, rows: int) -> list["Part"]:
        return parts_of(len(self.keys), rows, self.folder, ".index")

    def _blocks(self) -> list["Part"]:
        return parts_of(len(self.queries), QUERIES_AT_ONCE, self.folder, ".npz")

    @staticmethod
    def _bar(what: str, parts: Any) -> Any:
        return tqdm(parts, desc=what, disable=hides_progress(), leave=False)

    # --- index --------------------------------------------------------------------------------------------------------

    def _plan(self) -> int:
        """Train the empty index, unless that is done; the number of rows of a shard."""
        file = self.folder / "plan.json"
        if file.exists():
            with reading_part(file):
                return int(json.loads(file.read_text("utf-8"))["rows"])
        self.folder.mkdir(parents=True, exist_ok=True)
        faiss, index = import_faiss(), make_index(self.factory, self.keys.shape[1])
        lists = getattr(inverted_lists_of(index), "nlist", CODES)
        size = min(SAMPLE * max(lists, CODES), max(self.max_memory // (4 * self.keys.shape[1]), lists, CODES))
        sample = as_fp32(self.keys[:: -(-len(self.keys) // size)])
        try:
            index.train(sample)
        except RuntimeError as error:
            raise BadInput(
                f"index is {self.factory}: cannot be trained on {len(sample):,} vectors ({reason(error)}); choose one "
                "with fewer lists or codes, or a larger --max_memory"
            ) from error
        write_index(index, self.folder / "empty.index")
        empty, some = len(faiss.serialize_index(index)), sample[:1024]
        index.add(some)
        of_a_row = (len(faiss.serialize_index(index)) - empty) / len(some)
        rows = max(1, int(self.max_memory / of_a_row))
        write_json(file, {"rows": rows})
        return rows

    def _build(self, part: "Part") -> None:
        """Add the rows of a shard to the empty index."""
        index = read_index(self.folder / "empty.index")
        for start in range(part.start, part.stop, ROWS_AT_ONCE):
            rows = np.arange(start, min(start + ROWS_AT_ONCE, part.stop))
            vectors = as_fp32(self.keys[start : rows[-1] + 1])
            if inverted_lists_of(index) is None:
                index.add(vectors)  # as rows of the shard: other indexes take no ids
            else:
                index.add_with_ids(vectors, rows)
        write_index(index, part.path)

    def _merge(self, shards: list["Part"]) -> list[tuple[int, Path]]:
        """Merge the inverted lists of all shards into one file, which is mapped into memory when it is searched.

        Returns:
            The row of id 0 and the path of each index to search: one, or the shards of an index without such lists, or
            with those of PQ32x4fs.
        """
        merged, index = self.folder / MERGED, read_index(self.folder / "empty.index")
        lists, faiss = inverted_lists_of(index), import_faiss()
        can_merge = lists is not None and not isinstance(faiss.downcast_index(lists), faiss.IndexIVFFastScan)
        if len(shards) == 1 or not can_merge:
            return [(part.start if lists is None else 0, part.path) for part in shards]
        if not merged.exists():
            from faiss.contrib.ondisk import merge_ondisk

            merge_ondisk(index, [str(part.path) for part in shards], str(self.folder / "merged.ivfdata"))
            write_index(index, merged)
        return [(0, merged)]

    # --- search -------------------------------------------------------------------------------------------------------

    def _candidates(self, part: "Part", files: list[tuple[int, Path]], opened: dict[Path, Any]) -> Rows:
        """(queries, candidates) rows of the keys that the index says are nearest, nearest first; -1: none."""
        queries, number = as_fp32(self.queries[part.start : part.stop]), min(CANDIDATES * self.k, len(self.keys))
        found = np.full((len(queries), number), -1, np.int64)
        scores = np.full(found.shape, -np.inf, np.float32)
        for first, path in files:
            index = self._open(path, number, opened)
            near_scores, near = index.search(queries, number)
            if index.metric_type != import_faiss().METRIC_INNER_PRODUCT:  # HNSW32_PQ16 has distances, whatever is asked
                near_scores = -near_scores
            both = np.concatenate([scores, np.where(near < 0, -np.inf, near_scores)], 1)
            rows = np.concatenate([found, np.where(near < 0, -1, near + first)], 1)
            order = np.argsort(-both, 1, kind="stable")[:, :number]
            found, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(both, order, 1)
        return found

    def _open(self, path: Path, number: int, opened: dict[Path, Any]) -> Any:
        """An index that finds this number of candidates, its inverted lists on disk, with the parameters set.

        Args:
            opened: the index that was opened before, by its path.
        """
        faiss = import_faiss()
        if path in opened:
            return opened[path]
        # FAISS 1.15 crashes on merged lists with IO_FLAG_MMAP; they are mapped in any case
        flag = faiss.IO_FLAG_READ_ONLY if path.name == MERGED else faiss.IO_FLAG_MMAP
        opened.clear()  # one shard in memory at a time
        index = opened[path] = read_index(path, flag)
        if self.parameters:
            set_parameters(index, self.factory, self.parameters)
        elif (lists := inverted_lists_of(index)) is not None:
            lists.nprobe = min(LISTS_SEARCHED, lists.nlist)
        elif hasattr(index, "hnsw"):
            index.hnsw.efSearch = max(GRAPH_CANDIDATES, number)
        return index

    def _rank(self, part: "Part", found: Rows) -> Neighbours:
        """The k candidates with the highest cosines, ties by row, with these cosines; -1 and -inf: none."""
        kind, k = fine_kind(self.queries, self.keys), min(self.k, len(self.keys))
        found = np.sort(found, 1)
        similarities = np.full(found.shape, -np.inf, torch.empty(0, dtype=kind).numpy().dtype)
        for start in range(0, len(found), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            own, place = (found[some] >= 0).nonzero()
            near, other = np.unique(found[some][own, place], return_inverse=True)
            queries = self.queries[part.start + start : part.start + start + len(found[some])]
            x, y = (torch.from_numpy(side).to(kind) for side in (queries, rows_at(self.keys, near)))
            cosines = inner_products(x, y, torch.from_numpy(own), torch.from_numpy(other))
            similarities[start + own, place] = cosines.numpy()
        order = np.argsort(-similarities, 1, kind="stable")[:, :k]
        return Neighbours(np.take_along_axis(found, order, 1), np.take_along_axis(similarities, order, 1))


@dataclass(frozen=True)
class Part:
    """Some rows of a side, and their file."""

    start: int
    stop: int
    path: Path


def parts_of(rows: int, size: int, folder: Path, ending: str) -> list[Part]:
    """The parts of a side, in order, with this many rows each but the last."""
    starts = range(0, rows, size)
    return [
        Part(start, min(start + size, rows), folder / f"{number:06}{ending}") for number, start in enumerate(starts)
    ]


def import_faiss() -> Any:
    """FAISS; `BadInput` if it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise BadInput(
            "index is given, which needs FAISS, which is not installed; allowed without it is exact search. Omit "
            "--index, or install it: pip install 'hictl_hf[mining]'."
        ) from error
    return faiss


def read_index(path: Path, flag: int = 0) -> Any:
    """An index that an interrupted search may have written."""
    with reading_part(path):
        return import_faiss().read_index(str(path), flag)


def make_index(factory: str, width: int) -> Any:
    """An empty index of inner products of vectors with this many numbers; `BadInput` if FAISS knows no such index."""
    faiss = import_faiss()
    try:
        return faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        found = f"index is {short_repr(factory)}, for vectors of {width} numbers ({reason(error)})"
        raise BadInput(f"{found}; allowed is {KIND}.") from error


def check_index(factory: str, parameters: str | None, width: int, rows: int) -> None:
    """Raise `BadInput` for an index of this many vectors that cannot be built or searched, before they are made."""
    index, faiss = make_index(factory, width), import_faiss()
    lists_within = inverted_lists_of(index) is not None
    if isinstance(index, faiss.IndexIDMap) or lists_within and isinstance(index, faiss.IndexRefine):
        raise BadInput(
            f"index is {factory}: cannot take rows by their numbers; allowed are indexes without IDMap, and lists "
            "without RFlat or Refine. Leave that part out: candidates are compared again in any case"
        )
    lists = getattr(inverted_lists_of(index), "nlist", 0)
    if lists > rows:
        raise BadInput(f"index is {factory}: has {lists:,} lists; allowed are at most as many as vectors, {rows:,}")
    if parameters:
        set_parameters(index, factory, parameters)


def set_parameters(index: Any, factory: str, parameters: str) -> None:
    """Set the parameters of the search in an index; `BadInput` if it does not have them."""
    try:
        import_faiss().ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError as error:
        raise BadInput(
            f"index_parameters is {short_repr(parameters)}, with the index {factory} ({reason(error)}); allowed are "
            "those of FAISS for it, such as nprobe=64 for IVF"
        ) from error


def inverted_lists_of(index: Any) -> Any:
    """The inverted file within an index, or `None`."""
    return import_faiss().try_extract_index_ivf(index)


def reason(error: RuntimeError) -> str:
    """What FAISS says, without the place in its source."""
    return " ".join(str(error).split("Error: ")[-1].split())[:200]


def as_fp32(vectors: Vectors) -> NDArray[np.float32]:
    return np.ascontiguousarray(vectors, np.float32)


def write_index(index: Any, path: Path) -> None:
    """Write an index to a file atomically."""
    with atomic_file(path) as draft:
        import_faiss().write_index(index, str(draft))
        flush(draft)


def keep(saved: dict[str, NDArray[Any]], path: Path) -> None:
    """Write arrays to a file atomically."""
    with atomic_file(path) as draft:
        with draft.open("wb") as file:  # by its name NumPy would add an ending
            np.savez(file, allow_pickle=False, **saved)
        flush(draft)
