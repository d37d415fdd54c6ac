"""What the report of a translation run shows: numbers as they were measured, the paper's where they compare, sentences
of every quality, and of the model what it really does. Text of the data never becomes markup."""

import json
import random
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from recorded_run import ATTACK
from test_inspection import made
from test_xtreme_report import NASTY, Tags
from transformers import PreTrainedTokenizerBase

from hictl_hf.cli import compare
from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.reports.tables import Table
from hictl_hf.translation import report as translation_report
from hictl_hf.translation.report import PAPER, Run, spread, write_translation_report
from hictl_hf.translation.results import TranslationResults
from hictl_hf.translation.scores import paired_bootstrap

RECIPES = Path(__file__).parents[2] / "recipes" / "translation"
SIGNATURE = "nrefs:1|case:mixed|tok:13a"
PREPARED = f"{SIGNATURE}|data:iwslt14-de-en test 1234abcd 5678abcd"


def scored(signature: str = SIGNATURE, **values: float | None) -> dict[str, Any]:
    """The scores of a direction as in `results.json`."""
    names = {name.replace("_", "-"): value for name, value in values.items()}
    return {name: {"value": value, "signature": signature} for name, value in names.items()}


def evaluations(*rows: tuple[int, dict[str, float | None]]) -> list[dict[str, Any]]:
    return [{"step": step, "epoch": 0.5} | {f"eval_{name}": v for name, v in values.items()} for step, values in rows]


RESULTS: dict[str, Any] = {
    "step": 2,
    "encoder": None,
    "model": "step1/model",
    "random_encoder": False,
    "rows": {"train": {"de-en": 160239}, "validation": {"de-en": 7283}, "test": {"de-en": 3}},
    "skipped": {"too long": 12},
    "messages": ["train.de:7: empty"],
    "cut_sources": {"validation": 0, "test": 4},
    "empty_lines": {"source": 1, "reference": 0},
    "target_vocabulary": {"size": 16123, "unknown_tokens": {"en": 5}, "tokens": {"en": 99}},
    "chosen": {"state": "step 20, the best on validation", "seconds": 7200.0, "validation": 31.0},
    "test": {"de-en": scored(PREPARED, multi_bleu=37.0, sacrebleu=36.5, chrf=60.25)},
    "decoding": {"beams": 5, "length_penalty": 1.0},
    "evaluations": evaluations((10, {"sacrebleu": 30.0, "chrf": 50.0}), (20, {"sacrebleu": 31.0, "chrf": 51.0})),
    "settings": {"config": {"cls_bias": "dot"}, "training": {"metric": "multi-bleu", "target_lang": ["en"]}},
    "versions": {"torch": "2.13.0"},
    "seed": 42,
    "command": "python run_translation.py --model_name_or_path step1/model",
}
ROWS = [
    {"source": "eins", "target": "one", "direction": "de-en", "translation": "one"},
    {"source": "zwei", "target": "two", "direction": "de-en", "translation": "tow"},
    {"source": "drei", "target": "three", "direction": "de-en", "translation": ""},
]


def saved(folder: Path, results: Any = RESULTS, rows: Sequence[Any] | None = ROWS) -> Path:
    """A folder as a run leaves it; returns its results file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(results if isinstance(results, str) else json.dumps(results), "utf-8")
    if rows is not None:
        (folder / "predictions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return folder / "results.json"


def run_of(name: str, results: dict[str, Any], rows: Sequence[Any] = ()) -> Run:
    """A run with the values of a results file."""
    return Run(name, TranslationResults.from_dict(results), rows)


def cells(table: Table) -> dict[tuple[str, str], list[str]]:
    """The texts of each row's cells, by section and by the text of its first."""
    return {
        (section, row[0].text): [cell.text for cell in row[1:]]
        for section, rows in table.sections.items()
        for row in rows
    }


# --- the published numbers --------------------------------------------------------------------------------------------


