"""Configs of DI-engine: ``(main_config, create_config)`` becomes one config of ding_lite.

The values of the pair are kept, in the units of ding_lite; missing keys get ding_lite's defaults, except
``recompute_adv`` of PPO, ``value_norm_std``, ``adam_eps`` and, off-policy, ``max_use``. Each key of the pair
ends in one of four ways:

* it means the same here (``SAME``, ``SAME_BY_POLICY``);
* it is converted, with a note where a number or a name changes;
* it is left out with a note, because it belongs to DI-engine's own machinery, or because DI-engine 0.5.3
  never reads it for this policy;
* it is refused, with the reason (``FIXED``, ``NOT_BUILT``).

``docs/di_engine.md`` has the tables for users.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from ding_lite.config.registry import ENV_REGISTRY, POLICY_REGISTRY, import_module, name_of
from ding_lite.config.schema import leaves, meant, merged_config, refuse, set_value
from ding_lite.errors import ConfigError, ContractError, counted

MAIN, CREATE = "main_config", "create_config"
PAIR = f"({MAIN}, {CREATE})"
THEIRS = ("ding", "dizoo", "ditk")  # packages


def _paths(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


BUFFER = "policy.other.replay_buffer"
# Paths with the same meaning here. The schema checks their values.
SAME = (
    *("exp_name", "policy.on_policy"),
    *_paths("env", "collector_env_num evaluator_env_num n_evaluator_episode stop_value info_keys"),
    *_paths("policy.learn", "batch_size learning_rate value_weight entropy_weight clip_ratio adv_norm"),
    *_paths("policy.collect", "n_sample unroll_len discount_factor gae_lambda"),
)
# Paths with the same meaning that only the code of some policies reads, in DI-engine 0.5.3 or later.
PPO_LEARN = _paths("policy.learn", "value_norm grad_clip_type grad_clip_value")
PPG_LEARN = _paths("policy.learn", "value_norm aux_train_epoch aux_bc_weight")
SAME_BY_POLICY = {
    "ppo": PPO_LEARN
    + _paths("policy", "recompute_adv learn.epoch_per_collect learn.kl_beta learn.kl_type")
    + ("policy.learn.pretrained_model_path",),
    "ppo_offpolicy": PPO_LEARN + _paths("policy", "nstep nstep_return learn.update_per_collect"),
    "ppg": PPG_LEARN + _paths("policy.learn", "aux_freq actor_epoch_per_collect critic_epoch_per_collect"),
    "ppg_offpolicy": (*PPG_LEARN, "policy.learn.update_per_collect"),
}
# Keys with only one accepted value, and why.
FIXED = {
    "policy.priority": (False, "transitions are drawn without priorities"),
    "policy.priority_IS_weight": (False, "transitions are drawn without priorities"),
    "policy.transition_with_policy_data": (True, "log_prob is always stored"),
    "policy.bp_update_sync": (True, "gradients are averaged over the ranks at every minibatch"),
    "policy.traj_len_inf": (False, "rollouts have a fixed length"),
    "policy.multi_agent": (False, "multi-agent training is not built"),
    "policy.collect.n_episode": (None, "rollouts have n_sample transitions"),
    "policy.learn.resume_training": (False, "a run is resumed with --resume"),
    "policy.learn.ppo_param_init": (True, "write policy.model.init='torch' for torch's own"),
    "policy.model.norm_type": (None, "networks have no normalisation layers"),
    f"{BUFFER}.multi_buffer": (True, "its sections policy and value become one, with the same limits"),
}
# Sections and keys that are refused unless they are empty or false.
NOT_BUILT = {
    "reward_model": "learned rewards are not built, except RND",
    "world_model": "model-based training is not built",
    "level_replay": "prioritised level replay is not built",
    "policy.random_collect_size": "PPO learns only from actions of a policy: random ones have no log-prob",
    "policy.model.encoder": "a module of torch cannot be a value here; register an encoder or a model",
    "policy.learn.learner.hook.load_ckpt_before_run": "--init-from gives weights, --resume continues a run",
    "env.obs_plus_prev_action_reward": "no wrapper adds the last action and reward; write one",
    "env.move_bonus": "the bonus for moving towards the goal is not built",
    "env.delay_reward_step": "delayed rewards are not built",
}
# Keys that are not arguments of an environment, and keys that DI-engine's machinery adds to every model.
OF_ENVS = _paths("env", "manager replay_path save_replay_gif wrappers kwargs")
OF_MODELS = _paths("policy.model", "obs_shape action_shape action_space")
BUFFERS = {"ppo_offpolicy": (BUFFER,), "ppg_offpolicy": (f"{BUFFER}.policy", f"{BUFFER}.value")}
# Defaults that convert counts of train iterations if the pair lacks these keys: DI-engine's, and ours.
DEFAULTS = dict(epoch_per_collect=10, update_per_collect=5, batch_size=64, n_sample=2048, collector_env_num=8)
# DI-engine's managers of environments, and ours. Some also exist as "async_..." and "..._v2".
MANAGERS = {"base": "auto", "subprocess": "subprocess", "gym_vector": "vector", "env_pool": "env_pool"}
# The types in create_config.env.type, each with the id to use if the pair has none.
ENVIRONMENTS = {
    **{"cartpole": "CartPole-v0", "acrobot": "Acrobot-v1", "mountain_car": "MountainCar-v0"},
    **{"pendulum": "Pendulum-v1", "lunarlander": "LunarLander-v2", "bipedalwalker": "BipedalWalker-v3"},
    **{"minigrid": "MiniGrid-KeyCorridorS3R3-v0", "procgen": "coinrun", "atari": "", "mujoco": ""},
}


def as_pair(config: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Returns the pair in ``(main_config, create_config)`` or in a dict with these names, or None."""
    parts = [config.get(MAIN), config.get(CREATE)] if isinstance(config, Mapping) else config
    if isinstance(parts, (tuple, list)) and len(parts) == 2 and all(isinstance(p, Mapping) for p in parts):
        return parts[0], parts[1]
    return None


