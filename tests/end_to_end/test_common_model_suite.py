"""The tests that transformers runs on every model of its own, run on ours.

They are no part of the installed package. Give the folder that holds `tests/` of the same version, a source checkout or
a source distribution, which lacks the tests of generation and of export, and an empty `tests/__init__.py`:

    git clone --depth 1 --branch v5.24.0 https://github.com/huggingface/transformers ../transformers
    TRANSFORMERS_TESTS=../transformers pytest -m slow tests/end_to_end/test_common_model_suite.py
"""

import importlib
import os
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from toy_families import SHAPES, V3_HEAD_FAILS

from hictl_hf import HictlConfig, HictlForConditionalGeneration
from hictl_hf.models.configuration_hictl import CONFIGS, KINDS
from hictl_hf.models.families import FAMILIES
from hictl_hf.models.packing import PACKED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default::FutureWarning")]  # which one test expects

CHECKOUT = os.environ.get("TRANSFORMERS_TESTS", "")
if not CHECKOUT:
    pytest.skip("TRANSFORMERS_TESTS names no source checkout of transformers", allow_module_level=True)
if not (Path(CHECKOUT) / "tests/test_modeling_common.py").is_file():
    pytest.skip(f"TRANSFORMERS_TESTS={CHECKOUT} holds no tests/test_modeling_common.py", allow_module_level=True)
sys.path.insert(0, str(Path(CHECKOUT).resolve()))
for path, stand_in in {  # sub-folders that a source distribution leaves out
    "exporters/test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation/test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
    "utils/test_configuration_utils": {"config_common_kwargs": {}},
}.items():
    if not (Path(CHECKOUT) / f"tests/{path}.py").is_file():
        folder, file = path.split("/")
        importlib.import_module("tests")
        sys.modules[f"tests.{folder}"] = ModuleType(f"tests.{folder}")
        sys.modules[f"tests.{folder}.{file}"] = ModuleType(f"tests.{folder}.{file}")
        vars(sys.modules[f"tests.{folder}.{file}"]).update(stand_in)
configuration_tests = importlib.import_module("tests.test_configuration_common")
model_tests = importlib.import_module("tests.test_modeling_common")
generation_tests = importlib.import_module("tests.generation.test_utils")

SIZES = {"vocab_size": 99, "pad_token_id": 1, "num_hidden_layers": 2, "max_position_embeddings": 66}
FAILS_IN_TRANSFORMERS = {
    "deberta-v2": {
        "test_training_gradient_checkpointing_use_reentrant_true",  # layers share the norm of relative positions
        # resizing changes `dense` of its head, not the output layer
        *(set() if V3_HEAD_FAILS else {"test_resize_tokens_embeddings", "test_resize_embeddings_untied"}),
    }
}
TASKS = {  # the tests know by the name of a class what it takes and gives; these are the names of ours
    "Model": "MODEL",
    "ForMaskedLM": "MODEL_FOR_MASKED_LM",
    "ForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION",
    "ForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION",
    "ForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING",
    "ForMultipleChoice": "MODEL_FOR_MULTIPLE_CHOICE",
    "ForConditionalGeneration": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM",
}
for kind, mapping in TASKS.items():
    ours = {family.own_type: family.class_name(kind) for family in FAMILIES.values()}
    known = getattr(model_tests, f"{mapping}_MAPPING_NAMES")
    setattr(model_tests, f"{mapping}_MAPPING_NAMES", {**known, **ours})


class ToyInputs:
    """What the common tests ask of a model tester: its sizes, a configuration, and inputs."""

    is_training = True
    batch_size, seq_length, num_choices = 3, 7, 2

    def __init__(self, name: str = "xlm-roberta") -> None:
        self.name = name
        config = self.get_config()
        self.hidden_size, self.num_hidden_layers = config.hidden_size, config.num_hidden_layers
        self.num_attention_heads = config.num_attention_heads

    def get_config(self) -> Any:
        return CONFIGS[self.name](**{**SHAPES[self.name], **SIZES})

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Tensor]]:
        words = torch.randint(4, 98, (self.batch_size, self.seq_length), device=model_tests.torch_device)
        mask = torch.ones_like(words)
        mask[1, -2:] = 0  # over words: embeddings given in place of ids cannot show where there is padding
        return self.get_config(), {"input_ids": words, "attention_mask": mask}

    def for_pretraining(self, words: Tensor) -> dict[str, Tensor]:
        """What `HictlForPreTraining` takes beside the common inputs to be trained with all of its losses."""
        sentences = torch.cat([words, words.flip(1)])
        seeds = torch.arange(self.batch_size, device=words.device)
        return {"labels": words, "bag": words, "sentence_input_ids": sentences, "example_seeds": seeds}