def test_every_published_row_is_that_of_a_recipe_in_its_direction_and_metric() -> None:
    recipes = {path.stem: json.loads(path.read_text("utf-8")) for path in RECIPES.glob("*.json")}
    for row in PAPER["rows"]:
        found = [recipes[row["data"]], recipes.get(row["data"].replace("transfer", "zero-shot"), {})]
        assert row["direction"] in {
            f"{source}-{target}"
            for recipe in found
            for source, target in product(recipe.get("source_lang", ()), recipe.get("target_lang", ()))
        }
        assert row["metric"] in (None, found[0]["metric"])
        assert "HiCTL" in str(row["scores"]) and all(0 <= value < 50 for value in row["scores"].values())
    directions = [(row["data"], row["direction"]) for row in PAPER["rows"]]
    assert len(directions) == len(set(directions)) == 16
    trained = {name for name, recipe in recipes.items() if recipe.get("step") == 2}
    assert {data for data, _ in directions} == trained


# --- scores -----------------------------------------------------------------------------------------------------------


def test_the_table_beside_the_papers_worked_by_hand() -> None:
    plain = {**RESULTS, "test": {"de-en": scored(chrf=60.0, comet=0.81234), "fr-en": scored(sacrebleu=None)}}
    table = translation_report.score_table([run_of("ours", RESULTS), run_of("other", plain)])
    assert table.markdown().splitlines()[:10] == [
        "| system | sacreBLEU | multi-bleu | chrF | COMET |",
        "|---|---:|---:|---:|---:|",
        "| *de-en* |  |  |  |  |",
        "| **ours** | 36.50 [1] | 37.00 [1] | 60.25 [1] | – |",
        "| **other** | – | – | 60.00 [2] | 0.8123 [2] |",
        "| Transformer, replication | – | 34.51 [3] | – | – |",
        "| BERT-fused NMT | – | 36.11 [3] | – | – |",
        "| HiCTL, base | – | 37.96 [3] | – | – |",
        "| *fr-en* |  |  |  |  |",
        "| **other** | – | – | – | – |",
    ]
    assert r"[1] nrefs:1\|case:mixed\|tok:13a\|data:iwslt14-de-en test 1234abcd 5678abcd" in table.markdown()


@pytest.mark.parametrize(
    ("direction", "data", "shown"),
    [
        ("de-en", "iwslt14-de-en test 1234", {"37.96"}),
        ("de-en", "iwslt14-de-en validation 1234", set()),
        ("fr-en", "iwslt14-de-en test 1234", set()),
        ("ro-en", "transfer-cs-en test-ro 12 34, transfer-cs-en test-it 56 78", {"19.00"}),
        ("ro-en", "wmt16-ro-en test 12 34|override:train has 7 lines", {"39.88"}),
        ("en-de", "my-wmt14-en-de test 12", set()),
        ("ro-en", "mine test 12|override:not wmt16-ro-en test", set()),
    ],
)
def test_the_papers_scores_stand_beside_those_of_its_test_set_only(direction: str, data: str, shown: set[str]) -> None:
    run = run_of("ours", {**RESULTS, "test": {direction: scored(f"{SIGNATURE}|data:{data}", chrf=1.0)}})
    found = [row for (_, name), row in cells(translation_report.score_table([run])).items() if "HiCTL" in name]
    assert {text for row in found for text in row} - {"–"} == shown


