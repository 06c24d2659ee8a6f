"""The registry: names, import paths, and messages that help."""

import importlib
import math
import re
import sys
import types

import pytest

from ding_lite.config.registry import ENCODER_REGISTRY, ENV_REGISTRY, Registry, modules_to_import
from ding_lite.errors import DingLiteError, RegistryError


class Red:
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
def late(monkeypatch, tmp_path):
    """A registry with a module, imported at the first lookup, that registers the name "own"."""
    registry = Registry("thing", modules=("things_of_the_registry_test",))
    holder = types.ModuleType("holder_of_the_registry_test")
    holder.registry = registry
    monkeypatch.setitem(sys.modules, holder.__name__, holder)
    monkeypatch.delitem(sys.modules, "things_of_the_registry_test", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "things_of_the_registry_test.py").write_text(
        "from holder_of_the_registry_test import registry\n\n\n"
        '@registry.register("own")\nclass Own:\n    pass\n'
    )
    return registry


def message(registry, name):
    with pytest.raises(RegistryError) as caught:
        registry.get(name)
    return str(caught.value)


def test_registered_class_is_found_by_its_name(registry):
    assert registry.get("red") is Red
    assert registry.get("blue") is Blue


def test_decorator_returns_the_class_itself():
    assert Registry("colour").register("red")(Red) is Red


def test_function_can_be_registered(registry):
    @registry.register("make_green")
    def make_green():
        return "green"

    assert registry.get("make_green")() == "green"


def test_names_are_sorted(registry):
    assert registry.names() == ["blue", "red"]


def test_membership_is_by_name(registry):
    assert "red" in registry
    assert "green" not in registry


def test_unknown_name_suggests_the_closest_and_lists_all(registry):
    text = message(registry, "bleu")
    assert "no colour named 'bleu'" in text
    assert "Did you mean 'blue'?" in text
    assert "Registered: blue, red" in text


def test_name_like_no_other_gets_the_list_without_a_suggestion(registry):
    text = message(registry, "zzzzzz")
    assert "Did you mean" not in text
    assert "blue, red" in text
    assert "package.module:Name" in text


@pytest.mark.parametrize(("name", "suggested"), [("blue_green", False), ("dark_blue", False), ("buel", True)])
def test_name_with_more_words_is_no_misspelling(registry, name, suggested):
    assert ("Did you mean 'blue'?" in message(registry, name)) == suggested


def test_duplicate_name_is_refused_naming_both_places(registry):
    with pytest.raises(RegistryError) as caught:
        registry.register("red")(Blue)
    text = str(caught.value)
    assert "colour 'red' is registered twice" in text
    assert f"{__name__}.Red" in text
    assert f"{__name__}.Blue" in text
    assert text.count("test_registry.py:") == 2
    assert "force=True" in text


def test_refused_duplicate_leaves_the_first_in_place(registry):
    with pytest.raises(RegistryError):
        registry.register("red")(Blue)
    assert registry.get("red") is Red


def test_duplicate_of_a_builtin_function_is_refused_too(registry):
    registry.register("root")(math.sqrt)
    with pytest.raises(RegistryError, match="math.sqrt and by math.cbrt"):
        registry.register("root")(math.cbrt)


def test_force_replaces_the_entry(registry):
    registry.register("red", force=True)(Blue)
    assert registry.get("red") is Blue


def test_same_class_may_be_registered_twice(registry):
    registry.register("red")(Red)
    assert registry.get("red") is Red


def test_reimported_module_replaces_its_own_entry(late):
    first = late.get("own")
    del sys.modules["things_of_the_registry_test"]
    second = late.get("own")
    assert second is first
    late.names()
    assert late.get("own") is not first
    assert late.get("own").__qualname__ == "Own"


def test_import_path_is_found_without_registration(registry):
    assert registry.get("collections:OrderedDict").__name__ == "OrderedDict"


