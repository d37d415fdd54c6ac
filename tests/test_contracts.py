"""What is private in other libraries and used here is as it was: a change fails here before it changes a result.

Each use has a line why. Overrides have it in their docstring, and `overrides_private` checks them at import, too.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sacrebleu.significance
import torch
from sacrebleu.metrics.base import Metric
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationMixin,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    XLMRobertaConfig,
    XLMRobertaModel,
    XLMRobertaPreTrainedModel,
)
from transformers.cache_utils import Cache, DynamicLayer
from transformers.dynamic_module_utils import get_imports
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaAttention, XLMRobertaLayer

import hictl_hf
from hictl_hf.models.generation import CACHE

PACKAGE = Path(hictl_hf.__file__).parent


class Used(NamedTuple):
    """A private method or function: whose it is, its parameters, and why there is no public way, if not said there."""

    owner: Any
    parameters: str
    why: str = ""


OVERRIDDEN = {
    "_get_grad_norm": Used(Trainer, "self model grad_norm"),
    "_get_train_sampler": Used(Trainer, "self train_dataset"),
    "_init_weights": Used(PreTrainedModel, "self module"),
    "_load_optimizer_and_scheduler": Used(Trainer, "self checkpoint"),
    "_prepare_generation_config": Used(GenerationMixin, "self generation_config kwargs"),
    "_prepare_text_encoder_decoder_kwargs_for_generation": Used(
        GenerationMixin, "self inputs_tensor model_kwargs model_input_name generation_config"
    ),
    "_resize_token_embeddings": Used(PreTrainedModel, "self new_num_tokens pad_to_multiple_of mean_resizing"),
    "_run_epoch": Used(
        Trainer,
        "self model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial ignore_keys_for_eval "
        "start_time resume_from_checkpoint epochs_trained steps_trained_in_current_epoch",
    ),
    "_save_checkpoint": Used(Trainer, "self model trial"),
    "_save_optimizer_and_scheduler": Used(Trainer, "self output_dir"),
}
ABSTRACT = {
    "_forward": Used(Pipeline, "self input_tensors forward_parameters", "each pipeline has to define it"),
    "_sanitize_parameters": Used(Pipeline, "self pipeline_parameters", "each pipeline has to define it"),
}
CALLED = {
    "_bootstrap_resample": Used(
        sacrebleu.significance, "stats metric n_samples", "PairedTest gives no interval of a difference"
    ),
    "_extract_corpus_statistics": Used(Metric, "self hypotheses references", "what _bootstrap_resample takes"),
    "_flash_attention_forward": Used(torch.ops.aten, "", "`varlen_attn`, its wrapper, has no dropout"),
    "_get_output_dir": Used(Trainer, "self trial", "where checkpoints are in a hyper-parameter search"),
    "_int_mm": Used(torch, "", "PyTorch's one product of int8 matrices"),
    "_load_rng_state": Used(Trainer, "self checkpoint", "the random state of a checkpoint, after the skipped batches"),
}
ATTRIBUTES = {
    "_actions": "argparse has no list of its arguments",
    "_attn_implementation": "config's one name of the attention in use",
    "_backward_hooks": "as _forward_hooks, for a product of several layers at once",
    "_backward_pre_hooks": "as _backward_hooks",
    "_forward_hooks": "whether somebody hooked the embeddings, whose gradient is then not shared",
    "_forward_params": "settings given when a pipeline was made",
    "_forward_pre_hooks": "as _forward_hooks",
    "_globalstep_last_logged": "what the logged loss is divided by: a skipped step does not count",
    "_hf_hook": "accelerate has no public way to ask where offloaded weights are computed with",
    "_last_lr": "what get_last_lr returns; a schedule sets it by steps only",
    "_tr_loss": "the loss that is logged next: a skipped step does not count",
}
CLASS_SETTINGS = {
    "_keys_to_ignore_on_load_missing": PreTrainedModel,
    "_keys_to_ignore_on_load_unexpected": PreTrainedModel,
    "_load_feature_extractor": Pipeline,
    "_load_image_processor": Pipeline,
    "_load_processor": Pipeline,
    "_load_tokenizer": Pipeline,
    "_tied_weights_keys": PreTrainedModel,
}
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace", "_exit"}  # public ones, and os._exit


def nodes() -> Iterator[ast.AST]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield from ast.walk(ast.parse(path.read_text("utf-8")))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_nothing_private_is_used_that_is_not_listed_here() -> None:
    defined: set[str] = set()
    used: set[str] = set()
    for node in nodes():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            used |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            own = [target for target in node.targets if isinstance(target, ast.Attribute)]
            defined |= {at.attr for at in own if isinstance(at.value, ast.Name) and at.value.id == "self"}
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert "._" not in (node.module or ""), node.module
            used |= {alias.name for alias in node.names}
    foreign = {name for name in used if is_private(name)} - NAMED_TUPLES
    listed = {*OVERRIDDEN, *ABSTRACT, *CALLED, *ATTRIBUTES, *CLASS_SETTINGS}
    assert foreign - defined <= listed
    assert {*CALLED, *ATTRIBUTES} <= foreign, "listed and not used any more"


def test_each_private_override_says_why_and_is_listed() -> None:
    found = {}
    for node in nodes():
        if isinstance(node, ast.FunctionDef):
            decorators = [ast.unparse(each) for each in node.decorator_list]
            if any(each.startswith("overrides_private(") for each in decorators):
                found[node.name] = ast.get_docstring(node)
            else:
                bases = (Trainer, PreTrainedModel, XLMRobertaModel, GenerationMixin)
                inherited = is_private(node.name) and any(hasattr(base, node.name) for base in bases)
                assert not inherited, f"{node.name} is private in transformers; decorate it by overrides_private"
    assert found.keys() == OVERRIDDEN.keys()
    assert [name for name, docstring in found.items() if len(docstring or "") < 40] == []


@pytest.mark.parametrize("name", [*OVERRIDDEN, *ABSTRACT, *CALLED])
def test_private_methods_have_the_parameters_they_had(name: str) -> None:
    used = {**OVERRIDDEN, **ABSTRACT, **CALLED}[name]
    function = getattr(used.owner, name)
    if used.owner not in (torch, torch.ops.aten):  # builtins, without a signature
        assert " ".join(inspect.signature(function).parameters) == used.parameters
    assert used.why or name in OVERRIDDEN


@pytest.mark.parametrize("name", CLASS_SETTINGS)
def test_settings_of_classes_are_still_read(name: str) -> None:
    assert hasattr(CLASS_SETTINGS[name], name)


def test_private_attributes_are_still_there(tmp_path: Path) -> None:
    config = XLMRobertaConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    model = XLMRobertaModel(config, add_pooling_layer=False)
    assert isinstance(config, PreTrainedConfig) and config._attn_implementation in ("sdpa", "eager")
    for hooks in (model._forward_hooks, model._forward_pre_hooks, model._backward_hooks, model._backward_pre_hooks):
        assert hooks == {}
    assert argparse.ArgumentParser()._actions
    trainer = Trainer(model, TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"))
    source = inspect.getsource(Trainer)
    for name in ("_tr_loss", "_globalstep_last_logged"):
        assert f"self.{name} = " in source, f"Trainer does not set {name} any more"
    by_call, by_run = (
        "self.state.global_step - self._initial_global_step" in source,
        "/ effective_global_step" in source,
    )
    assert by_call != by_run, "what train_loss is divided by: steps of this call, or of the run"
    assert hasattr(trainer, "model_accepts_loss_kwargs")
    assert {"prepare_model", "clip_grad_norm_", "autocast_handler", "scaler"} <= {*dir(trainer.accelerator)}
    trainer.create_optimizer_and_scheduler(num_training_steps=2)
    trainer.lr_scheduler._last_lr = [0.5]
    assert trainer.lr_scheduler.get_last_lr() == [0.5]


def test_the_attention_kernels_of_pytorch_take_what_they_are_given() -> None:
    """Chosen on a GPU only, where `tests/end_to_end/on_pretended_gpu.py` calls them."""
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask scale"
    assert [argument.name for argument in schema.arguments][:11] == names.split()
    assert schema.returns[0].type.kind() == "TensorType"
    assert {"window_size_left", "window_size_right"} <= {argument.name for argument in schema.arguments}


def test_what_is_passed_through_xlm_r_reaches_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed rows travel in `**kwargs` from the model to the attention block of each layer."""
    seen: list[Any] = []
    forward = XLMRobertaAttention.forward

    def attend(block: XLMRobertaAttention, hidden_states: Any, *args: Any, packed_rows: Any, **kwargs: Any) -> Any:
        seen.append(packed_rows)
        return forward(block, hidden_states, *args, **kwargs)

    monkeypatch.setattr(XLMRobertaAttention, "forward", attend)
    config = XLMRobertaConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=2, num_attention_heads=1, intermediate_size=4
    )
    passed = object()
    XLMRobertaModel(config, add_pooling_layer=False).eval()(torch.tensor([[4, 5]]), packed_rows=passed)
    assert seen == [passed, passed]


