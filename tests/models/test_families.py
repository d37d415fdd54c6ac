"""The families of encoders: each is transformers' own model with HiCTL's losses, equal to a slow version of them."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from toy_families import SHAPES, TOKENIZERS
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, PreTrainedModel

import hictl_hf
from hictl_hf import HictlForPreTraining, export_encoder
from hictl_hf.models import modeling_hictl, modeling_hictl_families, modeling_hictl_translation, packing
from hictl_hf.models.configuration_hictl import KINDS, config_class
from hictl_hf.models.families import FAMILIES
from hictl_hf.models.packing import accepts_packed_rows
from hictl_hf.models.row_attention import attend_within_rows

WORDS, PADDING, BEGIN, END, MASK = 60, 1, 0, 2, 59
FIRST_WORD = 4
IDS = {"pad": PADDING, "bos": BEGIN, "eos": END, "cls": BEGIN, "sep": END, "mask": MASK}
OBJECTIVE = {
    "word_negatives": WORDS,  # all others are drawn: L_W is then not random
    "hard_negatives": False,
    "special_token_ids": [0, 1, 2, 3, MASK],
    "sep_token_id": END,
}
each_family = pytest.mark.parametrize("name", SHAPES)


def plain_config(name: str, **changes: Any) -> Any:
    """transformers' configuration of a family in its published shape, with few words."""
    shape = {**SHAPES[name], "vocab_size": WORDS, **{f"{key}_token_id": number for key, number in IDS.items()}}
    return getattr(transformers, f"{FAMILIES[name].prefix}Config")(**{**shape, "initializer_range": 0.2, **changes})


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`published(name)`: a folder with a masked language model of a family, as transformers saves it."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            torch.manual_seed(1)
            model = getattr(transformers, f"{FAMILIES[name].prefix}ForMaskedLM")(plain_config(name))
            with torch.no_grad():  # new ones are 0 or 1, which hides where they are lost
                for weight in (weight for weight in model.parameters() if weight.dim() == 1):
                    weight.add_(torch.randn_like(weight) * 0.1)
            model.save_pretrained(made[name])
        return made[name]

    return folder


def rows_of_words(number: int, seed: int = 0) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 12, (number,), generator=random).tolist()
    return [torch.randint(FIRST_WORD, MASK, (length,), generator=random).tolist() for length in lengths]


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (longest - len(row))] for row in rows])


class Pairs:
    """Random pairs, as rows of ids and as the batch of `HictlForPreTraining.forward`."""

    def __init__(self, number: int = 3) -> None:
        self.x, self.y = rows_of_words(number, 1), rows_of_words(number, 2)
        self.joined = [[BEGIN, *x, END, *y, END] for x, y in zip(self.x, self.y)]
        self.masked = [
            [MASK if at % 3 == 1 and id >= FIRST_WORD else id for at, id in enumerate(r)] for r in self.joined
        ]
        self.sentences = [[BEGIN, *row, END] for row in self.x + self.y]
        self.bags = [sorted({*x, *y}) for x, y in zip(self.x, self.y)]

    def batch(self) -> dict[str, Tensor]:
        ids, clean = padded(self.masked, PADDING), padded(self.joined, PADDING)
        return {
            "input_ids": ids,
            "attention_mask": padded([[1] * len(row) for row in self.masked], 0),
            "labels": clean.masked_fill(ids != MASK, -100),
            "sentence_input_ids": padded(self.sentences, PADDING),
            "sentence_attention_mask": padded([[1] * len(row) for row in self.sentences], 0),
            "bag": padded(self.bags, -1),
            "example_seeds": torch.arange(len(self.x)),
        }


def slow_losses(stock: PreTrainedModel, projection: Tensor, pairs: Pairs) -> dict[str, Tensor]:
    """The losses of transformers' own model, row by row and written as in the paper, at temperature 0.05."""
    encoder, vocabulary = stock.base_model, stock.get_input_embeddings().weight
    lm, words = [], []
    for joined, masked, bag in zip(pairs.joined, pairs.masked, pairs.bags):
        inputs = {"input_ids": torch.tensor([masked])}
        if stock.config.model_type == "bert":
            second = joined.index(END) + 1
            inputs["token_type_ids"] = torch.tensor([[0] * second + [1] * (len(joined) - second)])
        logits = stock(**inputs).logits[0]
        lm += [-logits[at].log_softmax(-1)[joined[at]] for at, id in enumerate(masked) if id == MASK]
        scores = F.cosine_similarity(encoder(**inputs)[0][0, 0], vocabulary, dim=-1) / 0.05
        others = [word for word in range(FIRST_WORD, MASK) if word not in bag]
        words.append(
            torch.stack([torch.cat([scores[[w]], scores[others]]).logsumexp(0) - scores[w] for w in bag]).mean()
        )
    r = torch.stack([projection @ encoder(torch.tensor([row]))[0][0, 0] for row in pairs.sentences])
    sentences = []
    for query in range(len(r)):
        positive = (query + len(pairs.x)) % len(r)
        scores = F.cosine_similarity(r[query], r, dim=-1) / 0.05
        sentences.append(scores[[at for at in range(len(r)) if at != query]].logsumexp(0) - scores[positive])
    return {
        "lm_loss": torch.stack(lm).mean(),
        "sentence_loss": torch.stack(sentences).mean(),
        "word_loss": torch.stack(words).mean(),
    }


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_every_family_has_a_published_shape_to_test() -> None:
    assert SHAPES.keys() == TOKENIZERS.keys() == FAMILIES.keys()
    assert [family.own_type for family in FAMILIES.values()] == [*hictl_hf.MODEL_TYPES]


