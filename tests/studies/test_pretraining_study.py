"""The study: its recipes, tests, intervals and tables on made-up sentences; slowly, all of it on a tiny model."""

import gzip
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from parsers import parse_arguments, parse_translation_arguments, parse_xtreme_arguments
from sacrebleu.metrics import BLEU
from toy_files import write_lines

from hictl_hf import HictlConfig
from studies import pretraining, scoring
from studies import runs as study_runs
from studies.intervals import find_runs, gain, of_another_seed, score_samples
from studies.report import BEGIN, END, write_study

LANGUAGES = {"de": "deu", "fr": "fra", "ru": "rus", "es": "spa"}


def sentence(number: int, language: str) -> str:
    """Number 7 in German is 'de0 de7 de14 de21 z7', a sentence that shares one word with its translations."""
    return " ".join([*(f"{language}{number * step % 30}" for step in range(4)), f"z{number}"])


def pairs_of(language: str, numbers: Sequence[int]) -> list[str]:
    return [json.dumps({"en": sentence(n, "en"), language: sentence(n, language)}) for n in numbers]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training sentences 0–299; tests are 300–399, of which one has come into the training data."""
    folder = tmp_path_factory.mktemp("data")
    for language in LANGUAGES:
        write_lines(folder / f"bitext/{language}.train.jsonl.gz", pairs_of(language, [*range(300), 305]))
        write_lines(folder / f"bitext/{language}.dev.jsonl.gz", pairs_of(language, range(400, 410)))
        write_lines(folder / f"bitext/{language}.test.jsonl.gz", pairs_of(language, range(300, 310)))
    texts = [json.dumps({"text": sentence(n, "fr"), "lang": "fr"}) for n in (500, 501, 305)]
    write_lines(folder / "monolingual/fr.jsonl.gz", texts)
    tests = range(310, 330)
    for side, language in (("deu", "de"), ("eng", "en")):
        write_lines(folder / f"xtreme/tatoeba/tatoeba.deu-eng.{side}", [sentence(n, language) for n in tests])
    for end, language in (("zh", "fr"), ("en", "en")):
        lines = [f"{end}-{n}\t{sentence(n, language)}" for n in range(330, 340)]
        write_lines(folder / f"xtreme/bucc2018/zh-en.dev.{end}", lines)
    write_lines(folder / "xtreme/bucc2018/zh-en.dev.gold", [f"zh-{n}\ten-{n}" for n in range(330, 335)])
    for split, language, numbers in (("train", "en", range(600, 660)), ("dev", "en", range(340, 345))):
        words = [["O"] * 4 + ["B-PER"] for _ in numbers]
        rows = [
            "\n".join(f"{word}\t{label}" for word, label in zip(sentence(n, language).split(), labels))
            for n, labels in zip(numbers, words)
        ]
        write_lines(folder / f"xtreme/panx/{split}-{language}.tsv", ["\n\n".join(rows)])
    news = range(1000, 1100)
    write_lines(folder / "ntrex/newstest2019-src.eng.txt", [sentence(n, "en") for n in news])
    for language, code in LANGUAGES.items():
        write_lines(folder / f"ntrex/newstest2019-ref.{code}.txt", [sentence(n, language) for n in news])
    for part, numbers in (("train", range(40)), ("val", range(370, 375)), ("test_2016_flickr", range(375, 380))):
        write_lines(folder / f"multi30k/en-de.{part}.jsonl.gz", pairs_of("de", numbers))
    return folder


# --- what is run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pretraining.VARIANTS)
def test_the_recipe_of_each_variant_is_one_of_run_pretraining(name: str, tmp_path: Path) -> None:
    variant, full = pretraining.VARIANTS[name], pretraining.Study(tmp_path, tmp_path).recipe("full", 1)
    for model in variant.models:
        recipe = pretraining.Study(tmp_path, tmp_path, model, "xlm-roberta-base").recipe(name, 3)
        file = tmp_path / "recipe.json"
        file.write_text(json.dumps(recipe | {"output_dir": "x"}), "utf-8")
        arguments = parse_arguments([str(file)])
        assert arguments.seed == 3 and arguments.train_file[0].endswith(f"/{variant.data}.jsonl.gz")
        assert HictlConfig(**arguments.config_overrides).to_dict().items() >= variant.config_overrides.items()
        if model == "scratch":
            pairs = [r["per_device_train_batch_size"] * r.get("gradient_accumulation_steps", 1) for r in (recipe, full)]
            assert pairs[0] * recipe["max_steps"] == pairs[1] * full["max_steps"], "all see as many pairs"
    assert name == "full" or variant.config_overrides or variant.settings or variant.data != "pairs"


def test_what_fine_tunes_is_a_recipe_of_its_script(tmp_path: Path) -> None:
    for name, parse in (("panx", parse_xtreme_arguments), ("bleu", parse_translation_arguments)):
        recipe = pretraining.read_recipe(name) | {"model_name_or_path": "x", "output_dir": str(tmp_path)}
        recipe |= {"train_file": ["x.jsonl"]} if name == "bleu" else {}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(recipe), "utf-8")
        assert parse([str(file)]).model_name_or_path == "x"


def test_the_first_six_variants_have_three_seeds_and_first_seeds_come_first() -> None:
    first = ["lm", "sentence", "sentence-hard", "word", "full", "unpaired", "full-easy"]
    assert [name for name, variant in pretraining.VARIANTS.items() if len(variant.seeds) == 3] == first
    arguments = pretraining.argparse.Namespace(variants=None, seeds=None, model="scratch")
    seeds = [seed for _, seed in pretraining.planned(arguments)]
    assert seeds == sorted(seeds) and seeds.count(1) == len(pretraining.VARIANTS) and seeds.count(3) == 7


def test_no_sentence_of_a_test_is_trained_on(data: Path, tmp_path: Path) -> None:
    """Sentence 305 is a test, as 'EN5 …' too; it is on both sides of four bitexts and once in the texts."""
    tests = scoring.StudyTests(data)
    pretraining.prepare_data(data, tests, tmp_path)
    found = json.loads((tmp_path / "data.json").read_text("utf-8"))
    assert (found["pairs"], found["texts"], found["left out"]) == (4 * 300, 2, 4 + 1)

    def lines(name: str) -> list[str]:
        return gzip.decompress((tmp_path / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()

    assert len(lines("tenth")) == 120 and set(lines("tenth")) < set(lines("pairs"))
    assert len(lines("unpaired")) == 2 * 1200 and len(lines("texts")) == 2
    forbidden = {pretraining.comparable(text) for text in tests.sentences()}
    row = json.dumps({"de": "anything", "en": sentence(305, "en").upper() + "!"})
    write_lines(tmp_path / "spoilt.jsonl.gz", [*pairs_of("de", [1]), row])
    with pytest.raises(RuntimeError, match="spoilt.jsonl.gz:2: a sentence of a test"):
        pretraining.refuse_test_sentences(tmp_path / "spoilt.jsonl.gz", forbidden)


def test_rows_of_the_paper_change_all_its_settings_at_once_and_leave_one_loss_out() -> None:
    recipe = json.loads((pretraining.ROOT / "recipes/paper-base.json").read_text("utf-8"))
    names = [name for name in pretraining.VARIANTS if name.startswith("paper")]
    assert names == ["paper", "paper-without-sentence", "paper-without-word"]
    for name, weight in zip(names, (None, "sentence_weight", "word_weight")):
        variant = pretraining.VARIANTS[name]
        changed = {field: value for field, value in variant.config_overrides.items() if field != weight}
        assert changed.items() <= recipe["config_overrides"].items()
        assert {"word_level_input", "duplicates", "hard_negative_space", "sentence_temperature"} < changed.keys()
        assert variant.settings == {
            field: recipe[field] for field in ("reordering", "join_reordered", "pair_separators")
        }
        assert weight is None or variant.config_overrides[weight] == 0
    alone = pretraining.VARIANTS["word-alone-0.05"].config_overrides
    assert alone == {"sentence_weight": 0, "word_temperature": 0.05}


# --- scores and intervals ---------------------------------------------------------------------------------------------


def made_up_hits(chance: float, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    hits = {
        f"{test}/{language}/{side}": random.random(rows) < chance
        for test, languages in (("tatoeba", {"de": 100, "sw": 40}), ("ntrex", {"de": 60}), ("in domain", {"de": 50}))
        for language, rows in languages.items()
        for side in ("from en", "to en")
    }
    gold = random.random(80) < 0.5
    extracted = random.random(80) < 0.5
    return hits | {"bucc/gold": gold, "bucc/extracted": extracted, "bucc/right": gold & extracted}


def test_scores_are_means_over_languages_and_directions() -> None:
    """de: 3/4 and 1/4; sw: 1/1 and 0/1: from en (75 + 100) / 2, to en (25 + 0) / 2. BUCC: 1 right of 2 and of 1."""
    hits = {
        "tatoeba/de/from en": np.array([1, 1, 1, 0], bool),
        "tatoeba/de/to en": np.array([0, 0, 0, 1], bool),
        "tatoeba/sw/from en": np.array([1], bool),
        "tatoeba/sw/to en": np.array([0], bool),
        "bucc/gold": np.array([1, 0, 0], bool),
        "bucc/extracted": np.array([1, 1, 0], bool),
        "bucc/right": np.array([1, 0, 0], bool),
    }
    scores = scoring.scores_of(hits)
    assert scores == {
        "bucc": pytest.approx(200 / 3),
        "tatoeba, en to x": 87.5,
        "tatoeba, x to en": 12.5,
        "tatoeba": 50.0,
    }


def test_samples_are_those_of_a_slow_bootstrap() -> None:
    hits = made_up_hits(0.6, 0)
    samples, scores = study_runs.resample(hits), scoring.scores_of(hits)
    random = np.random.default_rng(1)
    slow = []
    for _ in range(study_runs.SAMPLES):
        rows = {name.rpartition("/")[0]: random.integers(len(found), size=len(found)) for name, found in hits.items()}
        slow.append(scoring.scores_of({name: found[rows[name.rpartition("/")[0]]] for name, found in hits.items()}))
    assert samples.keys() == {"tatoeba", "ntrex", "in domain", "bucc"}
    for test, drawn in samples.items():
        expected = np.array([each[test] for each in slow])
        assert abs(drawn.mean() - scores[test]) < 4 * drawn.std() / 1000**0.5 + 0.3
        assert drawn.std() == pytest.approx(expected.std(), rel=0.12), test


def test_both_directions_of_a_sentence_are_drawn_together() -> None:
    """Each sentence is found in exactly one direction: any sample scores 50."""
    found = np.random.default_rng(0).random(50) < 0.3
    samples = study_runs.resample({"ntrex/de/from en": found, "ntrex/de/to en": ~found})
    np.testing.assert_allclose(samples["ntrex"], 50)


def test_samples_of_bleu_are_drawn_from_sentences() -> None:
    """One translation is wrong: the samples' mean is near BLEU, and samples without that one have 100."""
    references = [f"a b c d e f{number} g" for number in range(60)]
    translations = ["another", *references[1:]]
    rows = [{"translation": x, "target": y} for x, y in zip(translations, references)]
    statistics = scoring.sentence_statistics(rows, BLEU())
    assert statistics.shape == (60, 10)
    drawn = study_runs.resample_metric(statistics, BLEU())
    whole = sacrebleu.corpus_bleu(translations, [references]).score
    assert abs(drawn.mean() - whole) < 4 * drawn.std() / study_runs.SAMPLES**0.5 + 0.05
    assert np.isclose(drawn, 100).mean() == pytest.approx((1 - 1 / 60) ** 60, abs=0.06)
    np.testing.assert_allclose(study_runs.resample_metric(statistics[1:], BLEU()), 100)