def test_import_path_may_go_into_a_class(registry):
    assert registry.get("collections:OrderedDict.fromkeys")("ab") == {"a": None, "b": None}


def test_module_that_ends_the_program_is_an_error_with_its_line(registry, tmp_path, monkeypatch):
    (tmp_path / "ends_here.py").write_text("import sys\n\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "'ends_here:Thing' cannot be imported: SystemExit: 0 (at ends_here.py:3)" in message(
        registry, "ends_here:Thing"
    )


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (
            "no_such_module_here:Thing",
            "No module named 'no_such_module_here'. Is its folder on the Python path?",
        ),
        (
            "collections:OrderedDic",
            "module 'collections' has no attribute 'OrderedDic'; did you mean 'OrderedDict'?",
        ),
        ("collections:OrderedDict.fromkey", "has no attribute 'fromkey'; did you mean 'fromkeys'?"),
        ("collections:Xyzzy", "module 'collections' has no attribute 'Xyzzy'; looked in .*__init__.py"),
    ],
)
def test_import_path_to_nothing_is_refused_with_the_path(registry, path, reason):
    assert re.fullmatch(
        f"colour '{path}' cannot be imported: .*{reason.replace('?', '[?]')}", message(registry, path)
    )


def test_module_that_another_module_needs_is_not_looked_for_in_its_place(registry, tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("\nimport no_such_module_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = message(registry, "needs_another:Thing")
    assert "ModuleNotFoundError: No module named 'no_such_module_here' (at needs_another.py:2)" in text
    assert "Python path" not in text


@pytest.mark.parametrize(
    ("path", "got"),
    [
        ("collections:OrderedDict", "the class OrderedDict"),
        ("collections:namedtuple", "a function"),
        (Red, "the class Red"),
    ],
)
def test_what_is_not_of_the_base_class_is_named(path, got):
    registry = Registry("blue thing", base=f"{__name__}:Blue")
    with pytest.raises(RegistryError) as caught:
        registry.get_class(path)
    named = path if isinstance(path, str) else f"{__name__}:Red"
    assert str(caught.value) == (
        f"blue thing '{named}' is {got}, expected a subclass of Blue (from {__name__} import Blue)"
    )


def test_failed_import_keeps_its_cause(registry):
    with pytest.raises(RegistryError) as caught:
        registry.get("no_such_module_here:Thing")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_own_modules_are_imported_at_the_first_look(late):
    assert "things_of_the_registry_test" not in sys.modules
    assert late.get("own").__name__ == "Own"


def test_own_modules_are_imported_to_list_names(late):
    assert late.names() == ["own"]
    assert "own" in late


def test_forced_entry_made_before_the_own_modules_are_imported_stays(late):
    late.register("own", force=True)(Red)
    assert late.names() == ["own"]
    assert late.get("own") is Red


def test_registries_do_not_share_entries(registry):
    assert "red" not in Registry("colour")


def test_registry_error_is_of_the_common_tree_and_exits_2(registry):
    with pytest.raises(DingLiteError) as caught:
        registry.get("bleu")
    assert caught.value.exit_code == 2


def test_shipped_encoders_are_found_without_importing_them():
    assert {"mlp", "embedding", "nature_cnn", "minatar_cnn", "impala_cnn"} <= set(ENCODER_REGISTRY.names())


def test_another_process_imports_the_module_that_defines_a_class_and_the_one_that_registers_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(ENV_REGISTRY, "_entries", dict(ENV_REGISTRY._entries))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "defines_it.py").write_text("class One: ...\nclass Two: ...\n")
    (tmp_path / "registers_it.py").write_text(
        "from ding_lite import ENV_REGISTRY\n"
        "from defines_it import One\n"
        "ENV_REGISTRY.register('of_another_module')(One)\n"
    )
    importlib.import_module("registers_it")
    defines_it = importlib.import_module("defines_it")
    assert modules_to_import(defines_it.One) == {"defines_it", "registers_it"}
    assert modules_to_import(defines_it.Two) == {"defines_it"}
