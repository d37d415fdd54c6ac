"""Neighbours in an index: those of the exact search where it must find all, nearly all elsewhere, in any shards."""

import builtins
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hictl_hf.errors import BadInput
from hictl_hf.processes import ALONE, Processes
from hictl_hf.retrieval import index_search
from hictl_hf.retrieval.bitext import UnitRows
from hictl_hf.retrieval.index_search import IndexSearch, check_index, import_faiss, keep, make_index
from hictl_hf.retrieval.mining import MiningConfig, mine_vectors
from hictl_hf.retrieval.nearest_neighbours import Neighbours, Vectors, search_both

WIDTH, K = 16, 4
OF_A_ROW = 4 * WIDTH  # bytes of a vector in a shard of "Flat"


@pytest.fixture(autouse=True)
def faiss() -> Any:
    faiss = pytest.importorskip("faiss")
    faiss.omp_set_num_threads(1)
    return faiss


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_search, "QUERIES_AT_ONCE", 100)
    monkeypatch.setattr(index_search, "ROWS_AT_ONCE", 70)
    monkeypatch.setattr(index_search, "CODES", 400)  # trained on all rows


def translations(sentences: int = 450, seed: int = 0) -> tuple[Vectors, Vectors]:
    """Vectors of x and y, in which some of y are equal."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(sentences, WIDTH)).astype(np.float32)
    y = (x + 0.5 * random.normal(size=x.shape)).astype(np.float32)[:-50]
    y[30], y[330] = y[3], y[3]
    return x, y


def search(folder: Path, factory: str, processes: Processes = ALONE, rows: int = 10_000, **how: Any) -> Neighbours:
    """The neighbours of x in y, with shards of this many rows."""
    x, y = map(UnitRows, translations())
    found = IndexSearch(x, y, K, factory, folder, max_memory=rows * OF_A_ROW, **how)
    found.run(processes)
    return found.neighbours()


@pytest.mark.parametrize("rows", [120, 399, 400])
def test_flat_gives_the_neighbours_of_the_exact_search_to_the_bit(rows: int, tmp_path: Path) -> None:
    found, (expected, _) = search(tmp_path, "Flat", rows=rows), search_both(*map(UnitRows, translations()), K)
    assert len(list(tmp_path.glob("0*.index"))) == -(-400 // rows) and len(list(tmp_path.glob("0*.npz"))) == 5
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.similarities, expected.similarities)


def test_flat_gives_the_pairs_of_the_exact_search() -> None:
    x, y = translations()
    expected, found = (mine_vectors(x, y, MiningConfig(index=index)) for index in (None, "Flat"))
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
    assert len(found[0]) > 300


def test_all_lists_of_an_inverted_file_have_all_neighbours(tmp_path: Path) -> None:
    (tmp_path / "50").mkdir()
    (tmp_path / "50" / "merged.ivfdata").write_bytes(b"of a merge that was interrupted")
    for rows, files in ((10_000, 1), (50, 9)):
        found = search(tmp_path / str(rows), "IVF16,Flat", rows=rows, parameters="nprobe=16")
        np.testing.assert_array_equal(found.rows, search_both(*map(UnitRows, translations()), K)[0].rows)
        merged = tmp_path / str(rows) / "merged.ivfdata"
        assert len(list(merged.parent.glob("0*.index"))) >= files and merged.exists() == (files > 1)
        assert not merged.exists() or merged.stat().st_size >= 400 * (OF_A_ROW + 8)


@pytest.mark.parametrize("factory", ["IVF16,SQ8", "OPQ8_16,IVF8,SQ8", "HNSW16", "IVF8,PQ16x4np"])
def test_lossy_indexes_find_nearly_all_with_exact_cosines(factory: str, tmp_path: Path) -> None:
    (expected, _), (x, y) = search_both(*map(UnitRows, translations()), K), map(UnitRows, translations())
    one, many = (search(tmp_path / str(rows), factory, rows=rows) for rows in (10_000, 40))
    for found in (one, many):
        assert np.mean([len({*some} & {*others}) / K for some, others in zip(found.rows, expected.rows)]) > 0.9
        cosines = np.einsum("nd,nkd->nk", x[:], y[:][found.rows])
        np.testing.assert_allclose(found.similarities, cosines, atol=1e-6)
        assert (np.diff(found.similarities) <= 0).all()
    if factory != "HNSW16":  # graphs depend on their rows, codes do not
        np.testing.assert_array_equal(one.rows, many.rows)


def test_an_index_of_distances_finds_the_same_in_any_shards(tmp_path: Path) -> None:
    """FAISS makes some indexes with distances, of which the lowest is the nearest, where products were asked for."""
    (x, y), factory = map(UnitRows, translations()), "HNSW16_2x4+PQ4"
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "plan.json").write_text('{"rows": 120}', "utf-8")
    whole, shards = (IndexSearch(x, y, K, factory, tmp_path / name) for name in ("whole", "shards"))
    whole.run()
    shutil.copy(tmp_path / "whole" / "empty.index", tmp_path / "shards")
    shards.run()
    exact = search_both(x, y, K)[0]
    for found in (whole.neighbours(), shards.neighbours()):
        assert np.mean(found.rows[:, 0] == exact.rows[:, 0]) > 0.95
    assert len(list((tmp_path / "shards").glob("0*.index"))) == 4


def test_lists_that_faiss_does_not_merge_are_searched_shard_by_shard(tmp_path: Path) -> None:
    found = [search(tmp_path / str(rows), "IVF4,PQ8x4fs", rows=rows) for rows in (10_000, 20)]
    assert len(list((tmp_path / "20").glob("0*.index"))) > 2
    exact = search_both(*map(UnitRows, translations()), K)[0]
    for each in found:
        assert np.mean(each.rows[:, 0] == exact.rows[:, 0]) > 0.9


def test_few_lists_miss_some(tmp_path: Path) -> None:
    (expected, _), few = (
        search_both(*map(UnitRows, translations()), K), search(tmp_path, "IVF16,Flat", parameters="nprobe=1")
    )  # fmt: skip
    assert 0.2 < (few.rows == expected.rows).mean() < 0.9


@pytest.mark.parametrize(("factory", "rows"), [("IVF64,Flat", 10_000), ("IVF64,PQ8x4fs", 20)])
def test_where_too_few_are_found_the_first_fills_the_places(factory: str, rows: int, tmp_path: Path) -> None:
    found = search(tmp_path, factory, rows=rows, parameters="nprobe=1")
    filled = found.rows == found.rows[:, :1]
    assert filled[:, 1:].any() and (found.rows >= 0).all()
    firsts = np.broadcast_to(found.similarities[:, :1], found.rows.shape)
    np.testing.assert_array_equal(found.similarities[filled], firsts[filled])
    assert all(len({*row[rest]}) == rest.sum() for row, rest in zip(found.rows, ~filled))
    path = tmp_path / "000000.npz"
    with np.load(path) as saved:
        lost = dict(saved)
    lost["rows"][3] = -1
    keep(lost, path)
    with pytest.raises(BadInput, match="finds no neighbour of 1 sentences; search more by --index_parameters"):
        search(tmp_path, factory, rows=rows, parameters="nprobe=1")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2)])
def test_shards_and_blocks_are_shared_and_done_once(
    before: int, after: int, shared_by: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, done = search(tmp_path / "one", "IVF16,SQ8", rows=40), list[str]()
    build, rank = IndexSearch._build, IndexSearch._rank

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(self: IndexSearch, part: Any, *rest: Any) -> Any:
            if len(done) >= stop:
                raise KeyboardInterrupt
            found = function(self, part, *rest)
            done.append(part.path.name)
            return found

        return record

    monkeypatch.setattr(IndexSearch, "_build", recorded(build))
    monkeypatch.setattr(IndexSearch, "_rank", recorded(rank))
    for stop in (2, 6):  # noqa: B007
        with pytest.raises(KeyboardInterrupt):
            shared_by(before, lambda processes: search(tmp_path / "two", "IVF16,SQ8", processes, rows=40))
    stop = 1000
    for found in shared_by(after, lambda processes: search(tmp_path / "two", "IVF16,SQ8", processes, rows=40)):
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.similarities, expected.similarities)
    shards = len(list((tmp_path / "two").glob("0*.index")))
    assert shards == 4 and {*done} == {path.name for path in (tmp_path / "two").glob("0*")}
    assert len(done) - len({*done}) <= 2 * before, "only what was at work when the processes were stopped is done again"


@pytest.mark.parametrize("name", ["plan.json", "empty.index", "000000.index", "000001.npz"])
def test_a_damaged_file_of_an_interrupted_search_is_named(name: str, tmp_path: Path) -> None:
    search(tmp_path, "IVF4,Flat")
    for path in tmp_path.iterdir() if name == "000000.index" else ():
        if path.suffix == ".npz":  # or no shard is read again
            path.unlink()
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:9])
    with pytest.raises(BadInput, match=rf"{name}: cannot be read .*; allowed .* Remove {tmp_path} to begin anew"):
        search(tmp_path, "IVF4,Flat")


def test_fewer_keys_than_neighbours_are_all_found() -> None:
    x, y = translations()
    pairs, scores = mine_vectors(x[:5], y[:2], MiningConfig(index="Flat", direction="forward"))
    np.testing.assert_array_equal(pairs, mine_vectors(x[:5], y[:2], MiningConfig(direction="forward"))[0])
    assert len(scores) == 5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"factory": "IVF1000,Flat"}, r"index is IVF1000,Flat: cannot be trained on 400 vectors \(.*1000"),
        ({"factory": "Flat", "parameters": "nprobe=3"}, "index_parameters is 'nprobe=3', with the index Flat"),
        ({"factory": "IVF4,Flat", "parameters": "lists"}, "index_parameters is 'lists'"),
    ],
)
def test_what_faiss_refuses_is_told(how: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        search(tmp_path, **how)


def test_indexes_that_faiss_cannot_build_are_refused_before_any_work() -> None:
    with pytest.raises(BadInput, match=r"index is 'flat', for vectors of 16 numbers \(.*; allowed is a factory string"):
        make_index("flat", WIDTH)
    with pytest.raises(BadInput, match="index is 'PQ5', for vectors of 16 numbers"):
        make_index("PQ5", WIDTH)
    with pytest.raises(BadInput, match=r"IVFPQR not implemented for inner product"):
        make_index("IVF4,PQ8+8", WIDTH)


def test_what_fails_on_vectors_is_refused_before_they_are_made() -> None:
    check_index("IVF256,Flat", "nprobe=64", WIDTH, 300)
    with pytest.raises(BadInput, match="index is IVF512,Flat: has 512 lists; allowed are at most .* vectors, 300"):
        check_index("IVF512,Flat", None, WIDTH, 300)
    for factory in ("IVF4,Flat,RFlat", "OPQ4,IVF4,PQ4,Refine(SQfp16)", "IDMap,Flat", "IDMap2,HNSW16"):
        with pytest.raises(BadInput, match="cannot take rows by their numbers; .* Leave that part out"):
            check_index(factory, None, WIDTH, 300)
    check_index("PQ4,RFlat", None, WIDTH, 300)
    for factory, parameters in (("Flat", "nprobe=3"), ("IVF4,Flat", "lists"), ("HNSW32", "efsearch=9")):
        with pytest.raises(BadInput, match=f"index_parameters is '{parameters}', with the index {factory}"):
            check_index(factory, parameters, WIDTH, 300)


def test_without_faiss_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "faiss":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r"pip install 'hictl_hf\[mining\]'"):
        import_faiss()