def test_the_attention_block_of_xlm_r_has_the_parts_it_had() -> None:
    """`PackedAttention` computes queries, keys and values by these, and the block's output by `output`."""
    config = XLMRobertaConfig(hidden_size=8, num_attention_heads=2, attention_probs_dropout_prob=0.2)
    block = XLMRobertaAttention(config)
    assert block.self.attention_head_size == 4 and block.self.dropout.p == 0.2
    assert {name for name, _ in block.self.named_children()} == {"query", "key", "value", "dropout"}
    assert [*inspect.signature(block.output.forward).parameters] == ["hidden_states", "input_tensor"]


def test_the_layers_of_xlm_r_are_called_as_they_were() -> None:
    """What is hooked or called layer by layer: states come first and by position, and there are no others to give."""
    first, second = [*inspect.signature(XLMRobertaLayer.forward).parameters][1:3]
    assert (first, second) == ("hidden_states", "attention_mask")
    assert [*inspect.signature(XLMRobertaAttention.forward).parameters][1] == "hidden_states"
    source = inspect.getsource(XLMRobertaLayer.forward)
    assert "self.attention(\n            hidden_states," in source
    assert [*inspect.signature(create_bidirectional_mask).parameters][:3] == [
        "config", "inputs_embeds", "attention_mask",
    ]  # fmt: skip
    assert XLMRobertaPreTrainedModel._supports_attention_backend