@each_family
def test_logits_before_training_are_those_of_transformers(name: str, published: Callable[[str], Path]) -> None:
    stock = getattr(transformers, f"{FAMILIES[name].prefix}ForMaskedLM").from_pretrained(published(name)).eval()
    model, report = HictlForPreTraining.from_pretrained(published(name), output_loading_info=True)
    assert {"projection.weight"} == set(report["missing_keys"]) and not report["unexpected_keys"]
    assert type(model).__name__ == FAMILIES[name].class_name("ForPreTraining")
    batch = {key: Pairs().batch()[key] for key in ("input_ids", "attention_mask", "labels")}
    ours, theirs = model.eval()(**batch), stock(**batch)
    assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.loss, theirs.loss)


@pytest.mark.parametrize("name", [name for name in SHAPES if FAMILIES[name].packs])
def test_attention_gets_one_dtype_under_autocast(
    name: str, published: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels for packed rows exist for half precision only, and a rotation of queries and keys may end in fp32."""
    seen: list[set[torch.dtype]] = []

    def spy(lengths: Any, attending: Any, *states: Any, **settings: Any) -> Tensor:
        seen.append({state.dtype for state in states[:3]})
        return attend_within_rows(lengths, attending, *states, **settings)

    monkeypatch.setattr(packing, "attend_within_rows", spy)
    model = HictlForPreTraining.from_pretrained(published(name), **OBJECTIVE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(**Pairs().batch()).loss.backward()
    assert seen and all(dtypes == {torch.bfloat16} for dtypes in seen)


@each_family
def test_losses_and_gradients_are_those_of_a_slow_version(name: str, published: Callable[[str], Path]) -> None:
    pairs = Pairs()
    model = HictlForPreTraining.from_pretrained(published(name), **OBJECTIVE).eval()
    assert accepts_packed_rows(model) == FAMILIES[name].packs
    stock = getattr(transformers, f"{FAMILIES[name].prefix}ForMaskedLM").from_pretrained(published(name)).eval()
    projection = model.projection.weight.detach().clone().requires_grad_()
    expected = slow_losses(stock, projection, pairs)
    torch.stack([*expected.values()]).sum().backward()
    outputs = model(**pairs.batch())
    close({loss: outputs[loss] for loss in expected}, expected)
    outputs.loss.backward()
    close(model.projection.weight.grad, projection.grad)
    gradients = {key: weight.grad for key, weight in model.named_parameters() if key != "projection.weight"}
    assert gradients.keys() == dict(stock.named_parameters()).keys()
    for key, weight in stock.named_parameters():
        if weight.grad is None:
            assert gradients[key] is None or not gradients[key].any(), key
        else:
            close(gradients[key], weight.grad)


@each_family
def test_a_few_tokens_that_peft_trains_get_the_gradient_of_their_rows(
    name: str, published: Callable[[str], Path]
) -> None:
    peft = pytest.importorskip("peft")
    batch, tokens = Pairs().batch(), [7, MASK]
    whole = HictlForPreTraining.from_pretrained(published(name), **OBJECTIVE).eval()
    settings = peft.LoraConfig(target_modules=["projection"], trainable_token_indices=tokens)
    model = peft.get_peft_model(copy.deepcopy(whole), settings)
    (rows,) = [weight for key, weight in model.named_parameters() if "trainable_tokens_delta" in key]
    torch.nn.init.normal_(rows, std=0.2)
    with torch.no_grad():
        whole.get_input_embeddings().weight[tokens] = rows
    outputs, expected = model(**batch), whole(**batch)
    for loss in ("lm_loss", "sentence_loss", "word_loss"):
        close(outputs[loss], expected[loss])
    outputs.loss.backward()
    expected.loss.backward()
    close(rows.grad, whole.get_input_embeddings().weight.grad[tokens])


def test_an_adapter_of_the_output_layer_is_refused_as_no_loss_would_train_it(published: Callable[[str], Path]) -> None:
    peft = pytest.importorskip("peft")
    model = HictlForPreTraining.from_pretrained(published("eurobert"), **OBJECTIVE)
    settings = peft.LoraConfig(target_modules=["q_proj", "lm_head"])
    with pytest.raises(ValueError, match="leave the layer out of target_modules"):
        peft.get_peft_model(model, settings)(**Pairs().batch())


def test_an_adapter_of_the_word_embeddings_is_refused_where_a_loss_would_read_the_frozen_ones(
    published: Callable[[str], Path],
) -> None:
    peft, embeddings = pytest.importorskip("peft"), {"bert": "word_embeddings", "modernbert": "tok_embeddings"}
    for name, layer in embeddings.items():
        for weights in ({"lm_weight": 0}, {"word_weight": 0}, {"lm_weight": 0, "word_weight": 0}):
            model = HictlForPreTraining.from_pretrained(published(name), **{**OBJECTIVE, **weights})
            adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=[layer]))
            if len(weights) == 1:
                with pytest.raises(ValueError, match="the layer of word embeddings has an adapter"):
                    adapted(**Pairs().batch())
            else:  # L_S reads what the encoder computes with the adapter
                assert adapted(**Pairs().batch()).loss.isfinite()


@each_family
def test_every_class_refuses_the_configuration_of_another_family(name: str) -> None:
    names = [FAMILIES[name].class_name(kind) for kind in (*KINDS.values(), "ForConditionalGeneration")]
    modules = (modeling_hictl, modeling_hictl_families, modeling_hictl_translation)
    classes = [getattr(module, each) for module in modules for each in names if hasattr(module, each)]
    assert len(classes) >= 6  # EuroBERT answers no questions
    own, others = config_class(name), [config_class(other) for other in SHAPES if other != name]
    for made in classes:
        for other in others:
            with pytest.raises(
                ValueError, match=f"{made.__name__} got a {other.__name__}; allowed is a {own.__name__}"
            ):
                made(other())


@each_family
@pytest.mark.parametrize("kind", ["ForPreTraining", "ForConditionalGeneration"])
def test_a_configuration_without_our_fields_is_refused_where_they_are_read(name: str, kind: str) -> None:
    """`from_pretrained(folder, config=AutoConfig.from_pretrained(folder))` gives one, of a plain encoder."""
    modules = (modeling_hictl, modeling_hictl_families, modeling_hictl_translation)
    [made] = {getattr(each, FAMILIES[name].class_name(kind), None) for each in modules} - {None}
    plain, own = getattr(transformers, f"{FAMILIES[name].prefix}Config"), config_class(name).__name__
    with pytest.raises(ValueError, match=f"got a {plain.__name__}; allowed is a {own}. {own}.from_pretrained reads"):
        made(plain(**SHAPES[name]))


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.packs])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_packed_rows_give_what_padded_ones_give(name: str, pooling: str, published: Callable[[str], Path]) -> None:
    found, folder = [], published(name)  # made by random numbers if no test has asked for it
    for attention in ("sdpa", "eager"):
        settings = {**OBJECTIVE, "attn_implementation": attention, "sentence_pooling": pooling}
        torch.manual_seed(0)
        model = HictlForPreTraining.from_pretrained(folder, **settings).eval()
        assert accepts_packed_rows(model) == (attention == "sdpa")
        outputs = model(**Pairs(5).batch())
        outputs.loss.backward()
        found.append((outputs.loss, {key: weight.grad for key, weight in model.named_parameters()}))
    close(*found)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.packs])
def test_attention_has_its_dropout_in_packed_and_in_padded_rows(name: str, published: Callable[[str], Path]) -> None:
    rate = next(
        key for key in ("attention_dropout", "attention_probs_dropout_prob") if hasattr(plain_config(name), key)
    )
    model = HictlForPreTraining.from_pretrained(published(name), **OBJECTIVE, **{rate: 0.5})
    packed = Pairs().batch()
    padded = {key: packed[key] for key in ("input_ids", "attention_mask", "labels")}
    for batch in (packed, padded):
        for training in (True, False):
            one, other = (model.train(training)(**batch).loss.item() for _ in range(2))
            assert (one != other) == training


@each_family
def test_the_page_on_lora_names_all_new_parts_of_a_classifier(
    name: str, published: Callable[[str], Path], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs/tutorials/with_other_libraries.md").read_text("utf-8")
    saved = {"deberta-v2": ["pooler"], "eurobert": ["dense"], "modernbert": ["head", "classifier"]}.get(name, [])
    assert not saved or f"{json.dumps(saved)}` for {FAMILIES[name].title.split('-')[0]}" in page
    export_encoder(HictlForPreTraining.from_pretrained(published(name)), tmp_path / "encoder")
    for auto in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
        _, report = auto.from_pretrained(tmp_path / "encoder", output_loading_info=True)
        assert {key.split(".")[0] for key in report["missing_keys"]} <= {"classifier", *saved}
