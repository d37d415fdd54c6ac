"""Metrics: cases that XTREME's own scorer was run on, cases worked by hand, and slow independent versions."""

import random
import re
import string
import unicodedata
from collections.abc import Iterator
from itertools import groupby

import pytest

from hictl_hf.retrieval.accuracy import pair_f1
from hictl_hf.xtreme.metrics import (
    MLQA_SPACES,
    Score,
    accuracy,
    answer_scores,
    chunk_f1,
    chunks,
    mlqa_words,
    squad_words,
)

UPOS = ["ADJ", "ADP", "SYM", "SCONJ", "CCONJ", "NOUN", "INTJ", "AUX", "PRON", "PROPN", "PUNCT", "VERB", "X", "_"]
NER = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]
Chunk = tuple[str, int, int]


# --- accuracy -------------------------------------------------------------------------------------------------------


def test_accuracy_worked_by_hand() -> None:
    assert accuracy(["a", "b", "c", "c"], ["a", "b", "c", "d"]) == {"accuracy": 75.0}
    assert accuracy(["1.0", "0.0"], ["1", "0"]) == accuracy(["[0]"], ["0"]) == {"accuracy": 0.0}  # strings, no numbers
    assert accuracy([""], [""]) == {"accuracy": 100.0}


def test_accuracy_is_rounded_as_by_the_official_code() -> None:
    assert accuracy(["1"] * 23 + ["0"] * 17, ["1"] * 40) == {"accuracy": 57.49999999999999}


@pytest.mark.parametrize("metric", [accuracy, chunk_f1])
def test_there_must_be_examples_and_a_prediction_for_each(metric: object) -> None:
    assert callable(metric)
    with pytest.raises(ValueError, match="2 predictions for 1 examples"):
        metric([["O"], ["O"]], [["O"]])
    with pytest.raises(ValueError, match="no examples"):
        metric([], [])


# --- chunks ---------------------------------------------------------------------------------------------------------

# (gold, prediction, F1, precision, recall); sentences are parted by "|". The scores are those of seqeval 0.0.12.
OFFICIAL_CHUNKS = [
    ("I-PER I-LOC I-LOC O", "B-PER B-LOC I-LOC O", 100, 100, 100),
    ("O I-ORG I-ORG O B-LOC", "O B-ORG I-ORG O I-LOC", 100, 100, 100),
    ("B-PER B-PER I-PER", "B-PER I-PER I-PER", 0, 0, 0),
    ("O B-PER | I-PER O", "O B-PER | B-PER O", 100, 100, 100),
    ("O O | O", "O O | O", 0, 0, 0),
    ("NOUN NOUN VERB", "NOUN VERB VERB", 0, 0, 0),
    ("SYM SYM SCONJ SCONJ", "SYM SYM SCONJ CCONJ", 75, 75, 75),
    ("CCONJ NOUN SCONJ VERB", "SCONJ NOUN CCONJ VERB", 50, 50, 50),  # 100 by seqeval 1.2.2
    ("INTJ O INTJ NOUN", "INTJ X INTJ NOUN", 85.71428571428571, 75, 100),
    ("ADJ ADP ADV AUX", "ADJ ADV ADV AUX", 57.14285714285715, 66.66666666666666, 50),
    ("_ X NOUN", "X X NOUN", 40, 50, 33.33333333333333),  # 100 by seqeval 1.2.2
]


def sentences(text: str) -> list[list[str]]:
    return [sentence.split() for sentence in text.split("|")]


@pytest.mark.parametrize(("gold", "prediction", "f1", "precision", "recall"), OFFICIAL_CHUNKS)
def test_chunk_f1_is_that_of_the_official_code(
    gold: str, prediction: str, f1: float, precision: float, recall: float
) -> None:
    expected = {"f1": f1, "precision": precision, "recall": recall}
    assert chunk_f1(sentences(prediction), sentences(gold)) == expected


def test_chunks_worked_by_hand() -> None:
    # E- and S- tags, which XTREME has not, but seqeval knows; S ends a chunk and is one by itself
    assert chunks(sentences("B-A I-A E-A S-A S-B I-B")) == {("A", 0, 2), ("A", 3, 3), ("B", 4, 4), ("B", 5, 5)}
    assert chunks(sentences("B-A O E-A E-A")) == {("A", 0, 0), ("A", 2, 2), ("A", 3, 3)}
    assert chunks(sentences("O I-A-B I-B . I-B")) == {("B", 1, 2), ("B", 4, 4)}  # the type is what follows the last -
    assert chunks(sentences("B-A S-A")) == {("A", 0, 0), ("A", 1, 1)}
    assert chunks(sentences("B-A . I-.")) == {("A", 0, 0), (".", 0, 2)}  # a dot begins nothing


