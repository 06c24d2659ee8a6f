"""Configs of DI-engine: what each key of the pair becomes, what is refused, and files that import it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys

import gymnasium as gym
import pytest
import torch.nn as nn
from easydict import EasyDict

from ding_lite import ENV_REGISTRY, SerialPipeline
from ding_lite.cli import main
from ding_lite.config.compile import as_config, compile_config, load_config, parse_overrides
from ding_lite.config.schema import leaves, set_value
from ding_lite.errors import ConfigError

# DI-engine's cartpole is CartPole-v0, of which gymnasium says that it is old.
pytestmark = pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
POLICIES = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")


def pair(kind="ppo", env_type="cartpole", env=None, create=None, **policy):
    """Returns a small pair; the keyword arguments are sections of ``main_config.policy``."""
    main = dict(exp_name="theirs", env=dict(collector_env_num=8, **(env or {})))
    main["policy"] = {"collect": dict(n_sample=256), **policy}
    made = dict(env=dict(type=env_type), env_manager=dict(type="base"), policy=dict(type=kind))
    return EasyDict(main), EasyDict({**made, **(create or {})})


def compiled(*args, **kwargs):
    return as_config(pair(*args, **kwargs))


def at(config, path):
    return dict(leaves(config.values))[path]


# ------------------------------------------------------------------ keys


def test_keys_with_the_same_meaning_keep_their_values():
    learn = dict(batch_size=32, learning_rate=0.002, clip_ratio=0.1, entropy_weight=0.03, adv_norm=False)
    collect = dict(gae_lambda=0.9, discount_factor=0.9, n_sample=128)
    model = dict(share_encoder=True, encoder_hidden_size_list=[64, 128])
    env = dict(evaluator_env_num=5, n_evaluator_episode=5, stop_value=195)
    # "ppo_command": as the entries of DI-engine change it.
    config = compiled("ppo_command", env=env, learn=learn, collect=collect, model=model)
    for path, value in leaves(dict(env=env, policy=dict(learn=learn, collect=collect, model=model))):
        assert (at(config, path), config.source[path]) == (value, "config")


def test_what_the_pair_leaves_out_has_the_defaults_of_ding_lite():
    config, ours = compiled(), compile_config({"env": {"env_id": "CartPole-v0"}})
    for path in ("policy.learn.epoch_per_collect", "policy.eval.eval_freq", "policy.learn.entropy_weight"):
        assert at(config, path) == at(ours, path)
        assert config.source[path] == "default"


@pytest.mark.parametrize(
    ("kind", "learn", "envs", "eval_freq", "expected"),
    [
        # 2 passes of 4 minibatches: 8 train iterations in an iteration of 256 steps.
        ("ppo", dict(epoch_per_collect=2, batch_size=64), 8, 100, 13 * 256),
        ("ppo", dict(epoch_per_collect=2, batch_size=64), 8, 8, 256),
        ("ppo", dict(epoch_per_collect=2, batch_size=60), 8, 21, 3 * 256),  # the short minibatch counts
        ("ppo", {}, 8, 41, 2 * 256),  # 10 passes of minibatches of 64, DI-engine's defaults
        ("ppo", dict(epoch_per_collect=2, batch_size=64), 10, 8, 260),  # a rollout is 26 steps of 10
        ("ppo_offpolicy", dict(update_per_collect=6), 8, 40, 7 * 256),
        ("ppo_offpolicy", {}, 8, 40, 8 * 256),
        ("ppg", dict(actor_epoch_per_collect=3), 8, 40, 40 * 256),  # one train iteration in a collect
        ("ppg_offpolicy", dict(update_per_collect=24), 8, 48, 2 * 256),
    ],
)
def test_train_iterations_become_env_steps(kind, learn, envs, eval_freq, expected):
    main, create = pair(kind, learn=learn, eval=dict(evaluator=dict(eval_freq=eval_freq)))
    main.env.collector_env_num = envs
    config = as_config((main, create))
    assert config.values.policy.eval.eval_freq == expected
    assert any(f"{expected:,} env steps (policy.eval.eval_freq)" in note for note in config.notes)


def test_learning_rate_falls_over_as_many_collects(tmp_path):
    learn = dict(lr_scheduler=dict(epoch_num=3, min_lr_lambda=0.25), learning_rate=0.4, batch_size=256)
    pipeline = SerialPipeline(
        pair(env_type="acrobot", learn=learn), folder=tmp_path / "run", max_env_step=1024
    )
    rates = [progress.metrics["learn/cur_lr"] for progress in pipeline]
    pipeline.close()
    # DI-engine: 0.4 max(1 - k (1 - 0.25) / 3, 0.25) in the k-th collect.
    assert rates == pytest.approx([0.4, 0.3, 0.2, 0.1], rel=1e-6)


# Policy and environment of a pair, keys of its main_config -> keys of the config that it becomes.
CONVERTED = """\
ppo cartpole -> env.env_id='CartPole-v0' policy.model.actor_head_hidden_size_list=[]
ppo cartpole policy.model.actor_head_hidden_size=32 -> policy.model.actor_head_hidden_size_list=[32]
ppg cartpole policy.model.actor_head_hidden_size=32 -> policy.model.actor_head_hidden_size_list=[32,32]
ppg cartpole policy.model.critic_head_hidden_size=16 -> policy.model.critic_head_hidden_size_list=[16]
ppo cartpole policy.model.actor_head_layer_num=0 -> policy.model.actor_head_hidden_size_list=[]
ppo cartpole policy.model.critic_head_layer_num=2 -> policy.model.critic_head_hidden_size_list=[64,64]
ppg cartpole -> policy.model.arch='dual'
ppg cartpole policy.model.share_encoder=False -> policy.model.arch='dual'
ppg cartpole policy.model.share_encoder=True -> policy.model.arch='shared'
ppo cartpole env.manager.step_timeout=7 -> env.manager.step_timeout=7 env.manager.type='auto'
ppo cartpole create_config.env_manager.type='async_subprocess' -> env.manager.type='subprocess'
ppo cartpole create_config.env_manager.type='gym_vector' -> env.manager.type='vector'
ppo pendulum env.env_id='Pendulum-v0' -> env.env_id='Pendulum-v1' env.wrappers=[]
ppo pendulum env.act_scale=True -> env.wrappers=['action_rescale']
ppo pendulum env.act_scale=True env.continuous=False -> env.wrappers=[{'type':'action_bins','bins':11}]
ppo lunarlander env.env_id='LunarLanderContinuous-v2' -> env.env_id='LunarLanderContinuous-v3'
ppo lunarlander env.act_scale=True env.action_clip=True -> env.wrappers=[]
ppo bipedalwalker env.act_scale=True env.rew_clip=True -> env.wrappers=[{'type':'reward_clip','low':-10.0}]
ppo mujoco env.env_id='Hopper-v3' -> env.env_id='Hopper-v5' policy.normalize.obs=False
ppo mujoco env.env_id='Hopper-v5' -> env.env_id='Hopper-v5'
ppo mujoco env.env_id='Ant-v3' env.action_bins_per_branch=5 -> env.wrappers=[{'type':'action_bins','bins':5}]
ppo mujoco env.env_id='Ant-v3' env.norm_obs.use_norm=True -> policy.normalize.obs=True
ppo mujoco env.env_id='Ant-v3' env.norm_reward.use_norm=True -> policy.normalize.reward=True
ppo mujoco env.env_id='Ant-v3' env.norm_reward.use_norm=False -> policy.normalize.reward=False
ppo atari env.env_id='P-v4' env.frame_stack=2 -> env.wrappers=[{'type':'atari','stack_size':2}] env.kwargs={}
ppo atari env.env_id='P-v4' env.frame_stack=0 -> env.wrappers=[{'type':'atari','stack_size':1}]
ppo atari env.env_id='ALE/Pong-v5' -> env.kwargs.frameskip=1
ppo atari env.env_id='P-v4' policy.model.encoder_hidden_size_list=[32,64,64,512] -> \
policy.model.encoder.type='nature_cnn' policy.model.encoder.widths=[32,64,64] \
policy.model.encoder_hidden_size_list=[512]
ppo atari env.env_id='P-v4' policy.model.encoder_hidden_size_list=[64,64,128] -> \
policy.model.encoder.widths=[64,64,128] policy.model.encoder_hidden_size_list=[128]
ppo procgen policy.model.encoder_hidden_size_list=[16,32] policy.model.impala_cnn_encoder=True \
policy.model.actor_head_hidden_size=9 -> policy.model.encoder.type='impala_cnn' \
policy.model.encoder.widths=[16,32] policy.model.encoder_hidden_size_list=[9]
ppo procgen env.env_id='maze' -> env.env_id='MazeHard-v0' env.kwargs={}
ppo procgen env.start_level=7 env.num_levels=9 -> env.kwargs.start_level=7 env.kwargs.num_levels=9
ppo minigrid env.max_step=300 -> env.kwargs.max_steps=300 env.wrappers=['minigrid_flat']
ppo minigrid env.full_obs=True -> env.wrappers=['minigrid.wrappers:FullyObsWrapper','minigrid_flat']
ppo minigrid env.flat_obs=False -> env.wrappers=['minigrid_image']
ppg cartpole policy.learn.aux_freq=100 -> policy.learn.aux_freq=100
ppg_offpolicy cartpole policy.learn.aux_freq=100 policy.learn.update_per_collect=24 -> policy.learn.aux_freq=4
ppo cartpole policy.learn.epoch_per_collect=2 policy.learn.learner.hook.save_ckpt_after_iter=80 -> \
checkpoint.keep_freq=2560
"""


@pytest.mark.parametrize("row", CONVERTED.splitlines())
def test_keys_of_the_pair_become_keys_here(row):
    theirs, expected = (half.split() for half in row.split("->"))
    main, create = pair(*theirs[:2])
    written = parse_overrides(theirs[2:])
    for path, value in written.items():
        set_value({**main, "create_config": create}, path, value)
    config = as_config((main, create))
    assert {path: at(config, path) for path in parse_overrides(expected)} == parse_overrides(expected)
    old, new = written.get("env.env_id"), config.values.env.env_id
    assert any(f"env.env_id: {old} -> " in note and new in note for note in config.notes) == (
        old not in (None, new)
    )


@pytest.mark.parametrize(("activation", "name"), [(nn.Tanh(), "tanh"), (nn.ReLU, "relu"), ("elu", "elu")])
def test_activation_is_named(activation, name):
    assert compiled(model=dict(activation=activation)).values.policy.model.activation == name


def test_buffer_holds_at_least_a_rollout_and_uses_follow_from_the_updates():
    options = dict(learn=dict(update_per_collect=40))
    buffers = dict(policy=dict(replay_buffer_size=100), value=dict(replay_buffer_size=200))
    config = compiled("ppg_offpolicy", **options, other=dict(replay_buffer=buffers))
    made = config.values.policy.other.replay_buffer
    assert (made.replay_buffer_size, made.max_use) == (256, 10)  # 40 minibatches of 64 from 256
    assert [note.split(":")[0].removeprefix("policy.other.replay_buffer.") for note in config.notes] == [
        *("policy.replay_buffer_size", "value.replay_buffer_size", "max_use")
    ]
    buffers["value"]["replay_buffer_size"] = 1000
    with pytest.raises(ConfigError, match="replay_buffer_size: 256 for the policy, 1000 for the value"):
        compiled("ppg_offpolicy", **options, other=dict(replay_buffer=buffers))


@pytest.mark.parametrize(("kind", "recomputes"), [("ppo", True), ("ppo_offpolicy", False)])
def test_values_are_normalised_as_in_di_engine_where_the_pair_does_not_say(kind, recomputes):
    policy = compiled(kind).values.policy
    assert (policy.learn.value_norm, policy.learn.value_norm_std) == (True, 1.0)
    assert (policy.learn.adam_eps, policy.recompute_adv) == (1e-8, recomputes)
    config = compiled(kind, recompute_adv=False, learn=dict(value_norm=False))
    off = config.values.policy
    assert (off.learn.value_norm, off.recompute_adv) == (False, False)
    assert not any("value_norm" in note for note in config.notes)


def test_a_policy_that_extends_ppo_has_its_defaults_and_keys_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "own_soft.py").write_text(
        "from ding_lite import POLICY_REGISTRY, PPOPolicy\n"
        "@POLICY_REGISTRY.register('own_soft')\n"
        "class OwnSoft(PPOPolicy):\n"
        "    config = dict(learn=dict(own_weight=0.1))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    create = dict(policy=dict(type="own_soft", import_names=["ding.policy.ppo", "own_soft"]))
    config = compiled(create=create, learn=dict(own_weight=0.5))
    assert (at(config, "policy.type"), config.trusted) == ("own_soft", ("own_soft",))
    assert at(config, "policy.learn.own_weight") == 0.5
    assert at(config, "policy.learn.value_norm") is True


def test_the_module_that_registers_a_model_is_imported(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(
        "from ding_lite import MODEL_REGISTRY\n"
        "from ding_lite.models import VAC\n"
        "MODEL_REGISTRY.register('own_net')(type('OwnNet', (VAC,), {'__module__': __name__}))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = compiled(model=dict(type="own_net", import_names=["own_net"], obs_shape=4, action_shape=2))
    assert (at(config, "policy.model.type"), config.trusted) == ("own_net", ("own_net",))


# ------------------------------------------------------------------ keys that are left out or refused


def test_hooks_of_the_learner_that_change_the_run_are_refused():
    hooks = {
        name: dict(name=name, type=name, position="before_run") for name in ("load_ckpt", "own", "log_show")
    }
    with pytest.raises(ConfigError, match="has 2 faults") as caught:
        compiled(learn=dict(learner=dict(hook=hooks)))
    for name in ("load_ckpt", "own"):
        assert f"learner.hook.{name}: --init-from gives weights" in str(caught.value)


def test_misspelt_keys_are_refused():
    with pytest.raises(ConfigError) as caught:
        compiled(learn=dict(clip_ration=1, batchsize=1), collect=dict(n_samples=1))
    for key, meant in (("learn.clip_ration", "clip_ratio"), ("collect.n_samples", "n_sample")):
        assert f"policy.{key}: there is no such key; did you mean {meant!r}" in str(caught.value)


# The defaults of version 0.5.3, in the section policy.
IN_ALL = """\
cuda=False priority=False priority_IS_weight=False action_space=discrete transition_with_policy_data=True
multi_agent=False learn.batch_size=64 learn.learning_rate=1e-3 learn.entropy_weight=0.01 learn.clip_ratio=0.2
learn.adv_norm=True learn.ignore_done=False
"""
IN_PPO = """\
nstep_return=False learn.value_norm=True learn.ppo_param_init=True learn.grad_clip_type=clip_norm
learn.grad_clip_value=0.5 learn.value_weight=0.5
"""
DI_ENGINE = {
    "ppo": f"{IN_PPO} on_policy=True recompute_adv=True learn.epoch_per_collect=10 learn.lr_scheduler=None",
    "ppo_offpolicy": f"""{IN_PPO} on_policy=False nstep=3 learn.update_per_collect=5 learn.weight_decay=0.0
        other.replay_buffer={{'replay_buffer_size':10000,'max_use':3,'alpha':0.6,'thruput_controller':1}}""",
    "ppg": """on_policy=True learn.actor_epoch_per_collect=1 learn.critic_epoch_per_collect=1
        learn.value_norm=True learn.aux_freq=8 learn.aux_train_epoch=6 learn.aux_bc_weight=1
        learn.grad_clip_type=clip_norm learn.grad_clip_value=10""",
    "ppg_offpolicy": """on_policy=False learn.update_per_collect=5 learn.aux_freq=5 learn.aux_train_epoch=6
        learn.aux_bc_weight=1 other.replay_buffer.multi_buffer=True
        other.replay_buffer.policy={'replay_buffer_size':1000,'monitor':{'sampled_data_attr':1}}
        other.replay_buffer.value.replay_buffer_size=1000""",
}


@pytest.mark.parametrize("kind", POLICIES)
def test_every_default_of_di_engine_is_accepted(kind):
    main, create = pair(kind)
    for path, value in parse_overrides([*IN_ALL.split(), *DI_ENGINE[kind].split()]).items():
        set_value(main.policy, path, value)
    learn = as_config((main, create)).values.policy.learn
    assert (learn.batch_size, learn.adv_norm) == (64, "minibatch")


@pytest.mark.parametrize(
    ("kind", "learn"),
    [
        ("ppo", "update_per_collect"),
        ("ppo_offpolicy", "epoch_per_collect"),
        ("ppg", "grad_clip_value"),
        ("ppg_offpolicy", "beta_weight"),
    ],
)
def test_keys_without_effect_are_left_out_with_one_note(kind, learn):
    """Those of DI-engine's machinery, and those that its code does not read for the policy."""
    config = compiled(
        kind,
        env=dict(manager=dict(shared_memory=False)),
        model=dict(obs_shape=[3], action_shape=2),
        collect=dict(n_sample=256, collector=dict(collect_print_freq=10)),
        learn={learn: 1},
    )
    (note,) = config.notes
    assert set(note.partition(": ")[2].split(", ")) == {
        *("policy.collect.collector.collect_print_freq", f"policy.learn.{learn}"),
        *("policy.model.obs_shape", "policy.model.action_shape", "env.manager.shared_memory"),
    }


