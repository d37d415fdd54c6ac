"""Text is data: no string in it becomes a special token, with any tokenizer, wherever text is tokenized."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from toy_families import TOKENIZERS
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hictl_hf.data.text_encoding import decode_texts, encode_texts
from hictl_hf.data.tokenization import prompt_tokens, tokenize_corpus, tokenize_rows, train_tokenizer
from hictl_hf.errors import BadInput
from hictl_hf.translation.corpus import tokenize_batch
from hictl_hf.translation.decoding import tokenize
from hictl_hf.xtreme.question_answering import QuestionAnswering
from hictl_hf.xtreme.sentence_pairs import SentencePairs
from hictl_hf.xtreme.tagging import Tagging

NAMES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TEXTS = [
    "was <s>44</s> now 8", "a <pad> b <mask> c", "<mask>", "</s></s>", "<s> <s>", "x<pad>y", "<unk> is unknown",
    "＜s＞ in full width", "a < s > b", "44</s>", "<s>", "the end.</s> The beginning",
]  # fmt: skip
KINDS: dict[str, tuple[Any, Any]] = {
    "WordLevel": (models.WordLevel, trainers.WordLevelTrainer),
    "BPE": (models.BPE, trainers.BpeTrainer),
    "WordPiece": (models.WordPiece, trainers.WordPieceTrainer),
}


def other_tokenizer(model: Any, trainer: Any) -> PreTrainedTokenizerBase:
    """A fast tokenizer laid out as XLM-R's, of another model."""
    backend = Tokenizer(model(unk_token="<unk>"))
    backend.pre_tokenizer, backend.normalizer = pre_tokenizers.WhitespaceSplit(), normalizers.NFKC()
    backend.train_from_iterator(TEXTS * 9, trainer(special_tokens=[*NAMES]))
    around = {"single": "<s> $A </s>", "pair": "<s> $A </s> </s> $B </s>"}
    backend.post_processor = processors.TemplateProcessing(
        special_tokens=[(name, backend.token_to_id(name)) for name in ("<s>", "</s>")], **around
    )
    roles = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{f"{role}_token": name for role, name in roles.items()})


@pytest.fixture(scope="module")
def unigram() -> PreTrainedTokenizerBase:
    """Its vocabulary knows all characters of the texts."""
    return train_tokenizer([*TEXTS, *"</>smapdunk"] * 9, vocab_size=80)


@pytest.mark.parametrize("name", ["xlm-roberta", "modernbert", "eurobert"])
def test_texts_come_back_without_special_tokens_but_with_bytes_that_are_marked_as_special(name: str) -> None:
    texts = ["the cat", "€ß", ""] if name != "xlm-roberta" else ["the cat", "a cat", ""]
    tokenizer = TOKENIZERS[name](["the cat", "a cat"] * 9)
    rows = encode_texts(tokenizer, texts)["input_ids"]
    assert decode_texts(tokenizer, [[*row, tokenizer.pad_token_id] for row in rows]) == texts


