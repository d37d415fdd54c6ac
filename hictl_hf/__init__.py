"""HiCTL for the Hugging Face ecosystem: universal representations across languages (Wei et al., ICLR 2021).

Importing the package imports neither PyTorch nor transformers: the names of `__init__.pyi` are imported when they are
used, and the Auto classes and pipelines of transformers learn ours when they are imported, whichever comes first.
"""

from importlib import import_module
from types import ModuleType

import lazy_loader
from wrapt import when_imported

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


@when_imported("transformers.models.auto.configuration_auto")
def _register_configuration(auto: ModuleType) -> None:
    from .models.configuration_hictl import HictlConfig

    auto.AutoConfig.register(HictlConfig.model_type, HictlConfig)


# These modules register their classes as they are imported.
for _theirs, _ours in {
    "transformers.models.auto.modeling_auto": "models.modeling_hictl",
    f"{__name__}.models.modeling_hictl": "models.modeling_hictl_translation",
    "transformers.pipelines": "translation.pipeline",
}.items():
    when_imported(_theirs)(lambda _, name=f"{__name__}.{_ours}": import_module(name))
