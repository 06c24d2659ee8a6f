"""From a user's dict to a complete config: the values filled in, the faults refused, and their messages."""

from __future__ import annotations

import copy
import json
import math
import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from ding_lite import MODEL_REGISTRY, POLICY_REGISTRY, PPOPolicy
from ding_lite.config.compile import (
    as_config,
    compile_config,
    differences,
    find_config,
    load_config,
    parse_overrides,
    python_source,
    read_config,
    save_config,
    shipped_configs,
)
from ding_lite.config.registry import env_name
from ding_lite.config.schema import Key, leaves, merged_config
from ding_lite.config.values import plain
from ding_lite.envs.make import make_env
from ding_lite.errors import ConfigError, DingLiteError, RegistryError
from ding_lite.models import ActorCritic

CARTPOLE = {"env": {"env_id": "CartPole-v1"}}
FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(file for file in FOLDER.glob("*.py") if not file.stem.endswith("_env"))


class OwnPolicy(PPOPolicy):
    """A policy with another default, a new key, and a new key with a range."""

    config = dict(learn=dict(batch_size=128, kl_weight=1.0, rounds=Key(3, low=1)), own=dict(switch=False))


class OwnModel(ActorCritic):
    """A model with keys that ``vac`` does not have."""

    config = dict(width=64, blocks=Key(2, low=0))


def user(**policy):
    return {**CARTPOLE, "policy": policy}


def values_of(config, **rest):
    return compile_config(config, **rest).values


def message_of(config, *args, **rest):
    with pytest.raises((ConfigError, RegistryError)) as caught:
        compile_config(config, *args, **rest)
    return str(caught.value)


def override_fault(path, value):
    return message_of(CARTPOLE, {path: value})


# ------------------------------------------------------------------ defaults


def test_one_key_makes_a_complete_config():
    values = values_of(CARTPOLE)
    assert values.policy.type == "ppo"
    assert values.policy.model.type == "vac"
    assert values.policy.learn.clip_ratio == 0.2
    assert values.env.collector_env_num == 8
    assert values.seed == 0


def test_values_are_reached_as_attributes_and_as_keys():
    values = values_of(CARTPOLE)
    assert values.policy.learn.batch_size == values["policy"]["learn"]["batch_size"] == 64


def test_custom_policy_brings_its_keys_and_keeps_those_of_its_bases():
    learn = values_of(user(type=OwnPolicy)).policy.learn
    assert (learn.batch_size, learn.kl_weight, learn.rounds) == (128, 1.0, 3)
    assert learn.clip_ratio == 0.2  # of PPOPolicy
    assert learn.learning_rate == 3e-4  # of PPOPolicy


def test_custom_policy_may_bring_a_whole_section():
    assert values_of(user(type=OwnPolicy, own={"switch": True})).policy.own.switch is True


def test_key_of_a_custom_policy_is_unknown_to_the_others():
    assert "policy.learn: unknown key 'kl_weight'" in message_of(user(learn={"kl_weight": 2.0}))


def test_range_of_a_key_of_a_custom_policy_holds():
    message = message_of(user(type=OwnPolicy, learn={"rounds": 0}))
    assert "policy.learn.rounds: expected a number at least 1, got 0" in message


def test_custom_policy_is_found_by_its_import_path():
    values = values_of(user(type=f"{__name__}:OwnPolicy", learn={"kl_weight": 0.5}))
    assert values.policy.learn.kl_weight == 0.5


def test_custom_policy_is_found_by_its_registered_name(monkeypatch):
    monkeypatch.setattr(POLICY_REGISTRY, "_entries", dict(POLICY_REGISTRY._entries))
    POLICY_REGISTRY.register("own")(OwnPolicy)
    assert values_of(user(type="own")).policy.learn.kl_weight == 1.0


def test_custom_model_brings_its_keys(monkeypatch):
    monkeypatch.setattr(MODEL_REGISTRY, "_entries", dict(MODEL_REGISTRY._entries))
    MODEL_REGISTRY.register("own")(OwnModel)
    model = values_of(user(model={"type": "own", "width": 32})).policy.model
    assert (model.width, model.blocks) == (32, 2)
    assert "activation" not in model  # vac's


def test_key_of_another_model_is_refused():
    message = message_of(user(model={"type": OwnModel, "activation": "tanh"}))
    assert "policy.model: unknown key 'activation'" in message


class UndeclaredModel(OwnModel):
    def __init__(self, obs_space, action_space, depth=1, **options):
        super().__init__(obs_space, action_space, **options)


def test_argument_of_a_model_that_its_config_lacks_says_what_to_declare():
    message = message_of(user(model={"type": UndeclaredModel, "depth": 3}))
    assert "policy.model.depth: UndeclaredModel.__init__ takes it" in message
    assert "config = dict(depth=3)" in message


@pytest.mark.parametrize("written", ["runs/bar", "./runs/bar", "runs/runs/bar", "bar"])
def test_exp_name_that_begins_with_the_folder_of_runs_names_a_folder_in_it(written):
    config = compile_config(CARTPOLE, {"exp_name": written})
    assert config.values.exp_name == "bar"
    assert compile_config(config.as_json()).values == config.values
    assert values_of(CARTPOLE, overrides={"exp_name": written.replace("bar", "bar/runs/x")}).exp_name == (
        "bar/runs/x"
    )


def test_exp_name_is_made_of_env_and_policy_when_it_is_not_given():
    assert values_of(CARTPOLE).exp_name == "CartPole-v1_ppo"
    assert values_of({"env": {"env_id": "ALE/Pong-v5"}}).exp_name == "ALE_Pong-v5_ppo"


def test_two_configs_share_no_list():
    first, second = values_of(CARTPOLE), values_of(CARTPOLE)
    first.env.info_keys.append("mine")
    first.env.kwargs["mine"] = 1
    assert second.env.info_keys == ["is_success"]
    assert second.env.kwargs == {}


# ------------------------------------------------------------------ faults


def test_all_faults_are_reported_at_once_with_their_whole_paths():
    message = message_of(
        {
            "sede": 0,
            "env": {"env_id": "CartPole-v1", "collector_env_num": 0},
            "policy": {
                "learn": {"clip_ration": 0.3, "batch_size": "64"},
                "collect": {"discount_factor": 1.5},
            },
        },
        origin="my.py",
    )
    head, *faults = message.split("\n")
    assert head == "my.py has 5 faults:"
    assert [fault.strip().split(": ")[0] for fault in faults] == [
        "unknown key 'sede'; did you mean 'seed'?",
        "env.collector_env_num",
        "policy.learn",
        "policy.learn.batch_size",
        "policy.collect.discount_factor",
    ]


def test_one_fault_is_called_one():
    assert message_of({**CARTPOLE, "sede": 1}).startswith("config has 1 fault:\n")


def test_a_fault_of_the_command_line_alone_is_put_down_to_it():
    message = message_of({}, {"sede": 1}, origin="command line")
    assert message.startswith("command line has ")


def test_a_fault_of_what_a_call_says_is_put_down_to_it():
    with pytest.raises(ConfigError, match="^the call has 1 fault:\n  seed: "):
        compile_config(CARTPOLE).replaced(seed=-1)


@pytest.mark.parametrize("config", [None, [1, 2], 3])
def test_what_is_no_config_is_refused_with_what_is_one(config):
    with pytest.raises(ConfigError, match="expected a config: a dict, a file, .* got "):
        as_config(config)


