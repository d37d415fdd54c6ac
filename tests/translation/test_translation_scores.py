"""Scores of translations: multi-bleu.perl's arithmetic, signatures, and comparisons."""

import json
import logging
import math
import random
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hictl_hf.errors import BadInput
from hictl_hf.translation import scores
from hictl_hf.translation.moses import MosesTokenizer
from hictl_hf.translation.scores import Score, paired_bootstrap, score_translations, warn_of_unspaced

PARITY = sorted((Path(__file__).parents[3] / "shared" / "parity" / "mt").glob("0*.json"))


def multi_bleu(hypotheses: list[str], references: list[list[str]], **settings: Any) -> Score:
    (score,) = score_translations(hypotheses, references, "de", ["multi-bleu"], tokenizer="tokenised", **settings)
    return score


def ngrams(words: list[bytes], n: int) -> Counter[tuple[bytes, ...]]:
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def slow_bleu(hypotheses: list[str], references: list[list[str]], lowercase: bool = False) -> float:
    """multi-bleu.perl step by step, over bytes as perl reads them."""
    right, total, length, reference_length = [0] * 5, [0] * 5, 0, 0
    for hypothesis, *golds in zip(hypotheses, *references):
        lines = [line.encode().lower() if lowercase else line.encode() for line in (hypothesis, *golds)]
        words, *known = (line.split() for line in lines)
        length += len(words)
        reference_length += min((abs(len(words) - len(gold)), len(gold)) for gold in known)[1]
        for n in range(1, 5):
            for ngram, count in ngrams(words, n).items():
                total[n] += count
                right[n] += min(count, max(ngrams(gold, n)[ngram] for gold in known))
    if not all(right[1:]):
        return 0.0
    penalty = 1.0 if length >= reference_length else math.exp(1 - reference_length / length)
    return 100 * penalty * math.exp(sum(math.log(right[n] / total[n]) for n in range(1, 5)) / 4)


# --- multi-bleu -----------------------------------------------------------------------------------------------------


def test_multi_bleu_worked_by_hand() -> None:
    # a b c d e f against a b c d x f: 5/6, 3/5, 2/4, 1/3 of the n-grams are right, and lengths are equal
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)
    assert multi_bleu(["a b c d e f"], [["a b c d x f"]]).value == pytest.approx(expected)
    # four words for five: every n-gram is right, and the penalty is exp(1 - 5/4)
    assert multi_bleu(["a b c d"], [["a b c d e"]]).value == pytest.approx(100 * math.exp(-1 / 4))


def test_of_two_references_the_one_nearest_in_length_counts_and_of_equally_near_the_shorter() -> None:
    # five words; references of four and six are as near, so that there is no penalty
    assert multi_bleu(["a b c d e"], [["a b c d e f"], ["a b c d"]]).value == pytest.approx(100)
    assert multi_bleu(["a b c d e"], [["a b c d e f"], ["a b"]]).value == pytest.approx(100 * math.exp(-1 / 5))


def test_there_is_no_smoothing_and_an_empty_translation_is_scored() -> None:
    assert multi_bleu(["a b c x y z", "", "the end ."], [["a b c d e f", "hello world .", "the end !"]]).value == 0
    assert multi_bleu([""], [["a b c d"]]).value == 0  # where the perl script dies
    known = multi_bleu(["", "a b c d"], [["x", "a b c d"]]).value
    assert known == pytest.approx(100 * math.exp(-1 / 4))


def test_text_that_is_tokenised_is_not_tokenised_again() -> None:
    tokenised, other = "E-Mail : &quot; es kostet 5,5 &quot; .", 'E - Mail : " es kostet 5,5 " .'
    assert multi_bleu([tokenised], [[tokenised]]).value == pytest.approx(100)
    assert multi_bleu([tokenised], [[other]]).value < 50


@pytest.mark.parametrize("seed", range(20))
def test_multi_bleu_agrees_with_a_slow_version_over_bytes(seed: int) -> None:
    choose = random.Random(seed)
    words = ["a", "B", "b", "Ä", "ä", "ß", "x\u00a0y", "x", "y", "\u3000", "猫", ",", "."]

    def corpus() -> list[str]:
        return [" ".join(choose.choices(words[: 4 + seed], k=choose.randint(0, 9))) for _ in range(12)]

    hypotheses, references = corpus(), [corpus() for _ in range(1 + seed % 3)]
    references[0][:6] = hypotheses[:6]  # so that there are equal 4-grams
    assert slow_bleu(hypotheses, references) > 0
    for lowercase in (False, True):
        found = multi_bleu(hypotheses, references, lowercase=lowercase, strict=True).value
        assert found == pytest.approx(slow_bleu(hypotheses, references, lowercase))