def test_rnd_becomes_the_intrinsic_reward():
    rnd = dict(intrinsic_reward_type="add", learning_rate=5e-4, obs_shape=8, batch_size=320)
    main, create = pair(env_type="lunarlander", create=dict(reward_model=dict(type="rnd")))
    config = as_config(({**main, "reward_model": rnd}, create))
    assert at(config, "policy.intrinsic.type") == "rnd"
    assert at(config, "policy.intrinsic.learning_rate") == 5e-4
    assert any("RND has a value network" in note for note in config.notes)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (dict(create=dict(reward_model=dict(type="trex"))), "reward_model: learned rewards are not built"),
        (dict(learn=dict(resume_training=True)), "policy.learn.resume_training: only False"),
        (dict(env_type="metadrive"), "create_config.env.type: the environment 'metadrive' is not known"),
        (dict(learn=dict(lr_scheduler=dict(epoch_num=5))), "policy.learn.lr_scheduler: expected epoch_num"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(args, expected):
    with pytest.raises(ConfigError, match=expected):
        compiled(**args)


# ------------------------------------------------------------------ environments


def test_environment_of_the_users_own_takes_its_keys():
    class Sized(gym.Env):
        def __init__(self, size):
            self.size = size

    ENV_REGISTRY.register("sized_of_di_engine")(Sized)
    env = compiled(env_type="sized_of_di_engine", env=dict(size=3)).values.env
    assert (env.type, dict(env.kwargs), env.collector_env_num) == ("sized_of_di_engine", {"size": 3}, 8)


def test_keys_of_ding_lite_in_a_pair_mean_what_they_mean_here():
    env = dict(env_id="Hopper-v3", wrappers=["reward_clip"], kwargs=dict(a=dict(b=1)), info_keys=["x"])
    env = compiled(env_type="mujoco", env=dict(**env, action_bins_per_branch=5)).values.env
    assert env.wrappers == [{"type": "action_bins", "bins": 5}, "reward_clip"]
    assert (env.kwargs, env.info_keys) == ({"a": {"b": 1}}, ["x"])


# ------------------------------------------------------------------ in Python


def test_compile_config_and_attributes_of_policies_have_the_names_of_di_engine(tmp_path):
    main, create = pair(env_type="acrobot")
    config = compile_config([main, create], {"seed": 3})  # a list or a tuple
    assert (config.values.env.env_id, config.values.seed) == ("Acrobot-v1", 3)
    with SerialPipeline(config, folder=tmp_path / "run") as run:
        assert run.policy._model is run.policy._learn_model is run.policy.model
        assert run.policy._cfg is run.policy.cfg


# ------------------------------------------------------------------ files

HEAD = "from easydict import EasyDict\n"
BODY = """
main_config = EasyDict(dict(
    exp_name="theirs",
    env=dict(collector_env_num=8, evaluator_env_num=1, n_evaluator_episode=1, stop_value=195),
    policy=dict(
        learn=dict(epoch_per_collect=2, batch_size=64, update_per_collect=9),
        collect=dict(n_sample=256),
        eval=dict(evaluator=dict(eval_freq=100)),
    ),
))
create_config = EasyDict(
    dict(env=dict(type="cartpole"), env_manager=dict(type="base"), policy=dict(type="ppo"))
)
"""
needs_no_di_engine = pytest.mark.skipif(
    importlib.util.find_spec("ding") is not None, reason="DI-engine is installed: no stand-ins are made"
)


def theirs(tmp_path, head="", tail=""):
    file = tmp_path / "their_config.py"
    file.write_text(HEAD + head + BODY + tail)
    return file


@needs_no_di_engine
def test_imports_of_di_engine_need_not_be_installed(tmp_path):
    head = (
        "import ding\nimport dizoo.atari.envs\nfrom typing import Optional\nfrom ditk import logging\n"
        "from ding.entry import serial_pipeline_onpolicy\nfrom ding.envs import BaseEnv\n"
        "def made(env: BaseEnv, other: Optional[BaseEnv] = None) -> ding.policy.PPOPolicy: ...\n"
    )
    tail = "if __name__ == '__main__':\n    serial_pipeline_onpolicy((main_config, create_config))\n"
    assert load_config(theirs(tmp_path, head, tail)).values == load_config(theirs(tmp_path)).values
    assert [name for name in sys.modules if name.split(".")[0] in ("ding", "dizoo", "ditk")] == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ding.entry")


@needs_no_di_engine
@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("from ding.entry import serial_pipeline\nserial_pipeline(1)\n", "serial_pipeline is called"),
        ("from ding.envs import BaseEnv\nclass Mine(BaseEnv): ...\n", "write environments as gymnasium.Env"),
    ],
)
def test_file_that_uses_di_engine_is_refused(tmp_path, head, said):
    with pytest.raises(ConfigError, match=said):
        load_config(theirs(tmp_path, head))