def test_a_fault_of_the_command_line_is_not_put_down_to_the_file_alone():
    assert override_fault("sede", 1).startswith("config with the command line has 1 fault:\n")


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (
            "policy.learn.aux_freq",
            "unknown key 'aux_freq'; it is a key of ppg and ppg_offpolicy, and policy.type is 'ppo'",
        ),
        (
            "policy.model.arch",
            "unknown key 'arch'; it is a key of ppg and ppg_offpolicy, and policy.type is 'ppo'",
        ),
        ("policy.learn.clip_ration", "policy.learn: unknown key 'clip_ration'; did you mean 'clip_ratio'?"),
        ("policy.lern.batch_size", "policy: unknown key 'lern'; did you mean 'learn'?"),
        ("polcy.type", "unknown key 'polcy'; did you mean 'policy'?"),
        ("policy.learn.gamma", "'discount_factor' exists at policy.collect.discount_factor"),
        ("gamma", "'discount_factor' exists at policy.collect.discount_factor"),
        ("policy.learn.gae_lambda", "'gae_lambda' exists at policy.collect.gae_lambda"),
        ("policy.collect.lambda", "'gae_lambda' exists at policy.collect.gae_lambda"),
        ("policy.batch_size", "'batch_size' exists at policy.learn.batch_size"),
        ("learning_rate", "'learning_rate' exists at policy.learn.learning_rate"),
        ("policy.stop_value", "'stop_value' exists at env.stop_value"),
        ("policy.max_env_step", "'max_env_step' exists at max_env_step"),
        ("policy.learn.lr", "'learning_rate' exists at policy.learn.learning_rate"),
        ("policy.learn.ent_coef", "'entropy_weight' exists at policy.learn.entropy_weight"),
        ("policy.learn.disount_factor", "did you mean 'policy.collect.discount_factor'?"),
    ],
)
def test_unknown_key_is_refused_with_what_was_meant(path, hint):
    assert hint in override_fault(path, 1)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("beta_weight", "aux_bc_weight"), ("epochs_aux", "aux_train_epoch")]
)
def test_name_of_a_code_of_ppg_is_translated(theirs, ours):
    message = message_of(user(type="ppg", learn={theirs: 1}))
    assert f"unknown key {theirs!r}; {ours!r} exists at policy.learn.{ours}" in message


def test_key_that_resembles_nothing_is_refused_with_what_is_known_there():
    message = override_fault("policy.normalize.xyzzy", 1)
    assert "policy.normalize: unknown key 'xyzzy'; known here: " in message
    assert "reward, reward_clip" in message


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("policy.learn.batch_size", "64", "expected a whole number, got the string '64'"),
        ("policy.learn.batch_size", 64.5, "expected a whole number, got 64.5"),
        ("policy.learn.batch_size", True, "expected a whole number, got True"),
        ("policy.learn.batch_size", None, "expected a whole number, got None"),
        ("policy.learn.learning_rate", "3e-4", "expected a number, got the string '3e-4'"),
        ("policy.learn.learning_rate", False, "expected a number, got False"),
        ("policy.learn.value_norm", 1, "expected a bool, got 1"),
        ("policy.learn.value_norm", "true", "expected a bool, got the string 'true'"),
        ("env.env_id", 3, "expected a str, got 3"),
        ("env.kwargs", [1], "expected a dict, got [1]"),
        ("policy.model", "vac", "expected a dict, got the string 'vac'"),
        ("policy", 3, "expected a dict, got 3"),
        ("env", None, "expected a dict, got None"),
        ("policy.model.encoder_hidden_size_list", 64, "expected a list, got 64"),
        ("policy.model.encoder_hidden_size_list", ["64"], "got the string '64'"),
        ("policy.model.activation", "rellu", "got 'rellu'; did you mean 'relu'?"),
        ("env.manager.type", "bse", "expected one of"),
        ("policy.learn.value_loss", "l2", "expected one of"),
        ("seed", {"x": 3}, "expected a whole number"),
    ],
)
def test_wrong_type_is_refused(path, value, expected):
    message = override_fault(path, value)
    assert f"{path}: " in message
    assert expected in message


def test_quoted_number_is_refused_with_a_hint():
    assert "(a number is written without quotes)" in override_fault("policy.learn.learning_rate", "3e-4")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("policy.collect.discount_factor", 1.5),
        ("policy.collect.discount_factor", -0.1),
        ("policy.collect.gae_lambda", 1.01),
        ("policy.learn.clip_ratio", 0.0),
        ("policy.learn.clip_ratio", -0.2),
        ("policy.learn.learning_rate", 0),
        ("policy.learn.learning_rate", -1e-3),
        ("policy.learn.learning_rate", math.nan),
        ("policy.learn.learning_rate", math.inf),
        ("policy.learn.entropy_weight", math.nan),
        ("policy.learn.entropy_weight", -0.1),
        ("policy.learn.epoch_per_collect", 0),
        ("policy.learn.batch_size", 0),
        ("policy.learn.dual_clip", 1.0),
        ("policy.learn.target_kl", 0.0),
        ("policy.collect.n_sample", 1),
        ("policy.model.encoder_hidden_size_list", [64, 0]),
        ("policy.eval.eval_freq", -1),
        ("env.collector_env_num", 0),
        ("env.evaluator_env_num", 0),
        ("env.n_evaluator_episode", 0),
        ("env.max_eval_steps", 0),
        ("seed", -1),
        ("max_env_step", 0),
        ("max_train_iter", 0),
        ("num_threads", 0),
        ("checkpoint.keep", 0),
        ("logger.freq", 0),
    ],
)
def test_value_out_of_range_is_refused(path, value):
    assert f"  {path}: " in override_fault(path, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("policy.collect.discount_factor", 0),
        ("policy.collect.discount_factor", 1),
        ("policy.collect.gae_lambda", 0.0),
        ("policy.learn.entropy_weight", 0),
        ("policy.eval.eval_freq", 0),
        ("checkpoint.freq", 0),
    ],
)
def test_value_at_the_edge_of_its_range_is_taken(path, value):
    assert dict(leaves(values_of(CARTPOLE, overrides={path: value})))[path] == value


def test_number_is_converted_where_nothing_is_lost():
    learn = values_of(user(learn={"batch_size": 128.0, "learning_rate": 1})).policy.learn
    assert (learn.batch_size, type(learn.batch_size)) == (128, int)
    assert (learn.learning_rate, type(learn.learning_rate)) == (1.0, float)


def test_tuple_is_taken_for_a_list():
    values = values_of(user(model={"encoder_hidden_size_list": (32, 32)}))
    assert values.policy.model.encoder_hidden_size_list == [32, 32]


def test_missing_env_id_is_reported():
    assert "env.env_id: missing" in message_of({})