def test_spaces_and_capitals_beyond_ascii_are_as_in_perl_only_when_strict(caplog: pytest.LogCaptureFixture) -> None:
    spaces = ["er hat 10\u00a0000 Euro , sagt\u3000man ."], [["er hat 10 000 Euro , sagt man ."]]
    capitals = ["Über Ärzte reden wir ."], [["über ärzte reden wir ."]]
    with caplog.at_level(logging.WARNING, "hictl_hf.translation.scores"):
        for texts, lowercase in ((spaces, False), (capitals, True)):
            caplog.clear()
            default, strict = (multi_bleu(*texts, lowercase=lowercase, strict=strict) for strict in (False, True))
            assert "multi-bleu.perl scores this text otherwise" in caplog.text
            assert default.value == pytest.approx(100) and default.signature.endswith("text:unicode")
            assert strict.value == slow_bleu(*texts, lowercase) < 100 and "text:bytes" in strict.signature
        caplog.clear()
        for space in ("\u2009", "_"):  # no two of these spaces are the same letter, nor another one
            assert multi_bleu(["a b c 1\u00a00"], [[f"a b c 1{space}0"]], strict=True).value < 100
        caplog.clear()
        assert multi_bleu(*capitals).value < 100 and not caplog.text  # nothing to lower, the same in both


@pytest.mark.skipif(not PARITY, reason="the outputs of multi-bleu.perl are not beside the repository")
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in PARITY])
def test_strict_multi_bleu_is_what_the_perl_script_printed(path: Path) -> None:
    case = json.loads(path.read_text("utf-8"))
    lowercase = "-lc" in case["multi_bleu_cmd"]
    score = multi_bleu(case["hyp"], case["refs"], lowercase=lowercase, strict=True)
    assert round(score.value, 2) == case["multi_bleu_score"]
    default = multi_bleu(case["hyp"], case["refs"], lowercase=lowercase)
    assert round(default.value, 4) == case["sacrebleu_none"]["score"]
    assert default.signature.startswith(case["sacrebleu_none"]["signature"].rpartition("|")[0])
    assert (default.value == pytest.approx(score.value)) == ("DIFFERS" not in path.stem)


# --- signatures -----------------------------------------------------------------------------------------------------


def test_without_a_tokenizer_multi_bleu_makes_the_words_itself() -> None:
    hypothesis, reference = ["It's well, he said."], [["It's well,\" he said."]]
    words = MosesTokenizer("en").tokenize
    (score,) = score_translations(hypothesis, reference, "en", ["multi-bleu"])
    assert score.value == multi_bleu(words(hypothesis), [words(reference[0])]).value
    assert re.search(r"\|moses:sacremoses [\d.]+ -l en\|text:unicode$", score.signature)
    moses = MosesTokenizer("en", lowercase=True)
    (score,) = score_translations(hypothesis, reference, "en", ["multi-bleu"], tokenizer=moses)
    assert "-l en lc|" in score.signature


def test_a_score_has_the_signature_of_sacrebleu_and_what_is_known_beside() -> None:
    texts = ["a b c d"]
    sacre, chrf = score_translations(texts, [texts, texts], "en", about={"data": "x|y: 1", "override": "train 3"})
    version = r"version:[\d.]+\|data:x/y= 1\|override:train 3"
    assert re.fullmatch(rf"nrefs:2\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|{version}", sacre.signature)
    assert re.fullmatch(rf"nrefs:2\|case:mixed\|eff:yes\|nc:6\|nw:0\|space:no\|{version}", chrf.signature)
    assert (sacre.name, chrf.name) == ("sacrebleu", "chrf") and sacre.value == pytest.approx(100)
    assert str(Score("chrf", 12.3456, "a:b")) == "chrf = 12.35 a:b"