class CommonTests(model_tests.ModelTesterMixin):
    """All tests are inherited."""

    family = "xlm-roberta"
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self) -> None:
        self.model_tester = ToyInputs(self.family)
        model_tests.global_rng.seed(0)  # of some inputs rotary positions differ by less than the test asks
        autos = sorted(CONFIGS[self.family].code_on_the_hub.keys() - {"AutoConfig"})  # AutoModel first
        classes = {KINDS[auto]: getattr(transformers, auto)._model_mapping[CONFIGS[self.family]] for auto in autos}
        self.pretraining = classes["ForPreTraining"]
        self.all_model_classes = tuple(classes.values())

    def _prepare_for_class(
        self, inputs_dict: dict[str, Any], model_class: type, return_labels: bool = False
    ) -> dict[str, Any]:
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        if return_labels and model_class is self.pretraining:
            inputs |= self.model_tester.for_pretraining(inputs["input_ids"])
        return inputs

    def test_model_outputs_equivalence(self) -> None:
        """Without pre-training, whose tokens lie in one buffer: it refuses `output_hidden_states`."""
        self.without_pretraining()
        super().test_model_outputs_equivalence()

    def test_sdpa_can_dispatch_non_composite_models(self) -> None:
        """Without pre-training of the families whose packed attention takes the place, and the name, of SDPA."""
        if self.pretraining(self.model_tester.get_config()).config._attn_implementation == PACKED:
            self.without_pretraining()
        super().test_sdpa_can_dispatch_non_composite_models()

    def without_pretraining(self) -> None:
        self.all_model_classes = tuple(cls for cls in self.all_model_classes if cls is not self.pretraining)

    def test_config(self) -> None:
        configuration_tests.ConfigTester(self, config_class=CONFIGS[self.family], hidden_size=36).run_common_tests()


for _name, _family in FAMILIES.items():  # HictlBertCommonTest
    _class = type(_family.class_name("CommonTest"), (CommonTests, unittest.TestCase), {"family": _name})
    for _test in FAILS_IN_TRANSFORMERS.get(_name, ()):
        setattr(_class, _test, unittest.skip("fails with transformers' own class")(getattr(_class, _test)))
    globals()[_class.__name__] = _class
del _class  # otherwise the last one would be collected twice


class ToyTranslationInputs(ToyInputs):
    """The same with a target; the tests count as many decoder layers as there are in the encoder."""

    decoder_seq_length = ToyInputs.seq_length
    encoder_seq_length = key_length = 9
    cls_bias = "dot"

    def get_config(self) -> HictlConfig:
        config: HictlConfig = super().get_config()
        config.is_encoder_decoder, config.decoder_layers, config.cls_bias = True, 2, self.cls_bias
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[HictlConfig, dict[str, Tensor]]:
        config, inputs = super().prepare_config_and_inputs_for_common()
        more = self.encoder_seq_length - self.seq_length
        source, mask = (torch.cat([value[:, :more], value], 1) for value in inputs.values())
        return config, {"input_ids": source, "attention_mask": mask, "decoder_input_ids": inputs["input_ids"].flip(1)}


class HictlTranslationCommonTest(
    model_tests.ModelTesterMixin, generation_tests.GenerationTesterMixin, unittest.TestCase
):
    """All tests are inherited; those of generation are in a source checkout only, not in a source distribution."""

    all_model_classes = (HictlForConditionalGeneration,)
    is_encoder_decoder = True

    def setUp(self) -> None:
        self.model_tester = ToyTranslationInputs()


class HictlTranslationWithCosineCommonTest(HictlTranslationCommonTest):
    def setUp(self) -> None:
        super().setUp()
        self.model_tester.cls_bias = "cosine"