def test_caches_are_what_beam_search_takes_them_for() -> None:
    assert [*inspect.signature(DynamicLayer.update).parameters][:3] == ["self", "key_states", "value_states"]
    assert [*inspect.signature(DynamicLayer.lazy_initialization).parameters] == ["self", "key_states", "value_states"]
    assert "layer_class_to_replicate" in inspect.signature(Cache).parameters
    both = EncoderDecoderCache(DynamicCache(), DynamicCache())
    assert both.self_attention_cache.get_seq_length() == 0 and hasattr(both.cross_attention_cache, "layers")
    assert CACHE in inspect.signature(XLMRobertaModel.forward).parameters
    assert CACHE in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters


@pytest.mark.parametrize("path", sorted(Path(hictl_hf.__file__).parent.glob("models/*.py")), ids=lambda path: path.stem)
def test_code_of_a_checkpoint_names_no_package_that_users_may_lack(path: Path) -> None:
    """transformers refuses remote code with an import statement, wherever it is, of a package that is not installed."""
    own = {"lazy_loader"} if path.stem == "__init__" else set()  # not copied
    needed_by_transformers = {"huggingface_hub", "packaging"}
    assert set(get_imports(path)) <= {"torch", "transformers", *needed_by_transformers, *own, *sys.stdlib_module_names}