@pytest.mark.parametrize(
    ("path", "name", "close"),
    [("policy.type", "pppo", "Did you mean 'ppo'?"), ("policy.model.type", "vacc", "Did you mean 'vac'?")],
)
def test_unknown_name_of_a_class_is_refused_with_the_close_one_and_the_place(path, name, close):
    message = override_fault(path, name)
    assert path in message
    assert close in message


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("policy.type", 3),
        ("policy.type", None),
        ("policy.type", dict),
        ("policy.type", "json:loads"),
        ("policy.type", "collections:OrderedDict"),
        ("policy.model.type", 3),
        ("policy.model.type", "collections:OrderedDict"),
    ],
)
def test_type_that_is_no_class_of_ours_is_refused_by_its_own_path(path, kind):
    message = override_fault(path, kind)
    assert path in message
    assert "unknown key" not in message


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        (
            {"type": "mlp", "hidden_sizes": [64]},
            "encoder: unknown key 'hidden_sizes'; did you mean 'hidden_size_list'?",
        ),
        (
            {"type": "mlp", "space": 3},
            "encoder: unknown key 'space'; known here: activation, hidden_size_list",
        ),
        ({"chanels": "last"}, "encoder: unknown key 'chanels'; did you mean 'channels'?"),
        ({"arm.1": {"type": "embeding"}}, "encoder.arm.1: there is no encoder named 'embeding'."),
        (
            {"arm": {"type": "embedding", "embedding_size": 0}},
            "encoder.arm.embedding_size: expected a number at",
        ),
        (
            {"type": "mlp", "hidden_size_list": [64, -1]},
            "encoder.hidden_size_list: expected a number at least 1",
        ),
        ({"type": "nature_cnn", "channels": "middle"}, "encoder.channels: expected one of "),
        ({"type": "mlp", "activation": "than"}, "encoder.activation: expected one of "),
        ({"type": 3}, "encoder: 3 is no encoder; write a registered name (embedding, "),
    ],
)
def test_argument_that_an_encoder_does_not_take_is_refused(encoder, expected):
    assert f"policy.model.{expected}" in override_fault("policy.model.encoder", encoder)


@pytest.mark.parametrize(
    "encoder",
    [
        {"type": "mlp", "hidden_size_list": (64,), "activation": "relu"},
        {"type": "impala_cnn", "channels": "first", "widths": [4]},
        {"channels": "last"},
        {"arm": {"type": "embedding", "embedding_size": 5}, "camera": {}},
        {"type": "not.imported:Yet", "whatever": 3},
    ],
)
def test_arguments_that_an_encoder_takes_are_as_they_were(encoder):
    assert plain(values_of(user(model={"encoder": encoder})).policy.model.encoder) == plain(encoder)


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        ("frame_stak", "there is no wrapper named 'frame_stak'. Did you mean 'frame_stack'?"),
        ({"type": "frame_stack", "stack_sice": 3}, "unknown key 'stack_sice'; did you mean 'stack_size'?"),
        ({"stack_size": 3}, "None is no wrapper"),
        (["frame_stack"], "['frame_stack'] is no wrapper"),
    ],
)
def test_wrapper_that_there_is_not_is_a_fault_of_the_config(wrapper, expected):
    assert f"env.wrappers[1]: {expected}" in override_fault("env.wrappers", ["time_limit", wrapper])


def test_wrapper_that_the_module_of_the_environment_registers_is_known(tmp_path, monkeypatch):
    text = "WRAPPER_REGISTRY.register('test_late_one')(lambda env: env)\n"
    write(tmp_path, "env_with_a_wrapper.py", f"from ding_lite import WRAPPER_REGISTRY\n{text}")
    monkeypatch.syspath_prepend(str(tmp_path))
    env = {"type": "env_with_a_wrapper:Env", "wrappers": ["test_late_one"]}
    assert values_of({"env": env}).env.wrappers == ["test_late_one"]
    assert "no wrapper named 'test_late_on'" in message_of({"env": {**env, "wrappers": ["test_late_on"]}})


@pytest.mark.parametrize("kind", [[], 0, {"a": 1}, None, "", "gymnasum"])
def test_what_names_no_environment_is_refused(kind):
    message = override_fault("env.type", kind)
    assert "env.type: " in message
    assert "write a registered name (gymnasium" in message or "Registered: gymnasium" in message


@pytest.mark.parametrize("kind", ["gymnasium", "not.imported:Yet", dict, lambda: None])
def test_what_may_name_an_environment_is_taken(kind):
    assert values_of(CARTPOLE, overrides={"env.type": kind}).env.type == kind


@pytest.mark.parametrize("name", ["../evil", "a/../../b", "/tmp/a", ".", ".."])
def test_name_of_a_run_that_leads_out_of_its_folder_is_refused(name):
    message = override_fault("exp_name", name)
    assert f"exp_name: expected the name of a folder under runs/, got {name!r}; " in message
    assert "--exp-name DIR" in message


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
def test_name_that_no_folder_can_have_is_refused(name):
    assert f"exp_name: {name!r} cannot be the name of a folder" in override_fault("exp_name", name)


@pytest.mark.parametrize("name", ["a", "a/b", "..a", "a..", ".a", "ä b"])
def test_name_of_a_run_may_be_any_folder_below(name):
    assert values_of(CARTPOLE, overrides={"exp_name": name}).exp_name == name


@pytest.mark.parametrize("sections", [{}, {"model": {"type": "vacc"}}])
@pytest.mark.parametrize("kind", ["ppoo", "nothing like it", 3, "collections:OrderedDict"])
def test_faults_beside_an_unknown_type_are_reported_with_it(kind, sections):
    overrides = {"polcy.learn.lr": 3, "policy.learn.batch_size": -1, "env.collector_env_num": "abc"}
    message = message_of({**user(type=kind, **sections), "env": {"wrappers": ["atary"]}}, overrides)
    for expected in ("policy.type: ", "env.collector_env_num: ", "unknown key 'polcy'", "env.wrappers[0]: "):
        assert message.count(f"\n  {expected}") == 1
    meant = kind == "ppoo"  # its keys are known, then
    assert ("policy.learn.batch_size: expected a number at least 1" in message) == meant
    assert ("policy.model.type: there is no model named 'vacc'" in message) == (meant and bool(sections))


def test_keys_of_an_unknown_policy_are_not_called_unknown():
    message = message_of(user(type="pppo", learn={"spo_eps": 1}, other_section={"a": 1}, model={"width": 3}))
    assert message.startswith("config has 1 fault:\n  policy.type: there is no policy named 'pppo'.")
    assert "unknown key" not in message


def test_keys_of_an_unknown_model_are_not_called_unknown_and_those_beside_it_are():
    message = message_of(user(model={"type": "vacc", "width": 3}, learn={"spo_eps": 1}))
    assert "'width'" not in message
    assert "policy.learn: unknown key 'spo_eps'" in message


def test_policy_in_capitals_is_the_one_in_small_letters():
    assert message_of(user(type="PPO")).endswith("Did you mean 'ppo'?")


@pytest.mark.parametrize("name", ["sac", "SAC", "dqn"])
def test_algorithm_of_another_library_is_said_not_to_be_here(name):
    assert message_of(user(type=name)).endswith("ding_lite has PPO and PPG only.")


@pytest.mark.parametrize(
    ("name", "advice"), [("RecurrentPPO", "policy.model.rnn='lstm'"), ("MlpPolicy", "It is 'ppo'")]
)
def test_policy_of_another_library_is_answered_with_the_keys_here(name, advice):
    assert advice in message_of(user(type=name))


REGISTERS_SPO = (
    'raise SystemExit("this module is imported")\n@POLICY_REGISTRY.register("spo")\nclass Spo: ...\n'
)


