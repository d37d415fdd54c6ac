"""Long contexts are read in the windows of XTREME's scripts, and an answer is what stands between two characters."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from numpy.typing import NDArray
from transformers import BertTokenizer, PreTrainedTokenizerBase

from hictl_hf.errors import BadInput
from hictl_hf.xtreme.question_answering import (
    QuestionAnswering,
    answer_tokens,
    context_windows,
    most_context_in,
    official_answer,
)
from hictl_hf.xtreme.sentence_pairs import TaskFeatures

LOW, HIGH = -5.0, 5.0


def question(context: str, answer: str, name: str = "q", text: str = "the cat?", nth: int = 0) -> dict[str, Any]:
    """An example whose answer is the nth place where it stands in the context."""
    start = -1
    for _ in range(nth + 1):
        start = context.index(answer, start + 1)
    return {"id": name, "question": text, "context": context, "answers": [{"text": answer, "start": start}]}


def oracle(kind: QuestionAnswering, examples: Dataset) -> tuple[Dataset, list[NDArray[np.float32]]]:
    """Rows, and logits that are high where training has the first and the last token of the gold answer."""
    rows, trained = kind.encode(examples), kind.encode(examples, training=True)
    assert rows["input_ids"][:] == trained["input_ids"][:]
    logits = []
    for row in trained:
        scores = np.full((len(row["input_ids"]), 2), LOW, np.float32)
        if row["end_positions"]:
            scores[row["start_positions"], 0] = scores[row["end_positions"], 1] = HIGH
        logits.append(scores)
    return rows, logits


@pytest.fixture(scope="module")
def questions(sentences: dict[str, list[str]]) -> Dataset:
    """Of each language contexts of one and of many windows, answers at their begin, in them, and at their end."""
    rows: list[dict[str, Any]] = []
    for language, texts in sentences.items():
        joint = "。" if language == "zh" else ". "
        for size in (1, 20):
            context = joint.join(texts[:size])
            for length in (1, 2):
                for first in (0, len(context) // 3, len(context) // 2):
                    words = context[first:].split(" ") if language != "zh" else list(context[first:])
                    skipped = 0 if first == 0 or language == "zh" else len(words.pop(0)) + 1
                    answer = context[first + skipped :][: len((" " if language != "zh" else "").join(words[:length]))]
                    start = first + skipped
                    rows.append({
                        "id": f"{language} {len(rows)}", "question": "what?", "context": context,
                        "answers": [{"text": answer, "start": start}, {"text": "other", "start": 0}],
                    })  # fmt: skip
    return Dataset.from_list(rows)


# --- marks ----------------------------------------------------------------------------------------------------------


def test_an_answer_keeps_the_marks_of_its_last_letter(tokenizer: PreTrainedTokenizerBase) -> None:
    """XLM-R's normalizer composes e and U+0301; the token's characters then end before the mark."""
    examples = Dataset.from_list(
        [question("the cafe\u0301 sees", "cafe\u0301", "inside"), question("cafe\u0301", "cafe\u0301")]
    )
    kind = QuestionAnswering(tokenizer)
    rows, logits = oracle(kind, examples)
    assert kind.decode(examples, rows, logits) == {"inside": "cafe\u0301", "q": "cafe\u0301"}


@pytest.mark.parametrize("after", ["", " sees", "\n"])
def test_an_answer_keeps_characters_without_width_at_the_end_of_a_word(
    after: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    """One in fifty answers of MLQA in Spanish ends so, and the metric does not remove them; inside a word they stay
    where they are."""
    examples = Dataset.from_list(
        [question(f"the cat\u200b{after}", "cat\u200b", "end"), question("the cat\u200bsees", "cat", "inside")]
    )
    kind = QuestionAnswering(tokenizer)
    rows, logits = oracle(kind, examples)
    assert kind.decode(examples, rows, logits) == {"end": "cat\u200b", "inside": "cat"}


# --- windows --------------------------------------------------------------------------------------------------------


def windows_as_officially(tokens: int, room: int, stride: int) -> list[range]:
    """The loop of XTREME's scripts: what a window leaves over, and what it shares with the next, is cut again."""
    windows: list[range] = []
    rest = list(range(tokens))
    while len(windows) * stride < tokens:
        windows.append(range(rest[0], rest[0] + min(room, len(rest))))
        if len(rest) <= room:
            break
        removed = len(rest) - room
        rest = rest[-(room - stride + removed) :]
    return windows


