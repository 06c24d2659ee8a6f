"""From a user's dict or file to a complete config: values, sources, faults, overrides and what is saved."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import config_values, plain_values, same

from ding_lite import MODEL_REGISTRY, POLICY_REGISTRY, PPOPolicy
from ding_lite.config.compile import (
    compile_config,
    differences,
    load_config,
    parse_overrides,
    save_config,
)
from ding_lite.config.schema import Key, leaves
from ding_lite.config.values import plain
from ding_lite.errors import ConfigError, DingLiteError
from ding_lite.models import ActorCritic

CARTPOLE = {"env": {"env_id": "CartPole-v1"}}


class OwnPolicy(PPOPolicy):
    """A policy with another default, a new key, and a new key with a range."""

    config = dict(learn=dict(batch_size=128, kl_weight=1.0, rounds=Key(3, low=1)), own=dict(switch=False))


class OwnModel(ActorCritic):
    """A model with keys that ``vac`` does not have."""

    config = dict(width=64, blocks=Key(2, low=0))


OWN = f"{__name__}:OwnPolicy"


def user(**policy):
    return {**CARTPOLE, "policy": policy}


def values_of(config, *args, **rest):
    return compile_config(config, *args, **rest).values


def faults_of(config, *args, **rest):
    with pytest.raises(DingLiteError) as caught:
        compile_config(config, *args, **rest)
    assert caught.value.exit_code == 2
    return str(caught.value).split("\n  ")


def at(config, path):
    for name in path.split("."):
        config = config[name]
    return config


# ------------------------------------------------------------------ values


def test_one_key_makes_a_complete_config_of_fresh_values():
    values = values_of(CARTPOLE)
    assert (values.policy.type, values["policy"]["model"].type) == ("ppo", "vac")
    assert values.policy.learn.schedule_env_step == values.max_env_step == 1_000_000
    values.env.info_keys.append("mine")
    assert values_of(CARTPOLE).env.info_keys == ["is_success"]


@pytest.mark.parametrize("kind", [OwnPolicy, OWN, "own_of_the_test"])
def test_custom_policy_brings_its_keys_and_keeps_those_of_its_bases(kind, monkeypatch):
    monkeypatch.setattr(POLICY_REGISTRY, "entries", {**POLICY_REGISTRY.entries, "own_of_the_test": OwnPolicy})
    values = values_of(user(type=kind, learn={"rounds": 5}))
    assert (values.policy.learn.batch_size, values.policy.learn.rounds) == (128, 5)
    assert (values.policy.learn.clip_ratio, values.policy.own.switch) == (0.2, False)
    fault = faults_of(user(type=kind, learn={"rounds": 0}))[1]
    assert "policy.learn.rounds: expected a finite number at least 1" in fault


def test_custom_model_brings_its_keys(monkeypatch):
    monkeypatch.setitem(MODEL_REGISTRY.entries, "own_of_the_test", OwnModel)
    assert values_of(user(model={"type": "own_of_the_test", "blocks": 1})).policy.model.width == 64


def test_model_of_a_policy_is_its_default_model():
    class Mine(PPOPolicy):
        @classmethod
        def default_model(cls):
            return f"{__name__}:OwnModel"

    assert values_of(user(type=Mine)).policy.model.width == 64
    assert values_of(user(type="ppg")).policy.model.type == "ppg"


@pytest.mark.parametrize(
    ("written", "path", "value"),
    [
        ({"env": "CartPole-v1"}, "env.env_id", "CartPole-v1"),
        ({**CARTPOLE, "policy": "ppg"}, "policy.type", "ppg"),
        (user(intrinsic="rnd"), "policy.intrinsic.type", "rnd"),
        (user(model={"encoder": "mlp"}), "policy.model.encoder", {"type": "mlp"}),
        ({**CARTPOLE, "hooks": "early_stopping"}, "hooks", ["early_stopping"]),
        ({"env": {"env_id": "CartPole-v1", "manager": "base"}}, "env.manager.type", "base"),
        (user(learn={"batch_size": np.int64(32)}), "policy.learn.batch_size", 32),
        (user(learn={"clip_ratio": torch.tensor(0.5)}), "policy.learn.clip_ratio", 0.5),
        (
            user(model={"encoder_hidden_size_list": [np.array(8)]}),
            "policy.model.encoder_hidden_size_list",
            [8],
        ),
    ],
)
def test_short_forms(written, path, value):
    assert at(values_of(written), path) == value


# ------------------------------------------------------------------ faults


def test_all_faults_are_reported_at_once_with_their_whole_paths():
    head, *faults = faults_of(
        {
            "sede": 0,
            "env": {"env_id": "CartPole-v1", "collector_env_num": 0, "wrappers": ["atary"]},
            "policy": {
                "learn": {"clip_ration": 0.3, "batch_size": "64"},
                "collect": {"discount_factor": 1.5},
                "model": {"type": "vak"},
            },
            "hooks": [{"type": "early_stopping", "patence": 3}],
        },
        origin="my.py",
    )
    assert head == "my.py has 8 faults:"
    assert [fault.split(": ")[0] for fault in faults] == [
        "policy.model.type",
        "unknown key 'sede'; did you mean 'seed'?",
        "env.collector_env_num",
        "env.wrappers[0]",
        "policy.learn",
        "policy.learn.batch_size",
        "policy.collect.discount_factor",
        "hooks[0]",
    ]


@pytest.mark.parametrize(
    ("config", "path", "said"),
    [
        (user(type="ppg", learn={"n_epochs": 3}), "policy.learn", "actor_epoch_per_collect"),
        (user(collect={"n_steps": 128}), "policy.collect", "policy.collect.n_step here"),
        (user(learn={"clip_value": 1}), "policy.learn", "'clip_value' is policy.learn.value_clip here"),
        (user(model={"encoder_hidden_size_list": 64}), "policy.model.encoder_hidden_size_list", "list[int]"),
        (user(model={"encoder": {"type": "cnn"}}), "policy.model.encoder", "nature_cnn"),
        (user(model={"box_distribution": "mine"}), "policy.model.box_distribution", "tanh_normal"),
        ({}, "env.env_id", "missing"),
        (user(learn={"batch_size": 4096}), "policy.learn.batch_size", "2048"),
        (user(learn={"update_per_collect": 7}), "policy.learn.update_per_collect=7", "policy.on_policy"),
        (user(learn={"proximal": "behaviour"}), "policy.learn.proximal=behaviour", "policy.on_policy"),
        (user(learn={"lr_schedule": "liner"}), "policy.learn.lr_schedule", "did you mean 'linear'?"),
        (user(learn=3), "policy.learn", "batch_size"),
        (user(learn={"gamma": 1}), "policy.learn", "'gamma' is policy.collect.discount_factor here"),
        (user(learn={"disount_factor": 1}), "policy.learn", "'policy.collect.discount_factor'?"),
        ({**CARTPOLE, "hooks": [{"patience": 3}]}, "hooks[0]", "None"),
    ],
)
def test_fault_names_the_path_and_what_is_right(config, path, said):
    head, fault = faults_of(config)
    assert head == "config has 1 fault:"
    assert fault.startswith(f"{path}: " if "=" not in path else path)
    assert said in fault


def test_keys_without_effect_are_noted_where_they_are_no_mistake():
    config = compile_config(user(learn={"lr_final": 0.1, "lr_schedule": "adaptive"}, nstep=5))
    assert [note.split("=")[0] for note in config.notes] == ["policy.learn.lr_final", "policy.nstep"]
    for kind in ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"):
        assert compile_config(user(type=kind)).notes == ()
    of_default = {"policy.learn.desired_kl": 0.01, "env.manager.double_buffer": False}
    assert [note.split("=")[0] for note in compile_config(user(), of_default).notes] == [[*of_default][0]]


# ------------------------------------------------------------------ overrides


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("a=true", True),
        ("a=None", None),
        ("a=text", "text"),
        ("a=[csv, 3, none]", ["csv", 3, None]),
        ("a=" + "[" * 1000, "[" * 1000),
        ("a=", ""),
        ("a=[1, -inf]", [1, -math.inf]),
        ("a=Inf", math.inf),
    ],
)
def test_override_is_a_literal_or_else_a_text(token, value):
    found = parse_overrides([token])["a"]
    assert (found, type(found)) == (value, type(value))
    assert math.isnan(parse_overrides(["a=nan"])["a"])
    for wrong in ("CartPole-v1", "=1"):
        with pytest.raises(ConfigError, match="^override "):
            parse_overrides([wrong])


@given(config_values(), plain_values().filter(lambda value: not re.search(r"\b(inf|nan)\b", repr(value))))
def test_any_value_is_given_by_a_config_or_an_override_and_saved(value, typed):
    overrides = parse_overrides(["env.kwargs.x=1", f"env.kwargs.x={typed!r}"])
    config = compile_config({"env": {"env_id": "CartPole-v1", "kwargs": {"y": value}}}, overrides)
    assert same(plain(config.values.env.kwargs), {"y": value, "x": typed})
    again = compile_config(json.loads(json.dumps(config.as_json())))
    assert (differences(again.values, config.values), again.source) == ([], config.source)
    assert same(again.written(), config.written())
    assert same(again.written()["env"]["kwargs"], {"y": value, "x": typed})


@pytest.mark.parametrize(
    ("config", "overrides", "path", "value"),
    [
        (user(learn={"batch_size": 32}), {"policy.learn.batch_size": 16}, "policy.learn.batch_size", 16),
        (CARTPOLE, {"policy.learn": {"batch_size": 16}}, "policy.learn.clip_ratio", 0.2),
        (CARTPOLE, {"env.kwargs.mode": 1}, "env.kwargs", {"mode": 1}),
        (
            user(model={"encoder": "mlp"}),
            {"policy.model.encoder.hidden_size_list": [8]},
            "policy.model.encoder.type",
            "mlp",
        ),
        (CARTPOLE, {"env.manager": "base", "env.manager.restart_share": 0}, "env.manager.type", "base"),
        ({"env": {"type": "mine:Env"}}, {"env.env_id": "CartPole-v1"}, "env.type", "gymnasium"),
    ],
)
def test_override_is_laid_over_the_config(config, overrides, path, value):
    before = copy.deepcopy((config, overrides))
    assert at(values_of(config, overrides), path) == value
    assert (config, overrides) == before


def test_override_through_a_value_or_of_no_key_is_refused():
    with pytest.raises(ConfigError, match="seed is a value, not a section"):
        compile_config({**CARTPOLE, "seed": 1}, {"seed.low": 1})
    assert faults_of(CARTPOLE, {"sede": 1})[0] == "config with its overrides has 1 fault:"


# ------------------------------------------------------------------ sources, saved configs


def test_source_tells_default_file_and_command_line_apart():
    config = compile_config(user(learn={"batch_size": 32}), {"policy.learn.clip_ratio": 0.1}, origin="my.py")
    assert config.source.keys() == dict(leaves(config.values)).keys()
    found = {path: config.source[f"policy.learn.{path}"] for path in ("batch_size", "clip_ratio", "adv_norm")}
    assert found == {"batch_size": "my.py", "clip_ratio": "command line", "adv_norm": "default"}
    assert config.source["policy.learn.schedule_env_step"] == "max_env_step"
    assert config.source["exp_name"] == "name"


FULL = {
    "exp_name": "folder/mine",
    "env": {"env_id": "CartPole-v1", "kwargs": {"pose.arm": (1, {2}), "map": Path("m")}},
    "policy": {"type": OwnPolicy, "own": {"switch": True}, "model": {"encoder": "mlp"}},
    "hooks": [{"type": "early_stopping", "patience": 3}],
}


def test_config_is_saved_and_read_as_it_is(tmp_path):
    config = compile_config(FULL)
    file = tmp_path / "saved_config.py"
    save_config(config, file)
    read = load_config(file)
    assert differences(config.values, read.values) == []
    assert read.values.policy.type == OWN
    assert "clip_ratio" not in file.read_text()
    with pytest.raises(ConfigError, match="exists, and may have been edited"):
        save_config(config, file)


def test_what_a_saved_config_does_not_have_by_default_is_what_was_written():
    edited = compile_config(FULL).as_json()
    edited["config"]["policy"]["learn"]["clip_ratio"] = 0.1
    assert compile_config(edited).written()["policy"]["learn"] == {"clip_ratio": 0.1}


def test_differences_are_the_paths_whose_values_differ():
    one, other = compile_config(CARTPOLE), compile_config(CARTPOLE, {"seed": 1, "env.kwargs.x": math.nan})
    assert differences(one.values, other.values)[2:] == [("seed", 0, 1)]
    assert differences(other.values, copy.deepcopy(other.values)) == []


def test_modules_of_a_config_are_those_that_the_user_named():
    config = compile_config(
        {
            "env": {"type": "mine:Env", "wrappers": ["his.pack:Wrap"], "kwargs": {"a": "no:Such"}},
            "policy": OWN,
        }
    )
    assert sorted(config.trusted) == ["his.pack", "mine", __name__]


# ------------------------------------------------------------------ files


def written(tmp_path, text, name="config_of_the_test.py"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_python_and_json_files_say_the_same(tmp_path):
    python = load_config(written(tmp_path, f"config = {CARTPOLE!r}\n"))
    json_file = load_config(written(tmp_path, json.dumps(CARTPOLE), "config_of_the_test.json"))
    assert python.values == json_file.values
    assert python.values.exp_name == "config_of_the_test"
    assert python.source["env.env_id"].endswith("config_of_the_test.py")
    assert compile_config({"env": {"env_id": "ALE/Pong-v5"}}).values.exp_name == "ALE_Pong-v5_ppo"


def test_classes_of_a_config_file_are_named_by_it(tmp_path):
    text = "from ding_lite import PPOPolicy\nclass Mine(PPOPolicy): ...\n"
    file = written(tmp_path, text + "config = dict(env='CartPole-v1', policy=dict(type=Mine))\n")
    config = load_config(file)
    assert config.as_json()["config"]["policy"]["type"] == "config_of_the_test:Mine"
    assert load_config(file).values.policy.type is config.values.policy.type


def test_arguments_of_environments_may_hide_methods_of_a_dict():
    kwargs = {"items": 3, "shop": {"keys": 1, "items": 2}}
    config = compile_config({"env": {"env_id": "CartPole-v1", "kwargs": kwargs}})
    assert dict(config.replaced({"seed": 1}).values.env.kwargs) == kwargs
