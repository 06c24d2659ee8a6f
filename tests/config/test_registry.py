"""Registries, names of classes, and the import of the user's files."""

from __future__ import annotations

import os
import sys
import types

import pytest

from ding_lite.config.registry import (
    ENV_REGISTRY,
    HOOK_REGISTRY,
    POLICY_REGISTRY,
    Registry,
    env_name,
    env_section,
    import_file,
    import_module,
    name_of,
)
from ding_lite.errors import ConfigError, DingLiteError, RegistryError
from ding_lite.run.hooks import EarlyStopping


class Red:
    class Dark:
        pass


class Blue:
    pass


@pytest.fixture
def registry():
    registry = Registry("colour")
    registry.register("red")(Red)
    registry.register("blue")(Blue)
    return registry


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder on ``sys.path`` whose modules are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_entry_is_found_by_name_by_import_path_or_is_given(registry):
    assert registry.get("red") is registry.get(Red) is Red
    assert registry.get(f"{__name__}:Red.Dark") is Red.Dark
    assert registry.names() == ["blue", "red"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rad", "did you mean 'red'?"),
        ("Blue", "did you mean 'blue'?"),
        ("xyz", "Registered: blue, red"),
        (3, "blue, red"),
        ("no_such_module:Red", "no_such_module"),
        (f"{__name__}:Redd", "Redd"),
        ("sys:exit.no", "no"),
    ],
)
def test_unknown_name_is_refused(registry, name, said):
    with pytest.raises(RegistryError) as caught:
        registry.get(name)
    assert said in str(caught.value)
    assert isinstance(caught.value, DingLiteError)
    assert caught.value.exit_code == 2


def test_name_is_registered_twice_only_for_a_class_that_is_defined_again(registry):
    with pytest.raises(RegistryError, match=r"twice: by \w+:Red and by \w+:Blue"):
        registry.register("red")(Blue)
    assert registry.get("red") is Red
    again = type("Red", (), {"__module__": Red.__module__, "__qualname__": Red.__qualname__})
    registry.register("red")(again)
    assert registry.get("red") is again


def test_class_of_another_kind_is_refused():
    for kind in (Red, "builtins:dict", len):
        with pytest.raises(RegistryError, match="no subclass of Policy"):
            POLICY_REGISTRY.get_class(kind)


def test_repeated_entries_have_names_of_their_own():
    items = ["early_stopping", {"type": "early_stopping", "patience": 3}]
    assert [(name, arguments) for name, _, arguments in HOOK_REGISTRY.named_choices(items)] == [
        ("early_stopping", {}),
        ("early_stopping 2", {"patience": 3}),
    ]


def test_classes_have_names_that_another_process_can_import(monkeypatch, tmp_path):
    assert name_of(Red) == f"{__name__}:Red"
    assert name_of(Red.Dark) == f"{__name__}:Red.Dark"
    assert name_of(EarlyStopping) == "early_stopping"
    assert name_of("any") == "any"
    own = type("Own", (), {"__module__": "__main__"})
    script = types.ModuleType("__main__")
    script.__file__, script.Own = str(tmp_path / "my_script.py"), own
    (tmp_path / "my_script.py").touch()
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert name_of(own) == "my_script:Own"
    assert Registry("thing").get("my_script:Own") is own  # and the script is not executed again
    script.__file__ = "<stdin>"
    assert name_of(own) == "__main__:Own"


def test_name_of_an_environment():
    assert env_section("CartPole-v1") == {"env_id": "CartPole-v1"}
    assert env_section("package:Id-v0") == {"env_id": "package:Id-v0"}
    assert env_section("package:Class") == {"type": "package:Class"}
    assert env_section(ENV_REGISTRY.names()[0]) == {"type": ENV_REGISTRY.names()[0]}
    assert env_name({"env_id": "CartPole-v1"}) == "CartPole-v1"
    assert env_name({"type": Red, "env_id": "CartPole-v1"}) == f"{__name__}:Red"


# ------------------------------------------------------------------ files


def test_file_is_imported_once_under_its_stem_and_again_when_it_has_changed(modules):
    file = modules / "folder" / "my_own_file.py"
    file.parent.mkdir()
    file.write_text("class One: ...\n")
    first = import_file(file)
    assert import_file(str(file)) is import_module("my_own_file") is import_module(str(file)) is first
    assert name_of(first.One) == "my_own_file:One"
    assert Registry("thing").get("my_own_file:One") is first.One
    file.write_text("class Two: ...\n")
    os.utime(file, ns=(1, 1))
    assert hasattr(import_file(file), "Two")
    assert not list(file.parent.glob("__pycache__"))


def test_file_with_the_name_of_a_module_is_refused_and_one_that_fails_leaves_nothing(modules):
    (modules / "json.py").write_text("")
    with pytest.raises(ConfigError, match="'json' is loaded already"):
        import_file(modules / "json.py")
    for folder in ("a", "b"):
        (modules / folder).mkdir()
        for name in (f"config_{folder}", "twin"):
            (modules / folder / f"{name}.py").write_text("")
    import_file(modules / "a/config_a.py")
    twin = import_module("twin")
    import_file(modules / "b/config_b.py")
    with pytest.raises(ConfigError, match="twin: .*a/twin.py is loaded already, not .*b/twin.py"):
        import_module("twin")
    import_file(modules / "a/config_a.py")
    assert import_module("twin") is twin
    (modules / "fails_here.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            import_file(modules / "fails_here.py")
    assert "fails_here" not in sys.modules