@pytest.mark.parametrize("stride", [1, 3, 6])
def test_windows_are_those_of_the_official_loop(stride: int) -> None:
    for tokens in range(1, 40):
        assert context_windows(tokens, 6, stride) == windows_as_officially(tokens, 6, stride)


def test_each_token_has_most_context_in_one_window_as_worked_by_hand() -> None:
    # 8 tokens in windows 0-5 and 3-7. Token 4 has 4 to its left and 1 to its right in the first: 1 + 0.06; 1 and 3 in
    # the second: 1 + 0.05. Token 5 has 0 on one side in the first, 2 and 2 in the second.
    first, second = most_context_in([range(0, 6), range(3, 8)])
    assert first.tolist() == [True] * 5 + [False] and second.tolist() == [False, False, True, True, True]


def test_a_token_has_most_context_where_the_official_rule_says() -> None:
    for tokens, room, stride in ((5, 9, 4), (17, 9, 4), (40, 9, 4), (340, 330, 128)):
        windows = context_windows(tokens, room, stride)
        for number, (window, most) in enumerate(zip(windows, most_context_in(windows))):
            for token, found in zip(window, most, strict=True):
                scores = [
                    min(token - other.start, other.stop - 1 - token) + 0.01 * len(other) if token in other else -1
                    for other in windows
                ]
                assert found == (scores.index(max(scores)) == number)


def test_a_stride_that_would_skip_tokens_is_refused(tokenizer: PreTrainedTokenizerBase, questions: Dataset) -> None:
    assert context_windows(20, 9, 9)[0] == range(9)
    with pytest.raises(BadInput, match="stride: is 10; allowed are up to 9 tokens"):
        context_windows(20, 9, 10)
    with pytest.raises(BadInput, match="stride"):
        QuestionAnswering(tokenizer, 30, stride=40).encode(questions)


def test_rows_are_the_question_and_each_part_of_the_context(
    tokenizer: PreTrainedTokenizerBase, questions: Dataset
) -> None:
    kind = QuestionAnswering(tokenizer, 40, stride=8)
    rows = kind.encode(questions)
    number = 0
    for at, example in enumerate(questions):
        asked, context = (
            tokenizer(example[name], add_special_tokens=False, return_offsets_mapping=True)
            for name in ("question", "context")
        )
        room = 40 - 4 - len(asked["input_ids"])
        for window in context_windows(len(context["input_ids"]), room, 8):
            row, part = rows[number], slice(window.start, window.stop)
            assert row["input_ids"] == [0, *asked["input_ids"], 2, 2, *context["input_ids"][part], 2]
            assert row["example"] == at and row["first"] == len(asked["input_ids"]) + 3
            assert list(zip(row["begins"], row["ends"])) == context["offset_mapping"][part]
            number += 1
    assert number == len(rows) > 2 * len(questions)


def test_only_the_begin_of_a_long_question_is_read(tokenizer: PreTrainedTokenizerBase) -> None:
    example = question("a dog sees cold water", "dog", text="the cat likes my sister " * 5)
    asked, context = (
        tokenizer(example[name], add_special_tokens=False)["input_ids"] for name in ("question", "context")
    )
    assert len(asked) > 9
    kind = QuestionAnswering(tokenizer, 60, stride=8, question_length=9)
    (row,) = kind.encode(Dataset.from_list([example]))
    assert row["input_ids"] == [0, *asked[:9], 2, 2, *context, 2] and row["first"] == 12