def test_module_beside_the_config_that_registers_its_policy_is_named_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "a_broken.py").write_text("def (")
    (tmp_path / "my_losses.py").write_text(REGISTERS_SPO)
    file = tmp_path / "mine.py"
    file.write_text('config = dict(policy=dict(type="spo", learn=dict(spo_eps=0.2)))\n')
    for folder, module in ((tmp_path, "my_losses"), (tmp_path.parent, tmp_path / "my_losses.py")):
        monkeypatch.chdir(folder)
        with pytest.raises(ConfigError) as caught:
            load_config(file)
        advice = f"my_losses.py beside the config registers 'spo': add --import {module}"
        assert str(caught.value).endswith(advice)
        assert "1 fault" in str(caught.value)


def test_list_of_known_keys_is_short_and_says_where_all_are():
    message = message_of(user(model={"zzzz": 1}))
    assert re.search(r"known here: (\w+, ){8}and \d\d more \(`", message)
    assert "`ding-lite config -c FILE --explain policy.model` has all" in message


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("policy.gama", "did you mean 'gamma'? It is policy.collect.discount_factor here"),
        ("policy.learn.nepochs", "did you mean 'n_epochs'? It is policy.learn.epoch_per_collect here"),
        ("n_stepss", "did you mean 'n_steps'? It is policy.collect.n_sample here: steps x environments"),
    ],
)
def test_misspelt_word_of_another_library_is_answered(path, hint):
    assert hint in override_fault(path, 1)


def test_faults_beside_an_unknown_model_are_reported_with_it():
    model = {"type": "nothing like it", "width": 3}
    message = message_of(user(model=model, learn={"batch_size": -1}))
    assert message.count("\n  ") == 2
    assert "policy.learn.batch_size: " in message
    assert "policy.model.type: there is no model named 'nothing like it'" in message


def test_minibatch_larger_than_a_rollout_is_refused():
    message = message_of(user(learn={"batch_size": 65}, collect={"n_sample": 64}))
    assert "policy.learn.batch_size: " in message
    assert "65" in message
    assert "64" in message


@pytest.mark.parametrize("adv_norm", [True, "minibatch"])
def test_normalising_one_sample_among_itself_is_refused(adv_norm):
    """Without the error, it would silently train on advantages of 0."""
    message = message_of(user(learn={"batch_size": 1, "adv_norm": adv_norm}))
    assert "policy.learn.batch_size: the advantage of 1 sample" in message
    for sound in ({"batch_size": 2, "adv_norm": adv_norm}, {"batch_size": 1, "adv_norm": "batch"}):
        values_of(user(learn=sound))


def test_minibatch_as_large_as_the_rounded_rollout_is_taken():
    # 60 samples of 8 environments are 8 steps, 64 samples.
    assert values_of(user(learn={"batch_size": 64}, collect={"n_sample": 60})).policy.learn.batch_size == 64


@pytest.mark.parametrize(("device", "cuda"), [("cpu", True), ("mps", True), ("cuda:1", False)])
def test_device_and_cuda_that_contradict_each_other_are_refused(device, cuda):
    expected = f"policy.cuda: {cuda} and policy.device={device!r} contradict each other: remove one of them"
    assert expected in message_of(user(device=device, cuda=cuda))
    assert expected in message_of(CARTPOLE, {"policy.device": device, "policy.cuda": cuda})


@pytest.mark.parametrize(
    ("device", "cuda"), [("auto", True), ("cpu", False), ("cuda:1", True), ("mps", None)]
)
def test_device_and_cuda_that_agree_are_taken(device, cuda):
    policy = values_of(user(device=device, cuda=cuda)).policy
    assert (policy.device, policy.cuda) == (device, cuda)


def test_override_of_device_or_cuda_replaces_what_the_file_says_by_the_other():
    def both(policy, key, value):
        made = values_of(user(**policy), overrides={f"policy.{key}": value}).policy
        return made.device, made.cuda

    assert both({"device": "cpu"}, "cuda", True) == ("auto", True)
    assert both({"cuda": True}, "device", "cpu") == ("cpu", None)
    assert both({"cuda": True}, "device", "cuda:1") == ("cuda:1", True)
    assert both({"device": "mps"}, "cuda", None) == ("mps", None)


@pytest.mark.parametrize("name", ["update", "items", "keys", "values", "get", "pop", "copy"])
@pytest.mark.parametrize("section", ["learn", "model"])
def test_key_named_like_a_method_of_dict_is_refused(section, name):
    message = message_of(user(**{section: {name: 3}}))
    assert f"policy.{section}: {name!r} is the name of a dict's method" in message


def test_key_named_like_a_method_of_dict_is_refused_among_free_arguments_too():
    config = {"env": {"env_id": "CartPole-v1", "kwargs": {"items": 3}}}
    assert "env.kwargs: 'items' is the name of a dict's method" in message_of(config)


def test_override_of_a_key_named_like_a_method_of_dict_is_refused():
    assert "'items' is the name of a dict's method" in override_fault("env.kwargs.items", 3)


def test_key_that_is_no_string_is_refused():
    assert "1" in message_of({**CARTPOLE, 1: 2})
    assert "env.kwargs" in message_of({"env": {"env_id": "CartPole-v1", "kwargs": {1: 2}}})


# ------------------------------------------------------------------ overrides


@pytest.mark.parametrize(
    ("token", "path", "value"),
    [
        ("policy.learn.batch_size=128", "policy.learn.batch_size", 128),
        ("a=-3", "a", -3),
        ("a=1_000", "a", 1000),
        ("a=1e-3", "a", 1e-3),
        ("a=[64, 64]", "a", [64, 64]),
        ("a={'b': 1}", "a", {"b": 1}),
        ("a=True", "a", True),
        ("a=true", "a", True),
        ("a=FALSE", "a", False),
        ("a=None", "a", None),
        ("a=none", "a", None),
        ("a=null", "a", None),
        ("a='64'", "a", "64"),
        ("a='none'", "a", "none"),
        ("env.env_id=CartPole-v1", "env.env_id", "CartPole-v1"),
        ("policy.type=my.module:Mine", "policy.type", "my.module:Mine"),
        ("a=b=c", "a", "b=c"),
        ("a=[frame_stack]", "a", ["frame_stack"]),  # the shell has taken the quotes
        ("a=[my.module:Mine, 3,none]", "a", ["my.module:Mine", 3, None]),
        ('a=[{"b": true, "c": null}]', "a", [{"b": True, "c": None}]),  # JSON
        ("a='[1,'", "a", "[1,"),
        ("a=[old]run/ckpt", "a", "[old]run/ckpt"),
        ("a={old} run", "a", "{old} run"),
        ("a=dict(b=1, c=[dict(d='x')])", "a", {"b": 1, "c": [{"d": "x"}]}),
        ("a=[dict(type='stop_file')]", "a", [{"type": "stop_file"}]),
        ("a=dict(b)", "a", "dict(b)"),
        ("a=dict(**b)", "a", "dict(**b)"),
        ("a=dict(b=1, b=2)", "a", "dict(b=1, b=2)"),
    ],
)
def test_override_is_a_python_literal_or_else_a_string(token, path, value):
    parsed = parse_overrides([token])
    assert parsed == {path: value}
    assert type(parsed[path]) is type(value)