def test_words_are_numbered_with_one_between_sentences_and_empty_sentences_count() -> None:
    assert chunks(sentences("B-A O | I-A | B-B")) == {("A", 0, 0), ("A", 3, 3), ("B", 5, 5)}
    assert chunks([[], ["B-A"], [], ["B-A"]]) == {("A", 1, 1), ("A", 4, 4)}


def test_a_truncated_sentence_shifts_those_after_it_and_is_no_error() -> None:
    gold = sentences("B-A O O | B-B | B-C")
    assert chunk_f1(sentences("B-A O | B-B | B-C"), gold)["f1"] == pytest.approx(100 / 3)
    assert chunk_f1(sentences("B-A O | O B-B | B-C"), gold)["f1"] == 100


def runs_of_equal_tags(tagged: list[list[str]]) -> Iterator[Chunk]:
    """Of tags without places: what is equal and side by side is one chunk, but tags that begin with S stand alone."""
    start = 0
    for sentence in tagged:
        for tag, run in groupby(sentence):
            length = len(list(run))
            if tag[0] == "S":
                yield from ((tag, start + at, start + at) for at in range(length))
            else:
                yield tag, start, start + length - 1
            start += length
        start += 1


def spans_of_places(tagged: list[list[str]]) -> Iterator[Chunk]:
    """Of B-, I- and O tags: each I goes on with a chunk of its type that ends just before it, or begins one."""
    spans: list[list[int]] = []
    types: list[str] = []
    at = 0
    for sentence in tagged:
        for tag in sentence:
            place, _, chunk_type = tag.partition("-")
            if place == "I" and spans and spans[-1][1] == at - 1 and types[-1] == chunk_type:
                spans[-1][1] = at
            elif place != "O":
                spans.append([at, at])
                types.append(chunk_type)
            at += 1
        at += 1
    return ((chunk_type, first, last) for chunk_type, (first, last) in zip(types, spans))


@pytest.mark.parametrize("seed", range(5))
def test_chunks_agree_with_slow_versions(seed: int) -> None:
    choose = random.Random(seed)
    for tags, slow in ((UPOS, runs_of_equal_tags), (NER, spans_of_places)):
        tagged = [choose.choices(tags[:7], k=choose.randint(0, 12)) for _ in range(60)]
        tagged += [choose.choices(tags, k=choose.randint(1, 12)) for _ in range(60)]
        found = chunks(tagged)
        assert found == set(slow(tagged)) and len(found) > 200


def test_the_order_of_sentences_does_not_matter_where_lengths_agree() -> None:
    choose = random.Random(0)
    pairs = [(choose.choices(NER, k=5), choose.choices(NER, k=5)) for _ in range(40)]
    score = chunk_f1(*zip(*pairs))
    choose.shuffle(pairs)
    assert chunk_f1(*zip(*pairs)) == score
    swapped = chunk_f1(*zip(*[(gold, prediction) for prediction, gold in pairs]))
    assert (swapped["precision"], swapped["recall"]) == (score["recall"], score["precision"])
    assert 0 < score["f1"] < 100


# --- pairs ----------------------------------------------------------------------------------------------------------

GOLD = {(f"de-{number}", f"en-{number}") for number in range(12)}
HALF = {(f"de-{number}", f"en-{number}") for number in range(6)}


@pytest.mark.parametrize(
    ("predictions", "f1", "precision", "recall"),
    [
        (GOLD, 100, 100, 100),
        (HALF, 66.66666666666666, 100, 50),
        (HALF | {("de-0", "en-99")}, 63.1578947368421, 85.71428571428571, 50),
        (GOLD | {("",)}, 96.00000000000001, 92.3076923076923, 100),  # a blank line at the end of the official file
        ({(english, foreign) for foreign, english in GOLD}, 0, 0, 0),
        ({(*pair, "1.0") for pair in GOLD}, 0, 0, 0),
        (set(), 0, 0, 0),
    ],
)
def test_pair_f1_is_that_of_the_official_code(
    predictions: set[tuple[str, ...]], f1: float, precision: float, recall: float
) -> None:
    assert pair_f1(predictions, GOLD) == {"f1": f1, "precision": precision, "recall": recall}


