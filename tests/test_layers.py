"""Packages have an order, imports go down, what travels to the Hub needs nothing else (docs/architecture.md)."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hictl_hf"
LAYERS = (  # each imports from those before it; what stands in one line does not import each other
    "errors", "version", "former_names", "files", "processes", "dtypes", "models", "data", "other_names",
    "recipe_files", "parsing", "reports", "training", "hub", "embedding", "retrieval", "pretraining xtreme translation",
    "cli", "__main__",
)  # fmt: skip
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages.split()}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Level and name of each import, in functions too: (1, "losses") of `from .losses import x`, (0, "torch")."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)


def test_every_package_has_a_layer() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert found - {"__init__"} == LAYER.keys()


def test_the_page_says_the_same_order() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    block = re.search(r"^ {4}errors(?:.*\n)+?\n", page, re.MULTILINE)
    assert block and re.findall(r"\w+", block[0]) == [package for packages in LAYERS for package in packages.split()]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_go_down(path: Path) -> None:
    own = path.parts[0].removesuffix(".py")
    for level, name in imports(path):
        if not level:
            assert name.split(".")[0] != "hictl_hf", f"{name}: import within the package by `from .`"
        elif level == len(path.parts):  # of another package, or of a foundation module
            other = name.split(".")[0]
            assert LAYER[other] < LAYER[own], f"{own} imports {name}"
        else:
            assert (PACKAGE / path.parent / f"{name}.py").is_file(), "from .x import y, of modules of the same package"


def test_imports_are_found_at_all() -> None:
    found = list(imports(Path("models/objective.py")))
    assert (1, "losses") in found and (0, "torch") in found
    assert (2, "errors") in list(imports(Path("data/formats.py")))


def test_no_module_is_imported_in_a_circle() -> None:
    graph = {}
    for path in MODULES:
        near = {path.parent / f"{name}.py" for level, name in imports(path) if level == 1 and len(path.parts) > 1}
        far = {Path(*name.split(".")).with_suffix(".py") for level, name in imports(path) if level == len(path.parts)}
        graph[path] = near | far
    done: set[Path] = set()
    while ready := {path for path, needed in graph.items() if path not in done and needed <= done}:
        done |= ready
    assert sorted(graph.keys() - done) == []


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] == "models"], ids=str)
def test_files_that_travel_to_the_hub_need_nothing_else(path: Path) -> None:
    # packaging comes with transformers, flash_attn and triton are optional
    allowed = {"torch", "transformers", "huggingface_hub", "packaging", "flash_attn", "triton"}
    allowed |= sys.stdlib_module_names
    assert {name.split(".")[0] for level, name in imports(path) if not level} <= allowed
    assert {level for level, _ in imports(path)} <= {0, 1}, "flat siblings: sub-folders and `..` do not travel"
    # transformers looks for relative imports by their text, wherever it stands, and copies what it finds
    found = re.findall(r"(?:from|import)\s+\.(\w*)", (PACKAGE / path).read_text("utf-8"))
    assert sorted(found) == sorted(name for level, name in imports(path) if level), "one is in a docstring"


def test_no_public_name_hides_a_module() -> None:
    for stub in PACKAGE.glob("*/__init__.pyi"):
        public = {name for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)
                  for name in (alias.name for alias in node.names)}  # fmt: skip
        assert public and not public & {path.stem for path in stub.parent.glob("*.py")}