def test_an_empty_question_is_none_but_an_empty_context_is_an_error(tokenizer: PreTrainedTokenizerBase) -> None:
    kind = QuestionAnswering(tokenizer, 60, stride=8)
    (row,) = kind.encode(Dataset.from_list([question("a dog", "dog", text=" ")]))
    assert row["input_ids"][:3] == [0, 2, 2] and row["first"] == 3
    with pytest.raises(BadInput, match="question 'q7': its context ' ' has no token"):
        kind.encode(Dataset.from_list([{"id": "q7", "question": "who?", "context": " ", "answers": []}]))


# --- gold answers to tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "answer", "tokens"),
    [
        (0, "ab", (1, 1)),  # not the lone ▁, which has the first of its characters
        (0, "a", (1, 1)),
        (1, "b", (1, 1)),
        (0, "ab\u200bcd", (1, 2)),
        (1, "b\u200bc", (1, 2)),
        (2, "\u200bc", (2, 2)),  # a character without a token is passed over
        (2, "\u200b", (-1, -1)),
        (5, " e", (3, 3)),
        (4, "d e", (2, 3)),
        (0, "", (-1, -1)),
        (8, "f", (5, 5)),  # nor this one
        (7, " fg", (5, 5)),
        (10, "h", (-1, -1)),
    ],
)
def test_an_answer_is_the_tokens_that_hold_its_characters(start: int, answer: str, tokens: tuple[int, int]) -> None:
    begins, ends = np.array([[0, 1], [0, 2], [3, 5], [6, 7], [8, 9], [8, 10]]).T  # "ab\u200bcd e fg" as ▁ ab cd ▁e ▁ fg
    assert answer_tokens("q", [{"text": answer, "start": start}], begins, ends) == tokens


def test_the_gold_answer_of_training_is_the_first_and_lies_in_the_window_as_a_whole(
    tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    context = ". ".join(sentences["en"][:8])
    kind = QuestionAnswering(tokenizer, 30, stride=6)
    tokens = tokenizer(context, add_special_tokens=False)["input_ids"]
    asked = tokenizer("the cat?", add_special_tokens=False)["input_ids"]
    gold = question(context, "cold water", nth=0)
    first, last = answer_tokens(
        "q", gold["answers"],
        *np.array(tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]).T,
    )  # fmt: skip
    assert last > first > 6
    gold["answers"].append({"text": "the cat", "start": 0})
    rows = kind.encode(Dataset.from_list([gold]), training=True)
    assert sorted(rows.column_names) == ["end_positions", "input_ids", "start_positions"]
    windows = context_windows(len(tokens), 30 - 4 - len(asked), 6)
    inside = [first in window and last in window for window in windows]
    partly = [(first in window) != (last in window) for window in windows]
    assert len(rows) == len(windows) and any(inside) and any(partly) and not all(inside)
    for row, window, found in zip(rows, windows, inside):
        places = [row["start_positions"], row["end_positions"]]
        before = len(asked) + 3
        assert places == ([first - window.start + before, last - window.start + before] if found else [0, 0])


def test_a_question_without_an_answer_is_no_training_example(tokenizer: PreTrainedTokenizerBase) -> None:
    unanswered = Dataset.from_list([question("a dog", "dog"), question("a dog", "a", "q8") | {"answers": []}])
    kind = QuestionAnswering(tokenizer, 60, stride=8)
    assert len(kind.encode(unanswered)) == 2
    with pytest.raises(BadInput, match="question 'q8': has no answer"):
        kind.encode(unanswered, training=True)


# --- logits to answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [30, 62])
def test_gold_answers_come_back_from_their_own_tokens(
    tokenizer: PreTrainedTokenizerBase, questions: Dataset, max_length: int
) -> None:
    kind: TaskFeatures = QuestionAnswering(tokenizer, max_length, stride=8)
    assert isinstance(kind, QuestionAnswering)
    found = kind.decode(questions, *oracle(kind, questions))
    references = kind.references(questions)
    assert list(found) == list(references) == questions["id"][:]
    holding = [name for name in references if not name.startswith("zh")]
    assert {name: found[name] for name in holding} == {name: references[name][0] for name in holding}
    # a piece of Chinese may hold more characters than the answer does
    assert all(
        references[name][0] in found[name] and len(found[name]) <= len(references[name][0]) + 4 for name in references
    )
    assert sum(found[name] == references[name][0] for name in references) > 0.7 * len(references)