@pytest.mark.parametrize("token", ["policy.learn.batch_size", "=3", "policy.learn.batch_size=", "="])
def test_override_without_key_sign_or_value_is_refused(token):
    with pytest.raises(ConfigError, match=f"override '{token}': expected key.path=value, such as"):
        parse_overrides([token])


@pytest.mark.parametrize(
    "value",
    [
        "[{type: early_stopping}]",
        "{type: lstm}",
        "[{type:",
        "[1,",
        "[b c]",
        "[a/b, c]",
        "{{}}",
        "{**b}",
        " [{b: 1}]",
        '{"b": true, "b": false}',
        1000 * "[",
    ],
)
def test_list_or_dict_that_cannot_be_read_is_refused_saying_how_to_quote_it(value):
    with pytest.raises(ConfigError, match="^override .*: its value begins as a list or a dict") as caught:
        parse_overrides([f"hooks={value}"])
    assert caught.value.exit_code == 2
    quoted = re.search(r"as in (hooks='.*?') ", str(caught.value))[1]
    assert parse_overrides(shlex.split(quoted)) == {"hooks": [{"type": "early_stopping"}]}


@pytest.mark.parametrize(
    ("token", "hint"),
    [
        ("cartpole_ppo", "to name a config, write -c cartpole_ppo"),
        ("CartPole-v1", "to name an environment, write --env CartPole-v1;"),
        ("ALE/Pong-v5", "to name an environment, write --env ALE/Pong-v5;"),
        ("my.worlds:Mine", "to name an environment, write --env my.worlds:Mine;"),
    ],
)
def test_a_name_without_its_option_is_answered_with_it(token, hint):
    with pytest.raises(ConfigError, match=re.escape(f"({hint}")):
        parse_overrides([token])


@pytest.mark.parametrize("second", ["2", "True", "'1'"])
def test_two_overrides_of_one_key_that_contradict_each_other_are_refused(second):
    with pytest.raises(ConfigError, match=f"^a is given twice, as 1 and as {second}"):
        parse_overrides(["a=1", f"a={second}"])
    assert parse_overrides(["a=1", "a=1"]) == {"a": 1}


def test_override_is_laid_over_the_file():
    values = values_of({**CARTPOLE, "seed": 3}, overrides={"seed": 5, "policy.learn.batch_size": 32})
    assert (values.seed, values.policy.learn.batch_size) == (5, 32)


def test_override_of_a_section_that_the_file_has_not_leaves_its_other_defaults():
    normalize = values_of(CARTPOLE, overrides={"policy.normalize.obs": True}).policy.normalize
    assert (normalize.obs, normalize.obs_clip) == (True, 10.0)


def test_override_of_free_arguments_adds_to_them():
    config = {"env": {"env_id": "LunarLander-v3", "kwargs": {"gravity": -8.0}}}
    values = values_of(config, overrides={"env.kwargs.enable_wind": True})
    assert values.env.kwargs == {"gravity": -8.0, "enable_wind": True}


def test_override_through_a_value_is_refused():
    message = message_of({**CARTPOLE, "seed": 3}, {"seed.x": 3})
    assert "seed.x=3" in message
    assert "seed is a value, not a section" in message


def test_override_of_a_key_that_does_not_exist_is_refused():
    assert "did you mean 'clip_ratio'?" in override_fault("policy.learn.clip_ration", 0.3)


def test_name_of_the_vector_backend_is_shorthand_for_its_section():
    manager = values_of({"env": {"env_id": "CartPole-v1", "manager": "base"}}).env.manager
    assert manager == values_of({"env": {"env_id": "CartPole-v1", "manager": {"type": "base"}}}).env.manager
    assert manager.type == "base"
    assert values_of(CARTPOLE, overrides={"env.manager": "base"}).env.manager.type == "base"
    assert values_of(CARTPOLE, overrides={"env.wrappers": "frame_stack"}).env.wrappers == ["frame_stack"]
    after = {"env.manager": "base", "env.manager.max_restarts": 1}
    assert values_of(CARTPOLE, overrides=after).env.manager.max_restarts == 1


@pytest.mark.parametrize(("path", "name"), [("policy.model.encoder", "mlp"), ("policy.intrinsic", "rnd")])
def test_name_of_a_type_is_shorthand_for_its_section(path, name):
    short, whole = (values_of(CARTPOLE, overrides={key: name}) for key in (path, f"{path}.type"))
    assert short == whole


# ------------------------------------------------------------------ where a value came from


def test_source_tells_default_file_and_command_line_apart():
    source = compile_config(
        {**CARTPOLE, "policy": {"learn": {"batch_size": 128, "learning_rate": 1e-3}}},
        {"policy.learn.batch_size": 32},
        origin="my.py",
    ).source
    assert source["policy.learn.batch_size"] == "command line"
    assert source["policy.learn.learning_rate"] == "my.py"
    assert source["policy.learn.clip_ratio"] == "default"
    assert source["env.env_id"] == "my.py"


def test_every_value_has_a_source_and_every_source_a_value():
    config = compile_config(
        {**CARTPOLE, "seed": 3}, {"env.kwargs.a": 1, "policy.model.encoder": {"channels": "last"}}
    )
    assert set(config.source) == {path for path, _ in leaves(config.values)}


def test_value_that_follows_from_others_says_from_which():
    source = compile_config(CARTPOLE).source
    assert source["exp_name"] == "env and policy"
    assert source["policy.learn.schedule_env_step"] == "max_env_step"


def test_limit_says_that_it_came_from_the_command_line():
    config = compile_config({**CARTPOLE, "max_env_step": 500}).replaced(max_env_step=100, seed=None)
    assert config.source["max_env_step"] == "command line"
    assert config.source["seed"] == "default"


# ------------------------------------------------------------------ schedules and limits


def test_schedules_run_over_the_step_limit_of_the_file():
    assert values_of({**CARTPOLE, "max_env_step": 5000}).policy.learn.schedule_env_step == 5000


def test_limit_stops_the_run_and_leaves_its_schedules_alone():
    values = compile_config({**CARTPOLE, "max_env_step": 5000}).replaced(max_env_step=100).values
    assert values.max_env_step == 100
    assert values.policy.learn.schedule_env_step == 5000


def test_limit_leaves_the_config_that_it_is_laid_over_as_it_was():
    config = compile_config({**CARTPOLE, "max_env_step": 5000})
    before = copy.deepcopy(config.as_json())
    config.replaced(max_env_step=100).values.env.kwargs["late"] = 1
    assert config.as_json() == before


def test_limit_of_a_saved_config_leaves_its_schedules_alone():
    saved = compile_config({**CARTPOLE, "max_env_step": 5000}).as_json()
    values = compile_config(saved).replaced(max_env_step=9000).values
    assert (values.max_env_step, values.policy.learn.schedule_env_step) == (9000, 5000)


def test_schedule_length_of_the_file_counts():
    values = values_of({**user(learn={"schedule_env_step": 300}), "max_env_step": 5000})
    assert values.policy.learn.schedule_env_step == 300


@pytest.mark.parametrize(
    ("name", "value"), [("max_env_step", 0), ("max_env_step", -5), ("max_train_iter", 0), ("seed", -1)]
)
def test_limit_out_of_range_is_refused(name, value):
    config = compile_config(CARTPOLE)
    with pytest.raises(ConfigError, match=f"{name}: expected a number at least"):
        config.replaced(**{name: value})