def test_the_mean_rank_of_a_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    """x: (1, 0), (0, 1), (0.6, 0.8); in y the last two are exchanged. Their own score 0.8 where another scores 1."""
    monkeypatch.setattr(scoring, "RANKED", 3)
    x = np.array([[1, 0], [0, 1], [0.6, 0.8]])
    assert scoring.mean_rank({"en": x, "de": x}) == 1
    assert scoring.mean_rank({"en": x, "de": x[[0, 2, 1]]}) == pytest.approx((1 + 2 + 2) / 3)


# --- tables -----------------------------------------------------------------------------------------------------------


def made_up_run(folder: Path, chance: float, seed: int) -> None:
    folder.mkdir(parents=True)
    hits = made_up_hits(chance, seed)
    random = np.random.default_rng(seed)
    np.savez(folder / "hits.npz", **hits)
    np.savez(folder / "map.npz", **{name: random.random((200, 2)) for name in ("en", "fr", "de", "ru", "es")})
    dev = {f"{pooling}, layer {layer}": 10.0 * layer for pooling in ("mean", "cls") for layer in range(3)}
    scores = {"scores": scoring.scores_of(hits), "dev": dev, "mean rank": 9.0}
    scores["languages"] = {name: 100 * float(found.mean()) for name, found in hits.items()}
    results = {"data_hash": "d", "versions": {}, "settings": {"output_dir": "/home"}}
    results["history"] = [{"step": step, "hard_negative_lambda": 1.0, "p_avg": 0.1} for step in range(10)]
    for name, content in (("scores", scores), ("cost", {"cpu_minutes": 20.0}), ("results", results)):
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    study_runs.write_run(folder)