def test_scores_are_added_in_double_precision_as_officially(tokenizer: PreTrainedTokenizerBase) -> None:
    logits = np.array([[1, 0], [1 + 2**-23, 0], [0, 8]], np.float32)  # in single precision 1 + 8 equals both sums
    best, second, *_ = QuestionAnswering(tokenizer).rank_spans([(logits, 0, np.ones(3, bool))])
    assert (best.first, second.first, best.last, second.last) == (1, 0, 2, 2) and best.score > second.score


def test_candidates_are_those_of_the_official_loops() -> None:
    random = np.random.default_rng(3)
    windows = []
    for first, tokens, most in ((4, 20, range(0, 14)), (4, 9, range(3, 9))):
        logits = random.integers(-4, 5, (first + tokens + 3, 2)).astype(np.float32)  # with equal ones
        windows.append((logits, first, np.array([token in most for token in range(tokens)])))
    for candidates, longest in ((9, 30), (20, 4)):
        kind = QuestionAnswering(None, candidates=candidates, answer_length=longest)  # type: ignore[arg-type]
        expected = []
        for number, (logits, first, most_context) in enumerate(windows):
            best = [sorted(range(len(logits)), key=lambda at: -logits[at, side])[:candidates] for side in (0, 1)]
            for start in best[0]:
                for end in best[1]:
                    context = range(first, first + len(most_context))
                    possible = start in context and end in context and start <= end < start + longest
                    if possible and most_context[start - first]:
                        score = float(logits[start, 0]) + float(logits[end, 1])
                        expected.append((score, number, start - first, end - first))
        expected.sort(key=lambda span: -span[0])
        assert len(expected) > 5 and kind.rank_spans(windows) == expected


def test_an_answer_begins_in_the_window_with_most_context(tokenizer: PreTrainedTokenizerBase) -> None:
    context = "the cat sees a dog. my sister likes cold water. the old man buys two books. a dog sees the house"
    kind = QuestionAnswering(tokenizer, 30, stride=6)
    examples = Dataset.from_list([question(context, "my sister")])
    rows, logits = oracle(kind, examples)
    holding = [at for at, scores in enumerate(logits) if scores.max() == HIGH]
    assert len(holding) > 1
    for at, scores in enumerate(logits):
        start = int(scores[:, 0].argmax()) - rows[at]["first"]
        if at in holding and not rows[at]["most_context"][start]:
            scores *= 2  # the better score, in a window that sees less of what stands around it
            assert rows[at]["begins"][start] == context.index("my")
    ranked = kind.rank_spans((scores, row["first"], np.array(row["most_context"])) for row, scores in zip(rows, logits))
    assert ranked[0].score == 2 * HIGH
    assert kind.decode(examples, rows, logits) == {"q": "my sister"}


@pytest.mark.parametrize(("compat", "nothing"), [(False, ""), (True, "empty")])
def test_where_no_candidate_is_possible_there_is_no_answer(
    tokenizer: PreTrainedTokenizerBase, compat: bool, nothing: str
) -> None:
    examples = Dataset.from_list([question("the cat sees a dog", "dog")])
    kind = QuestionAnswering(tokenizer, 60, stride=8, candidates=1, compat=compat)
    rows = kind.encode(examples)
    scores = np.zeros((len(rows[0]["input_ids"]), 2), np.float32)
    scores[0] = 9  # the best token is no part of the context
    assert kind.decode(examples, rows, [scores]) == {"q": nothing}


# --- as officially --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "chunk", "answer"),
    [
        ("Steve Smith", "Steve Smith's", "Steve Smith"),
        ("2018", "(2018年)", "2018"),
        ("a b", "a  b c", "a  b"),
        ("b", "a  b c", "b"),
        ("x", "abc", "abc"),
        ("", "abc", "abc"),
        ("", "", ""),
        ('"hi"', '"hi".', '"hi".'),
        ("东京", "日本东京都，2018年", "日本东京都，2018年"),
        ("กรุง", "กรุงเทพมหานคร", "กรุง"),
        ("दिल्ली", "दिल्ली।", "दिल्ली"),
        ("lindon", "\u200blindon!", "\u200blindon!"),  # the tokeniser drops a character: nothing is found any more
    ],
)
def test_an_answer_is_looked_for_as_officially(found: str, chunk: str, answer: str) -> None:
    assert official_answer(found, chunk) == answer