# ------------------------------------------------------------------ again and again


RICH = {
    "exp_name": "rich",
    "seed": 4,
    "env": {"env_id": "CartPole-v1", "kwargs": {"a": [1, {"b": 2}]}, "wrappers": [{"type": "m:W", "x": 1}]},
    "policy": {
        "type": OwnPolicy,
        "model": {"encoder_hidden_size_list": (32,)},
        "learn": {"kl_weight": 2, "kl_beta": 0.0},
    },
}


@pytest.mark.parametrize("config", [CARTPOLE, RICH], ids=["short", "rich"])
def test_compiling_the_result_again_changes_nothing(config):
    once = compile_config(config, {"seed": 7}).replaced(max_env_step=300)
    twice = compile_config(once.as_json())
    assert twice.as_json() == once.as_json()
    assert compile_config(twice.as_json()).as_json() == once.as_json()


@pytest.mark.parametrize("config", [CARTPOLE, RICH], ids=["short", "rich"])
def test_config_json_of_a_run_gives_the_same_config(config, tmp_path):
    saved = compile_config(config, {"seed": 7}, origin="my.py")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(saved.as_json()))
    again = load_config(file)
    assert again.as_json() == saved.as_json()


def test_override_of_a_saved_config_changes_its_value_and_its_source_only(tmp_path):
    saved = compile_config({**CARTPOLE, "seed": 3}, origin="my.py")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(saved.as_json()))
    again = load_config(file, ["policy.learn.batch_size=32"])
    assert differences(saved.values, again.values) == [("policy.learn.batch_size", 64, 32)]
    assert again.source["policy.learn.batch_size"] == "command line"
    assert again.source["seed"] == "my.py"


def test_an_empty_section_differs_by_what_the_other_one_has():
    empty, full = {"env": {"kwargs": {}}}, {"env": {"kwargs": {"goal": {"x": 1}, "size": 9}}}
    found = [("env.kwargs.goal.x", None, 1), ("env.kwargs.size", None, 9)]
    assert differences(empty, full) == found
    assert differences(full, empty) == [(path, value, nothing) for path, nothing, value in found]
    assert differences(empty, {"env": {"kwargs": None}}) == [("env.kwargs", {}, None)]


@pytest.mark.parametrize(
    ("path", "value"), [("env.kwargs.sutton_barto_reward", True), ("policy.model.encoder.type", "impala_cnn")]
)
def test_override_below_an_empty_value_of_a_saved_config_comes_from_the_command_line(path, value):
    config = compile_config(compile_config(CARTPOLE).as_json(), {path: value})
    assert config.source[path] == "command line"
    assert dict(leaves(config.written()))[path] == value


@pytest.mark.parametrize("config", [CARTPOLE, RICH], ids=["short", "rich"])
def test_input_is_never_changed(config):
    before = copy.deepcopy(config)
    overrides = {"policy.learn.batch_size": 32, "env.kwargs.new": [1]}
    values = compile_config(config, overrides).replaced(max_env_step=1).values
    values.env.kwargs["late"] = 1
    values.policy.model["late"] = 1
    assert config == before
    assert overrides == {"policy.learn.batch_size": 32, "env.kwargs.new": [1]}


def test_saved_config_is_never_changed():
    saved = compile_config(RICH).as_json()
    before = copy.deepcopy(saved)
    compile_config(saved, {"seed": 9})
    assert saved == before


def test_defaults_of_a_class_are_never_changed():
    before = repr(merged_config(PPOPolicy))
    values = values_of(CARTPOLE)
    values.policy.model.actor_head_hidden_size_list.append(3)
    assert repr(merged_config(PPOPolicy)) == before
    assert values_of(CARTPOLE).policy.model.actor_head_hidden_size_list == []


def test_class_in_a_config_becomes_its_import_path_in_json():
    saved = compile_config(RICH).as_json()
    assert saved["config"]["policy"]["type"] == f"{__name__}:OwnPolicy"
    assert json.loads(json.dumps(saved)) == saved


def test_modules_of_the_users_own_classes_are_listed():
    config = compile_config(RICH)
    assert sorted(config.modules()) == ["m", __name__]
    assert compile_config(CARTPOLE).modules() == []


# ------------------------------------------------------------------ files


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_python_file_is_read_and_named_as_the_source(tmp_path):
    file = write(tmp_path, "mine.py", "size = 32\nconfig = dict(env=dict(env_id='CartPole-v1'), seed=size)\n")
    config = load_config(file, ["policy.learn.batch_size=16"])
    assert config.values.seed == 32
    assert config.source["seed"] == str(file)
    assert config.source["policy.learn.batch_size"] == "command line"


def test_json_file_says_the_same_as_a_python_file(tmp_path):
    python = write(tmp_path, "a.py", "config = dict(env=dict(env_id='CartPole-v1'), seed=3)\n")
    data = write(tmp_path, "a.json", '{"env": {"env_id": "CartPole-v1"}, "seed": 3}\n')
    assert load_config(data).values == load_config(python).values


def test_file_is_named_in_its_faults(tmp_path):
    file = write(tmp_path, "mine.py", "config = dict(sede=1)\n")
    with pytest.raises(ConfigError, match=r"mine\.py has 1 fault:\n  unknown key 'sede'"):
        load_config(file)


def test_missing_file_is_reported_with_where_it_was_looked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"nope\.py does not exist") as caught:
        load_config(tmp_path / "nope.py")
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x = 1\n", "has no dict named `config`"), ("config = [1]\n", "its `config` is a list")],
)
def test_python_file_without_a_dict_named_config_is_refused(tmp_path, text, expected):
    with pytest.raises(ConfigError, match=expected):
        load_config(write(tmp_path, "mine.py", text))


def test_syntax_error_is_reported_with_its_file_and_line(tmp_path):
    file = write(tmp_path, "mine.py", "seed = 3\nconfig = dict(seed=seed\nx = 1\n")
    with pytest.raises(ConfigError, match=r"mine\.py, line 2: '\(' was never closed"):
        load_config(file)


def test_syntax_error_of_a_module_that_a_config_imports_is_reported_with_its_own_file(tmp_path):
    helper = write(tmp_path, "helper_with_a_fault.py", "x = 1\nfor\n")
    file = write(tmp_path, "mine.py", "import helper_with_a_fault\nconfig = {}\n")
    with pytest.raises(ConfigError, match=re.escape(f"config file {file}: {helper}, line 2: invalid syntax")):
        load_config(file)


def test_error_that_a_config_file_raises_is_reported_with_its_kind(tmp_path):
    file = write(tmp_path, "mine.py", "config = dict(seed=sede)\n")
    with pytest.raises(ConfigError, match=r"mine\.py cannot be read: NameError: name 'sede' is not defined"):
        load_config(file)


@pytest.mark.parametrize("text", ["[1]", "3", "null", '"text"'])
def test_json_that_is_no_object_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="object"):
        load_config(write(tmp_path, "mine.json", text))


def test_json_with_a_key_that_is_there_twice_is_refused(tmp_path):
    text = '{"env": {"env_id": "CartPole-v1"}, "policy": {"learn": {"gamma": 1, "gamma": 2}}}'
    with pytest.raises(ConfigError, match=r"twice\.json cannot be read: .*the key 'gamma' occurs twice"):
        load_config(write(tmp_path, "twice.json", text))


