"""Files of pairs and of distinct lines, from vectors that are chosen so that the answer is known."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hictl_hf.errors import BadInput
from hictl_hf.retrieval import mining_files
from hictl_hf.retrieval.mining import MiningConfig
from hictl_hf.retrieval.mining_files import (
    deduplicate_lines,
    filter_pairs,
    mine_files,
    read_pairs,
    report_folder,
    scored_line,
)
from hictl_hf.retrieval.workdir import VectorSource

COSINE = MiningConfig(margin="absolute", neighbours=1)


def write(path: Path, lines: list[str], vectors: list[list[float]] | None = None) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    if vectors is not None:
        np.save(path.with_suffix(".npy"), np.array(vectors, np.float32))
    return str(path)


def source(*files: str) -> VectorSource:
    found = [str(Path(file).with_suffix(".npy")) for file in files]
    return VectorSource(files=(found[0], found[1] if len(found) > 1 else None))


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    """German and English lines; the cosines of translations are 1, 0.8 and 0.6, all others are 0."""
    german = [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]
    english = [[0, 0, 0.6, 0, 0.8], [1, 0, 0, 0, 0], [0, 0.8, 0, 0.6, 0]]
    return (
        write(tmp_path / "de.txt", ["eins", "zwei", "drei"], german),
        write(tmp_path / "en.txt", ["three", "one", "two\ttabs"], english),
    )


def test_pairs_are_mined_best_first_above_the_threshold(texts: tuple[str, str], tmp_path: Path) -> None:
    output = tmp_path / "pairs.tsv"
    mine_files(*texts, str(output), source(*texts), COSINE)
    lines = [line.split("\t") for line in output.read_text("utf-8").splitlines()]
    assert [line[1:] for line in lines] == [["eins", "one"], ["zwei", "two tabs"], ["drei", "three"]]
    assert [float(line[0]) for line in lines] == pytest.approx([1, 0.8, 0.6], abs=1e-5)
    mine_files(*texts, str(output), source(*texts), MiningConfig(margin="absolute", neighbours=1, threshold=0.7))
    assert output.read_text("utf-8").splitlines() == ["\t".join(line) for line in lines[:2]]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("command", ["mine", "filter", "deduplicate"])
def test_a_second_command_with_this_output_is_refused_until_the_first_has_ended(
    command: str, texts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, pairs = str(tmp_path / "out.tsv"), write(tmp_path / "given.tsv", ["eins\ta", "zwei\tb", "drei\tc"])
    call = {
        "mine": lambda: mine_files(*texts, output, source(*texts), COSINE),
        "filter": lambda: filter_pairs(pairs, output, source(*texts), COSINE),
        "deduplicate": lambda: deduplicate_lines(texts[0], output, 0.9, source(texts[0]), COSINE),
    }[command]
    refused = []

    def during(*given: Any) -> None:
        with pytest.raises(
            BadInput, match=r"out.tsv.partial: another run .* wait for its end, or choose another --output"
        ):
            call()
        refused.append(given)
        finish(*given)

    finish = mining_files.finish
    monkeypatch.setattr(mining_files, "finish", during)
    call()
    assert len(refused) == 1 and Path(output).is_file() and not list(tmp_path.glob("*.partial"))


def test_given_pairs_are_scored_in_their_order(tmp_path: Path) -> None:
    pairs = write(tmp_path / "given.tsv", ["0.1\tdrei\tthree", "eins\tone", "zwei\tone"])
    x = write(tmp_path / "x.txt", [], [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0]])
    y = write(tmp_path / "y.txt", [], [[0, 0, 0.6, 0, 0.8], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
    settings = MiningConfig(margin="absolute", neighbours=1, threshold=0.5)
    filter_pairs(pairs, str(tmp_path / "out.tsv"), source(x, y), settings)
    lines = [line.split("\t") for line in (tmp_path / "out.tsv").read_text("utf-8").splitlines()]
    assert [line[1:] for line in lines] == [["drei", "three"], ["eins", "one"]]
    assert [float(line[0]) for line in lines] == pytest.approx([0.6, 1], abs=1e-5)


def test_a_line_close_to_an_earlier_one_is_left_out(tmp_path: Path) -> None:
    file = write(tmp_path / "x.txt", ["a", "b", "c", "d"], [[1, 0, 0], [0.8, 0.6, 0], [0, 0, 1], [0.1, 0, 0.99]])
    for above, kept in ((0.9, "abc"), (0.7, "ac"), (0.999, "abcd")):  # cosines: ab 0.8, cd 0.995, bd 0.08
        deduplicate_lines(file, str(tmp_path / "out.txt"), above, source(file), COSINE)
        assert (tmp_path / "out.txt").read_text("utf-8").splitlines() == list(kept)


def test_pairs_are_read_with_or_without_scores(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "pairs.tsv", ["a\tb", "1.5\tc\td", "e\t ", "nan\tf\tg"])
    with caplog.at_level(logging.INFO):
        assert list(read_pairs(path)) == [("a", "b"), ("c", "d"), ("f", "g")]
    assert "1 pairs with an empty side are left out" in caplog.text


@pytest.mark.parametrize(
    ("line", "message"), [("a", "has 1 columns"), ("1\ta\tb\tc", "has 4 columns"), ("a\tb\tc", "'a' as its score")]
)
def test_a_line_that_is_no_pair_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", ["a\tb", line])
    with pytest.raises(BadInput, match=f"pairs.tsv:2: .*{message}"):
        list(read_pairs(path))


def test_a_written_pair_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", [scored_line(1.25, "a\tb", "c")])
    assert list(read_pairs(path)) == [("a b", "c")] and report_folder("runs/pairs.tsv") == "runs/pairs-report"


def test_no_true_pair_is_refused_before_the_search(texts: tuple[str, str], tmp_path: Path) -> None:
    gold = write(tmp_path / "gold.tsv", [])
    with pytest.raises(BadInput, match="gold.tsv: has no pair"):
        mine_files(*texts, str(tmp_path / "out.tsv"), source(*texts), COSINE, gold=gold)


GOLD = {  # pairs, what is told
    "all there": (["eins\tone", "drei\tthree"], ""),
    "x elsewhere": (["eins\tone", "vier\tthree"], "1 of 2 pairs have a side that is not in"),
    "y elsewhere": (["eins\tone", "drei\tfour", "zwei\tfive"], "2 of 3 pairs have a side that is not in"),
    "another spelling": (["eins\tone", "Drei \tthree"], "1 of 2 pairs"),
}


@pytest.mark.parametrize(("pairs", "told"), GOLD.values(), ids=GOLD)
def test_true_pairs_that_cannot_be_found_are_told(
    pairs: list[str], told: str, texts: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gold = write(tmp_path / "gold.tsv", pairs)
    mine_files(*texts, str(tmp_path / "out.tsv"), source(*texts), COSINE, gold=gold)
    assert told in caplog.text and ("they count as not found" in caplog.text) == bool(told)


@pytest.mark.parametrize(
    ("pairs", "fix"),
    [
        (["four\tvier"], "Write lines of the files"),
        (["one\teins", "three\tdrei"], "Give the files in the order of its columns"),
    ],
)
def test_true_pairs_of_other_texts_are_refused_before_the_search(
    pairs: list[str], fix: str, texts: tuple[str, str], tmp_path: Path
) -> None:
    gold = write(tmp_path / "gold.tsv", pairs)
    with pytest.raises(BadInput, match=f"gold.tsv: [0-9] of [0-9] pairs .*{fix}"):
        mine_files(*texts, str(tmp_path / "out.tsv"), VectorSource(model="no/such"), COSINE, gold=gold)
