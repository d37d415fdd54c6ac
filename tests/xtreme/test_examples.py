"""Examples are the same wherever they come from, and what cannot be used is refused with its place."""

import logging
from collections.abc import Sequence

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import Bitext
from hictl_hf.xtreme.examples import (
    Question,
    check_label,
    nearest_start,
    parse_question,
    question_dataset,
    refuse_repeated,
    sorted_bitext,
)

CONTEXT = "A dog barks. A cat sleeps. A dog sleeps."


def question(number: int, *answers: tuple[str, int], name: str = "") -> Question:
    return Question(f"q.json: paragraph {number}, question 1", name or f"q{number}", "Who?", CONTEXT, answers)


def rows(questions: Sequence[Question], training: bool = False) -> list[dict]:
    return list(question_dataset("q.json", questions, training))


def test_an_answer_is_where_it_is_said_to_be_or_else_at_the_nearest_place() -> None:
    # "dog" is at 2 and 29; 13 is nearer to 2, 18 to 29, and 29 is right already.
    found = rows([question(number, ("dog", start)) for number, start in enumerate((29, 13, 18, 1000, -3))])
    assert [row["answers"] for row in found] == [[{"text": "dog", "start": start}] for start in (29, 2, 29, 29, 2)]


def test_an_answer_that_is_given_twice_is_where_it_is_first_said_to_be() -> None:
    (found,) = rows([question(1, ("dog", 2), ("cat", 15), ("dog", 29))])
    assert found["answers"] == [{"text": "dog", "start": 2}, {"text": "cat", "start": 15}]


@pytest.mark.parametrize("text", ["a", "aa", "aba", "b.a", "c", "abab"])
def test_the_nearest_place_is_that_of_a_slow_search(text: str) -> None:
    context = "ababa aab.ab aba"
    places = [start for start in range(len(context)) if context[start : start + len(text)] == text]
    for start in range(-2, len(context) + 3):
        expected = min((abs(place - start) for place in places), default=None)
        found = nearest_start(context, text, start)
        assert (found in places and abs(found - start) == expected) if places else found is None


def test_an_empty_answer_is_none_and_questions_keep_their_order_and_id() -> None:
    found = rows([question(1, ("", 0)), question(2, ("cat", 15), ("A cat", 13)), question(3)])
    answers = [[], [{"text": "cat", "start": 15}, {"text": "A cat", "start": 13}], []]
    assert [(row["id"], row["answers"]) for row in found] == list(zip(("q1", "q2", "q3"), answers))
    assert found[1]["question"] == "Who?" and found[1]["context"] == CONTEXT


def test_an_answer_that_is_not_in_its_context_is_refused() -> None:
    with pytest.raises(BadInput, match="^q.json: paragraph 2, .* has the answer 'cow'; allowed .* Correct it"):
        rows([question(1, ("cat", 15)), question(2, ("cat", 15), ("cow", 3))])


def test_an_id_that_comes_twice_is_refused_with_both_places() -> None:
    with pytest.raises(BadInput, match="^q.json: paragraph 7, .* id 'x' again; .* q.json: paragraph 4, .* has it. Rem"):
        rows([question(4, name="x"), question(5), question(7, name="x")])


def test_in_training_rows_are_numbered_and_questions_without_an_answer_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    questions = [question(1, ("cat", 15), name="x"), question(2, ("cow", 0)), question(3, ("", 0))]
    questions += [question(4, ("cow", 0), ("dog", 2), name="x")]
    with caplog.at_level(logging.WARNING):
        found = rows(questions, training=True)
    assert [(row["id"], row["answers"]) for row in found] == [
        ("0", [{"text": "cat", "start": 15}]),
        ("1", [{"text": "dog", "start": 2}]),
    ]
    assert "q.json: left out 2 questions" in caplog.text


@pytest.mark.parametrize("training", [False, True])
def test_a_source_without_a_question_to_use_is_refused(training: bool) -> None:
    with pytest.raises(BadInput, match="^q.json: has no row to use; allowed is a question .*Download"):
        rows([question(1, ("", 0))] if training else [], training)


BROKEN_QUESTIONS = {
    "no mapping": (["id"], "has None as its id text"),
    "no id": ({"question": "?"}, "has None as its id text"),
    "id is a number": ({"id": 3, "question": "?"}, "has 3 as its id text"),
    "no question": ({"id": "a"}, "has None as its question text"),
    "a lone surrogate": ({"id": "a", "question": "\ud800"}, "has invalid UTF-8 in its question text"),
    "answers": ({"id": "a", "question": "?", "answers": "x"}, "has 'x' as 'answers'; allowed is a list"),
    "answer": ({"id": "a", "question": "?", "answers": ["x"]}, "has None as its text text"),
    "start": (
        {"id": "a", "question": "?", "answers": [{"text": "x"}]},
        "has None as 'answer_start'; allowed are integers",
    ),
}


@pytest.mark.parametrize(("record", "found"), BROKEN_QUESTIONS.values(), ids=BROKEN_QUESTIONS)
def test_a_broken_question_is_refused(record: object, found: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_question("q.json: paragraph 1", record, CONTEXT)
    message = str(refused.value)
    assert message.startswith("q.json: paragraph 1") and found in message and "allowed" in message


def test_a_question_may_lack_answers() -> None:
    assert parse_question("p", {"id": "a", "question": "?"}, CONTEXT) == Question("p (id 'a')", "a", "?", CONTEXT, [])


def test_labels_are_stripped_and_spelt_one_way() -> None:
    labels = ("contradiction", "entailment")
    assert [check_label("", label, labels) for label in (" entailment ", "contradictory")] == list(labels[::-1])
    assert check_label("", "anything", ()) == "anything"


@pytest.mark.parametrize(("label", "labels", "allowed"), [("2", ("0", "1"), "0, 1"), (" ", (), "all but empty ones")])
def test_a_wrong_label_is_refused(label: str, labels: tuple[str, ...], allowed: str) -> None:
    with pytest.raises(BadInput, match=f"^a.tsv:3: has '{label.strip()}' as its label; allowed are {allowed}. Correct"):
        check_label("a.tsv:3", label, labels)


def test_an_id_is_refused_only_the_second_time() -> None:
    places: dict[str, str] = {}
    refuse_repeated(places, "a", "x:1")
    refuse_repeated(places, "b", "x:2")
    with pytest.raises(BadInput, match="^x:3: has the id 'a' again; allowed is each id once, and x:1 has it"):
        refuse_repeated(places, "a", "x:3")


def test_sorted_english_sentences_find_the_line_they_stood_at() -> None:
    # Capitals sort before small letters; "b" stood at 0 and 3, and equals keep their order.
    bitext = sorted_bitext(["b", "C", "a", "b"], ["w", "x", "y", "z"])
    assert bitext == Bitext(
        ["C", "a", "b", "b"],
        ["w", "x", "y", "z"],
        ["0", "1", "2", "3"],
        ["0", "1", "2", "3"],
        frozenset({("0", "1"), ("1", "2"), ("2", "0"), ("3", "3")}),
    )
