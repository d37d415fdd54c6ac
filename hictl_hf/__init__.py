"""HiCTL for the Hugging Face ecosystem: universal representations across languages (Wei et al., ICLR 2021).

Importing the package imports neither PyTorch nor transformers: the names of `__init__.pyi` are imported when they are
used. The Auto classes of transformers know our model types, whichever of the two is imported first.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import lazy_loader
from wrapt import when_imported

from .former_names import FormerModules

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _LazyConfig:
    """Stands for a configuration until it is used: importing our models while transformers is imported is a circle.

    The modules of our models, once imported, put the class itself in its place.
    """

    def __init__(self, model_type: str) -> None:
        self._model_type = model_type

    def _class(self) -> Any:
        return import_module(f"{__name__}.models.configuration_hictl").config_class(self._model_type)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._class(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._class()(*args, **kwargs)


MODEL_TYPES = (  # of models.families.FAMILIES
    "hictl", "hictl-xlm-roberta-xl", "hictl-bert", "hictl-modernbert", "hictl-eurobert", "hictl-deberta-v2",
)  # fmt: skip


@when_imported("transformers.models.auto.configuration_auto")
def _register_model_types(auto: ModuleType) -> None:
    for model_type in MODEL_TYPES:
        auto.CONFIG_MAPPING.register(model_type, _LazyConfig(model_type))


# Each of these modules registers its classes as it is imported; who has the configuration needs the models, too. They
# are imported with their package, before any other module of it, which they would find half imported.
for _first, _then in {
    f"{__name__}.models": "models.modeling_hictl",
    f"{__name__}.models.modeling_hictl": "models.modeling_hictl_translation",
    "transformers.pipelines": "translation.pipeline",
}.items():
    when_imported(_first)(lambda _, name=f"{__name__}.{_then}": import_module(name))

sys.meta_path.append(FormerModules())
