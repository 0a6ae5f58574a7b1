"""A file imports only from lower floors, or from its own package without a circle.

Imports are read from the syntax of all files, wherever they stand: in an `__init__.py`, inside a
function, under `if TYPE_CHECKING`.
"""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT

import t5x_lite

PACKAGE = ROOT / "t5x_lite"
FLOORS = (
    {
        "cache",
        "errors",
        "config",
        "hardware",
        "machine",
        "manifest",
        "model_address",
        "locks",
        "progress",
        "signals",
        "storage",
        "terminal",
        "version",
        "workers",
    },
    {"data"},
    {"resolve"},
    {"parallel"},
    {"model"},
    {"training"},
    {"inference"},
    {"finetuning"},
    {"interop"},
    {"report"},
    {"planning"},
    {"comparison"},
    {"api"},
    {"pages"},
    {"commands"},
    {"__main__", "__init__"},
)
# What a newcomer reads: none of it imports what is above it.
CORE = ("config", "data", "resolve", "parallel", "model", "training", "inference", "finetuning")
# A package of one file each, without a folder: they may import each other, without a circle.
SINGLE_FILES = (FLOORS[0], FLOORS[-1])


def module_name(path: Path, root: Path) -> str:
    """t5x_lite.data.rng of t5x_lite/data/rng.py; t5x_lite.data.__init__ of its __init__.py."""
    return ".".join(path.relative_to(root).with_suffix("").parts)


def read_modules(package: Path) -> dict[str, ast.Module]:
    """The syntax of each module of a package."""
    paths = sorted(package.rglob("*.py"))
    return {module_name(path, package.parent): ast.parse(path.read_text()) for path in paths}


def named_modules(tree: ast.Module, name: str) -> set[str]:
    """All modules that a file's imports may name, those outside the package too."""
    named = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # from . import x
                base = ".".join([*name.split(".")[: -node.level], *filter(None, [node.module])])
            named.add(base)
            named |= {f"{base}.{alias.name}" for alias in node.names}
    return named