def test_a_pair_counts_once_and_no_gold_gives_zero() -> None:
    assert pair_f1([*HALF, *HALF], [*GOLD, *GOLD]) == pair_f1(HALF, GOLD)
    assert pair_f1(HALF, set()) == {"f1": 0, "precision": 0, "recall": 0}


# --- answers --------------------------------------------------------------------------------------------------------

SQUAD_CASES = {  # as the official code normalises them
    "The  Eiffel Tower!": "eiffel tower",
    "a an the": "",
    "U.S.A.": "usa",
    "the-end": "theend",
    "«Le Monde»": "«le monde»",
    "la casa": "la casa",
    "東京、日本。": "東京、日本。",
    "दिल्ली।": "दिल्ली।",
    "İstanbul": "i̇stanbul",
    "ſtraße STRASSE": "ſtraße strasse",
    "$5.00": "500",
    "the_the": "thethe",
    "日本のthe東京": "日本のthe東京",
    "1990–1995": "1990–1995",
    "in the US": "in us",
    "new\nline\tthe": "new line",
}
MLQA_CASES = [
    ("en", "An apple, «a» day.", "apple day"),
    ("en", "la casa", "la casa"),
    ("es", "el la los las unos unas un una", ""),
    ("es", "«un café»", "café"),
    ("es", "The end", "the end"),
    ("de", "Der Hund", "hund"),
    ("de", "eins und ein", "eins und"),
    ("de", "die das der den dem des einen einem eines einer", ""),
    ("vi", "của là cái bàn", "bàn"),
    ("vi", "những chiếc xe", "xe"),
    ("ar", "الولايات المتحدة", "ولايات متحدة"),
    ("ar", "أل الكتاب", "أل كتاب"),
    ("ar", "خيالي", "خي ي"),  # inside a word, where it is no article
    ("ar", "ال", ""),
    ("hi", "दिल्ली।", "दिल्ली"),
    ("hi", "a THE", "a the"),
    ("zh", "zh中文，English词。3.5％", "zh 中 文 english 词 35"),
    ("zh", "2018年11月17日", "2018 年 11 月 17 日"),
    ("zh", "日本のthe東京", "日 本 のthe 東 京"),
    ("zh", "“长城”(Great Wall)", "长 城 great wall"),
    ("zh", "한국어 띄어쓰기", "한국어 띄어쓰기"),
    ("zh", "鿿䷿龥", "鿿䷿ 龥"),  # only U+4E00 to U+9FA5
]


@pytest.mark.parametrize(("text", "normalised"), SQUAD_CASES.items())
def test_words_of_squad_are_those_of_the_official_code(text: str, normalised: str) -> None:
    assert " ".join(squad_words(text)) == normalised


def test_an_article_leaves_a_space() -> None:
    assert squad_words("«The»") == ["«", "»"]  # punctuation that is not ASCII stays and bounds a word
    assert mlqa_words("ar")("خيالي") == ["خي", "ي"]


@pytest.mark.parametrize(("language", "text", "normalised"), MLQA_CASES)
def test_words_of_mlqa_are_those_of_the_official_code(language: str, text: str, normalised: str) -> None:
    assert " ".join(mlqa_words(language)(text)) == normalised


def test_mlqa_knows_seven_languages() -> None:
    assert sorted(MLQA_SPACES) == ["ar", "de", "en", "es", "hi", "vi", "zh"]
    with pytest.raises(ValueError, match="the language 'fr'; allowed are en, es"):
        mlqa_words("fr")


def one_character_at_a_time(text: str) -> list[str]:
    """MLQA's words of Chinese text."""
    found, word = [], ""
    for character in text.lower():
        if character in string.punctuation or unicodedata.category(character).startswith("P"):
            continue
        if "\u4e00" <= character <= "\u9fa5" or character.isspace():
            found += [word, character]
            word = ""
        else:
            word += character
    return [word for word in [*found, word] if word.strip()]


def test_chinese_words_agree_with_a_slow_version() -> None:
    choose = random.Random(1)
    for _ in range(300):
        text = "".join(choose.choices("中文字ab1 .，、のé\u3000\n$", k=12))
        assert mlqa_words("zh")(text) == one_character_at_a_time(text)