def from_di_engine(
    main: Mapping[str, Any], create: Mapping[str, Any], origin: str
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Converts a config of DI-engine; neither argument is changed.

    Returns:
        the config as a user of ding_lite writes it; what was converted or left out, one line each; the
        modules that it has imported.

    Raises:
        ConfigError: listing everything that is refused.
    """
    conversion = _Conversion(main, create)
    conversion.convert()
    refuse(origin, conversion.faults)
    config: dict[str, Any] = {}
    for path, value in conversion.new.items():
        set_value(config, path, value)
    return config, conversion.notes, conversion.imports


class _Conversion:
    """One conversion: the keys that are left to convert, and the new config so far."""

    def __init__(self, main: Mapping[str, Any], create: Mapping[str, Any]) -> None:
        keys = [*leaves(main), *leaves(create, CREATE)]
        self.left = {path: v for path, v in keys if not (isinstance(v, Mapping) and not v)}
        self.new: dict[str, Any] = {}  # the new config, by paths
        self.notes: list[str] = []
        self.faults: list[str] = []
        sections = (f"{CREATE}.env", f"{CREATE}.policy", "policy.model")
        named = [module for section in sections for module in self.take(f"{section}.import_names", [])]
        self.imports = [m for m in named if m.partition(".")[0] not in THEIRS]
        for module in self.imports:  # they register environment, policy and model
            import_module(module)
        kind = self.take(f"{CREATE}.policy.type", "ppo")
        self.type = str(self.left.get("policy.type", kind)).removesuffix("_command")
        cls = POLICY_REGISTRY.get_class(self.type)
        self.policy = next((name for name in map(name_of, cls.__mro__) if name in SAME_BY_POLICY), "ppo")
        known = dict(leaves(merged_config(POLICY_REGISTRY.get(self.policy))))
        self.declared = [f"policy.{path}" for path, _ in leaves(merged_config(cls)) if path not in known]
        self.env_type = str(self.take(f"{CREATE}.env.type", ""))

    # -- Tools

    def take(self, path: str, default: Any = None) -> Any:
        """Returns the value of a key of the pair, and marks it as converted."""
        return self.left.pop(path, default)

    def section(self, path: str) -> dict[str, Any]:
        """Returns the keys at and below ``path`` by the rest of their paths, and marks them as converted."""
        below = [name for name in self.left if f"{name}.".startswith(f"{path}.")]
        return {name.removeprefix(path).lstrip("."): self.take(name) for name in below}

    def count(self, path: str) -> int:
        """Returns a value of the new config; its default if it is missing, or wrong and refused later."""
        value = self.new.get(path)
        return value if type(value) is int and value > 0 else DEFAULTS[path.rpartition(".")[2]]

    def wrap(self, wrapper: Any, **arguments: Any) -> None:
        """Adds a wrapper around the previous ones."""
        item = {"type": wrapper, **arguments} if arguments else wrapper
        self.new["env.wrappers"] = [*self.new.get("env.wrappers", []), item]

    def note(self, path: str, text: str) -> None:
        """Adds a line about what was converted."""
        self.notes.append(f"{path}: {text}")

    def refuse(self, path: str, reason: str) -> None:
        """Adds an error about a key."""
        self.faults.append(f"{path}: {reason}")

    # -- Sections

    def convert(self) -> None:
        """Fills ``new``, ``notes`` and ``faults``."""
        self.new["policy.type"] = self.type
        if self.left.get(f"{CREATE}.reward_model.type") == "rnd":
            rnd = self.section("reward_model") | self.section(f"{CREATE}.reward_model")
            self.new["policy.intrinsic"] = {"type": "rnd", "learning_rate": rnd.get("learning_rate", 1e-4)}
            self.note("reward_model", "RND has a value network and weights of its own here: policy.intrinsic")
        for path, reason in NOT_BUILT.items():
            if any((self.section(path) | self.section(f"{CREATE}.{path}")).values()):
                self.refuse(path, reason)
        for path, (accepted, reason) in FIXED.items():
            if (value := self.take(path, accepted)) != accepted:
                self.refuse(path, f"only {accepted!r} is accepted, got {value!r}: {reason}")
        for path in (*SAME, *SAME_BY_POLICY[self.policy], *self.declared):
            if path in self.left:
                self.new[path] = self.take(path)
        if self.policy == "ppo" and self.new.get("policy.recompute_adv") is None:
            self.new["policy.recompute_adv"] = True
        if self.new.get("policy.learn.value_norm") is not False:
            self.new["policy.learn.value_norm_std"] = 1.0
        self.new["policy.learn.adam_eps"] = 1e-8
        if (cuda := self.take("policy.cuda")) is not None:  # True is "if there is a GPU"
            self.new["policy.device"] = "auto" if cuda else "cpu"
        envs = self.count("env.collector_env_num")
        self.rows = math.ceil(self.count("policy.collect.n_sample") / envs) * envs  # env steps of a rollout
        self.environment()
        self.model()
        self.learning()
        self.buffers()
        for path in self.left:
            section, _, name = path.rpartition(".")
            names = [other.removeprefix(f"{section}.") for other in SAME if other.startswith(f"{section}.")]
            if hint := meant(name, names, 0.8):
                self.refuse(path, f"there is no such key{hint}")
        if left := [path for path in self.left if not path.startswith((CREATE, "policy.type"))]:
            self.notes.append(f"without effect on training, and left out: {', '.join(left)}")

    def model(self) -> None:
        """Converts ``policy.model``: numbers of layers to lists, encoders of images to their names."""
        if (activation := self.take("policy.model.activation")) is not None:
            kind = activation if isinstance(activation, type) else type(activation)
            name = activation if isinstance(activation, str) else kind.__name__
            self.new["policy.model.activation"] = {"LeakyReLU": "leaky_relu"}.get(name, name.lower())
        actor_width = self.head("actor", 2 if self.policy.startswith("ppg") else 1)
        self.head("critic", 1)
        path = "policy.model.encoder_hidden_size_list"
        sizes, impala = self.take(path), self.take("policy.model.impala_cnn_encoder", False)
        if impala:
            widths = {"widths": [*sizes]} if sizes else {}
            self.new["policy.model.encoder"] = {"type": "impala_cnn", **widths}
            if (out := sizes[-1] if sizes and actor_width is None else actor_width) is not None:
                self.new[path] = [out]
        elif self.env_type in ("atari", "procgen") and sizes is not None:
            if 3 <= len(sizes) <= 4:
                self.new["policy.model.encoder"] = {"type": "nature_cnn", "widths": [*sizes[:3]]}
                self.new[path] = [sizes[-1]]
            else:
                self.refuse(path, f"{list(sizes)}: write three convolutions and a layer: [32, 64, 64, 512]")
        elif sizes is not None:
            self.new[path] = sizes
        if self.policy.startswith("ppg") and (shares := self.take("policy.model.share_encoder")) is not None:
            self.new["policy.model.arch"] = "shared" if shares else "dual"
        for path in [path for path in self.left if path.startswith("policy.model.")]:
            if not path.startswith(OF_MODELS):
                self.new[path] = self.take(path)  # the check refuses unknown ones, as in DI-engine

    def head(self, who: str, default_layers: int) -> Any:
        """Converts the keys of one head; returns the width of its layers, or None if the pair has none."""
        path = f"policy.model.{who}_head"
        width, layers = self.take(f"{path}_hidden_size"), self.take(f"{path}_layer_num")
        if (width, layers) != (None, None):
            count = default_layers if layers is None else layers
            self.new[f"{path}_hidden_size_list"] = [64 if width is None else width] * count
        return width

    def learning(self) -> None:
        """Converts the keys that DI-engine counts in train iterations or collects."""
        if self.take("policy.learn.ignore_done"):
            self.wrap("ignore_done")
        learn = "policy.learn"
        if self.new.get(f"{learn}.adv_norm") is True:
            self.new[f"{learn}.adv_norm"] = "minibatch"
        updates, size = self.count(f"{learn}.update_per_collect"), self.count(f"{learn}.batch_size")
        passes = self.count(f"{learn}.epoch_per_collect")
        minibatches = math.ceil(self.count("policy.collect.n_sample") / size)
        # DI-engine's train iterations after a collect.
        self.per_collect = {"ppo": passes * minibatches, "ppg": 1}.get(self.policy, updates)
        self.frequency("policy.eval.evaluator.eval_freq", "policy.eval.eval_freq")
        self.frequency(f"{learn}.learner.hook.save_ckpt_after_iter", "checkpoint.keep_freq")
        for path in [path for path in self.left if path.startswith(f"{learn}.learner.hook.")]:
            name, _, key = path.rpartition(".")  # a hook as a dict
            if key == "type" and self.left[path] not in ("save_ckpt", "log_show", "log_reduce"):
                self.refuse(name, "--init-from gives weights; a ding_lite.Hook (key `hooks`) runs code")
        path = f"{learn}.lr_scheduler"
        scheduler = self.section(path) if self.policy == "ppo" else {}
        collects, final = scheduler.get("epoch_num"), scheduler.get("min_lr_lambda")
        if collects and final is not None:  # linear in the number of collects
            self.new[f"{learn}.lr_schedule"] = "linear"
            self.new[f"{learn}.lr_final"] = float(final)
            self.new[f"{learn}.schedule_env_step"] = collects * self.rows
            self.note(path, f"linear to {final:g} over {collects * self.rows:,} env steps")
        elif any(scheduler.values()):
            self.refuse(path, f"expected epoch_num and min_lr_lambda; got {scheduler}")
        path = f"{learn}.aux_freq"
        if self.policy == "ppg_offpolicy" and path in self.left:
            steps = self.take(path)
            iterations = self.new[path] = max(1, round(steps / self.per_collect))
            self.note(path, f"{steps} minibatches of DI-engine are about {counted(iterations, 'iteration')}")

    def frequency(self, path: str, here: str) -> None:
        """Converts a number of train iterations to a number of env steps."""
        if path in self.left:
            count = self.take(path)
            iterations = max(1, math.ceil(count / self.per_collect))
            self.new[here] = steps = iterations * self.rows
            are = f"by the file's numbers {counted(iterations, 'iteration')}"
            self.note(path, f"{count} gradient steps are {are}, {steps:,} env steps ({here})")

    def buffers(self) -> None:
        """Converts the limits of replay, of PPG's two buffers to one: at least a rollout, and enough uses."""
        for name, least in (("replay_buffer_size", self.rows), ("max_use", 0)):
            limits = []
            for path in [f"{buffer}.{name}" for buffer in BUFFERS.get(self.policy, ())]:
                limit = self.take(path)
                if type(limit) is int and 0 < limit < least:
                    self.note(path, f"{limit} -> {least}, one whole rollout")
                    limit = least
                limits += [] if limit is None else [limit]
            if limits:
                self.new[f"{BUFFER}.{name}"] = limits[0]
            if limits and limits[0] != limits[-1]:
                unequal = f"{limits[0]} for the policy, {limits[1]} for the value: both have one replay here"
                self.refuse(f"{BUFFER}.*.{name}", f"{unequal}; write the same number twice")
        uses = math.ceil(self.per_collect * self.count("policy.learn.batch_size") / self.rows)
        is_written, path = "policy.learn.update_per_collect" in self.new, f"{BUFFER}.max_use"
        if is_written and self.policy in BUFFERS and self.new.get(path) is None:
            self.new[path] = max(3, uses)  # 3 is DI-engine's default
            if uses > 3:
                self.note(path, f"{uses}, as often as {self.per_collect} updates use a transition")

    # -- Environments

    def environment(self) -> None:
        """Converts the section ``env`` and the manager of environments."""
        kind = str(self.take(f"{CREATE}.env_manager.type", self.take("env.manager.type", "base")))
        kind = kind.removeprefix("async_").removesuffix("_v2")
        if kind in MANAGERS:
            self.new["env.manager.type"] = MANAGERS[kind]
        else:
            self.refuse("env_manager.type", f"{kind!r} is not one of {', '.join(MANAGERS)}")
        for path in _paths("env.manager", "step_timeout reset_timeout"):
            if (seconds := self.take(path)) is not None:
                self.new[path] = seconds
        if self.env_type in ENVIRONMENTS:
            self.known_environment(self.env_type)
        elif self.env_type in ENV_REGISTRY.names() or ":" in self.env_type:
            self.new["env.type"] = self.env_type
            paths = [path for path in self.left if path.startswith("env.") and not path.startswith(OF_ENVS)]
            self.new["env.kwargs"] = {path.removeprefix("env."): self.take(path) for path in paths}
        else:
            known = (
                f"{', '.join(ENVIRONMENTS)}, or what you register under this name (ENV_REGISTRY, --import)"
            )
            self.refuse(f"{CREATE}.env.type", f"the environment {self.env_type!r} is not known; use {known}")
        # A pair may have these keys of ding_lite, with their meaning in its section env.
        for wrapper in self.take("env.wrappers", []):
            self.wrap(wrapper)
        for name, value in self.section("env.kwargs").items():
            self.new[f"env.kwargs.{name}"] = value

    def known_environment(self, kind: str) -> None:
        """Converts the id of an environment, and the keys that DI-engine's class of this type reads."""
        from gymnasium.envs.registration import find_highest_version

        old = self.new["env.env_id"] = str(self.take("env.env_id", ENVIRONMENTS[kind]))
        name, _, version = old.rpartition("-v")
        newest = find_highest_version(None, name) or 0
        if version.isdigit() and int(version) < newest and kind != "cartpole":  # its v0 is a shorter task
            new = self.new["env.env_id"] = f"{name}-v{newest}"
            self.note("env.env_id", f"{old} -> {new}, the version that gymnasium has")
        if kind == "pendulum" and self.take("env.continuous", True) is False:
            self.wrap("action_bins", bins=11)
        elif kind == "pendulum" and self.take("env.act_scale", False):
            self.wrap("action_rescale")
        elif kind == "bipedalwalker" and self.take("env.rew_clip"):
            self.wrap("reward_clip", low=-10.0)
        elif kind == "mujoco":
            if bins := self.take("env.action_bins_per_branch"):
                self.wrap("action_bins", bins=bins)
            obs, reward = self.section("env.norm_obs"), self.section("env.norm_reward")
            if obs.get("use_norm"):
                self.new["policy.normalize.obs"] = True
                self.note("env.norm_obs", "policy.normalize.obs: one scale for all environments and episodes")
            if reward.get("use_norm"):
                self.new["policy.normalize.reward"] = True
                self.new["policy.normalize.reward_discount"] = reward.get("reward_discount")
                self.note("env.norm_reward", "policy.normalize.reward: one scale for all environments")
        elif kind == "atari":
            self.wrap("atari", stack_size=self.take("env.frame_stack", 4) or 1)
            if old.startswith("ALE/"):  # the wrapper skips frames
                self.new["env.kwargs"] = {"frameskip": 1}
        elif kind == "procgen":
            new = self.new["env.env_id"] = f"{old.capitalize()}Hard-v0"
            self.new["env.manager.type"] = "env_pool"
            self.note("env.env_id", f"{old} -> EnvPool's {new} (env.manager.type='env_pool')")
            if self.take("env.control_level", True) is False:
                self.refuse("env.control_level", "False, a level for each episode by its seed, is not built")
            for name in ("start_level", "num_levels"):
                if f"env.{name}" in self.left:
                    self.new[f"env.kwargs.{name}"] = self.take(f"env.{name}")
        elif kind == "minigrid":
            if (limit := self.take("env.max_step")) is not None:
                self.new["env.kwargs"] = {"max_steps": limit}
                self.note("env.max_step", f"max_steps={limit}, which MiniGrid's reward also depends on")
            if self.take("env.full_obs"):
                self.wrap("minigrid.wrappers:FullyObsWrapper")
            if self.take("env.onehot_obs"):
                self.wrap("minigrid.wrappers:OneHotPartialObsWrapper")
            self.wrap("minigrid_flat" if self.take("env.flat_obs", True) else "minigrid_image")


# -- Methods of policies

NOT_CALLED = {  # patterns of names, and what replaces the method
    "_monitor_vars_learn": "every metric that _forward_learn returns is logged",
    "_init_(collect|eval)": "_init_shared makes the parts that several modes use",
    "_reset_(learn|collect|eval)": "a model with a hidden state declares it in initial_hidden, and every "
    "episode begins with it",
    "(_load)?_state_dict_(learn|collect|eval)": "self.keep(name, part) puts a part with state_dict and "
    "load_state_dict into the saved state",
}


def refuse_methods(policy: Any) -> None:
    """Raises a ContractError if a policy class has a method that DI-engine calls, but ding_lite does not."""
    for pattern, instead in NOT_CALLED.items():
        if name := next((name for name in dir(policy) if re.fullmatch(pattern, name)), None):
            raise ContractError(f"{policy.__name__}.{name}: DI-engine calls it, nothing does here: {instead}")
    default = policy.default_model
    if isinstance(default, FunctionType) or isinstance(default(), tuple):
        raise ContractError(
            f"{policy.__name__}.default_model: it is a classmethod here, and returns the name of a model only"
        )
    for name in ("_forward_learn", "_get_train_sample"):  # DI-engine passes a list of transitions
        for argument, kind in getattr(policy, name).__annotations__.items():
            if argument != "return" and "list[" in str(kind).lower():
                raise ContractError(
                    f"{policy.__name__}.{name}: {argument} is declared as {kind}, as in DI-engine; it is a "
                    "whole rollout here, a tree of tensors (T, B, ...)"
                )


# -- Imports in config files


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Lets a config file import names of DI-engine where it is not installed.

    In the ``with`` block, an import of ``ding``, ``dizoo`` or ``ditk`` returns a module that has every name.
    The names can be written in annotations; a call or a subclass of one is an error. No stand-in remains
    after the block.
    """
    finder = _StandIns()
    if not any(importlib.metadata.distributions(name="DI-engine")):  # a source tree lacks its dependencies
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
        for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
            del sys.modules[name]


class _StandIns(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        is_theirs = fullname.partition(".")[0] in THEIRS
        return ModuleSpec(fullname, self, is_package=True) if is_theirs else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has no code."""


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigError(
            f"{self.__name__} is called or subclassed, but DI-engine is not installed; put code that uses it "
            'under `if __name__ == "__main__":`, and write environments as gymnasium.Env'
        )

    __mro_entries__ = __call__
