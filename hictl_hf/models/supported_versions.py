"""The tested transformers releases, and checks that the functions and private methods used here still exist.

Most `forward` methods of transformers ignore unknown keyword arguments, and the override of a method that was renamed
is never called: both change results without an error. The checks raise an `ImportError` instead.
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
    """Warn, once per process, if the installed transformers is not one of the tested releases."""
    if Version(OLDEST) <= Version(version) <= Version(NEWEST):
        return
    warnings.warn(
        f"transformers {version} is outside of the releases that hictl_hf was tested with ({OLDEST} to {NEWEST}): "
        "results may be wrong without an error. Run `make test-versions` in a checkout of hictl_hf to test it, or "
        f"install a tested release: pip install 'transformers=={NEWEST}'",
        stacklevel=3,
    )


def not_supported(lack: str) -> ImportError:
    """Return the error for a transformers release without something that this package uses."""
    return ImportError(
        f"transformers {transformers.__version__} {lack}, which hictl_hf relies on; tested are the releases {OLDEST} "
        f"to {NEWEST}: pip install 'transformers=={NEWEST}'"
    )


def require_parameters(function: Callable[..., Any], *names: str) -> None:
    """Check that a function has parameters of these names; `**kwargs` does not count.

    Raises:
        ImportError: one is missing.
    """
    if missing := [name for name in names if name not in inspect.signature(function).parameters]:
        raise not_supported(f"has no argument {', '.join(missing)} of {function.__qualname__}")


def parameter_of(function: Callable[..., Any], *names: str) -> str:
    """Return the first of these names, newest first, that is a parameter of a function.

    Raises:
        ImportError: none is.
    """
    for name in names:
        if name in inspect.signature(function).parameters:
            return name
    raise not_supported(f"has no argument {' or '.join(names)} of {function.__qualname__}")


def overrides_private(base: type) -> Callable[[Method], Method]:
    """Decorate the override of a private method of another library; the override's docstring says why it is needed.

    Raises:
        ImportError: `base` no longer has the method, or its parameters have changed.
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
