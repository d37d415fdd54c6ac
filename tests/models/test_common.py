"""What transformers asks of each model class of its own, asked of each HiCTL class of each family.

A small version of its tests/test_modeling_common.py, which is not installed with it;
`end_to_end/test_common_model_suite.py` runs the original.
"""

import copy
import inspect
import json
import pickle
import re
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn
from toy_families import SHAPES, V3_HEAD_FAILS
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput

from hictl_hf import HictlForConditionalGeneration
from hictl_hf.models.configuration_hictl import CONFIGS, KINDS
from hictl_hf.models.families import FAMILIES

WORDS, PADDING, BEGIN, END, MASK = 60, 1, 0, 2, 59
LENGTHS = (7, 5, 3)  # of the rows of a batch
LABELS = 2  # an answer to a question has a start and an end
TRANSLATION = "ForConditionalGeneration"
WITH_OUTPUT_LAYER = ("ForMaskedLM", "ForPreTraining", TRANSLATION)
NEW_IN_HEADS = {  # modules that a pre-training checkpoint cannot give
    "ForSequenceClassification": {"classifier", "pooler", "head", "dense"},
    "ForTokenClassification": {"classifier", "head"},
    "ForQuestionAnswering": {"qa_outputs", "classifier", "head"},
    "ForMultipleChoice": {"classifier", "pooler", "head"},
}


class Case(NamedTuple):
    """A class of ours: that of a family, and what its name ends with."""

    family: str
    kind: str

    @property
    def cls(self) -> type[PreTrainedModel]:
        if self.kind == TRANSLATION:
            return HictlForConditionalGeneration
        [auto] = (auto for auto, kind in KINDS.items() if kind == self.kind)
        return getattr(transformers, auto)._model_mapping[CONFIGS[self.family]]

    def config(self, **changes: Any) -> Any:
        sizes = {"vocab_size": WORDS, "max_position_embeddings": 66, "initializer_range": 0.2, "num_hidden_layers": 2}
        ids = {"pad": PADDING, "bos": BEGIN, "eos": END, "cls": BEGIN, "sep": END, "mask": MASK}
        named = {f"{name}_token_id": number for name, number in ids.items()}
        more = {"modernbert": {"global_attn_every_n_layers": 2}, "xlm-roberta": {"decoder_layers": 1}}.get(
            self.family, {}
        )
        return CONFIGS[self.family](
            **{**SHAPES[self.family], **sizes, **named, **more, "word_negatives": 8, "num_labels": LABELS, **changes}
        )

    def new(self, **changes: Any) -> PreTrainedModel:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return self.cls(self.config(**changes)).eval()

    def inputs(self, row: int | None = None) -> dict[str, Tensor]:
        """A padded batch, or one of its rows without padding; where there is a choice, (rows, 2, tokens) each."""
        random = torch.Generator().manual_seed(0)
        ids = torch.randint(4, MASK, (len(LENGTHS), max(LENGTHS)), generator=random)
        mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
        ids = ids.masked_fill(mask == 0, PADDING)
        rows, tokens = (slice(None), slice(None)) if row is None else (slice(row, row + 1), slice(LENGTHS[row]))
        batch = {"input_ids": ids[rows, tokens], "attention_mask": mask[rows, tokens]}
        if self.kind == "ForMultipleChoice":
            other = torch.where(batch["attention_mask"] == 0, PADDING, MASK - 1 - batch["input_ids"] % 50)
            mask = batch["attention_mask"]
            return {
                "input_ids": torch.stack([batch["input_ids"], other], 1),
                "attention_mask": mask[:, None].repeat(1, 2, 1),
            }
        if self.kind == TRANSLATION:
            batch["decoder_input_ids"] = torch.randint(4, MASK, (len(LENGTHS), 4), generator=random)[rows]
        return batch

    def training_inputs(self) -> dict[str, Tensor]:
        """The batch with what each kind of head learns from."""
        batch = self.inputs()
        ids, mask = batch["input_ids"], batch["attention_mask"]
        tokens = ids.masked_fill(mask == 0, -100)
        labels = {
            "Model": {},
            "ForSequenceClassification": {"labels": torch.tensor([0, 1, 1])},
            "ForTokenClassification": {"labels": tokens.where(mask == 0, tokens % LABELS)},
            "ForQuestionAnswering": {f"{end}_positions": torch.tensor([1, 2, 0]) for end in ("start", "end")},
            "ForMultipleChoice": {"labels": torch.tensor([0, 1, 1])},
        }
        if self.kind == "ForPreTraining":
            sentences, masks = (torch.cat([each, each.roll(1, 0)]) for each in (ids, mask))
            more = {"sentence_input_ids": sentences, "sentence_attention_mask": masks, "bag": ids[:, :2]}
            return batch | more | {"labels": tokens, "example_seeds": torch.arange(len(ids))}
        if self.kind == TRANSLATION:
            return batch | {"labels": tokens[:, :4]}
        return batch | labels.get(self.kind, {"labels": tokens})