def systems(number: int = 60) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows of a system that says half of the words, and of one that says them all."""
    choose = random.Random(0)
    words = [f"w{at}" for at in range(40)]
    texts = [" ".join(choose.choices(words, k=8)) for _ in range(number)]
    rows = [{"source": text.upper(), "target": text, "direction": "de-en"} for text in texts]
    return (
        [row | {"translation": " ".join(row["target"].split()[:5])} for row in rows],
        [row | {"translation": row["target"]} for row in rows],
    )


def test_a_run_is_better_than_the_first_by_what_the_paired_bootstrap_says() -> None:
    worse, better = systems()
    runs = [run_of(name, RESULTS, rows) for name, rows in (("worse", worse), ("better", better), ("same", worse))]
    table = translation_report.comparison_table(runs)
    before, after = ([row["translation"] for row in rows] for rows in (worse, better))
    bleu, chrf = paired_bootstrap(before, after, [[row["target"] for row in worse]], "en")
    found = cells(table)
    assert found["de-en", "better"] == [f"+{100 - c.baseline:.2f} [+{c.low:.2f}, +{c.high:.2f}]" for c in (bleu, chrf)]
    assert found["de-en", "same"] == ["+0.00 [+0.00, +0.00]"] * 2 and table.title == "Better than worse by"
    turned = cells(translation_report.comparison_table([runs[1], runs[0]]))
    assert turned["de-en", "worse"][0] == f"-{100 - bleu.baseline:.2f} [-{bleu.high:.2f}, -{bleu.low:.2f}]"


@pytest.mark.parametrize("change", ["order", "reference", "fewer", "none"])
def test_translations_of_another_test_set_are_not_compared(change: str) -> None:
    worse, better = systems(10)
    others: dict[str, list[dict[str, str]]] = {
        "order": better[::-1], "reference": [{**better[0], "target": "x"}, *better[1:]], "fewer": better[:9], "none": []
    }  # fmt: skip
    table = translation_report.comparison_table(
        [run_of("worse", RESULTS, worse), run_of("better", RESULTS, others[change])]
    )
    assert cells(table) == {("de-en", "better"): ["–", "–"]} and "no translations of the test set" in table.markdown()


def test_the_target_language_of_a_direction_is_one_the_run_translated_into() -> None:
    def run(*languages: str) -> TranslationResults:
        return TranslationResults.from_dict({**RESULTS, "settings": {"training": {"target_lang": list(languages)}}})

    assert run("zh-Hans", "Hans", "de").target_language("en-zh-Hans") == "zh-Hans"
    assert run("zh").target_language("pt-BR-zh") == "zh" and run().target_language("en-de") == "de"


# --- translations -----------------------------------------------------------------------------------------------------


def test_the_rows_shown_are_spread_over_the_ranks_worked_by_hand() -> None:
    # The more letters are right, the higher is chrF; of 40 rows in 20 shares of two, the second of each is taken.
    text = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnop"
    rows = [{"target": text, "translation": text[: at + 2], "direction": "x-y", "source": str(at)} for at in range(40)]
    shown = spread(random.Random(1).sample(rows, 40))
    assert [row["source"] for _, row in shown] == [str(at) for at in range(1, 40, 2)]
    assert [score for score, _ in shown] == sorted(score for score, _ in shown)
    assert [row["source"] for _, row in spread(rows[:10], 3)] == ["1", "5", "8"]  # of ranks 10/6, 30/6, 50/6
    assert [row["source"] for _, row in spread(rows[:3])] == ["0", "1", "2"] and spread([]) == []


def test_rows_of_equal_quality_come_in_their_order() -> None:
    rows = [{"target": "a b", "translation": "a b", "direction": "x-y", "source": str(at)} for at in range(60)]
    assert [row["source"] for _, row in spread(rows)] == [str(at) for at in range(1, 60, 3)]


# --- validation -------------------------------------------------------------------------------------------------------


def plotted(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    given: list[Any] = [{}, None]

    def draw(scores: Any, path: Path, change: float | None) -> Path:
        given[:] = [scores, change]
        return path

    monkeypatch.setattr(translation_report, "plot_scores_by_step", draw)
    translation_report.validation_picture(TranslationResults.from_dict(results), Path("a.png"))
    return given[0], given[1]


def test_step_two_is_drawn_behind_step_one_worked_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 1 had two directions, of which step 2 tunes one; it ended at step 100."""
    first = {
        **RESULTS,
        "step": 1,
        "rows": {"validation": {"de-en": 5, "fr-en": 5}},
        "evaluations": evaluations(
            (50, {"sacrebleu": 6.0, "sacrebleu_de-en": 5.0, "sacrebleu_fr-en": 7.0}),
            (100, {"sacrebleu": 9.0, "sacrebleu_de-en": 8.0, "sacrebleu_fr-en": 10.0}),
        ),
    }
    saved(tmp_path / "step1", first)
    own = {"sacreBLEU": [(10, 30.0), (20, 31.0)], "chrF": [(10, 50.0), (20, 51.0)]}
    second = {**RESULTS, "model": str(tmp_path / "step1" / "model")}
    scores, change = plotted(second, monkeypatch)
    assert scores["sacreBLEU"] == {"de-en": [(50, 5.0), (100, 8.0), (110, 30.0), (120, 31.0)]}
    assert scores["chrF"] == {"de-en": [(110, 50.0), (120, 51.0)]} and change == 100
    assert plotted({**second, "step": 1}, monkeypatch) == ({name: {"de-en": own[name]} for name in own}, None)
    (tmp_path / "step1" / "results.json").write_text("{")
    assert plotted(second, monkeypatch) == ({name: {"de-en": own[name]} for name in own}, None)
    lines = plotted(first, monkeypatch)[0]
    assert lines == {"sacreBLEU": {"de-en": [(50, 5.0), (100, 8.0)], "fr-en": [(50, 7.0), (100, 10.0)]}}