def test_compat_answers_with_all_of_a_chinese_text(tokenizer: PreTrainedTokenizerBase) -> None:
    examples = Dataset.from_list([
        question("我的妹妹看见房子 一只狗喜欢冷水", "冷水", "zh"), question("the cat, a dog", "cat", "en"),
    ])  # fmt: skip
    own, official = (QuestionAnswering(tokenizer, 60, stride=8, compat=compat) for compat in (False, True))
    assert own.decode(examples, *oracle(own, examples)) == {"zh": "冷水", "en": "cat"}
    assert official.decode(examples, *oracle(official, examples)) == {"zh": "一只狗喜欢冷水", "en": "cat"}


def test_compat_joins_the_pieces_of_either_kind_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "'", "s", "##s", ",", "a", "dog"]
    like_bert = BertTokenizer({piece: id for id, piece in enumerate(pieces)}, do_lower_case=False)
    example = question("the  cats' dog, a dog", "the  cats")
    for each in (tokenizer, like_bert):
        kind = QuestionAnswering(each, 60, stride=8, compat=True)
        examples = Dataset.from_list([example, question(example["context"], "cats", "r")])
        assert kind.decode(examples, *oracle(kind, examples)) == {"q": "the cats", "r": "cats"}
    examples = Dataset.from_list([question("the dog, a'", "dog, a")])  # written "dog , a", as in "dog , a '"
    kind = QuestionAnswering(like_bert, 60, stride=8, compat=True)
    assert kind.decode(examples, *oracle(kind, examples)) == {"q": "dog, a"}
    kind = QuestionAnswering(tokenizer, compat=True)
    ids = tokenizer.convert_tokens_to_ids(["▁ana", "▁", "▁d", "o", "g"])  # the lone piece is no second space
    assert tokenizer.unk_token_id not in ids and kind.answer("ana dog,", [0, 6], [3, 7], ids) == "ana dog"


def test_compat_ignores_case_and_accents_where_the_tokenizer_does() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cafe", "'", "s", "##s", ",", "dog"]
    uncased = BertTokenizer({piece: id for id, piece in enumerate(pieces)}, do_lower_case=True)
    examples = Dataset.from_list([question("the Café's dog", "the Café")])
    kind = QuestionAnswering(uncased, 60, stride=8, compat=True)
    assert kind.decode(examples, *oracle(kind, examples)) == {"q": "the Café"}


def test_an_answer_has_no_spaces_around_it(tokenizer: PreTrainedTokenizerBase) -> None:
    assert QuestionAnswering(tokenizer).answer("a red dog", [1], [6], [7]) == "red"  # as pieces of some tokenizers


def test_words_are_parted_by_the_spaces_that_part_them_officially(tokenizer: PreTrainedTokenizerBase) -> None:
    context = "the\u00a0cat sees\u202fa\ndog\t猫"  # U+00A0 does not part words there, U+202F does
    kind = QuestionAnswering(tokenizer, compat=True)
    place: Callable[[str], tuple[int, int]] = lambda word: (context.index(word), context.index(word) + len(word))  # noqa: E731
    spans: Sequence[tuple[str, str]] = [("the", "the\u00a0cat"), ("dog", "dog"), ("a\ndog", "a dog"), ("猫", "猫")]
    for answer, chunk in spans:
        begin, end = place(answer)
        unknown = [tokenizer.unk_token_id] * 2  # found nowhere: the answer is all of the chunk
        assert kind.answer(context, [begin, max(begin, end - 3)], [end, end], unknown) == chunk
    begin, _ = place(" sees")  # a lone ▁ may have the space as its character: it belongs to the word that follows
    assert kind.answer(context, [begin], [begin + 1], [tokenizer.unk_token_id]) == "sees"
