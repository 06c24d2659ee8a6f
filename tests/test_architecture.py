"""The shape of the project: imports go down the layers, nothing is unsafe."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ding_lite.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ding_lite"
MAX_ENTRY_LINES, MAX_TOP_ENTRIES = 15, 16

BUILT = {"_configs", "_templates"}  # folders of an installed package

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


def files_of(*folders: str) -> list[Path]:
    files = [file for name in folders for file in sorted((ROOT / name).rglob("*.py"))]
    return [file for file in files if not BUILT.intersection(file.parts)]


LIBRARY = files_of("ding_lite")
CODE = [*LIBRARY, *files_of("configs", "entry", "examples", "templates", "benchmarks"), ROOT / "setup.py"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    """``ding_lite/rl/losses.py`` is ``ding_lite.rl.losses``; a package's ``__init__`` is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in LIBRARY}


def imported_modules(source: str, module: str, *, package: bool, modules: set[str]) -> set[str]:
    """Returns the library's modules that ``source`` imports, at its top or inside any function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, package)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                found.add(submodule if submodule in modules else base)
    return {name for name in found if name.split(".")[0] == "ding_lite"} - {module}


def _base(node: ast.ImportFrom, module: str, package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".") + ([""] if package else [])
    return ".".join([*parts[: -node.level], *([node.module] if node.module else [])])


def imports_of(path: Path) -> set[str]:
    package = path.name == "__init__.py"
    return imported_modules(path.read_text(), module_name(path), package=package, modules=MODULES)


def unit(module: str) -> str:
    """The layer entry of a module: its folder, or its own name at the top of the package."""
    return (module.split(".") + ["__init__"])[1]


def wrong_imports(module: str, imported: set[str]) -> set[str]:
    """Returns the imports that go up, or to another folder of the same layer."""
    own = unit(module)
    return {name for name in imported if unit(name) != own and LAYER[unit(name)] >= LAYER[own]}


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Returns the nodes that can reach themselves."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(graph.get(start, ()))
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += graph.get(node, ())
        return seen

    return {node for node in graph if node in reachable(node)}


# ------------------------------------------------------------------ layers


def test_top_of_the_library_is_small():
    entries = [entry for entry in PACKAGE.iterdir() if entry.is_dir() or entry.suffix == ".py"]
    names = {entry.stem for entry in entries if entry.name not in ("__pycache__", *BUILT)}
    assert names == set(LAYER)
    assert len(names) <= MAX_TOP_ENTRIES


def advice(module: str, name: str) -> str:
    """Returns what to do about a wrong import."""
    if name == "ding_lite":
        return f"{module} imports from ding_lite itself: name the module that defines it (ding_lite.run.load)"
    return f"{module} imports {name}, which is not in a lower layer (LAYERS): move one of them, or the code"


def test_imports_go_down_the_layers():
    wrong = {module_name(path): wrong_imports(module_name(path), imports_of(path)) for path in LIBRARY}
    assert [advice(module, name) for module, names in wrong.items() for name in sorted(names)] == []


def test_advice_about_a_wrong_import_names_the_way_out():
    assert "cli.norms imports from ding_lite itself: name the module" in advice("cli.norms", "ding_lite")
    assert "not in a lower layer" in advice("ding_lite.rl.losses", "ding_lite.run.pipeline")


def test_modules_do_not_import_each_other_in_a_circle():
    graph = {module_name(path): imports_of(path) for path in LIBRARY}
    assert circles(graph) == set()


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("policies.bad", "from ding_lite.run.pipeline import SerialPipeline", "run.pipeline"),
        ("policies.bad", "import ding_lite.run.build", "run.build"),
        ("policies.bad", "from ding_lite.run import pipeline", "run.pipeline"),
        ("policies.bad", "from ..run.pipeline import SerialPipeline", "run.pipeline"),
        ("policies.bad", "def f():\n    from ding_lite.run import pipeline", "run.pipeline"),
        ("policies.bad", "if True:\n    import ding_lite.cli.train as t", "cli.train"),
        ("policies.bad", "from ding_lite import SerialPipeline", ""),
        ("envs.bad", "from ding_lite.models.heads import BoxHead", "models.heads"),
        ("data.collector", "from ding_lite.policies.ppo import PPOPolicy", "policies.ppo"),
        ("errors", "from ding_lite.config.registry import Registry", "config.registry"),
    ],
)
def test_import_that_goes_up_is_found(module, source, wrong):
    module, wrong = f"ding_lite.{module}", f"ding_lite.{wrong}".rstrip(".")
    imported = imported_modules(source, module, package=False, modules=MODULES)
    assert wrong_imports(module, imported) == {wrong}


def test_import_that_goes_down_or_outside_is_let_through():
    source = (
        "import torch\nfrom ding_lite.rl import losses\nfrom . import base\n"
        "from ding_lite.config.schema import Key"
    )
    imported = imported_modules(source, "ding_lite.policies.good", package=False, modules=MODULES)
    assert imported == {"ding_lite.rl.losses", "ding_lite.policies.base", "ding_lite.config.schema"}
    assert wrong_imports("ding_lite.policies.good", imported) == set()


def test_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {"a", "b", "c"}


# ------------------------------------------------------------------ commands


def test_every_command_has_its_file_and_every_other_file_is_shared():
    files = {file.stem for file in (PACKAGE / "cli").glob("*.py")} - {
        "__init__",
        "main",
        "options",
        "signals",
    }
    assert files == {command.replace("-", "_") for command in COMMANDS}


def test_the_help_imports_nothing_heavy():
    code = (
        "import sys; from ding_lite.cli import main; main(['--help'])\n"
        "print([name for name in ('numpy', 'torch', 'gymnasium', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("\n[]\n"), f"a command file imports it at its top: {done.stderr}"


# ------------------------------------------------------------------ size


def test_every_file_says_what_it_is():
    assert [name_of(path) for path in CODE if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_entry_scripts_are_thin():
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in files_of("entry")}
    assert {name: length for name, length in lengths.items() if length > MAX_ENTRY_LINES} == {}


def test_entry_and_configs_are_not_packages():
    assert not (ROOT / "entry" / "__init__.py").exists()
    assert not (ROOT / "configs" / "__init__.py").exists()


# ------------------------------------------------------------------ safety


# Messages between a run and the workers that it has started itself, over a socket that they inherit.
MAY_UNPICKLE = {
    "ding_lite/envs/workers/vector_env.py",
    "ding_lite/envs/workers/worker.py",
}
PICKLES = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
RUNS_CODE = ("eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput", "__import__")


def unsafe_calls(source: str) -> Iterator[str]:
    """Yields every call that could run code out of data, as ``"line 3: eval"``."""
    tree = ast.parse(source)
    real = _real_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            said = {k.arg: k.value for k in node.keywords}
            for fault in _faults(f"{real.get(first, first)}{dot}{rest}", said):
                yield f"line {node.lineno}: {fault}"


def _real_names(tree: ast.AST) -> dict[str, str]:
    """Returns what imported names stand for: ``import pickle as p`` and ``from torch import load``."""
    real = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            real |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            real |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return real


def _faults(called: str, said: dict[str | None, ast.expr]) -> Iterator[str]:
    def is_constant(name: str, value: object) -> bool:
        return getattr(said.get(name), "value", None) is value

    library, method = called.split(".")[0], called.split(".")[-1]
    if called.removeprefix("builtins.") in RUNS_CODE:
        yield called
    if library in PICKLES and method in ("load", "loads", "Unpickler", "open"):
        yield called
    if called in ("torch.load", "torch.serialization.load") and not is_constant("weights_only", True):
        yield "torch.load without weights_only=True"
    if library in ("np", "numpy") and method == "load" and "allow_pickle" in said:
        yield "numpy.load with allow_pickle"
    if library == "yaml" and "load" in method and method != "safe_load":
        yield called
    if "shell" in said and not is_constant("shell", False):
        yield "shell=True"


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell():
    found = {name_of(p): list(unsafe_calls(p.read_text())) for p in CODE if name_of(p) not in MAY_UNPICKLE}
    assert {name: calls for name, calls in found.items() if calls} == {}


def test_workers_unpickle_and_do_nothing_else_of_that_kind():
    faults = {
        fault.split(": ")[1] for name in MAY_UNPICKLE for fault in unsafe_calls((ROOT / name).read_text())
    }
    assert faults == {"pickle.loads"}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(f)",
        "import pickle\npickle.loads(b)",
        "import pickle as p\np.loads(b)",
        "from pickle import loads\nloads(b)",
        "from pickle import Unpickler as U\nU(f)",
        "import joblib\njoblib.load(f)",
        "torch.load(f)",
        "from torch import load\nload(f)",
        "torch.load(f, weights_only=False)",
        "torch.load(f, weights_only=trusted)",
        "eval(text)",
        "exec(text)",
        "import builtins\nbuiltins.exec(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "subprocess.run(text, shell=wanted)",
        "np.load(f, allow_pickle=True)",
        "yaml.load(f)",
        "from yaml import unsafe_load\nunsafe_load(f)",
    ],
)
def test_unsafe_call_is_found(source):
    assert len(list(unsafe_calls(source))) == 1


def test_torch_load_is_called_in_one_place():
    """The explicit import of foreign weights, and nowhere else."""
    users = {name_of(path) for path in LIBRARY if "torch.load(" in path.read_text()}
    assert users == {"ding_lite/run/load.py"}


def test_safe_calls_are_let_through():
    source = (
        "model.eval()\ntorch.load(f, weights_only=True)\nast.literal_eval(text)\n"
        "subprocess.run(['git'], shell=False)\njson.load(f)\nre.compile(p)"
    )
    assert list(unsafe_calls(source)) == []


def test_only_the_registry_executes_a_file():
    """``import_file``, and nothing else."""
    words = ("runpy.", ".exec_module(", ".load_module(")
    users = {name_of(path) for path in CODE if any(word in path.read_text() for word in words)}
    assert users == {"ding_lite/config/registry.py"}


def test_configs_are_imported_by_nothing():
    stems = {path.stem for path in files_of("configs")} | {"configs"}
    importers = {}
    for path in [*CODE, *files_of("tests")]:
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
        wrong = {name for name in names if name.split(".")[0] in stems}
        if wrong:
            importers[name_of(path)] = wrong
    assert importers == {}


CONFIG_FILES = [path for path in files_of("configs") if not path.stem.endswith("_env")]


def test_config_files_are_one_plain_dict_each_and_import_nothing():
    assert [name_of(path) for path in CONFIG_FILES if not _is_one_dict(path.read_text())] == []


def _is_one_dict(source: str) -> bool:
    docstring, *rest = ast.parse(source).body
    targets = [ast.unparse(node.targets[0]) for node in rest if isinstance(node, ast.Assign)]
    return isinstance(docstring, ast.Expr) and len(rest) == 1 and targets == ["config"]


def test_a_config_file_that_imports_is_found():
    assert _is_one_dict('"""x"""\nconfig = dict()')
    assert not _is_one_dict('"""x"""\nimport os\nconfig = dict()')


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows which files belong to the project")
def test_no_file_of_the_project_is_large():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(files) > 100
    assert [file.name for file in files if file.is_file() and file.stat().st_size > 1_000_000] == []