def test_json_that_cannot_be_parsed_is_reported_with_its_line(tmp_path):
    with pytest.raises(ConfigError, match="line 2"):
        load_config(write(tmp_path, "mine.json", '{"seed": 3,\n"env" 4}'))


@pytest.mark.parametrize(
    "text", ['{"config": 3, "source": {}}', '{"config": {"env": {"env_id": "CartPole-v1"}}, "source": 3}']
)
def test_config_json_whose_parts_are_no_objects_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"mine\.json"):
        load_config(write(tmp_path, "mine.json", text))


def test_neighbour_of_a_config_file_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(
        tmp_path, "neighbour_of_py.py", "from ding_lite import PPOPolicy\nclass Mine(PPOPolicy):\n    pass\n"
    )
    text = "config = dict(env=dict(env_id='CartPole-v1'), policy=dict(type='neighbour_of_py:Mine'))\n"
    assert load_config(write(tmp_path, "mine.py", text)).modules() == ["neighbour_of_py"]


def test_neighbour_of_a_json_file_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(
        tmp_path,
        "neighbour_of_json.py",
        "from ding_lite import PPOPolicy\nclass Mine(PPOPolicy):\n    pass\n",
    )
    text = json.dumps({**CARTPOLE, "policy": {"type": "neighbour_of_json:Mine"}})
    assert load_config(write(tmp_path, "mine.json", text)).modules() == ["neighbour_of_json"]


# ------------------------------------------------------------------ shipped configs


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_shipped_config_compiles(file):
    config = load_config(file)
    assert config.values.exp_name == file.stem
    assert config.source["exp_name"] == str(file)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_shipped_config_is_found_by_its_name(file):
    assert read_config(find_config(file.stem)) == read_config(file)


def test_every_config_of_the_folder_is_shipped():
    assert list(shipped_configs()) == [file.stem for file in CONFIGS]


def test_what_lies_beside_the_configs_is_named_by_one_of_them():
    named = {read_config(file)["env"].get("type", "").partition(":")[0] for file in CONFIGS} - {""}
    assert named == {file.stem for file in FOLDER.glob("*_env.py")}


def test_unknown_name_of_a_config_is_reported_with_the_close_one_and_all():
    with pytest.raises(ConfigError, match=r"Did you mean 'cartpole_ppo'\?") as caught:
        find_config("cartpol_ppo")
    assert "pendulum_ppo" in str(caught.value)


# ------------------------------------------------------------------ DI-engine's keys


DI_ENGINE_PPO = {
    "type": "ppo",
    "cuda": False,
    "on_policy": True,
    "priority": False,
    "priority_IS_weight": False,
    "recompute_adv": True,
    "action_space": "discrete",
    "nstep_return": False,
    "multi_agent": False,
    "transition_with_policy_data": True,
    "multi_gpu": False,
    "bp_update_sync": True,
    "traj_len_inf": False,
    "model": {"obs_shape": 4, "action_shape": 2},
    "learn": {
        "epoch_per_collect": 10,
        "batch_size": 64,
        "learning_rate": 3e-4,
        "lr_scheduler": None,
        "value_weight": 0.5,
        "entropy_weight": 0.0,
        "clip_ratio": 0.2,
        "adv_norm": True,
        "value_norm": True,
        "ppo_param_init": True,
        "grad_clip_type": "clip_norm",
        "grad_clip_value": 0.5,
        "ignore_done": False,
        "kl_type": "k1",
        "kl_beta": 0.0,
        "pretrained_model_path": None,
        "resume_training": False,
    },
    "collect": {"unroll_len": 1, "discount_factor": 0.99, "gae_lambda": 0.95, "n_sample": 2048},
    "eval": {},
}


def fixed_keys(schema, path="policy"):
    for name, key in schema.items():
        if isinstance(key, dict):
            yield from fixed_keys(key, f"{path}.{name}")
        elif key.fixed_because:
            yield f"{path}.{name}", key


FIXED = list(fixed_keys(merged_config(PPOPolicy)))


def test_every_default_of_di_engines_ppo_is_taken():
    values = values_of({**CARTPOLE, "policy": DI_ENGINE_PPO})
    assert values.policy.learn.adv_norm is True
    assert values.policy.model.obs_shape == 4


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("policy.learn.epoch_per_collect", 3),
        ("policy.learn.value_weight", 1.0),
        ("policy.learn.grad_clip_type", "clip_value"),
        ("policy.recompute_adv", False),
        ("policy.collect.gae_lambda", 0.5),
        ("policy.collect.unroll_len", 0),
    ],
)
def test_di_engine_key_is_honoured(path, value):
    assert dict(leaves(values_of(CARTPOLE, overrides={path: value})))[path] == value


@pytest.mark.parametrize(("path", "key"), FIXED, ids=[path for path, _ in FIXED])
def test_di_engine_key_that_we_do_not_follow_is_taken_where_it_asks_for_nothing(path, key):
    config = compile_config(CARTPOLE, {path: key.default})
    assert path not in dict(leaves(config.values))
    assert path not in config.source


@pytest.mark.parametrize(("path", "key"), FIXED, ids=[path for path, _ in FIXED])
def test_di_engine_key_that_we_do_not_follow_is_refused_with_the_reason(path, key):
    asked = not key.default if isinstance(key.default, bool) else 7
    message = override_fault(path, asked)
    assert f"{path}: only " in message
    assert key.fixed_because in message


def test_di_engine_keys_that_we_do_not_follow_are_these():
    assert {path for path, _ in FIXED} >= {
        "policy.learn.lr_scheduler",
        "policy.multi_agent",
    }