@pytest.mark.parametrize("kind", ["Unigram", *KINDS])
@pytest.mark.parametrize("adds", [False, True])
def test_only_the_tokenizer_makes_special_tokens(kind: str, adds: bool, unigram: PreTrainedTokenizerBase) -> None:
    tokenizer = unigram if kind == "Unigram" else other_tokenizer(*KINDS[kind])
    special = {*tokenizer.all_special_ids} - ({tokenizer.unk_token_id} if kind != "Unigram" else set())
    before = tokenizer.backend_tokenizer.to_str()
    found = encode_texts(tokenizer, TEXTS, add_special_tokens=adds)["input_ids"]
    plain = tokenizer(TEXTS, add_special_tokens=adds)["input_ids"]
    assert any(special & {*(row[1:-1] if adds else row)} for row in plain), "the case is real"
    for text, row in zip(TEXTS, found):
        assert not special & {*(row[1:-1] if adds else row)}, text
        assert not adds or (row[0], row[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    # the tokenizer is as it was, for its own uses
    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer("a <mask> b")["input_ids"].count(tokenizer.mask_token_id) == 1


def with_language_token(folder: Path, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer with a special token `<2de>` in its vocabulary that has no role, as it is loaded."""
    tokenizer.save_pretrained(folder)
    written = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary, number = written["model"]["vocab"], len(written["model"]["vocab"])
    if isinstance(vocabulary, dict):
        vocabulary["<2de>"] = number
    else:
        vocabulary.append(["<2de>", 0.0])
    written["added_tokens"].append({**written["added_tokens"][0], "id": number, "content": "<2de>", "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(written), "utf-8")
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["Unigram", *KINDS])
def test_a_special_token_without_a_role_is_no_text_either(
    kind: str, unigram: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    plain = unigram if kind == "Unigram" else other_tokenizer(*KINDS[kind])
    tokenizer = with_language_token(tmp_path, plain)
    number = tokenizer.convert_tokens_to_ids("<2de>")
    assert number == len(plain) and "<2de>" not in tokenizer.all_special_tokens, "the case is real"
    assert number in tokenizer("now <2de> was")["input_ids"]
    for text in ("now <2de> was", "<2de>", "now<2de>"):
        assert number not in encode_texts(tokenizer, text)["input_ids"]
        assert number not in encode_texts(tokenizer, [text, "was"], ["8", text])["input_ids"][0]


def test_other_texts_have_the_tokens_that_they_always_had(unigram: PreTrainedTokenizerBase) -> None:
    texts = ["was now 8", "unknown ✂ signs", "the end"]
    expected = unigram(texts)["input_ids"]
    assert encode_texts(unigram, texts)["input_ids"] == expected  # also an unknown sign, for which a copy is asked
    assert encode_texts(copy.deepcopy(unigram), texts)["input_ids"] == expected
    assert unigram.unk_token_id in expected[1]


def test_text_comes_back_from_its_tokens(unigram: PreTrainedTokenizerBase) -> None:
    for text in ("was <s>44</s> now 8", "a <pad> b <mask> c", "<unk> is unknown"):
        assert unigram.decode(encode_texts(unigram, text)["input_ids"], skip_special_tokens=True) == text


def test_a_copy_follows_the_tokenizer(unigram: PreTrainedTokenizerBase) -> None:
    tokenizer = copy.deepcopy(unigram)
    for side in ("left", "right"):
        tokenizer.padding_side = side
        row = encode_texts(tokenizer, ["<s>", "a <mask> b"], padding=True)["input_ids"][0]
        assert (row[0] if side == "left" else row[-1]) == tokenizer.pad_token_id
    size = len(tokenizer)
    tokenizer.add_tokens(["<item>"])
    assert encode_texts(tokenizer, "<s> <item>")["input_ids"].count(size) == 1  # not special: meant to be in text


QUESTION = {"id": "1", "question": "a <s> b", "context": "a <pad> b </s> <mask> c", "answers": []}


def question_ids(tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    features = QuestionAnswering(tokenizer, 128, ("start", "end"), 32, 64)
    return features.tokenize({key: [value] for key, value in QUESTION.items()}, [0], False)["input_ids"][0]


def translation(tokenizer: PreTrainedTokenizerBase, side: str, source: str, target: str) -> Sequence[int]:
    return tokenize_batch({"source": [source], "target": [target]}, tokenizer, "de")[side][0]


def pair_ids(tokenizer: PreTrainedTokenizerBase) -> Sequence[int]:
    examples = {"first": ["<s>"], "second": ["</s> <pad>"]}
    return SentencePairs(tokenizer, 64, ("a",)).tokenize(examples, [0], False)["input_ids"][0]


USES: dict[str, tuple[Callable[[PreTrainedTokenizerBase], Sequence[int]], int]] = {
    "pre-training, x": (lambda tok: tokenize_rows({"x": ["a <s> b"], "y": [None]}, tok)["x"][0], 0),
    "pre-training, y": (lambda tok: tokenize_rows({"x": ["a"], "y": ["</s> <mask>"]}, tok)["y"][0], 0),
    "pre-training, prompt": (lambda tok: prompt_tokens(tok, "<s> </s> "), 0),
    "translation, source": (lambda tok: translation(tok, "input_ids", "<s> </s>", "b"), 2),
    "translation, target": (lambda tok: translation(tok, "labels", "a", "b</s> </s>"), 1),
    "translate": (lambda tok: tokenize(["a </s> b"], tok, 99)[0], 2),
    "XTREME, pairs": (pair_ids, 4),
    "XTREME, words": (lambda tok: Tagging(tok, 64, ("a",)).word_ids(["<s>", "</s>", "<mask>"])[0], 0),
    "XTREME, questions": (question_ids, 4),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_reads_text_as_data(use: str, unigram: PreTrainedTokenizerBase) -> None:
    ids, added = USES[use]
    row = list(ids(unigram))
    assert sum(number in unigram.all_special_ids for number in row) == added and len(row) > added


def test_tokens_cached_by_earlier_releases_are_not_used(unigram: PreTrainedTokenizerBase) -> None:
    names: list[str] = []
    columns = {"x": ["a <s>"], "y": ["b"], "x_lang": ["en"], "y_lang": ["de"]}

    class Recorded(Dataset):
        def map(self, function: Any, **settings: Any) -> Dataset:
            names.append(Hasher.hash(function))
            return super().map(function, **settings)

    tokenize_corpus(Recorded(Dataset.from_dict(columns).data), unigram, 32)
    assert names and Hasher.hash(tokenize_rows) not in names


def test_an_empty_text_is_a_text_for_slow_tokenizers_too() -> None:
    class Slow:
        def __call__(self, *texts: str | None, **_: Any) -> tuple[str | None, ...]:
            return texts

    assert encode_texts(Slow(), "") == ("",) and encode_texts(Slow(), "a", "") == ("a", "")


@pytest.mark.parametrize("texts", ["a \ud800b", ["a", "a \ud800b"]], ids=["one", "several"])
def test_half_a_character_is_refused_with_its_place(texts: str | list[str], unigram: PreTrainedTokenizerBase) -> None:
    with pytest.raises(BadInput, match=r"a text has 'a \\ud800b'; allowed is valid Unicode"):
        encode_texts(unigram, texts)