CASES = [Case(name, KINDS[auto]) for name in FAMILIES for auto in CONFIGS[name].code_on_the_hub if auto in KINDS]
CASES.append(Case("xlm-roberta", TRANSLATION))


def parametrized(cases: list[Case], slow: Collection[str] = ()) -> pytest.MarkDecorator:
    marked = [pytest.param(case, marks=pytest.mark.slow if case.kind in slow else ()) for case in cases]
    return pytest.mark.parametrize("case", marked, ids="-".join)


each_class = parametrized(CASES)
# of transformers' heads under another name the proofs are slow: their encoders have none of our code
each_class_of_ours = parametrized(CASES, slow=("ForMaskedLM", *NEW_IN_HEADS))
each_encoder_class = parametrized([case for case in CASES if case.kind != TRANSLATION])
classifiers = parametrized([case for case in CASES if case.kind == "ForSequenceClassification"], slow=NEW_IN_HEADS)
each_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def model_of() -> Callable[[Case], PreTrainedModel]:
    """`model_of(case)`: a model that no test changes."""
    made: dict[Case, PreTrainedModel] = {}
    return lambda case: made.get(case) or made.setdefault(case, case.new())


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory, model_of: Callable[[Case], PreTrainedModel]
) -> Callable[[Case], Path]:
    """`saved(case)`: the folder of that model."""
    made: dict[Case, Path] = {}

    def folder(case: Case) -> Path:
        if case not in made:
            made[case] = tmp_path_factory.mktemp("-".join(case))
            model_of(case).save_pretrained(made[case])
        return made[case]

    return folder


def parent_of(cls: type) -> Any:
    """transformers' class that a class of ours is made of."""
    return next(each for each in cls.__mro__ if each.__module__.startswith("transformers.models."))


def load(cls: Any, folder: Path, **settings: Any) -> tuple[PreTrainedModel, dict[str, set[str]]]:
    """The model, and the parts of its load report that are not empty."""
    model, report = cls.from_pretrained(folder, output_loading_info=True, **settings)
    return model, {name: set(keys) for name, keys in report.items() if keys}


def tensors_of(outputs: ModelOutput) -> dict[str, Any]:
    """The outputs without what is kept for the next token."""
    return {name: value for name, value in outputs.items() if name not in ("cache", "past_key_values")}


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def loss_of(case: Case, model: PreTrainedModel) -> Tensor:
    """The loss of a batch; of an encoder, a random sum of its states."""
    outputs = model(**case.training_inputs())
    if case.kind != "Model":
        return outputs.loss
    weights = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(2))
    return (outputs[0] * weights).sum()


def gradients_of(model: PreTrainedModel) -> dict[str, Tensor | None]:
    return {name: weight.grad for name, weight in model.named_parameters()}


# --- classes --------------------------------------------------------------------------------------------------------


@each_class_of_ours
def test_a_class_has_what_transformers_asks_of_one(case: Case, model_of: Callable[[Case], PreTrainedModel]) -> None:
    model, cls = model_of(case), case.cls
    assert pickle.loads(pickle.dumps(cls)) is cls and cls.config_class is CONFIGS[case.family]
    assert [*inspect.signature(cls.forward).parameters][1] == cls.main_input_name == "input_ids"
    blocks = {type(module).__name__ for module in model.modules()}
    assert {*model._no_split_modules} & blocks or case.family == "deberta-v2"  # of which transformers names none
    encoder = model.get_encoder() if case.kind == TRANSLATION else getattr(model, model.base_model_prefix, model)
    assert isinstance(encoder, case.cls if case.kind == "Model" else parent_of(Case(case.family, "Model").cls))
    words, output = model.get_input_embeddings(), model.get_output_embeddings()
    assert type(words) is nn.Embedding and words.num_embeddings == WORDS
    assert type(output) is nn.Linear if case.kind in WITH_OUTPUT_LAYER else output is None
    changed = copy.deepcopy(model)
    changed.set_input_embeddings(new := nn.Embedding(10, words.embedding_dim))
    assert changed.get_input_embeddings() is new and model.get_input_embeddings() is words


# --- saving and loading -------------------------------------------------------------------------------------------


