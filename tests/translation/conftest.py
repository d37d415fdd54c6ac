"""Translation models for the tests of this folder: random ones, of which some are read in several test files."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlModel
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.decoding import translate

END = 2
SHORT = BeamSearchConfig(num_beams=3, max_length=9)


@pytest.fixture(scope="module")
def half_vocabulary_model(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> HictlForConditionalGeneration:
    """A model without training that can say every other word of the tokenizer."""
    words = [0, 1, 2, 3, *range(5, len(tokenizer) - 1, 2)]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return HictlForConditionalGeneration.from_encoder(
            model_for_text(HictlModel, initializer_range=0.3), words, ["de", "zh"], decoder_layers=2,
            cls_bias_scale="fixed", initializer_range=0.3,
        )  # fmt: skip


@pytest.fixture
def translator(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> HictlForConditionalGeneration:
    """A random translator into German and French that says something else of each sentence.

    Which seed makes one depends on the vocabulary that this release of sentencepiece trains.
    """
    changes = {"decoder_layers": 2, "target_languages": ["de", "fr"], "cls_bias_scale": "fixed"}
    for seed in range(20):
        made = model_for_text(HictlForConditionalGeneration, seed=seed, initializer_range=0.3, **changes)
        made.generation_config.update(suppress_tokens=[0, 1, 3, len(made.target_token_ids) - 1])
        with torch.no_grad():
            made.lm_head.weight[END].mul_(4)
            made.decoder.embeddings.position_embeddings.weight.mul_(4)
        some = ["the cat", "a dog", "the cat sees cold water", "两本书", "paka anaona nyumba", "the old man"]
        said = [best.text for best, *_ in translate(made, tokenizer, some, SHORT, "de", progress=False)]
        if len(set(said)) > 4 and "" not in said:
            return made
    raise AssertionError("no seed makes a model that says something else of each sentence")


@pytest.fixture
def translator_folder(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> str:
    translator.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture(scope="module")
def texts_to_translate(sentences: dict[str, list[str]]) -> list[str]:
    """Short and long ones mixed, with an empty one, one of spaces, and one that comes twice."""
    some = [sentences[name][at] for at in (0, 17, 40) for name in ("en", "zh", "sw")]
    return [some[0], "", *some[1:5], " \u3000", some[0], " ".join(some[:3]), *some[5:]]