def test_installed_di_engine_is_imported(tmp_path, monkeypatch):
    package, installed = tmp_path / "dizoo", tmp_path / "DI_engine-0.5.3.dist-info"
    package.mkdir()
    installed.mkdir()
    (package / "__init__.py").write_text("n_sample = 128\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "dizoo", None)  # so that it is removed after the test
    monkeypatch.delitem(sys.modules, "dizoo")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: DI-engine\nVersion: 0.5.3\n")
    tail = "main_config.policy.collect.n_sample = n_sample\n"
    config = load_config(theirs(tmp_path, "from dizoo import n_sample\n", tail))
    assert config.values.policy.collect.n_sample == 128
    with pytest.raises(ConfigError, match=r"ModuleNotFoundError: No module named 'dizoo\.atari'"):
        load_config(theirs(tmp_path, "import dizoo.atari\n"))


def test_dict_named_config_goes_before_the_pair(tmp_path):
    tail = "config = dict(env='Acrobot-v1')\n"
    assert load_config(theirs(tmp_path, tail=tail)).values.env.env_id == "Acrobot-v1"
    with pytest.raises(ConfigError, match="no dict named `config`, nor DI-engine's two dicts"):
        load_config(theirs(tmp_path, tail="del create_config\n"))


# ------------------------------------------------------------------ processes


def test_file_of_di_engine_trains_and_is_kept_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    theirs(tmp_path, "from ding.entry import serial_pipeline_onpolicy\n")
    train = ["train", "-q", "--max-env-step", "512", "-c"]
    assert main([*train, "their_config.py", "--exp-name", "run"]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["env_id"] == "CartPole-v0"
    assert 512 <= result["env_step"] < 512 + 256  # whole rollouts of 256 rows, of which resets are no steps
    assert main(["config", "-c", "their_config.py", "-o", "kept.py"]) == 0
    assert "left out: policy.learn.update_per_collect" in capsys.readouterr().err
    assert main([*train, "kept.py", "--exp-name", "again"]) == 0
    files = [(tmp_path / name / "episodes.csv").read_text() for name in ("run", "again")]
    assert files[0] == files[1]
    assert main(["config", "-c", "kept.py", "-o", "kept.py"]) == 2, "the file exists"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "env_type", "env", "package"),
    [
        *((kind, "cartpole", {}, "gymnasium") for kind in POLICIES),
        ("ppo", "acrobot", {}, "gymnasium"),
        ("ppg", "mountain_car", {}, "gymnasium"),
        ("ppg_offpolicy", "pendulum", dict(act_scale=True), "gymnasium"),
        ("ppo_offpolicy", "lunarlander", dict(env_id="LunarLander-v2"), "Box2D"),
        ("ppg", "bipedalwalker", dict(act_scale=True, rew_clip=True), "Box2D"),
        ("ppg", "mujoco", dict(env_id="Hopper-v3"), "mujoco"),
        ("ppo", "atari", dict(env_id="PongNoFrameskip-v4", frame_stack=4), "ale_py"),
        ("ppo", "minigrid", dict(env_id="MiniGrid-Empty-8x8-v0", max_step=300), "minigrid"),
    ],
)
def test_two_iterations_of_every_policy_and_every_type_of_environment(kind, env_type, env, package, tmp_path):
    pytest.importorskip(package)
    main, create = pair(kind, env_type, env, collect=dict(n_sample=64), learn=dict(batch_size=32))
    main.env |= dict(collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1)
    short = {"env.max_eval_steps": 20, "policy.eval.eval_freq": 0}
    config = compile_config((main, create), short)
    pipeline = SerialPipeline(config, folder=tmp_path / "run", max_env_step=70)
    assert [progress.iteration for progress in pipeline] == [1, 2]