def same_weights(found: PreTrainedModel, expected: PreTrainedModel) -> None:
    """All weights and saved buffers are equal, and the same of them are one tensor."""
    left, right = found.state_dict(), expected.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in right)
    shared = [
        {frozenset(name for name in state if state[name].data_ptr() == state[one].data_ptr()) for one in state}
        for state in (left, right)
    ]
    assert shared[0] == shared[1]


@each_class
def test_a_model_survives_saving_and_loading_twice(
    case: Case, model_of: Callable[[Case], PreTrainedModel], saved: Callable[[Case], Path], tmp_path: Path
) -> None:
    auto = {kind: auto for auto, kind in KINDS.items()}.get(case.kind, "AutoModelForSeq2SeqLM")
    model, report = load(getattr(transformers, auto), saved(case))
    assert type(model) is case.cls and report == {} and not model.training
    same_weights(model, model_of(case))
    places = json.loads((saved(case) / "config.json").read_text("utf-8"))["auto_map"]
    assert places[auto].split(".")[1] == case.cls.__name__
    assert {f"{place.split('.')[0]}.py" for place in places.values()} <= {
        path.name for path in saved(case).glob("*.py")
    }
    model.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 2
    again, report = load(case.cls, tmp_path)
    assert report == {} and again.dtype == torch.bfloat16
    same_weights(again, model)


