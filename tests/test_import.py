"""`import hictl_hf` imports little; transformers' Auto classes and pipelines know ours in any order of imports."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hictl_hf
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation.pipeline import TASK

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "datasets", "numpy"}
LOADED = "assert type(AutoModel.from_pretrained(folder)).__module__ == 'hictl_hf.models.modeling_hictl'"
GENERATES = "assert type(AutoModelForSeq2SeqLM.from_pretrained(other)).__name__ == 'HictlForConditionalGeneration'"
PIPE = f"assert pipeline({TASK!r}, other, target_language='de')('the cat', max_length=3)"
ORDERS = {
    "ours first": f"import hictl_hf; from transformers import AutoModel; {LOADED}",
    "transformers first": f"import transformers; import hictl_hf; from transformers import AutoModel; {LOADED}",
    "Auto class first": f"from transformers import AutoModel; import hictl_hf; {LOADED}",
    "configuration alone": """
import hictl_hf; from transformers import AutoConfig
assert not any(name.startswith("hictl_hf.models") for name in sys.modules)
assert type(AutoConfig.from_pretrained(folder)) is hictl_hf.HictlConfig
assert type(AutoConfig.for_model("hictl")) is hictl_hf.HictlConfig
""",
    "the model that ours extends": f"import hictl_hf; from transformers import XLMRobertaModel, AutoModel; {LOADED}",
    "a configuration of ours": """
from transformers import AutoModel; import hictl_hf
assert type(AutoModel.from_config(hictl_hf.HictlConfig.from_pretrained(folder))) is hictl_hf.HictlModel
""",
    "configuration first": """
from transformers import AutoConfig; import hictl_hf
assert type(AutoConfig.from_pretrained(folder)) is hictl_hf.HictlConfig
""",
    "a module of ours": f"""
from hictl_hf.models.modeling_hictl import HictlModel; from transformers import AutoModel, AutoModelForSeq2SeqLM
{LOADED}; {GENERATES}
""",
    "the last module of ours": f"""
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from transformers import AutoModel, AutoModelForSeq2SeqLM
{LOADED}; {GENERATES}
""",
    "pipeline of transformers": """
import hictl_hf; from transformers import pipeline
assert pipeline("fill-mask", folder)("the <mask>")
""",
    "our pipeline": f"import hictl_hf; from transformers import pipeline; {PIPE}",
    "our pipeline, transformers first": f"from transformers import pipeline; import hictl_hf; {PIPE}",
    "a spawned worker": """
import multiprocessing, operator
import hictl_hf
if __name__ == "__main__":
    config = hictl_hf.HictlConfig.from_pretrained(folder)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(operator.attrgetter("model_type"), [config]) == "hictl"
        assert pool.apply(hictl_hf.HictlModel, [config]).config.hidden_size == config.hidden_size
""",
}
SLOW = {
    "transformers first", "Auto class first", "the model that ours extends", "configuration first",
    "the last module of ours", "our pipeline, transformers first", "a spawned worker", "configuration alone",
    "a module of ours",
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Path]:
    """A pre-training checkpoint, and a translation model."""
    folders = [tmp_path_factory.mktemp(name) for name in ("encoder", "translation")]
    model_for_text().save_pretrained(folders[0])
    model_for_text(HictlForConditionalGeneration, target_languages=["de", "fr"]).save_pretrained(folders[1])
    for folder in folders:
        tokenizer.save_pretrained(folder)
    return folders


@pytest.mark.parametrize(
    "order", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in ORDERS], ids=str
)
def test_auto_classes_know_ours_in_any_order_of_imports(order: str, folders: list[Path], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nfolder, other = {list(map(str, folders))}\n{ORDERS[order]}", "utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", ["import hictl_hf", "import hictl_hf; hictl_hf.__version__; dir(hictl_hf)"])
def test_the_import_waits_for_no_library(code: str) -> None:
    command = [sys.executable, "-c", f"import sys; {code}; print({HEAVY} & set(sys.modules))"]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout == "set()\n"


IMPORT_EACH_FIRST = """
import os, sys, pkgutil, importlib, importlib.util
import datasets, torch, transformers.trainer, transformers.models.xlm_roberta.modeling_xlm_roberta
import hictl_hf
assert not [name for name in sys.modules if name.startswith("hictl_hf.models")]
names = [module.name for module in pkgutil.walk_packages(hictl_hf.__path__, "hictl_hf.") if module.name.count(".") > 1]
assert "hictl_hf.models.outputs" in names
for name in names:
    if not name.startswith(f"hictl_hf.{sys.argv[1]}."):
        continue
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException as error:
            if name == "hictl_hf.models.short_rows" and importlib.util.find_spec("triton") is None:
                os._exit(0)  # PyTorch for a CPU does not bring Triton
            print(name, type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("package", ["pretraining", pytest.param("models", marks=pytest.mark.slow)])
def test_any_module_can_be_the_first_that_is_imported(package: str) -> None:
    command = [sys.executable, "-c", IMPORT_EACH_FIRST, package]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_name_can_be_imported() -> None:
    assert "HictlForPreTraining" in hictl_hf.__all__ and set(hictl_hf.__all__) <= set(dir(hictl_hf))
    for name in hictl_hf.__all__:
        assert getattr(hictl_hf, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        hictl_hf.no_such_name  # noqa: B018
