"""The tests that transformers runs on every model of its own, run on ours.

They are no part of the installed package. Give the folder that holds `tests/` of the same version, a source checkout or
a source distribution, which lacks the tests of generation and of export:

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
from torch import Tensor

from hictl_hf import (
    HictlConfig,
    HictlForConditionalGeneration,
    HictlForMaskedLM,
    HictlForPreTraining,
    HictlForQuestionAnswering,
    HictlForSequenceClassification,
    HictlForTokenClassification,
    HictlModel,
)

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

KINDS = {  # the tests know by the name of a class what it takes and gives; these are the names of ours
    "MODEL": HictlModel,
    "MODEL_FOR_MASKED_LM": HictlForMaskedLM,
    "MODEL_FOR_SEQUENCE_CLASSIFICATION": HictlForSequenceClassification,
    "MODEL_FOR_TOKEN_CLASSIFICATION": HictlForTokenClassification,
    "MODEL_FOR_QUESTION_ANSWERING": HictlForQuestionAnswering,
}
for kind, cls in {**KINDS, "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM": HictlForConditionalGeneration}.items():
    known = getattr(model_tests, f"{kind}_MAPPING_NAMES")
    setattr(model_tests, f"{kind}_MAPPING_NAMES", {**known, "hictl": cls.__name__})


class ToyInputs:
    """What the common tests ask of a model tester: its sizes, a configuration, and inputs."""

    is_training = True
    batch_size, seq_length = 3, 7
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def get_config(self) -> HictlConfig:
        return HictlConfig(
            vocab_size=99,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=37,
            max_position_embeddings=66,
            type_vocab_size=1,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[HictlConfig, dict[str, Tensor]]:
        words = torch.randint(4, 98, (self.batch_size, self.seq_length), device=model_tests.torch_device)
        mask = torch.ones_like(words)
        mask[1, -2:] = 0  # over words: embeddings given in place of ids cannot show where there is padding
        return self.get_config(), {"input_ids": words, "attention_mask": mask}

    def for_pretraining(self, words: Tensor) -> dict[str, Tensor]:
        """What `HictlForPreTraining` takes beside the common inputs to be trained with all of its losses."""
        sentences = torch.cat([words, words.flip(1)])
        seeds = torch.arange(self.batch_size, device=words.device)
        return {"labels": words, "bag": words, "sentence_input_ids": sentences, "example_seeds": seeds}


class HictlCommonTest(model_tests.ModelTesterMixin, unittest.TestCase):
    """All tests are inherited."""

    all_model_classes = (*KINDS.values(), HictlForPreTraining)

    def setUp(self) -> None:
        self.model_tester = ToyInputs()

    def _prepare_for_class(
        self, inputs_dict: dict[str, Any], model_class: type, return_labels: bool = False
    ) -> dict[str, Any]:
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        if return_labels and model_class is HictlForPreTraining:
            inputs |= self.model_tester.for_pretraining(inputs["input_ids"])
        return inputs

    def test_model_outputs_equivalence(self) -> None:
        """Without pre-training, whose tokens lie in one buffer: it refuses `output_hidden_states`."""
        self.all_model_classes = tuple(KINDS.values())
        super().test_model_outputs_equivalence()


class ToyTranslationInputs(ToyInputs):
    """The same with a target; the tests count as many decoder layers as there are in the encoder."""

    decoder_seq_length = ToyInputs.seq_length
    encoder_seq_length = key_length = 9
    cls_bias = "dot"

    def get_config(self) -> HictlConfig:
        config = super().get_config()
        config.is_encoder_decoder, config.decoder_layers, config.cls_bias = True, self.num_hidden_layers, self.cls_bias
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


class HictlConfigurationCommonTest(unittest.TestCase):
    def test_common(self) -> None:
        tester = configuration_tests.ConfigTester(self, config_class=HictlConfig, hidden_size=37)
        tester.run_common_tests()