def test_a_module_that_ends_the_program_is_reported_when_the_environment_is_made(tmp_path, monkeypatch):
    (tmp_path / "quits_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    env = {"type": "quits_at_once:Env", "wrappers": ["step_counter"]}
    config = compile_config({"env": env})
    with pytest.raises(DingLiteError, match="quits_at_once"):
        make_env(config.values.env)


# ------------------------------------------------------------------ what DI-engine's policies have


@pytest.mark.parametrize(("kind", "model"), [("ppo", "vac"), ("ppo_offpolicy", "vac"), ("ppg", "ppg")])
def test_default_model_is_that_of_a_config_without_one(kind, model):
    assert POLICY_REGISTRY.get(kind).default_model() == (model, [])
    values = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": kind}}).values
    assert values.policy.model.type == model


def test_default_model_of_a_policy_of_ones_own_is_imported_and_chosen(tmp_path, monkeypatch):
    (tmp_path / "a_net_of_mine.py").write_text(
        "from ding_lite import MODEL_REGISTRY\nfrom ding_lite.models import VAC\n\n\n"
        '@MODEL_REGISTRY.register("a_net_of_mine")\nclass Net(VAC):\n    """A model."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)

    class Mine(PPOPolicy):
        @classmethod
        def default_model(cls):
            return "a_net_of_mine", ["a_net_of_mine"]

    named = {"type": Mine, "model": {"type": "a_net_of_mine"}}  # as the config that a run saves does
    compile_config({"env": {"env_id": "CartPole-v1"}, "policy": named})
    values = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": Mine}}).values
    assert values.policy.model.type == "a_net_of_mine"
    asked = {"type": Mine, "model": {"type": "vac"}}
    assert (
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": asked}).values.policy.model.type == "vac"
    )


@pytest.mark.parametrize(
    "default_model",
    [
        lambda self: ("vac", []),
        classmethod(lambda cls: "vac"),
        classmethod(lambda cls: ("vac", ["no_such_module"])),
    ],
    ids=["of an instance", "no pair", "of no module"],
)
def test_default_model_that_does_not_work_is_refused(default_model):
    Mine = type("Mine", (PPOPolicy,), {"default_model": default_model})
    with pytest.raises(ConfigError, match=r"Mine\.default_model must be a classmethod that returns \(name"):
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": Mine}})


def test_numbers_of_numpy_are_taken_as_those_of_python():
    learn = dict(
        learning_rate=np.float32(0.25),
        batch_size=np.int64(32),
        value_norm=np.bool_(False),
        clip_ratio=np.array(0.5),
    )
    model = dict(encoder_hidden_size_list=[np.int64(16), 8])
    policy = dict(learn=learn, model=model, collect=dict(n_sample=np.array(256)))
    env = dict(env_id="CartPole-v1", kwargs=dict(size=np.int32(3)))
    config = compile_config(dict(seed=np.uint8(7), env=env, policy=policy))
    values = config.values
    found = [values.seed, values.policy.collect.n_sample, values.policy.model.encoder_hidden_size_list[0]]
    found += [values.policy.learn[name] for name in learn]
    assert found == [7, 256, 16, 0.25, 32, False, 0.5]
    assert [type(x) for x in found] == [int, int, int, float, int, bool, float]
    size = values.env.kwargs.size
    assert (size, type(size)) == (3, np.int32)  # as the user wrote it
    with pytest.raises(ConfigError, match="policy.learn.batch_size: expected a whole number, got 32.5"):
        compile_config(
            dict(env=dict(env_id="CartPole-v1"), policy=dict(learn=dict(batch_size=np.float64(32.5))))
        )


def test_default_of_a_class_that_breaks_a_rule_is_refused_where_it_is_used():
    Mine = type("Mine", (PPOPolicy,), {"config": {"collect": {"discount_factor": 99.0}}})
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": Mine}}
    with pytest.raises(ConfigError, match=r"collect\.discount_factor: .* got 99\.0; it is the default"):
        compile_config(config)
    policy = compile_config(config, {"policy.collect.discount_factor": 0.5}).values.policy
    assert policy.collect.discount_factor == 0.5


@pytest.mark.parametrize("key", [0, "items"])
def test_keys_of_a_dict_in_a_list_are_checked(key):
    wrapper = {"type": "step_counter", "mapping": {key: 1}}
    with pytest.raises(ConfigError, match=rf"config\.env\.wrappers\[0\]\.mapping: .*{key!r}"):
        compile_config({"env": {"env_id": "CartPole-v1", "wrappers": [wrapper]}})


def test_a_short_form_on_the_command_line_is_the_source_of_its_own_key_alone():
    user = {"env": {"env_id": "CartPole-v1"}}
    config = compile_config(user, {"env.manager": "base", "env.manager.max_restarts": 5})
    sources = {name: config.source[f"env.manager.{name}"] for name in ("type", "max_restarts", "worker_num")}
    assert sources == {"type": "command line", "max_restarts": "command line", "worker_num": "default"}
    with pytest.raises(ConfigError, match="env.manager='base' replaces env.manager.max_restarts"):
        compile_config(user, {"env.manager.max_restarts": 5, "env.manager": "base"})


def test_overrides_stay_as_they_are():
    overrides = {"env": {"env_id": "CartPole-v1", "manager": "base"}, "policy.learn": {"batch_size": 32}}
    before = copy.deepcopy(overrides)
    compile_config({}, {**overrides, "policy.learn.clip_ratio": 0.1})
    assert overrides == before


def test_a_number_that_is_not_finite_is_written_as_it_can_be_read(tmp_path):
    file = tmp_path / "config.py"
    file.write_text(python_source({"env": {"kwargs": {"limit": math.inf}}}))
    assert runpy.run_path(str(file))["config"]["env"]["kwargs"]["limit"] == math.inf


def test_keys_with_a_dot_are_written_as_they_are(tmp_path):
    kwargs = {"pose.arm": {"x": 1}, "y": 2}
    save_config(compile_config({"env": {"env_id": "CartPole-v1", "kwargs": kwargs}}), tmp_path / "config.py")
    written = runpy.run_path(str(tmp_path / "config.py"))["config"]
    assert written["env"] == {"env_id": "CartPole-v1", "kwargs": kwargs}


@pytest.mark.parametrize(
    ("env", "overrides", "source"),
    [
        ({"type": "small_worlds:LengthEnv"}, {"env.env_id": "CartPole-v1"}, ("gymnasium", "CartPole-v1")),
        ({"env_id": "CartPole-v1"}, {"env.type": "small_worlds:LengthEnv"}, ("small_worlds:LengthEnv", "")),
        ({"env_id": "CartPole-v1"}, {"env.env_id": "Acrobot-v1"}, ("gymnasium", "Acrobot-v1")),
        ({"env_id": "CartPole-v1"}, {"env.type": "gymnasium"}, ("gymnasium", "CartPole-v1")),
    ],
)
def test_another_environment_replaces_that_of_the_config_whichever_key_names_it(env, overrides, source):
    config = compile_config({"env": env}, overrides)
    assert (config.values.env.type, config.values.env.env_id) == source
    assert env_name(config.values.env) == (source[1] or source[0])


def test_an_id_that_the_type_does_not_read_is_no_name_of_the_environment():
    env = {"type": "small_worlds:LengthEnv", "env_id": "CartPole-v1"}
    assert env_name(values_of({"env": env}).env) == "small_worlds:LengthEnv"


def test_overrides_of_a_config_file_are_a_list_or_a_dict():
    for overrides in (["seed=3"], {"seed": 3}):
        assert load_config("cartpole_ppo", overrides).values.seed == 3
    with pytest.raises(ConfigError, match=r"expected a list or a dict, got a string; write \['seed=3'\]"):
        load_config("cartpole_ppo", "seed=3")


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        ("env", "CartPole-v1", "got the string 'CartPole-v1'; write env.env_id='CartPole-v1'"),
        ("env", "mine:Env", "got the string 'mine:Env'; write env.type='mine:Env'"),
        ("policy", "ppg", "got the string 'ppg'; write policy.type='ppg'"),
        ("policy.model", "mine", "got the string 'mine'; write policy.model.type='mine'"),
        ("policy.model.encoder_hidden_size_list", 64, "expected a list, got 64; write [64]"),
        ("policy.model.activation", nn.ReLU, "did you mean 'relu'?"),
    ],
)
def test_a_value_of_the_wrong_kind_is_answered_with_what_to_write(path, value, hint):
    assert message_of(CARTPOLE, {path: value}).endswith(hint)


def test_a_value_that_is_edited_in_a_config_json_is_no_default():
    content = compile_config(CARTPOLE).as_json()
    content["config"]["policy"]["collect"]["gae_lambda"] = 0.5
    edited = compile_config(json.loads(json.dumps(content)), origin="my.json")
    assert edited.source["policy.collect.gae_lambda"] == "my.json"
    assert edited.source["policy.collect.discount_factor"] == "default"
    assert edited.written()["policy"]["collect"] == {"gae_lambda": 0.5}