def test_the_table_has_intervals_and_the_papers_gains_and_the_page_keeps_its_words(tmp_path: Path) -> None:
    for name, chance in (("lm", 0.2), ("full", 0.7), ("start", 0.9)):
        for seed in (1, 2):
            made_up_run(tmp_path / f"runs/{name}/{seed}", chance, seed)
    assert "/home" not in (tmp_path / "runs/lm/1/run.json").read_text("utf-8"), "no place of a machine"
    page = tmp_path / "results.md"
    page.write_text(f"# Before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    write_study(tmp_path / "runs", page, {"lm": "LM only", "full": "full HiCTL"})
    text = page.read_text("utf-8")
    assert text.startswith("# Before\n") and text.endswith(f"{END}\nafter\n") and "old" not in text
    found = json.loads((tmp_path / "runs/intervals.json").read_text("utf-8"))
    assert found.keys() == {"lm", "full", "start"} and found["full"]["seeds"] == 2
    results = {name: each.scores for name, each in find_runs(tmp_path / "runs", ["lm", "full"]).items()}
    mean = np.mean([results["full"][seed]["tatoeba"] for seed in (1, 2)])
    (row,) = [line for line in text.splitlines() if line.startswith("| full HiCTL | 2")]
    cells = [cell.strip() for cell in row.split("|")]
    value, low, high = map(float, re.findall(r"[\d.]+", cells[3]))
    assert value == round(float(mean), 1) and low < value < high
    gain = mean - np.mean([results["lm"][seed]["tatoeba"] for seed in (1, 2)])
    assert f"{gain:+.1f} / +10.0; +2.4" in row, "69.1 - 59.1; 59.7 - 57.3"
    gains = (tmp_path / "runs/gains.md").read_text("utf-8")
    assert gains.startswith("Gains over the language model alone; over full HiCTL")
    assert re.search(rf"\| full HiCTL \| \{gain:+.1f} \([^;]*\); – \|", gains), "not over itself"
    assert re.search(rf"\| LM only \| –; {-gain:+.1f} \(-", gains)
    assert {path.name for path in (tmp_path / "images").iterdir()} >= {"tsne-full.png", "languages.png", "layers.png"}
    write_study(tmp_path / "runs", page, {"lm": "LM only", "full": "full HiCTL"})
    assert page.read_text("utf-8") == text
    study_runs.keep_evidence(tmp_path / "runs", tmp_path / "kept")
    assert {path.name for path in (tmp_path / "kept").rglob("*.*")} == {"intervals.json", "run.json"}
    write_study(tmp_path / "kept", page, {"lm": "LM only", "full": "full HiCTL"})
    assert page.read_text("utf-8") == text, "without the arrays"


def test_a_gain_over_other_seeds_has_an_interval_of_sentences(tmp_path: Path) -> None:
    for name, chance, seed in (("start", 0.5, 0), ("continued-lm", 0.2, 1)):
        made_up_run(tmp_path / f"{name}/{seed}", chance, seed)
    difference, drawn = gain(find_runs(tmp_path, {"lm": "LM only"}), "start", "tatoeba")
    low, high = np.percentile(drawn, (2.5, 97.5))
    assert 0 < low < difference < high
    assert gain(find_runs(tmp_path, {"lm": "LM only"}), "start", "panx") == (None, None)


def test_what_another_seed_would_add_is_the_pooled_spread_between_seeds() -> None:
    rows = [{1: 0.0, 2: 3.0, 3: 6.0}, {1: 9.0, 3: 15.0}, {1: 90.0}]
    assert of_another_seed(rows).std() == pytest.approx(12**0.5, rel=0.1), "((9 + 0 + 9) + (9 + 9)) / (2 + 1)"
    assert not of_another_seed(rows[2:]).any(), "no row tells"


def test_one_seed_has_a_wider_interval_where_other_rows_tell_how_seeds_differ(tmp_path: Path) -> None:
    chances = {"lm": {1: 0.2, 2: 0.2, 3: 0.2}, "full": {1: 0.6, 2: 0.7, 3: 0.8}, "raw": {1: 0.7}, "clean": {1: 0.7}}
    for name, seeds in chances.items():
        for seed, chance in seeds.items():
            made_up_run(tmp_path / f"{name}/{seed}", chance, seed)
    runs = find_runs(tmp_path, dict.fromkeys(chances, ""))
    alone = find_runs(tmp_path, {"raw": ""})

    def width(samples: np.ndarray | None) -> float:
        low, high = np.percentile(samples, (2.5, 97.5))
        return float(high - low)

    several = [[run["tatoeba"] for run in runs[name].scores.values()] for name in ("lm", "full")]
    pooled = np.sqrt(np.mean([np.var(each, ddof=1) for each in several]))
    sentences = np.std(score_samples(alone, "raw", "tatoeba"))
    assert width(score_samples(runs, "raw", "tatoeba")) == pytest.approx(3.92 * np.hypot(pooled, sentences), rel=0.15)
    sentences = np.std(runs["raw"].drawn("tatoeba", [1]) - runs["lm"].drawn("tatoeba", [1]))
    differences = [one - other for one, other in zip(*several[::-1])]
    spread = np.hypot(np.std(differences, ddof=1), sentences)
    assert width(gain(runs, "raw", "tatoeba")[1]) == pytest.approx(3.92 * spread, rel=0.15)
    np.testing.assert_array_equal(score_samples(runs, "full", "tatoeba"), runs["full"].of_all("tatoeba"))


def test_the_page_of_results_is_made_of_the_evidence(tmp_path: Path) -> None:
    page, docs = tmp_path / "results.md", pretraining.ROOT / "docs"
    (tmp_path / "images").mkdir()
    for name in ("tsne-full.png", "tsne-continued-full.png"):  # their coordinates are not kept
        shutil.copy(docs / "images" / name, tmp_path / "images")
    kept = (docs / "results.md").read_text("utf-8")
    evidence = shutil.copytree(pretraining.EVIDENCE, tmp_path / "evidence")
    (evidence / "gains.md").unlink()
    page.write_text(re.sub(f"{BEGIN}.*{END}", f"{BEGIN}\n{END}", kept, flags=re.DOTALL), "utf-8")
    pretraining.main(["--report", str(page), "--output", str(tmp_path / "no runs"), "--evidence", str(evidence)])
    assert page.read_text("utf-8") == kept
    assert (evidence / "gains.md").read_bytes() == (pretraining.EVIDENCE / "gains.md").read_bytes()
    runs = [*pretraining.EVIDENCE.glob("*/[1-9]/run.json")]  # 0 is the start, which was not trained
    assert len(runs) == 39
    for file in runs:
        assert json.loads(file.read_text("utf-8"))["command"].startswith("python run_pretraining.py runs/study/")


# --- all of it --------------------------------------------------------------------------------------------------------


def test_the_minutes_of_a_run_that_went_on_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "ROOT", tmp_path)
    (tmp_path / "script.py").write_text("print('done')")
    minutes = [pretraining.call("script.py", {}, tmp_path / "run")["cpu_minutes"] for _ in range(2)]
    assert minutes == [0.0, None]
    for seed, each in enumerate((minutes[1], 3.0, 5.0)):
        (tmp_path / f"{seed}").mkdir()
        (tmp_path / f"{seed}/run.json").write_text(json.dumps({"cpu_minutes": each}))
    assert study_runs.Runs("full", {seed: tmp_path / f"{seed}" for seed in range(3)}).minutes() == 4


