"""The transformers releases this code was tested with, and checks of what it uses of other libraries.

Most `forward`s of transformers swallow unknown keyword arguments, and a private method that was renamed is no longer
called: both change results without an error. The checks here turn that into an `ImportError`.
"""

import inspect
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import transformers
from packaging.version import Version

OLDEST, NEWEST = "5.18.0", "5.24.0"  # releases of transformers that the tests ran on
Method = TypeVar("Method", bound=Callable[..., Any])


@cache
def warn_if_untested(version: str = transformers.__version__) -> None:
    """Warn, once a process, if this transformers is outside of the tested releases."""
    if Version(OLDEST) <= Version(version) <= Version(NEWEST):
        return
    warnings.warn(
        f"transformers {version} is outside of the releases that hictl_hf was tested with ({OLDEST} to {NEWEST}): "
        "results may be wrong without an error. Check it by `make test-versions` in a checkout of hictl_hf, or "
        f"install a tested release: pip install 'transformers=={NEWEST}'",
        stacklevel=3,
    )


def not_supported(lack: str) -> ImportError:
    return ImportError(
        f"transformers {transformers.__version__} {lack}, which hictl_hf relies on; tested are the releases {OLDEST} "
        f"to {NEWEST}: pip install 'transformers=={NEWEST}'"
    )


def require_parameters(function: Callable[..., Any], *names: str) -> None:
    """Check that a function takes keyword arguments of these names by itself, not in its `**kwargs`.

    Raises:
        ImportError: it does not.
    """
    if missing := [name for name in names if name not in inspect.signature(function).parameters]:
        raise not_supported(f"has no argument {', '.join(missing)} of {function.__qualname__}")


def parameter_of(function: Callable[..., Any], *names: str) -> str:
    """The first of several names, newest first, that a function takes an argument under.

    Raises:
        ImportError: it has none of them.
    """
    for name in names:
        if name in inspect.signature(function).parameters:
            return name
    raise not_supported(f"has no argument {' or '.join(names)} of {function.__qualname__}")


def overrides_private(base: type) -> Callable[[Method], Method]:
    """Decorator of a method that overrides a private one of another library; its docstring says why.

    Raises:
        ImportError: `base` has no method of this name any more, or one with other arguments.
    """

    def check(method: Method) -> Method:
        overridden = getattr(base, method.__name__, None)
        if overridden is None:
            raise not_supported(f"has no {base.__name__}.{method.__name__}")
        own = inspect.signature(method).parameters.values()
        named = [each.name for each in own if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        require_parameters(overridden, *named)
        return method

    return check