def test_punctuation_is_deleted_and_not_a_space() -> None:
    everything = "".join(f"x{chr(code)}" for code in range(0x3100) if not chr(code).isspace())
    for language in ("hi", "de"):
        (word,) = mlqa_words(language)(everything)
        kept = {character for character in word if character != "x"}
        assert not any(unicodedata.category(character)[0] == "P" for character in kept)
        assert not kept & set(string.punctuation) and "\u20ac" in kept  # the euro sign is a symbol
    (word,) = squad_words(everything)
    assert not set(word) & set(string.punctuation) and "«" in word


def test_answers_worked_by_hand() -> None:
    # red, brick, house against house, and against brick, house: F1 2·(1/3·1)/(4/3) = 1/2, and 2·(2/3·1)/(5/3) = 4/5
    references = {"q": ["house", "the brick house"]}
    assert answer_scores({"q": "a red brick house"}, references, squad_words) == pytest.approx(
        {"f1": 80, "exact_match": 0}
    )
    # F1 and exact match may be best against two answers; words count as often as they occur
    references = {"q": ["x", "x x y"]}
    for answer in ("x", "x X y."):
        assert answer_scores({"q": answer}, references, squad_words) == {"f1": 100, "exact_match": 100}
    assert answer_scores({"q": "x x"}, references, squad_words) == pytest.approx({"f1": 80, "exact_match": 0})


def test_official_cases_of_answers() -> None:
    references = {
        "a": ["el la los las unos EL LA LOS LAS UNOS"],
        "b": ["$5.00 the_the"],
        "c": ["東京、日本。 in the US"],
    }
    predictions = {"a": "el la los las unos", "b": "$5.00", "c": "東京、日本。"}
    for (question, gold), f1 in zip(references.items(), (0.6666666666666666, 0.6666666666666666, 0.5)):
        assert answer_scores(predictions, {question: gold}, squad_words) == {"f1": 100 * f1, "exact_match": 0}


def test_answers_without_words_match_exactly_but_have_no_f1() -> None:
    assert answer_scores({"a": "", "b": "the"}, {"a": ["the"], "b": ["..."]}, squad_words) == {
        "f1": 0,
        "exact_match": 100,
    }


def test_a_missing_answer_scores_zero_and_others_do_not_matter() -> None:
    references = {"a": ["x"], "b": ["y"]}
    assert answer_scores({"a": "x"}, references, squad_words) == {"f1": 50, "exact_match": 50}
    assert answer_scores({"a": "x", "b": "y", "c": "z"}, references, squad_words) == {"f1": 100, "exact_match": 100}
    assert answer_scores({}, references, squad_words) == {"f1": 0, "exact_match": 0}


def test_a_question_without_gold_is_an_error_answered_or_not() -> None:
    for predictions in ({"b": "x"}, {}):
        with pytest.raises(ValueError, match="question 'b' has no gold answer"):
            answer_scores(predictions, {"a": ["x"], "b": []}, squad_words)
    with pytest.raises(ValueError, match="no questions"):
        answer_scores({"a": "x"}, {}, squad_words)


def test_f1_agrees_with_matching_words_one_by_one() -> None:
    choose = random.Random(2)
    for _ in range(300):
        prediction, gold = (choose.choices("uvwxyz", k=choose.randint(1, 6)) for _ in range(2))
        rest, right = list(gold), 0
        for word in prediction:
            if word in rest:
                rest.remove(word)
                right += 1
        scores = answer_scores({"q": " ".join(prediction)}, {"q": [" ".join(gold)]}, squad_words)
        assert scores["f1"] == pytest.approx(100 * 2 * right / (len(prediction) + len(gold)))
        assert scores["exact_match"] == 100 * (prediction == gold)


# --- signature ------------------------------------------------------------------------------------------------------


def test_a_score_is_written_with_its_signature() -> None:
    score = Score({"f1": 70.24, "exact_match": 50}, {"task": "mlqa", "language": "de", "data": "1a2b3c4d"})
    assert score.signature_text == "task:mlqa|language:de|data:1a2b3c4d"
    assert str(score) == "f1 = 70.2, exact_match = 50.0 task:mlqa|language:de|data:1a2b3c4d"
    assert re.fullmatch(r"accuracy = 1\.0 ", str(Score({"accuracy": 1}, {})))
