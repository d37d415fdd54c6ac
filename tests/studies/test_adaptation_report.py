"""Intervals and page of the adaptation study, from made-up runs whose hits are in run.json."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hictl_hf.files import write_json
from studies import adaptation, report
from studies.adaptation_report import (
    TRAINED,
    better_reference,
    find_encoders,
    intervals_of,
    marks,
    train_seconds,
    write_page,
)
from studies.adaptation_scores import grouped, packed, unpacked
from studies.adaptation_systems import REFERENCE, START
from studies.scoring import scores_of

STUDY = {"start": ["hash"], "prompt": "query: ", "minutes": 25, "languages": [], "data": "d"}
PLACES = ("tatoeba/deu", "tatoeba/tam", "ntrex/deu")


def made_up_encoder(share: float, hits: Sequence[bool]) -> dict[str, Any]:
    """The scores of an encoder with these hits in both directions of three places."""
    arrays = {f"{place}/{way}": np.array(hits) for place in PLACES for way in ("from en", "to en")}
    scores = scores_of(grouped(arrays))
    return {"share": share, "scores": scores, "hits": {name: packed(found) for name, found in arrays.items()}}


def write_made_up_run(
    folder: Path,
    name: str,
    seed: int,
    chosen: Sequence[bool],
    trained: Sequence[bool] | None = None,
    study: Mapping[str, Any] = STUDY,
    settings: Mapping[str, Any] | None = None,
) -> None:
    shares = [{"share": share, "dev": 60 + share, "guard": 80 - share} for share in (0.0, 0.5, 1.0)]
    encoders = {"chosen": made_up_encoder(0.0 if name == START else 0.5, chosen)}
    if trained is not None:
        encoders["trained"] = made_up_encoder(1.0, trained)
    cost: dict[str, Any] = {}
    if name != START:  # 1,500 seconds by the calibration
        cost = {"train_cpu_seconds": 1800.0, "steps": 430, "settings": settings or {}}
        cost["calibration"] = {"seconds_per_step": 1500 / 430, "steps": 430}
    run = {"system": name, "seed": seed, "study": study, **cost, "share": 0.5, "shares": shares, "encoders": encoders}
    write_json(folder / name / str(seed) / "run.json", run)


def test_the_cost_of_a_run_is_that_of_its_calibration() -> None:
    measured = {"steps": 400, "train_cpu_seconds": 1500.0}
    assert train_seconds(measured) == train_seconds({**measured, "calibration": None}) == 1500
    assert train_seconds({**measured, "calibration": {"seconds_per_step": 3.0}}) == 1200
    assert train_seconds({}) is None


# --- hits and intervals -----------------------------------------------------------------------------------------------


def test_hits_survive_the_round_trip_through_run_json(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in (1, 7, 8, 998):
        hits = random.random(number) < 0.7
        found = unpacked(json.loads(json.dumps(packed(hits))))
        assert found.dtype == bool and np.array_equal(found, hits)
    hits = random.random(307) < 0.7
    write_made_up_run(tmp_path, "ours", 1, hits.tolist())
    found = find_encoders(tmp_path)["ours"]
    assert found.scores[1]["tatoeba"] == pytest.approx(100 * hits.mean())
    samples = found.samples[1]["ntrex"]
    assert samples.mean() == pytest.approx(100 * hits.mean(), abs=0.5)
    assert samples.std() == pytest.approx(100 * hits.std() / 307**0.5, rel=0.1)


def test_languages_with_and_without_pairs_are_tests_of_their_own() -> None:
    names = ("tatoeba/deu/to en", "tatoeba/tam/to en", "ntrex/zho-CN/to en", "low/bre/to en", "bucc/gold")
    found = grouped(dict.fromkeys(names, np.array([True])))
    assert found.keys() - {*names} == {
        "tatoeba, with pairs/deu/to en",
        "tatoeba, without pairs/tam/to en",
        "ntrex, with pairs/zho-CN/to en",
        "bre/bre/to en",
    }


def test_differences_are_paired_by_sentences_and_seeds(tmp_path: Path) -> None:
    """Ours finds what the start finds and, of 100 sentences, 20 more: +20, and the interval is that of 20 %.

    The reference finds 10 more, with seed 2 12 more; not averaged it finds nothing, so the averaged one counts.
    """
    start = [True] * 50 + [False] * 50
    more = [True] * 70 + [False] * 30
    ten, twelve = [True] * 60 + [False] * 40, [True] * 62 + [False] * 38
    write_made_up_run(tmp_path, START, 0, start)
    for seed, reference in ((1, ten), (2, twelve)):
        write_made_up_run(tmp_path, "ours", seed, more)
        write_made_up_run(tmp_path, REFERENCE, seed, reference, [False] * 100)
    found = find_encoders(tmp_path)
    assert [*found] == [START, "ours", REFERENCE, REFERENCE + TRAINED] and [*found[START].folders] == [1, 2]
    better = better_reference(found, "ntrex", REFERENCE)
    assert better is not None and better.name == REFERENCE
    rows = intervals_of(found, ["ntrex", "bucc"])
    value, low, high = rows["ours"]["to the start"]["ntrex"]
    assert value == 20 and high - low == pytest.approx(3.92 * (0.2 * 0.8 / 100) ** 0.5 * 100, rel=0.1)
    value, low, high = rows["ours"]["to the reference"]["ntrex"]
    assert value == 9 and 0 < low < 9 < high < 20
    assert rows[START]["scores"]["ntrex"][0] == 50 and rows[START]["seeds"] == 1
    assert rows["ours"]["scores"]["bucc"] is None, "not a test of these runs"
    assert rows["ours"]["cpu_minutes"] == 25 and rows["ours"]["shares"] == [0.5, 0.5]
    assert not rows[START]["to the start"] and not rows[REFERENCE]["to the reference"]


def test_a_row_that_changes_the_recipe_is_compared_with_the_recipe(tmp_path: Path) -> None:
    write_made_up_run(tmp_path, START, 0, [False] * 100)
    for seed in (1, 2):
        write_made_up_run(tmp_path, "ours", seed, [True] * 70 + [False] * 30)
        write_made_up_run(tmp_path, REFERENCE, seed, [True] * 60 + [False] * 40)
    write_made_up_run(tmp_path, "with-lm", 1, [True] * 65 + [False] * 35)
    write_made_up_run(tmp_path, "st-gte", 1, [True] * 65 + [False] * 35)
    differences = {
        name: row["to the reference"] for name, row in intervals_of(find_encoders(tmp_path), ["ntrex"]).items()
    }
    assert [differences[name]["ntrex"][0] for name in ("ours", "with-lm", "st-gte")] == [10, -5, 5]


def test_one_seed_has_the_spread_of_the_seeds_of_others_and_the_start_has_none(tmp_path: Path) -> None:
    """Differences to the start of seeds 1 and 2 are 10 and 30, a deviation of 14."""

    def width() -> float:
        rows = intervals_of(find_encoders(tmp_path), ["ntrex"])
        assert rows[START]["scores"]["ntrex"] == [0, 0, 0]
        _, low, high = rows["with-lm"]["to the start"]["ntrex"]
        return float(high - low)

    write_made_up_run(tmp_path, START, 0, [False] * 100)
    write_made_up_run(tmp_path, "with-lm", 1, [True] * 20 + [False] * 80)
    narrow = width()
    for seed, number in ((1, 10), (2, 30)):
        write_made_up_run(tmp_path, "ours", seed, [True] * number + [False] * (100 - number))
    assert width() == pytest.approx((narrow**2 + (3.92 * 14.1) ** 2) ** 0.5, rel=0.1)


def test_runs_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    write_made_up_run(tmp_path, "ours", 1, [True])
    write_made_up_run(tmp_path, "ours", 2, [True], study=STUDY | {"prompt": ""})
    with pytest.raises(SystemExit, match=r"ours/2: other settings than .*ours/1 \(prompt\)"):
        find_encoders(tmp_path)
    write_made_up_run(tmp_path, "ours", 2, [True], settings={"learning_rate": 1e-4})
    with pytest.raises(SystemExit, match=r"ours/2: other settings than .*ours/1 \(learning_rate\)"):
        find_encoders(tmp_path)


# --- page -------------------------------------------------------------------------------------------------------------


def test_the_page_has_what_was_run_and_keeps_the_blocks_of_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = marks("")
    others = f"{report.BEGIN}\nof another study\n{report.END}\n{marks('-low')[0]}\nlow\n{marks('-low')[1]}\n"
    page.write_text(f"# Results\n{begin}\nold\n{end}\nbetween\n{others}", "utf-8")
    write_page(tmp_path / "runs", page, "")
    assert "old" in page.read_text("utf-8"), "no runs, no change"
    write_made_up_run(tmp_path / "runs", "ours", 1, [True, False], [True, True])
    write_page(tmp_path / "runs", page, "")
    alone = page.read_text("utf-8")
    assert "old" not in alone and alone.endswith(f"{end}\nbetween\n{others}")
    assert re.search(r"\| [^|]*, pairs at random \| 1 \| 50\.0 .*\| 25 \| 430 \| 0\.5 \|", alone)
    assert re.search(r"\| [^|]*, pairs at random, not averaged \| 1 \| 100\.0 .*\| 1 \|", alone)
    assert "BUCC" not in alone and "Tatoeba" in alone and (tmp_path / "images/adaptation-shares.png").exists()
    write_made_up_run(tmp_path / "runs", START, 0, [False, False])
    write_made_up_run(tmp_path / "runs", REFERENCE, 1, [True, False], [True, True])
    write_page(tmp_path / "runs", page, "")
    text = page.read_text("utf-8")
    assert "| the start, unchanged | 1 | 0.0 (0.0 to 0.0) |" in text and text.endswith(f"between\n{others}")
    assert re.search(r"\| [^|]*, pairs at random \| 1 \| 50\.0; \+50\.0 \([^;|]*\); -50\.0 \([^;|]*\) \|", text)
    assert re.search(r"\| both directions, not averaged \| 1 \| 100\.0; \+100\.0 \([^;|]*\) \|", text)


def test_runs_are_added_to_the_evidence_and_the_page_is_made_of_it(tmp_path: Path) -> None:
    page, evidence = tmp_path / "page.md", ["--evidence", str(tmp_path / "evidence")]
    for number, (name, hits) in enumerate({START: [True, False], "ours": [True, True]}.items()):
        write_made_up_run(tmp_path / f"runs{number}", name, 0, hits)
        adaptation.main(["--report", str(page), *evidence, "--output", str(tmp_path / f"runs{number}")])
    text = page.read_text("utf-8")
    assert re.search(r"\| [^|]*, pairs at random \| 1 \| 100\.0; \+50\.0", text)
    adaptation.main(["--report", str(page), *evidence, "--output", str(tmp_path / "nothing")])
    assert page.read_text("utf-8") == text
