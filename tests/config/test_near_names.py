"""Names in the user's classes that are nearly those of their base class: which are reported, which not."""

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
from worlds import small_config

import ding_lite
from ding_lite import Hook, PPOPolicy, SerialPipeline, Tracker
from ding_lite.config.compile import compile_config
from ding_lite.config.near_names import _near_keys, near_name, near_name_warnings
from ding_lite.config.schema import merged_config

ROOT = Path(__file__).parents[2]


def policy_with(**members):
    return type("Mine", (PPOPolicy,), members)


def warnings_of(*classes, config=None):
    return near_name_warnings(compile_config(config or small_config()).values, classes)


@pytest.mark.parametrize(
    ("base", "written", "meant"),
    [
        (PPOPolicy, "polcy_loss", "policy_loss"),
        (PPOPolicy, "policyloss", "policy_loss"),
        (PPOPolicy, "process_transition", "_process_transition"),
        (PPOPolicy, "_process_transitions", "_process_transition"),
        (PPOPolicy, "_forwad_learn", "_forward_learn"),
        (PPOPolicy, "forward_learn", "_forward_learn"),
        (Hook, "after_iteration", "after_iter"),
        (Tracker, "scalar", "scalars"),
        (Tracker, "seconds_to_stor", "seconds_to_store"),
    ],
)
def test_a_name_that_is_nearly_one_of_the_base_is_reported(base, written, meant):
    mine = type("Mine", (base,), {written: lambda self, *_: None})
    assert warnings_of(mine) == [
        f"WARNING: {__name__}.Mine defines {written!r}, which overrides nothing; did you mean {meant!r}?"
    ]
    derived = type("Derived", (mine,), {})
    assert warnings_of(derived, mine) == warnings_of(mine)
    assert warnings_of(type("Right", (base,), {meant: lambda self, *_: None})) == []


USUAL = [
    *(
        "_init_head",
        "_init_value",
        "_forward_value",
        "_forward_aux",
        "_forward_all",
        "_check_mode",
        "_reset_all",
    ),
    *("state", "is_single", "require", "remembered", "loop", "loops", "_helper"),
]


@pytest.mark.parametrize("name", USUAL)
def test_a_usual_name_of_the_users_own_is_not_reported(name):
    assert warnings_of(type("Mine", (PPOPolicy,), {name: lambda self: None})) == []


def test_a_name_without_its_underscore_is_not_reported_beside_the_right_one():
    both = dict.fromkeys(("process_transition", "_process_transition"), lambda self, *_: {})
    assert warnings_of(type("Mine", (PPOPolicy,), both)) == []


@pytest.mark.parametrize(
    "name", ["policy_loss2", "policy_loss_2", "old_policy_loss", "policy_loss_of_all", "_polcy_loss", "kl"]
)
def test_a_helper_with_another_word_or_a_number_is_not_reported(name):
    assert warnings_of(policy_with(**{name: lambda self, batch: None})) == []


def test_a_helper_beside_the_override_itself_is_not_reported():
    both = {"policy_loss": PPOPolicy.policy_loss, "policy_losses": lambda self: None}
    assert warnings_of(policy_with(**both)) == []
    helper = policy_with(policy_losses=lambda self: None)
    assert warnings_of(type("Overrides", (helper,), {"policy_loss": PPOPolicy.policy_loss})) == []


def test_a_name_is_reported_if_only_a_base_of_the_class_has_the_override():
    right = policy_with(policy_loss=PPOPolicy.policy_loss)
    (line,) = warnings_of(type("Derived", (right,), {"polcy_loss": lambda self: None}))
    assert "Derived defines 'polcy_loss'" in line


@pytest.mark.parametrize(
    ("config", "written", "meant"),
    [
        ({"lern": {"epsilon": 0.2}}, "lern", "learn"),
        ({"learn": {"batch_sise": 64, "epsilon": 0.2}}, "learn.batch_sise", "learn.batch_size"),
    ],
)
def test_a_key_that_is_nearly_one_of_the_base_is_reported(config, written, meant):
    (line,) = warnings_of(policy_with(config=config))
    assert line.endswith(f"Mine.config declares a new key {written!r}; did you mean {meant!r}?")
    assert warnings_of(policy_with(config={"learn": {"epsilon": 0.2, "batch_size": 64}})) == []


def test_classes_that_the_config_names_are_looked_at():
    class Late(Hook):
        def after_itr(self, pipeline):
            pass

    config = small_config(hooks=[Late], policy={"type": policy_with(config={"lern": {}})})
    assert len(warnings_of(config=config)) == 2


def test_the_first_lines_of_a_run_have_the_warnings(tmp_path):
    config = small_config(policy={"type": policy_with(polcy_loss=lambda self, batch: None)})
    SerialPipeline(config, folder=tmp_path / "run").close()
    said = "Mine defines 'polcy_loss', which overrides nothing; did you mean 'policy_loss'?"
    assert (tmp_path / "run" / "log.txt").read_text().count(said) == 1


def test_classes_of_the_library_would_not_be_reported_if_they_were_of_a_user():
    """Each is compared with its bases, as a class of a user is."""
    classes = {
        cls
        for name, module in list(sys.modules.items())
        if name.startswith("ding_lite.")
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__.startswith("ding_lite.")
    }
    found, compared = [], 0
    for cls in classes:
        bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("ding_lite.")]
        inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
        public = {name for base in bases for name in vars(base) if not name.startswith("_")}
        own = {name for name in vars(cls) if not name.startswith("_")} - inherited
        found += [(cls, name) for name in own if near_name(name, public - set(vars(cls)))]
        config = vars(cls).get("config")
        if bases and isinstance(config, dict):
            found += _near_keys(config, merged_config(cls.__mro__[1]))
        compared += bool(bases)
    assert found == []
    assert compared > 50


FILES = [*ROOT.glob("examples/*.py"), *ROOT.glob("templates/*/my_*.py")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_examples_and_templates_are_not_reported(file, monkeypatch):
    monkeypatch.syspath_prepend(str(file.parent))
    spec = importlib.util.spec_from_file_location(f"read_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    for registry in vars(ding_lite.config.registry).values():  # what the file registers is forgotten
        if isinstance(registry, ding_lite.config.registry.Registry):
            monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    spec.loader.exec_module(module)
    classes = [cls for _, cls in inspect.getmembers(module, inspect.isclass)]
    assert warnings_of(*classes) == []