def test_a_language_has_its_own_tokenizer() -> None:
    texts = ["我们喜欢猫。"]
    for language, tokenizer in (("zh", "zh"), ("zh-Hans", "zh"), ("de", "13a")):
        (score,) = score_translations(texts, [["我们喜欢狗。"]], language, ["sacrebleu"])
        assert f"|tok:{tokenizer}|" in score.signature
    (score,) = score_translations(texts, [texts], "ja", ["sacrebleu"], tokenize="char")
    assert "|tok:char|" in score.signature


def test_a_language_without_spaces_and_without_a_tokenizer_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A Thai sentence is one word of 13a, and BLEU of a good translation 0."""
    warn_of_unspaced.cache_clear()
    texts, near = ["我今日返工好攰呀"], [["我今日返工好攰喎"]]
    for language, metric, how in (
        ("de", "sacrebleu", {}), ("zh", "sacrebleu", {}), ("yue", "sacrebleu", {"tokenize": "zh"}), ("yue", "chrf", {}),
        ("zh", "multi-bleu", {"tokenizer": "tokenised"}), ("vi", "multi-bleu", {}),
    ):  # fmt: skip
        score_translations(texts, near, language, [metric], **how)
    assert not caplog.text
    for language, metric in (("yue", "sacrebleu"), ("tha", "sacrebleu"), ("km", "sacrebleu"), ("zh", "multi-bleu")):
        caplog.clear()
        (score,) = score_translations(texts, near, language, [metric])
        assert score.value == 0 and f"{language} has no spaces between words" in caplog.text
        caplog.clear()
        score_translations(texts, near, language, [metric])
        assert not caplog.text


@pytest.mark.parametrize(("language", "module"), [("ja", "ja_mecab"), ("ko", "ko_mecab")])
def test_a_tokenizer_that_is_not_installed_is_named(
    language: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.setitem(sys.modules, "mecab_ko", None)
    monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{module}", raising=False)
    with pytest.raises(BadInput, match=rf'no tokenizer for {language} .*pip install "sacrebleu\[{language}\]"'):
        score_translations(["a"], [["a"]], language, ["sacrebleu"])


def test_lower_case_is_in_all_signatures() -> None:
    for score in score_translations(["A"], [["a"]], "en", ["sacrebleu", "chrf", "multi-bleu"], lowercase=True):
        assert "|case:lc|" in score.signature


def test_comet_is_asked_for_each_sentence_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Model:
        def predict(self, rows: list[dict[str, str]]) -> SimpleNamespace:
            asked.extend(rows)
            return SimpleNamespace(system_score=0.8125)

    module: Any = ModuleType("comet")
    module.download_model = lambda name: f"/models/{name}"
    module.load_from_checkpoint = lambda path: asked.append(path) or Model()
    monkeypatch.setitem(sys.modules, "comet", module)
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"unbabel-comet": "2.2"}[name])
    (score,) = score_translations(
        ["Hallo", "du"], [["hallo", "Du"]], "de", ["comet"], sources=["hi", "you"], about={"data": "x"}
    )
    assert asked[0] == "/models/Unbabel/wmt22-comet-da"
    assert asked[1:] == [{"src": "hi", "mt": "Hallo", "ref": "hallo"}, {"src": "you", "mt": "du", "ref": "Du"}]
    assert score == Score("comet", 0.8125, "model:Unbabel/wmt22-comet-da|version:2.2|data:x")


def test_an_unknown_metric_is_refused_before_the_others_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("score_by_comet", "PairedTest"):
        monkeypatch.setattr(scores, name, None)
    with pytest.raises(BadInput, match="the metric is 'bleu'; allowed here are"):
        score_translations(["a"], [["a"]], "de", ["comet", "bleu"], sources=["b"])
    with pytest.raises(BadInput, match="the metric is 'bleu'; allowed here are"):
        paired_bootstrap(["a"], ["a"], [["a"]], "de", ["chrf", "bleu"])


def test_what_cannot_be_scored_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)
    for metrics, found in (
        (["bleu"], "the metric is 'bleu'; allowed here are sacrebleu, multi-bleu, chrf, comet"),
        (["comet"], "needs the package unbabel-comet, which is not installed. Score by its own comet-score in another"),
    ):
        with pytest.raises(BadInput, match=found):
            score_translations(["a"], [["a"]], "de", metrics, sources=["b"])
    with pytest.raises(BadInput, match="tokenizer is 'moses'; allowed are none, zh, 13a"):
        score_translations(["a"], [["a"]], "de", ["sacrebleu"], tokenize="moses")
    for hypotheses, references, found in (
        (["a"], [["a"], ["a", "b"]], "1 translations for 2 lines of reference 2"),
        (["a"], ["b"], "a text is given in place of texts; .* as .references."),
        ("a", [["b"]], "a text is given in place of texts"),
        ([], [[]], "no translations or no references"),
        (["a"], [], "no translations or no references"),
    ):
        with pytest.raises(ValueError, match=found):
            score_translations(hypotheses, references, "de")
        with pytest.raises(ValueError, match=found):
            paired_bootstrap(hypotheses, hypotheses, references, "de")
    for code, right in {"cn": "zh", "zho": "zh", "jp": "ja"}.items():  # 13a would make one word of each sentence
        with pytest.raises(BadInput, match=f"the language is '{code}'; .* Write {right}"):
            score_translations(["a"], [["a"]], code)
        with pytest.raises(BadInput, match=f"the language is '{code}'; .* Write {right}"):
            paired_bootstrap(["a"], ["a"], [["a"]], code)
    with pytest.raises(BadInput, match="tokenizer is 'moses'; allowed are a MosesTokenizer and 'tokenised'"):
        score_translations(["a"], [["a"]], "de", ["multi-bleu"], tokenizer="moses")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give sources"):
        score_translations(["a"], [["a"]], "de", ["comet"])
    with pytest.raises(ValueError, match="COMET has no sums to sample"):
        paired_bootstrap(["a"], ["a"], [["a"]], "de", ["comet"])


# --- comparisons ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def systems() -> tuple[list[str], list[str], list[str]]:
    """References, and translations that have a seventh and a third of their words wrong."""
    choose = random.Random(0)
    references = [" ".join(choose.choices("abcdefghij", k=12)) for _ in range(80)]

    def spoilt(share: float) -> list[str]:
        return [" ".join("z" if choose.random() < share else word for word in line.split()) for line in references]

    return references, spoilt(1 / 7), spoilt(1 / 3)


@pytest.mark.parametrize("metric", ["sacrebleu", "multi-bleu", "chrf"])
def test_a_better_system_is_found_and_the_interval_turns_round(
    metric: str, systems: tuple[list[str], list[str], list[str]]
) -> None:
    references, good, bad = systems
    (gain,) = paired_bootstrap(bad, good, [references], "en", [metric], samples=200, tokenizer="tokenised")
    (loss,) = paired_bootstrap(good, bad, [references], "en", [metric], samples=200, tokenizer="tokenised")
    assert 0 < gain.low < gain.system - gain.baseline < gain.high and gain.p_value < 0.05
    assert (loss.low, loss.high) == pytest.approx((-gain.high, -gain.low))
    (own,) = score_translations(good, [references], "en", [metric], tokenizer="tokenised")
    assert gain.system == pytest.approx(own.value) and gain.name == metric
    assert gain.signature == f"{own.signature}|bs:200|seed:12345"
    assert f"{metric} = {gain.system:.2f}, +" in str(gain)


def test_systems_that_are_alike_differ_by_chance(systems: tuple[list[str], list[str], list[str]]) -> None:
    references, good, _ = systems
    (same,) = paired_bootstrap(good, good, [references], "en", ["sacrebleu"], samples=100)
    assert (same.low, same.high, same.p_value) == (0, 0, 1)
    swapped = good[1::2] + good[::2]
    (self_swap,) = paired_bootstrap(
        good, swapped, [[*good[1::2], *good[::2]]], "en", ["sacrebleu"], samples=100, about={"data": "x"}
    )
    assert self_swap.low > 0 and self_swap.signature.endswith("data:x|bs:100|seed:12345")


def test_the_interval_is_that_of_scoring_each_sample_by_itself(systems: tuple[list[str], list[str], list[str]]) -> None:
    references, good, bad = systems
    (found,) = paired_bootstrap(bad, good, [references], "en", ["sacrebleu"], samples=200)

    def score(texts: list[str], rows: list[int]) -> float:
        stream = [references[row] for row in rows]
        return score_translations([texts[row] for row in rows], [stream], "en", ["sacrebleu"])[0].value

    drawn = np.random.default_rng(12345).choice(80, size=(200, 80)).tolist()
    differences = sorted(score(good, rows) - score(bad, rows) for rows in drawn)
    assert differences[4] <= found.low <= differences[5] and differences[194] <= found.high <= differences[195]
