"""The shape of the project: imports go down the layers, and no file but a few named ones executes code."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ding_lite"
DATA = {"_configs", "templates"}  # of an installed package, and of `ding-lite new`

# A module may import from its own folder and from folders in lower layers, never from one beside it.
LAYERS = [
    {"errors", "trees"},
    {"ranks"},
    {"config", "rl"},
    {"envs", "models"},
    {"data"},
    {"fast"},
    {"policies"},
    {"run"},
    {"tools", "testing"},
    {"cli"},
    {"__init__", "__main__"},
]
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def files_of(*folders):
    files = [file for name in folders for file in sorted((ROOT / name).rglob("*.py"))]
    return [file for file in files if not DATA.intersection(file.parts)]


LIBRARY = files_of("ding_lite")
CODE = [*LIBRARY, *files_of("configs", "entry", "examples", "benchmarks"), ROOT / "setup.py"]


def name_of(path):
    return str(path.relative_to(ROOT))


def module_name(path):
    """``ding_lite/rl/losses.py`` is ``ding_lite.rl.losses``; a package's ``__init__`` is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in LIBRARY}


def imported_modules(source):
    """Returns the library's modules that ``source`` imports, at its top or inside any function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name.split(".")[0] == "ding_lite"}


def wrong_imports(module, source):
    """Returns the imports that go up, or to another folder of the same layer."""

    def unit(name):  # its folder, or its own name at the top of the package
        return (name.split(".") + ["__init__"])[1]

    own = unit(module)
    imported = imported_modules(source) - {module}
    return {name for name in imported if unit(name) != own and LAYER[unit(name)] >= LAYER[own]}


def test_each_module_has_its_layer():
    entries = [entry for entry in PACKAGE.iterdir() if entry.is_dir() or entry.suffix == ".py"]
    assert {entry.stem for entry in entries if entry.name not in ("__pycache__", *DATA)} == set(LAYER)


def test_imports_go_down_the_layers():
    wrong = {module: wrong_imports(module, path.read_text()) for module, path in MODULES.items()}
    assert {module: names for module, names in wrong.items() if names} == {}, "move one of them, or the code"


def test_modules_do_not_import_each_other_in_a_circle():
    left = {module: imported_modules(path.read_text()) - {module} for module, path in MODULES.items()}
    while ready := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in ready:
            del left[module]
    assert list(left) == []


@pytest.mark.parametrize(
    ("words", "users"),
    [
        (["torch.load("], {"ding_lite/run/load.py"}),  # with weights_only=True
        (["runpy.", ".exec_module(", ".load_module("], {"ding_lite/config/registry.py"}),
        (["allow_pickle"], set()),
    ],
)
def test_what_can_run_code_is_called_in_one_place(words, users):
    """Ruff's rules S find pickle, eval, exec and shells."""
    assert {name_of(path) for path in CODE if any(word in path.read_text() for word in words)} == users


def test_config_files_are_plain_dicts_and_import_nothing():
    for path in files_of("configs"):
        if not path.stem.endswith("_env"):
            docstring, *assigned = ast.parse(path.read_text()).body
            assert isinstance(docstring, ast.Expr), path
            assert {type(line) for line in assigned} == {ast.Assign}, path
            names = {ast.unparse(line.targets[0]) for line in assigned}
            assert "config" in names, path
            assert path.parent.name == "kinds" or names <= {"config", "environments"}, path


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows which files belong to the project")
def test_no_file_of_the_project_is_large():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(files) > 100
    assert [file.name for file in files if file.is_file() and file.stat().st_size > 1_000_000] == []