def test_scores_that_were_not_measured_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {**RESULTS, "evaluations": evaluations((1, {"sacrebleu": None}), (2, {"sacrebleu": 3.0}), (3, {}))}
    assert plotted(broken, monkeypatch) == ({"sacreBLEU": {"de-en": [(2, 3.0)]}}, None)
    assert plotted({**RESULTS, "evaluations": []}, monkeypatch) == ({}, None)


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_says_everything_and_needs_no_other_file(
    tmp_path: Path,
    half_vocabulary_model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, Any],
) -> None:
    saved(tmp_path, RESULTS, made(sentences) + ROWS)
    write_translation_report(tmp_path, half_vocabulary_model, tokenizer)
    names = {"attention.png", "validation.png", "report.html", "report.md", "results.json", "predictions.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == names
    text, plain = ((tmp_path / name).read_text("utf-8") for name in ("report.html", "report.md"))
    assert "<h1>Translation: de-en 37.0 multi-bleu</h1>" in text and "<b>160,239</b>sentence pairs" in text
    for part in (text, plain.replace("\\", "")):
        for words in (
            "37.96", "iwslt14-de-en test 1234abcd", "beams 5, length penalty 1.0", "too long 12", "2.0 hours", "γ = 1",
            "validation 0, test 4", "source 1, reference 0", "16,123 pieces", "train.de:7: empty", "160,239", "tow",
            "step 20, the best on", "--model_name_or_path step1/model", "Words that [CLS] proposes",
            "Where the decoder looks",
        ):  # fmt: skip
            assert words in part, words
    assert text.count("data:image/png;base64,") == 2 and "torch 2.13.0 · seed 42" in text
    assert "](attention.png)" in plain and "](validation.png)" in plain
    assert not re.search(r"<link|<script|@import|url\(|(src|href)=.?http", text)
    assert "prefers-color-scheme: dark" in text
    tags = Tags()
    tags.feed(text)
    assert tags.open == []


def test_without_a_model_the_report_has_the_rest(tmp_path: Path) -> None:
    saved(tmp_path)
    write_translation_report(tmp_path)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "[CLS] proposes" not in text and "tow" in text and "37.96" in text


@pytest.mark.parametrize("nasty", [ATTACK, NASTY])
def test_text_of_the_data_never_becomes_markup(
    nasty: str, tmp_path: Path, half_vocabulary_model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    row = {"source": nasty, "target": nasty, "translation": nasty, "direction": "en-de"}
    results = {
        **RESULTS, "encoder": nasty, "command": nasty, "messages": [nasty], "skipped": {nasty: 1},
        "test": {nasty: scored(nasty, sacrebleu=1.0)}, "rows": {"validation": {nasty: 3}, "train": {nasty: 3}},
        "chosen": {"state": nasty}, "versions": {nasty: nasty},
        "settings": {nasty: {nasty: nasty}, "training": {"target_lang": ["de"]}},
    }  # fmt: skip
    saved(tmp_path, results, [row])
    write_translation_report(tmp_path, half_vocabulary_model, tokenizer)
    text, plain = ((tmp_path / name).read_text("utf-8") for name in ("report.html", "report.md"))
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and "script" not in tags.seen
    assert text.count("&lt;script&gt;alert") >= 15 or nasty == NASTY
    assert "<script>" not in re.sub(r"```.*?```", "", plain, flags=re.DOTALL).replace("\\<", "")
    for block in re.findall(r"(?:^\|.*\n)+", plain, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


@pytest.mark.parametrize("missing", [*(key for key in RESULTS if key not in ("test", "decoding")), "all"])
def test_a_missing_key_is_survived(missing: str, tmp_path: Path) -> None:
    kept = ("test", "decoding") if missing == "all" else RESULTS.keys() - {missing}
    saved(tmp_path, {key: RESULTS[key] for key in kept}, None if missing == "all" else ROWS)
    write_translation_report(tmp_path)
    assert "</html>" in (tmp_path / "report.html").read_text("utf-8")


def test_a_run_without_a_test_set_has_no_scores(tmp_path: Path) -> None:
    saved(tmp_path, {**RESULTS, "test": {}}, None)
    write_translation_report(tmp_path)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "<h1>A translation run</h1>" in text and "<h2>Scores</h2>" not in text and "<h2>Validation</h2>" in text


# --- the command ------------------------------------------------------------------------------------------------------


def test_runs_are_called_like_their_folders(tmp_path: Path) -> None:
    paths = [saved(tmp_path / name) for name in ("a/x", "b/x", "y")]
    named = [run.name for run in translation_report.read_runs(paths)]
    assert named == [str(tmp_path / "a/x"), str(tmp_path / "b/x"), "y"]


@pytest.mark.parametrize(
    ("results", "rows", "message"),
    [
        ('{\n"a"', None, r"results.json: cannot be read \(.*line 2"),
        ("[]", None, "results.json: is .*; allowed is an object"),
        ({"test": {}}, None, "results.json .*: decoding is missing"),
        ({**RESULTS, "chosen": "last"}, None, "results.json .*: chosen is 'last'; allowed is an object"),
        (RESULTS, [ROWS[0], {**ROWS[0], "translation": None}], "predictions.jsonl:2: has no 'translation'"),
        (RESULTS, [ROWS[0], ROWS[1], "text"], "predictions.jsonl:3: has no 'direction'"),
    ],
)
def test_another_file_gives_one_clear_error(results: Any, rows: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message) as error:
        translation_report.read_runs([saved(tmp_path / "run", results, rows)])
    assert "run_translation.py" in str(error.value)


def test_a_line_separator_in_a_text_ends_no_row(tmp_path: Path) -> None:
    path = saved(tmp_path, RESULTS, None)
    row = {**ROWS[0], "source": "a\u2028b\x85c"}
    path.with_name("predictions.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", "utf-8")
    assert translation_report.read_runs([path])[0].rows == [row]


def test_the_command_prints_runs_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse, better = systems()
    paths = [saved(tmp_path / "a", RESULTS, worse), saved(tmp_path / "b", RESULTS, better)]
    compare.main(list(map(str, paths)))
    printed = capsys.readouterr().out
    assert re.search(r"^a +36\.50 \[1\] +37\.00 \[1\] +60\.25 \[1\]$", printed, re.MULTILINE)
    assert re.search(r"^b +\+\d+\.\d\d \[\+.*, \+.*\] \[1\]", printed, re.MULTILINE) and "Better than a by" in printed
    compare.main([str(paths[0].parent)])
    assert "Better than" not in capsys.readouterr().out
    with pytest.raises(BadInput, match="nowhere.json: cannot be read"):
        compare.main([str(tmp_path / "nowhere.json")])