# DeBERTa-v3's head has no weights that could be others than the word embeddings
@parametrized(
    [case for case in CASES if case.kind in WITH_OUTPUT_LAYER and case.family != "deberta-v2"], slow=("ForMaskedLM",)
)
def test_an_output_layer_need_not_be_tied(
    case: Case, model_of: Callable[[Case], PreTrainedModel], tmp_path: Path
) -> None:
    def layers(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
        words = (model.decoder if case.kind == TRANSLATION else model).get_input_embeddings()
        return model.get_output_embeddings().weight, words.weight

    assert case.family == "eurobert" or layers(model_of(case))[0] is layers(model_of(case))[1]
    model = case.new(tie_word_embeddings=False)
    output, words = layers(model)
    assert output is not words
    model.save_pretrained(tmp_path)
    loaded, report = load(case.cls, tmp_path)
    assert report == {}
    same_weights(loaded, model)
    loss_of(case, loaded).backward()
    assert all(weight.grad.any() for weight in layers(loaded))


@each_encoder_class
def test_heads_load_from_each_other_and_name_only_what_is_new(
    case: Case, model_of: Callable[[Case], PreTrainedModel], saved: Callable[[Case], Path]
) -> None:
    def same_encoder(one: PreTrainedModel, other: PreTrainedModel) -> None:
        left, right = (model.base_model.state_dict() for model in (one, other))
        common = [name for name in left if not name.startswith("pooler.")]
        assert common == [name for name in right if not name.startswith("pooler.")]
        assert all(torch.equal(left[name], right[name]) for name in common)

    source = Case(case.family, "ForPreTraining")
    model, report = load(case.cls, saved(source))
    same_encoder(model, model_of(source))
    new = {name.removeprefix(f"{model.base_model_prefix}.").split(".")[0] for name in report.pop("missing_keys", ())}
    assert report == {} and new <= NEW_IN_HEADS.get(case.kind, set())
    assert bool(new) == (case.kind in NEW_IN_HEADS)
    encoder, report = load(Case(case.family, "Model").cls, saved(case))
    same_encoder(encoder, model_of(case))
    assert {name.split(".")[0] for name in report.pop("unexpected_keys", ())} <= new and report == {}


@pytest.mark.usefixtures("full_of_garbage")
@each_class
def test_new_weights_are_those_of_transformers_also_where_a_checkpoint_lacks_them(
    case: Case, model_of: Callable[[Case], PreTrainedModel]
) -> None:
    assert torch.empty(3).isnan().all()  # garbage is seen
    made, loaded = model_of(case), case.cls.from_pretrained(None, config=case.config(), state_dict={})
    stock = (
        dict(made.named_parameters())
        if case.kind == TRANSLATION
        else dict(parent_of(case.cls)(case.config()).named_parameters())
    )
    for name, value in made.named_parameters():
        for other in (loaded.get_parameter(name), stock.get(name, value)):
            if (value == value.flatten()[0]).all():  # 0 or 1
                assert torch.equal(other, value), name
            else:
                assert 0.5 < other.std() / value.std() < 2, name
    for name, value in made.named_buffers():
        assert torch.equal(loaded.get_buffer(name), value), name


@classifiers
def test_weights_of_another_shape_are_refused_or_made_anew(case: Case, saved: Callable[[Case], Path]) -> None:
    with pytest.raises(RuntimeError):
        case.cls.from_pretrained(saved(case), num_labels=5)
    model = case.cls.from_pretrained(saved(case), num_labels=5, ignore_mismatched_sizes=True)
    assert model(**case.inputs()).logits.shape == (len(LENGTHS), 5)


# --- outputs ------------------------------------------------------------------------------------------------------


@each_class_of_ours
def test_outputs_are_named_or_a_tuple(case: Case, model_of: Callable[[Case], PreTrainedModel]) -> None:
    model = model_of(case)
    for inputs in (case.inputs(), case.training_inputs()):
        named = tensors_of(model(**inputs))
        as_tuple = [value for value in model(**inputs, return_dict=False) if isinstance(value, Tensor | tuple)]
        close(as_tuple, [*named.values()], 1e-6)


@each_class_of_ours
def test_hidden_states_and_attentions_are_those_of_every_layer(case: Case) -> None:
    model = case.new(attn_implementation="eager")
    layers, size, heads = (
        getattr(model.config, name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    asked = {"output_hidden_states": True, "output_attentions": True}
    outputs = model(**case.inputs(), **asked)
    prefix = "encoder_" if case.kind == TRANSLATION else ""
    states, attentions = outputs[f"{prefix}hidden_states"], outputs[f"{prefix}attentions"]
    mask = case.inputs()["attention_mask"].flatten(0, -2)
    rows, tokens = mask.shape
    assert [value.shape for value in states] == [(rows, tokens, size)] * (layers + 1)
    assert [value.shape for value in attentions] == [(rows, heads, tokens, tokens)] * layers
    for weights in attentions:
        real = weights.movedim(1, -1)[mask.bool()]  # (tokens that are no padding, tokens, heads)
        close(real.sum(1), torch.ones_like(real[:, 0]))
        assert not real.movedim(-1, 1)[:, :, mask[0] == 0].any()
        assert not weights[-1, :, :3, LENGTHS[-1] :].any()  # on padding
    by_configuration = case.new(attn_implementation="eager", **asked)(**case.inputs())
    close(tensors_of(by_configuration), tensors_of(outputs))
    states[0].retain_grad()
    attentions[0].retain_grad()
    next(value for value in outputs.values() if isinstance(value, Tensor)).flatten()[0].backward()
    assert states[0].grad.any() and attentions[0].grad is not None


def without_padding(case: Case, outputs: ModelOutput) -> dict[str, Tensor]:
    """The outputs of a batch, those of tokens (tokens, ...) without padding, whose states mean nothing."""
    mask = case.inputs()["attention_mask"].bool()
    return {
        name: value[mask] if value.shape[:2] == mask.shape else value
        for name, value in outputs.items()
        if isinstance(value, Tensor)
    }


@each_class_of_ours
def test_padding_and_neighbours_change_no_row(case: Case, model_of: Callable[[Case], PreTrainedModel]) -> None:
    model = model_of(case)
    rows = [model(**case.inputs(row)) for row in range(len(LENGTHS))]
    for name, together in without_padding(case, model(**case.inputs())).items():
        per_token = rows[0][name].shape[1:2] == LENGTHS[:1]
        alone = [row[name][0] if per_token else row[name] for row in rows]
        close(together, torch.cat(alone))


@each_class_of_ours
def test_other_ways_to_compute_give_the_same(case: Case, model_of: Callable[[Case], PreTrainedModel]) -> None:
    """Embeddings in place of ids; eager attention in place of sdpa; a feed-forward layer one token at a time."""
    model, inputs = model_of(case), case.inputs()
    expected = without_padding(case, model(**inputs))
    embedded = model.get_input_embeddings()(inputs.pop("input_ids"))
    rows = slice(1) if FAMILIES[case.family].positions_after_padding else slice(3)  # positions are those of ids
    found = model(inputs_embeds=embedded, **inputs)
    close(
        {name: value[rows] for name, value in found.items() if isinstance(value, Tensor)},
        {name: value[rows] for name, value in model(**case.inputs()).items() if isinstance(value, Tensor)},
    )
    for change in ({"attn_implementation": "eager"}, {"chunk_size_feed_forward": 1}):
        close(without_padding(case, case.new(**change)(**case.inputs())), expected)


def test_a_masked_language_model_is_compiled_in_one_graph(model_of: Callable[[Case], PreTrainedModel]) -> None:
    model = model_of(case := Case("bert", "ForPreTraining"))
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    close(compiled(**case.inputs()).logits, model(**case.inputs()).logits)


# --- training -----------------------------------------------------------------------------------------------------


@each_class_of_ours
def test_every_weight_is_trained_and_checkpointing_changes_no_gradient(case: Case) -> None:
    found = []
    for checkpointed in (False, True):
        model = case.new().train()
        if checkpointed:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        passes: list[int] = []
        layer = next(each for each in model.modules() if isinstance(each, GradientCheckpointingLayer))
        next(layer.children()).register_forward_hook(lambda *_, passes=passes: passes.append(1))
        torch.manual_seed(0)
        loss_of(case, model).backward()
        found.append((len(passes), gradients_of(model)))
    assert found[1][0] == 2 * found[0][0]
    close(found[1][1], found[0][1])
    # the bias of keys shifts all scores of a query alike, which softmax does not see
    gradients = {name: weight for name, weight in found[0][1].items() if not re.search(r"key(_proj)?\.bias", name)}
    shifted = ("ForQuestionAnswering", "ForMultipleChoice")  # as do the last biases with all scores
    least = 0 if case.kind in shifted else 1e-7
    assert [name for name, gradient in gradients.items() if gradient is None or gradient.abs().max() < least] == []


@each_class_of_ours
def test_a_vocabulary_grows_and_shrinks(case: Case, request: pytest.FixtureRequest) -> None:
    if case.family == "deberta-v2" and case.kind in WITH_OUTPUT_LAYER and not V3_HEAD_FAILS:
        fault = "transformers resizes `dense` of DeBERTa-v3's head, which it takes for the output layer"
        request.applymarker(pytest.mark.xfail(strict=True, raises=RuntimeError, reason=fault))
    model = case.new()
    expected = tensors_of(model(**case.inputs()))
    for size in (WORDS + 4, WORDS):
        words = model.resize_token_embeddings(size)
        assert words is model.get_input_embeddings() and words.num_embeddings == model.config.vocab_size == size
        if (output := model.get_output_embeddings()) is not None:
            assert output.out_features == size and (output.bias is None or len(output.bias) == size)
        for name, value in tensors_of(model(**case.inputs())).items():
            if isinstance(value, Tensor):
                close(value[..., :WORDS] if name == "logits" else value, expected[name])
        assert loss_of(case, model).isfinite()


@classifiers
@pytest.mark.parametrize("problem", ["regression", "single_label_classification", "multi_label_classification"])
def test_each_kind_of_label_is_learned_from(case: Case, problem: str) -> None:
    labels = {"regression": torch.tensor([0.5, 1.0, 0.0]), "single_label_classification": torch.tensor([0, 1, 1])}
    several = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    model = case.new(problem_type=problem, num_labels=1 if problem == "regression" else LABELS)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")  # it would be broadcast
        loss = model(**case.inputs(), labels=labels.get(problem, several)).loss
    loss.backward()
    assert loss > 0 and any(weight.grad.any() for weight in model.parameters() if weight.grad is not None)


# --- configurations -----------------------------------------------------------------------------------------------


@each_family
def test_a_configuration_survives_all_ways_to_save_it(family: str, tmp_path: Path) -> None:
    cls, config = CONFIGS[family], Case(family, "Model").config(id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1})
    (tmp_path / "sub").mkdir()
    config.save_pretrained(tmp_path / "sub")
    config.to_json_file(tmp_path / "one.json")
    by_folder, by_file = cls.from_pretrained(tmp_path, subfolder="sub"), cls.from_json_file(tmp_path / "one.json")
    assert config.to_dict() == by_folder.to_dict() == by_file.to_dict()
    assert (config.num_labels, config.label2id) == (2, {"a": 0, "b": 1})
    config.num_labels = 5
    assert len(config.id2label) == len(config.label2id) == 5
    assert pickle.loads(pickle.dumps(config)).to_dict() == copy.deepcopy(config).to_dict() == config.to_dict()


@each_family
def test_a_configuration_needs_no_argument_and_warns_of_nothing(
    family: str, transformers_warnings: pytest.LogCaptureFixture
) -> None:
    config = CONFIGS[family]()
    plain = getattr(transformers, f"{FAMILIES[family].prefix}Config")()
    assert not transformers_warnings.messages
    theirs, ours = plain.to_dict(), config.to_dict()
    assert {name for name in theirs if theirs[name] != ours[name]} <= {"model_type"}
    given = {
        "dtype": torch.float16,
        "output_hidden_states": True,
        "tie_word_embeddings": False,
        "problem_type": "regression",
    }
    assert all(getattr(CONFIGS[family](**given), name) == value for name, value in given.items())