@pytest.mark.slow
def test_a_tiny_study_from_the_data_to_the_page(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two variants from scratch, fine-tuned, then one of them continued from the other; nothing is done twice."""
    sizes = {
        "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "max_position_embeddings": 66, "word_negatives": 16,
    }  # fmt: skip
    steps = {
        "save_steps": 2,
        "max_seq_length": 64,
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "warmup_steps": 1,
        "logging_steps": 1,
    }
    small = {
        "scratch": {"config_overrides": sizes, **steps},
        "continued": {"config_overrides": {"word_negatives": 16}, **steps},
        "panx": {"train_split": "train[10:]", "select_split": "train[:10]", "num_train_epochs": 1},
        "bleu": {"num_train_epochs": 1, "decoder_layers": 1},
    }
    real = pretraining.read_recipe
    monkeypatch.setattr(pretraining, "read_recipe", lambda name: real(name) | small[name])
    monkeypatch.setattr(pretraining, "USUAL", pretraining.read_recipe("scratch"))
    output = tmp_path / "study"
    pretraining.main(["--data", str(data), "--variants", "lm", "full", "--seeds", "1", "--output", str(output)])
    encoder = str(output / "full/1/checkpoint")
    continued = ["--model", "continued", "--encoder", encoder, "--variants", "full", "--seeds", "1"]
    pretraining.main(["--data", str(data), *continued, "--output", str(output)])
    found = json.loads((output / "intervals.json").read_text("utf-8"))
    assert found.keys() == {"lm", "full", "start", "continued-full"}
    for row in found.values():
        assert row["scores"].keys() == {"tatoeba", "ntrex", "bucc", "in domain", "panx", "bleu"}
        assert None not in row["scores"].values()
    page = (output / "results.md").read_text("utf-8")
    assert "tsne-full.png" in page

    def refuse(*_: object) -> None:
        raise AssertionError("a run that is there is made again")

    monkeypatch.setattr(pretraining, "call", refuse)
    monkeypatch.setattr(pretraining, "score_encoder", refuse)
    pretraining.main(["--data", str(data), *continued, "--output", str(output)])
    report = ["--report", str(tmp_path / "page.md"), "--evidence", str(tmp_path / "evidence"), "--output"]
    pretraining.main([*report, str(output)])
    kept = (tmp_path / "page.md").read_text("utf-8")
    assert kept == page
    pretraining.main([*report, str(tmp_path / "nothing")])
    assert (tmp_path / "page.md").read_text("utf-8") == kept, "written again from the evidence"
    assert {path.suffix for path in (tmp_path / "evidence").rglob("*.*")} == {".json", ".md"}