def imports(tree: ast.Module, name: str, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports.

    `from t5x_lite.data import rng` is of the module rng and not of the package that it stands in;
    `from t5x_lite.data.objectives import OBJECTIVES` is of the package's own file.
    """
    named = named_modules(tree, name)
    found = {module for module in named if module in modules}
    for package in named:
        own_file = f"{package}.__init__"
        beyond = {other for other in named if other.rpartition(".")[0] == package}
        is_module = {other in modules or f"{other}.__init__" in modules for other in beyond}
        if own_file in modules and is_module != {True}:
            found.add(own_file)
    return found - {name}


def floor(module: str) -> int:
    part = module.split(".")[1]
    return next(number for number, parts in enumerate(FLOORS) if part in parts)


def same_package(one: str, other: str) -> bool:
    parts = one.split(".")[1], other.split(".")[1]
    return parts[0] == parts[1] or any(set(parts) <= files for files in SINGLE_FILES)


def broken_rules(modules: dict[str, ast.Module]) -> list[str]:
    """Every import that goes up, or sideways, and every circle."""
    graph = {name: imports(tree, name, set(modules)) for name, tree in modules.items()}
    broken = [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if floor(other) >= floor(name) and not same_package(name, other)
    ]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        broken.append("a circle: " + " → ".join(error.args[1]))
    return broken


def test_imports_go_down():
    modules = read_modules(PACKAGE)
    assert len(modules) > 60
    assert {module.split(".")[1] for module in modules} == set().union(*FLOORS)
    assert broken_rules(modules) == []


def test_the_core_stands_alone():
    """The core imports no comparison, plan, page or interop."""
    highest = max(floor(f"t5x_lite.{part}") for part in CORE)
    above = set().union(*FLOORS[highest + 1 :])
    assert {"comparison", "planning", "interop", "report"} <= above


SMALL_PACKAGE = {
    "__init__.py": "",
    "__main__.py": "from t5x_lite import __version__, api",
    "api.py": "",
    "config.py": "from t5x_lite.errors import x",
    "errors.py": "",
    "data/__init__.py": "",
    "data/a.py": "from t5x_lite import config, errors",
    "data/rows/a.py": "",
    "model/__init__.py": "",
    "model/a.py": "from t5x_lite.model import b",
    "model/b.py": "",
    "inference/c.py": "",
    "interop/a.py": "",
}


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, None),
        ({"api.py": "from t5x_lite.model import b, VALUE"}, None),
        ({"data/rows/a.py": "import t5x_lite.model.b"}, "data.rows.a imports t5x_lite.model.b"),
        ({"data/rows/a.py": "from ...model import b"}, "data.rows.a imports t5x_lite.model.b"),
        ({"data/__init__.py": "from t5x_lite.model import b"}, "data.__init__ imports"),
        ({"data/a.py": "def f():\n    from t5x_lite.model.b import x"}, "data.a imports"),
        ({"data/a.py": "if TYPE_CHECKING:\n    from t5x_lite.model.b import x"}, "data.a imports"),
        ({"model/a.py": "import t5x_lite"}, "model.a imports t5x_lite.__init__"),
        ({"model/a.py": "from t5x_lite import __version__"}, "model.a imports t5x_lite.__init__"),
        ({"inference/c.py": "from t5x_lite.interop import a"}, "inference.c imports"),
        ({"interop/a.py": "from t5x_lite.inference import c"}, None),
        ({"config.py": "import t5x_lite.data.a"}, "config imports t5x_lite.data.a"),
        ({"model/b.py": "from t5x_lite.model import a"}, "a circle: "),
        ({"errors.py": "from t5x_lite import config"}, "a circle: "),
        (
            {
                "model/__init__.py": "from t5x_lite.model.a import x",
                "model/a.py": "from t5x_lite.model import VALUE",
            },
            "a circle: ",
        ),
    ],
)
def test_what_breaks_the_rule_is_found(tmp_path, changed, broken):
    """The test above, on a small package with one bad import."""
    for name, text in (SMALL_PACKAGE | changed).items():
        path = tmp_path / "t5x_lite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = broken_rules(read_modules(tmp_path / "t5x_lite"))
    if broken is None:
        assert found == []
    else:
        assert any(broken in rule for rule in found)


# What data/ and model/ never do.


def top_level(tree: ast.Module) -> set[str]:
    return {module.partition(".")[0] for module in named_modules(tree, "t5x_lite.x.y")}


def modules_of(part: str) -> dict[str, ast.Module]:
    modules = read_modules(PACKAGE)
    return {name: tree for name, tree in modules.items() if name.split(".")[1] == part}


def test_data_and_what_is_below_it_name_no_jax():
    for name, tree in read_modules(PACKAGE).items():
        if floor(name) <= floor("t5x_lite.resolve"):
            assert not top_level(tree) & {"jax", "jaxlib", "flax", "optax", "orbax", "grain"}, name


@pytest.mark.parametrize(
    "module",
    [
        "t5x_lite",
        "t5x_lite.config.files",
        "t5x_lite.data.rows.batches",
        "t5x_lite.data.rows.packing",
        "t5x_lite.data.store.prepare",
        "t5x_lite.data.text.sources",
        "t5x_lite.resolve",
        "t5x_lite.data.inspection",
        "t5x_lite.comparison.jobs",  # its processes choose their cores first
    ],
)
def test_importing_it_imports_no_jax(module):
    code = f"import sys, {module}; assert not {{'jax', 'grain'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_api_waits_for_statistics_only_where_it_compares():
    code = "import sys, t5x_lite.api; assert 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_model_opens_no_files():
    readers = {"open", "exec", "eval", "fromfile", "loadtxt", "memmap", "read_text", "read_bytes"}
    for name, tree in modules_of("model").items():
        outside = {"io", "os", "pathlib", "pickle", "shutil", "subprocess", "tempfile", "fsspec"}
        assert not top_level(tree) & outside, name
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not used & readers, name


def test_no_package_hides_a_function_of_the_same_name():
    """A package t5x_lite.compare would replace the function t5x_lite.compare when imported."""
    inside = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not inside & set(t5x_lite.__all__)
