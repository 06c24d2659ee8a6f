"""Reads configs of DI-engine: ``main_config`` and ``create_config`` become one config of ding_lite.

What the pair says is kept, in the units of ding_lite; what it leaves out has ding_lite's defaults, but for
``ON``. Each key
of the pair ends in one of five ways:

* it means the same here (``SAME``, ``SAME_BY_POLICY``);
* it is converted, with a note where a number or a name changes;
* it is left out with a note, because it belongs to DI-engine's own machinery (``MACHINERY``);
* it is left out with a warning, because DI-engine 0.5.3 never reads it;
* it is refused, with the reason; so is a key that is nearly the name of one that is read.

``docs/di_engine.md`` has the tables for users.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, TypeGuard

from ding_lite.config.registry import ENV_REGISTRY, POLICY_REGISTRY
from ding_lite.config.schema import leaves
from ding_lite.errors import ConfigError

MAIN, CREATE = "main_config", "create_config"
SLIP = 0.85  # similarity of two names from which on one is the other, misspelt
NEVER = 1e10  # the stop_value of DI-engine's configs that have none


def _paths(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


BUFFER = "policy.other.replay_buffer"
# Paths with the same meaning here. The schema checks their values.
SAME = (
    "exp_name",
    *_paths("env", "collector_env_num evaluator_env_num n_evaluator_episode"),
    *_paths("policy", "on_policy action_space multi_gpu"),
    *_paths("policy.learn", "batch_size learning_rate value_weight entropy_weight clip_ratio adv_norm"),
    *_paths("policy.collect", "n_sample unroll_len discount_factor gae_lambda"),
    *_paths("policy.model", "type action_space"),
    *_paths("policy.model", "sigma_type fixed_sigma_value bound_type"),
)
PPO_LEARN = _paths("policy.learn", "value_norm grad_clip_type grad_clip_value")
AUXILIARY = _paths("policy.learn", "aux_train_epoch aux_bc_weight")
# Paths with the same meaning that only the code of some policies reads, in DI-engine 0.5.3 or later.
SAME_BY_POLICY = {
    "ppo": (
        *PPO_LEARN,
        "policy.recompute_adv",
        *_paths("policy.learn", "epoch_per_collect kl_beta kl_type pretrained_model_path"),
    ),
    "ppo_offpolicy": (
        *PPO_LEARN,
        *_paths("policy", "nstep nstep_return"),
        "policy.learn.update_per_collect",
        *_paths(BUFFER, "replay_buffer_size max_use"),
    ),
    "ppg": (
        *AUXILIARY,
        *_paths("policy.learn", "value_norm aux_freq actor_epoch_per_collect critic_epoch_per_collect"),
    ),
    "ppg_offpolicy": (
        *AUXILIARY,
        *_paths("policy.learn", "value_norm update_per_collect"),  # DI-engine never normalises its values
        *_paths(f"{BUFFER}.policy", "replay_buffer_size max_use"),
        *_paths(f"{BUFFER}.value", "replay_buffer_size max_use"),
    ),
}
# Keys that have one value here, and why.
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
    f"{BUFFER}.multi_buffer": (True, "PPG has two buffers, or one for both if their limits are equal"),
}
# Switches that are on in DI-engine, and off by default here.
ON = {
    "ppo": ("policy.recompute_adv", "policy.learn.value_norm"),
    "ppo_offpolicy": ("policy.learn.value_norm",),
}
# Sections and keys of DI-engine's machinery. What of them has a counterpart here is converted before.
MACHINERY = (
    "env.manager",
    "env.replay_path",
    "env.replay_path_gif",
    "env.save_replay_gif",
    "policy.type",
    "policy.import_names",
    "policy.model.import_names",
    "policy.learn.learner",
    "policy.collect.collector",
    "policy.eval.evaluator",
    "policy.other.commander",
    CREATE,
)
OF_MAIN = ("policy.learn.learner.", "policy.collect.collector.", "policy.eval.evaluator.")
IN_EVERY_FILE = (CREATE, "policy.type")  # left out without a note
BUFFERS = {"ppo_offpolicy": (BUFFER,), "ppg_offpolicy": (f"{BUFFER}.policy", f"{BUFFER}.value")}
BUFFER_MACHINERY = (
    *("type", "deepcopy", "anneal_step", "enable_track_used_data", "periodic_thruput_seconds"),
    *("thruput_controller", "monitor", "alpha", "beta"),
)
# DI-engine's values of keys that a count of train iterations depends on.
DEFAULTS = {"epoch_per_collect": 10, "update_per_collect": 5, "batch_size": 64}
MANAGERS = {  # in-process managers are "auto", which uses gymnasium's own vector environment where it can
    "base": "auto",
    "base_v2": "auto",
    "subprocess": "subprocess",
    "subprocess_v2": "subprocess",
    "async_subprocess": "subprocess",
    "gym_vector": "vector",
    "env_pool": "env_pool",
}
# Versions that gymnasium has today, of environments whose older versions are gone.
VERSIONS = {
    "Pendulum": 1,
    "BipedalWalker": 3,
    "BipedalWalkerHardcore": 3,
    "LunarLander": 3,
    "LunarLanderContinuous": 3,
    "Ant": 5,
    "HalfCheetah": 5,
    "Hopper": 5,
    "Humanoid": 5,
    "HumanoidStandup": 5,
    "InvertedDoublePendulum": 5,
    "InvertedPendulum": 5,
    "Pusher": 5,
    "Reacher": 5,
    "Swimmer": 5,
    "Walker2d": 5,
}
# Those of them whose observations are of another size in that version.
OTHER_SIZE = ("Ant", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "Reacher")


class Converted(NamedTuple):
    """A pair of DI-engine as a config of ding_lite.

    Attributes:
        config: as a user writes it, without defaults.
        notes: what was converted or left out, one line each.
        faults: what is refused, one line each.
    """

    config: dict[str, Any]
    notes: tuple[str, ...]
    faults: list[str]


def is_pair(config: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Returns whether ``config`` is ``(main_config, create_config)``, as DI-engine's entries take it."""
    return (
        isinstance(config, (tuple, list))
        and len(config) == 2
        and all(isinstance(part, Mapping) for part in config)
    )


def is_main_alone(config: Mapping[str, Any]) -> bool:
    """Returns whether a config has sections that only DI-engine's ``main_config`` has."""
    return any(f"{path}.".startswith(OF_MAIN) for path, _ in leaves(config))


def overrides_of_pair(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns overrides of a pair in which ``policy.cuda`` means what it means in the pair: a device."""
    given = dict(overrides)
    if isinstance(given.get("policy.cuda"), bool) and "policy.device" not in given:
        given["policy.device"] = _device_of(given.pop("policy.cuda"))
    return given


def _device_of(cuda: Any) -> str:
    return "auto" if cuda else "cpu"  # DI-engine's True is "if there is a GPU"


def from_di_engine(main: Mapping[str, Any], create: Mapping[str, Any]) -> Converted:
    """Converts a config of DI-engine; neither argument is changed."""
    return _Conversion(main, create).run()


class _Conversion:
    """One conversion: the keys that are left to convert, and what they have become so far."""

    def __init__(self, main: Mapping[str, Any], create: Mapping[str, Any]) -> None:
        keys = [*leaves(main), *leaves(create, CREATE)]
        self.left = {path: v for path, v in keys if not (isinstance(v, Mapping) and not v)}
        self.read: set[str] = set()  # paths that were looked for
        self.config: dict[str, Any] = {}
        self.notes: list[str] = []
        self.faults: list[str] = []
        self.of_old_version: set[str] = set()  # keys that an environment's newer version does not fit
        kind = self.take(f"{CREATE}.policy.type", "ppo")
        self.policy = str(self.left.get("policy.type", kind)).removesuffix("_command")
        self.env_type = self.take(f"{CREATE}.env.type")

    def run(self) -> Converted:
        self.set("policy.type", self.policy)
        self._refuse_sections()
        self._environment()
        for path in (*SAME, *SAME_BY_POLICY.get(self.policy, SAME_BY_POLICY["ppo"])):
            self.read.add(path)
            if path in self.left:
                self.set(path, self.take(path))
        for path, (accepted, reason) in FIXED.items():
            value = self.take(path, accepted)
            if value != accepted:
                self.refuse(path, f"only {accepted!r} is accepted, got {value!r}: {reason}")
        for path in ON.get(self.policy, ()):
            if self.get(path) is None:
                self.set(path, True)
        self._device()
        self._model()
        self._learning()
        self._buffers()
        self._refuse_misspelt()
        self._leave_out()
        return Converted(self.config, tuple(self.notes), self.faults)

    # ------------------------------------------------------------------ tools

    def take(self, path: str, default: Any = None) -> Any:
        """Returns the value of a key of the pair, and marks it as converted."""
        self.read.add(path)
        return self.left.pop(path, default)

    def section(self, path: str) -> dict[str, Any]:
        """Returns the keys below ``path`` by the rest of their paths, and marks them as converted."""
        below = [name for name in self.left if name.startswith(f"{path}.")]
        return {name.removeprefix(f"{path}."): self.take(name) for name in below}

    def get(self, path: str, default: Any = None) -> Any:
        """Returns a value of the new config."""
        tree: Any = self.config
        for name in path.split("."):
            tree = tree.get(name) if isinstance(tree, Mapping) else None
        return default if tree is None else tree

    def set(self, path: str, value: Any) -> None:
        """Sets a value of the new config."""
        *sections, name = path.split(".")
        tree = self.config
        for section in sections:
            tree = tree.setdefault(section, {})
        tree[name] = value

    def note(self, path: str, text: str) -> None:
        self.notes.append(f"{path}: {text}")

    def refuse(self, path: str, reason: str) -> None:
        self.faults.append(f"{path}: {reason}")

    def count(self, path: str, default: Any = None) -> int | None:
        """Returns a value of the new config if it is a positive whole number; the schema reports others."""
        value = self.get(path, default)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return value if is_count else None

    # ------------------------------------------------------------------ sections

    def _refuse_sections(self) -> None:
        reward = self.left.get(f"{CREATE}.reward_model.type", self.left.get("reward_model.type"))
        reasons = {
            "reward_model": "RND has other keys here; write policy.intrinsic.type='rnd' (docs/exploration.md)"
            if reward == "rnd"
            else f"a reward that is learned ({reward or 'no type'}) is not built",
            "world_model": "model-based training is not built",
            "level_replay": "prioritised level replay is not built",
        }
        for name, reason in reasons.items():
            if self.section(name) | self.section(f"{CREATE}.{name}"):
                self.refuse(name, reason)
        if self.take("policy.random_collect_size", 0):
            self.refuse(
                "policy.random_collect_size",
                "PPO learns from actions of a policy only, since random ones have no log-prob",
            )
        checkpoint = "policy.learn.learner.hook.load_ckpt_before_run"
        if self.take(checkpoint):
            self.refuse(
                checkpoint,
                "DI-engine's checkpoints have other networks; a run here begins with weights by --init-from, "
                "and continues by --resume",
            )

    def _device(self) -> None:
        cuda = self.take("policy.cuda")
        if cuda is not None:
            self.set("policy.device", _device_of(cuda))

    def _model(self) -> None:
        for path in ("policy.model.obs_shape", "policy.model.action_shape"):
            shape = self.take(path)
            self.section(path)  # a dict of shapes, of hybrid actions: read from the environment
            if path in self.of_old_version:
                self.note(path, f"{shape} is of the earlier version of the environment; left out")
            elif shape is not None:
                self.set(path, shape)
        self._activation()
        self._encoder(actor_width=self._head("actor", 2 if self.policy.startswith("ppg") else 1))
        self._head("critic", 1)
        shares = self.take("policy.model.share_encoder")
        if shares is not None and self.policy.startswith("ppg"):
            self.set("policy.model.arch", "shared" if shares else "dual")
        elif shares is not None:
            self.set("policy.model.share_encoder", shares)
        for path in [path for path in self.left if path.startswith("policy.model.")]:
            if path != "policy.model.import_names":
                self.set(path, self.take(path))  # DI-engine, too, reports keys that its models do not have

    def _activation(self) -> None:
        activation = self.take("policy.model.activation")
        if activation is None or isinstance(activation, str):
            name = activation
        else:
            kind = activation if isinstance(activation, type) else type(activation)
            name = {"LeakyReLU": "leaky_relu"}.get(kind.__name__, kind.__name__.lower())
        if name is not None:
            self.set("policy.model.activation", name)

    def _head(self, who: str, default_layers: int) -> Any:
        """Converts the keys of one head; returns the width of its layers, or None if the pair has none."""
        path = f"policy.model.{who}_head"
        width, layers = self.take(f"{path}_hidden_size"), self.take(f"{path}_layer_num")
        if (width, layers) != (None, None):
            count = default_layers if layers is None else layers
            if isinstance(count, int) and count >= 0:
                self.set(f"{path}_hidden_size_list", [64 if width is None else width] * count)
            else:
                self.refuse(f"{path}_layer_num", f"expected a number of layers, got {layers!r}")
        return width

    def _encoder(self, actor_width: Any) -> None:
        if self.take("policy.model.encoder") is not None:
            self.refuse(
                "policy.model.encoder",
                "a module of torch cannot be a value here; register a leaf encoder (ENCODER_REGISTRY) or a "
                "model (MODEL_REGISTRY)",
            )
        path = "policy.model.encoder_hidden_size_list"
        sizes = self.take(path)
        impala = self.take("policy.model.impala_cnn_encoder", False)
        of_images = impala or self.env_type in ("atari", "procgen")
        if not of_images or (sizes is not None and not isinstance(sizes, (list, tuple))):
            if sizes is not None:
                self.set(path, sizes)
            return
        if impala:
            widths = {} if sizes is None else {"widths": list(sizes)}
            self.set("policy.model.encoder", {"type": "impala_cnn", **widths})
            out = actor_width if sizes is None or actor_width is not None else sizes[-1]
            if out is not None:
                self.set(path, [out])
        elif sizes is not None and 3 <= len(sizes) <= 4:
            self.set("policy.model.encoder", {"type": "nature_cnn", "widths": list(sizes[:3])})
            self.set(path, [sizes[-1]])
        elif sizes is not None:
            self.refuse(
                path,
                f"{list(sizes)} is for an image encoder of {len(sizes) - 1} blocks; write three widths of "
                "convolutions and the width of the layer after them, such as [32, 64, 64, 512]",
            )

    def _learning(self) -> None:
        if self.take("policy.learn.ignore_done"):
            self.wrap("ignore_done")
        per_collect, rows = self._train_iterations(), self._rows()
        self._frequency("policy.eval.evaluator.eval_freq", "policy.eval.eval_freq", per_collect, rows)
        snapshots = "policy.learn.learner.hook.save_ckpt_after_iter"
        self._frequency(snapshots, "checkpoint.keep_freq", per_collect, rows)
        if self.policy == "ppo":
            self.take("policy.learn.lr_scheduler")  # None
            self._learning_rate(self.section("policy.learn.lr_scheduler"), rows)
        freq = "policy.learn.aux_freq"
        if self.policy == "ppg_offpolicy" and freq in self.left:
            steps = self.take(freq)
            if isinstance(steps, (int, float)):
                iterations = max(1, round(steps / per_collect)) if per_collect else steps
                self.set(freq, iterations)
                self.note(freq, f"{steps} minibatches of DI-engine are about {iterations} iterations")
        if self.policy.startswith("ppg") and self.get("policy.learn.value_norm") is False:
            self.set("policy.learn.allow_raw_values", True)
            self.note(
                "policy.learn.value_norm",
                "False, so the error of raw values may outweigh the KL that holds the policy in the "
                "auxiliary phase (allow_raw_values)",
            )

    def _train_iterations(self) -> int | None:
        """Returns the number of DI-engine's train iterations after a collect, None if it is not known."""
        learn = "policy.learn"
        if self.policy == "ppg":
            return 1
        if self.policy.endswith("_offpolicy"):
            return self.count(f"{learn}.update_per_collect", DEFAULTS["update_per_collect"])
        passes = self.count(f"{learn}.epoch_per_collect", DEFAULTS["epoch_per_collect"])
        size = self.count(f"{learn}.batch_size", DEFAULTS["batch_size"])
        samples = self.count("policy.collect.n_sample")
        return passes * math.ceil(samples / size) if passes and size and samples else None

    def _rows(self) -> int | None:
        """Returns the number of env steps in a rollout, None if it is not known."""
        samples, envs = self.count("policy.collect.n_sample"), self.count("env.collector_env_num", 8)
        return math.ceil(samples / envs) * envs if samples and envs else None

    def _frequency(self, path: str, here: str, per_collect: int | None, rows: int | None) -> None:
        """Converts a number of train iterations to a number of env steps."""
        train_iterations = self.take(path)
        if not isinstance(train_iterations, (int, float)):
            return
        if not per_collect or not rows:
            self.note(
                path,
                f"{train_iterations} train iterations are an unknown number of env steps; "
                f"{here} keeps its default",
            )
            return
        iterations = max(1, math.ceil(train_iterations / per_collect))
        self.set(here, iterations * rows)
        what = "iteration" if iterations == 1 else "iterations"
        self.note(
            path,
            f"{train_iterations} train iterations are {iterations} {what} here, {iterations * rows:,} env "
            f"steps ({here})",
        )

    def _learning_rate(self, scheduler: Mapping[str, Any], rows: int | None) -> None:
        """Converts ``lr_scheduler``, which is linear in the number of collects."""
        path = "policy.learn.lr_scheduler"
        if not scheduler:
            return
        collects, final = scheduler.get("epoch_num"), scheduler.get("min_lr_lambda")
        if not (isinstance(collects, int) and collects > 0 and isinstance(final, (int, float)) and rows):
            self.refuse(
                path,
                "expected epoch_num (collects until the end) and min_lr_lambda (the final share), with "
                f"policy.collect.n_sample; got {dict(scheduler)}",
            )
            return
        self.set("policy.learn.lr_schedule", "linear")
        self.set("policy.learn.lr_final", float(final))
        self.set("policy.learn.schedule_env_step", collects * rows)
        self.note(
            path, f"linear to {final:g} over {collects * rows:,} env steps, which are {collects:,} collects"
        )

    def _buffers(self) -> None:
        rows = self._rows()
        updates = self.count("policy.learn.update_per_collect")
        size = self.count("policy.learn.batch_size", DEFAULTS["batch_size"])
        for buffer in BUFFERS.get(self.policy, ()):
            stale = self.take(f"{buffer}.max_staleness")
            if isinstance(stale, (int, float)) and math.isfinite(stale):
                iterations = math.ceil(stale / (updates or DEFAULTS["update_per_collect"]))
                self.set(f"{buffer}.max_staleness", iterations)
                self.note(f"{buffer}.max_staleness", f"{stale} train iterations are {iterations} iterations")
            capacity = self.count(f"{buffer}.replay_buffer_size")
            if capacity and rows and capacity < rows:
                self.set(f"{buffer}.replay_buffer_size", rows)
                self.note(
                    f"{buffer}.replay_buffer_size",
                    f"{capacity} -> {rows}, since a buffer here holds at least one whole rollout",
                )
            uses = math.ceil(updates * size / rows) if updates and size and rows else 0
            if uses > 3 and self.get(f"{buffer}.max_use") is None:
                self.set(f"{buffer}.max_use", uses)
                self.note(
                    f"{buffer}.max_use",
                    f"{uses}, since update_per_collect={updates} uses each transition so often",
                )

    def _refuse_misspelt(self) -> None:
        """Refuses keys that are nearly the name of one that is read."""
        for path in [*self.left]:
            near = next((known for known in sorted(self.read) if _differ_by_a_slip(path, known)), None)
            if near is not None:
                self.take(path)
                self.refuse(path, f"no key of DI-engine's PPO or PPG; did you mean {near}?")

    def _leave_out(self) -> None:
        """Reports the keys that are left: those of DI-engine's machinery, and those it never reads."""
        buffers = [f"{buffer}.{name}" for buffer in BUFFERS.get(self.policy, ()) for name in BUFFER_MACHINERY]
        known = tuple(f"{path}." for path in (*MACHINERY, *buffers))
        unread = [path for path in self.left if not f"{path}.".startswith(known)]
        not_needed = [path for path in self.left if path not in unread and not path.startswith(IN_EVERY_FILE)]
        if not_needed:
            self.notes.append(f"not needed here, and left out: {', '.join(not_needed)}")
        if unread and (self.policy in POLICY_REGISTRY or ":" in self.policy):  # others are refused
            self.notes.append(f"warning: DI-engine itself never reads {', '.join(unread)}; left out")

    # ------------------------------------------------------------------ environments

    def _environment(self) -> None:
        stop_value = self.take("env.stop_value")
        if stop_value is not None and not (isinstance(stop_value, (int, float)) and stop_value >= NEVER):
            self.set("env.stop_value", stop_value)
        manager = self.section("env.manager") | self.section(f"{CREATE}.env_manager")
        kind = manager.pop("type", "base")
        if kind not in MANAGERS:
            self.refuse("env_manager.type", f"{kind!r} is not one of {', '.join(MANAGERS)}")
        elif MANAGERS[kind] != "auto":
            self.set("env.manager.type", MANAGERS[kind])
        for name in ("step_timeout", "reset_timeout"):
            if manager.get(name) is not None:
                self.set(f"env.manager.{name}", manager.pop(name))
        self.left |= {f"env.manager.{name}": value for name, value in manager.items()}
        if self.env_type in ENVIRONMENTS:
            ENVIRONMENTS[self.env_type](self)
            self._previous_actions()
        elif isinstance(self.env_type, str) and (self.env_type in ENV_REGISTRY or ":" in self.env_type):
            self.set("env.type", self.env_type)
            known = (*SAME, *MACHINERY)
            own = [path for path in self.left if path.startswith("env.") and not path.startswith(known)]
            self.set("env.kwargs", {path.removeprefix("env."): self.take(path) for path in own})
        else:
            self.refuse(
                f"{CREATE}.env.type",
                f"the environment {self.env_type!r} is not known; known are {', '.join(ENVIRONMENTS)}, and "
                "gymnasium environments of your own that are registered under this name (ENV_REGISTRY, "
                "--import MODULE)",
            )

    def environment_id(self, default: str | None = None) -> str:
        """Sets ``env.env_id`` to that of the pair, in the version that gymnasium has today."""
        old = self.take("env.env_id", default)
        if old is None:
            self.refuse("env.env_id", "missing")
            return ""
        name, _, version = str(old).rpartition("-v")
        newest = VERSIONS.get(name)
        new = str(old)
        if newest is not None and version.isdigit() and int(version) < newest:
            new = f"{name}-v{newest}"
            self.note("env.env_id", f"{old} -> {new}, the version that gymnasium has")
            if name in OTHER_SIZE and "policy.model.obs_shape" in self.left:
                self.of_old_version.add("policy.model.obs_shape")
        self.set("env.env_id", new)
        return new

    def wrap(self, wrapper: str, **arguments: Any) -> None:
        """Adds a wrapper, outside of those before."""
        item = {"type": wrapper, **arguments} if arguments else wrapper
        self.set("env.wrappers", [*self.get("env.wrappers", []), item])

    def _previous_actions(self) -> None:
        if self.take("env.obs_plus_prev_action_reward"):
            self.refuse(
                "env.obs_plus_prev_action_reward",
                "write env.wrappers=['previous_action', 'previous_reward'] in a config of ding_lite "
                "(ding-lite config -c FILE -o NEW.py, without this key)",
            )


def _differ_by_a_slip(path: str, other: str) -> bool:
    """Returns whether two paths are equal but for one name, and these names are nearly equal."""
    names, other_names = path.split("."), other.split(".")
    if len(names) != len(other_names):
        return False
    pairs = [pair for pair in zip(names, other_names, strict=True) if pair[0] != pair[1]]
    return len(pairs) == 1 and difflib.SequenceMatcher(None, *pairs[0]).ratio() > SLIP


def _bins(c: _Conversion, bins: Any) -> None:
    if isinstance(bins, int):
        c.wrap("action_bins", bins=bins)


def _pendulum(c: _Conversion) -> None:
    c.environment_id("Pendulum-v1")
    scaled = c.take("env.act_scale", False)
    if c.take("env.continuous", True) is False:
        _bins(c, 11)
    elif scaled:
        c.wrap("action_rescale")


def _lunarlander(c: _Conversion) -> None:
    c.environment_id("LunarLander-v2")
    for name in ("act_scale", "action_clip"):  # its bounds are -1 .. 1, and actions are clipped to bounds
        c.take(f"env.{name}")


def _bipedalwalker(c: _Conversion) -> None:
    c.environment_id("BipedalWalker-v3")
    c.take("env.act_scale")  # its bounds are -1 .. 1
    if c.take("env.rew_clip"):
        c.wrap("reward_clip", low=-10.0)


def _mujoco(c: _Conversion) -> None:
    c.environment_id()
    c.take("env.action_clip")  # actions are clipped to the bounds
    _bins(c, c.take("env.action_bins_per_branch"))
    delay = c.take("env.delay_reward_step", 0)
    if isinstance(delay, (int, float)) and delay > 1:
        c.refuse("env.delay_reward_step", f"rewards that come every {delay} steps are not built")
    obs, reward = c.section("env.norm_obs"), c.section("env.norm_reward")
    if obs.get("use_norm"):
        c.set("policy.normalize.obs", True)
        c.note("env.norm_obs", "policy.normalize.obs: one scale for all environments, kept over episodes")
    if reward.get("use_norm"):
        c.set("policy.normalize.reward", True)
        c.set("policy.normalize.reward_discount", reward.get("reward_discount"))
        c.note(
            "env.norm_reward", "policy.normalize.reward: one scale for all environments, for training only"
        )


def _atari(c: _Conversion) -> None:
    env_id = c.environment_id()
    frames = c.take("env.frame_stack", 4)
    c.take("env.is_train")  # evaluations have whole games and raw rewards, as in DI-engine
    c.wrap("atari", stack_size=frames or 1)
    if env_id.startswith("ALE/"):  # the wrapper skips frames
        c.set("env.kwargs", {"frameskip": 1})


def _procgen(c: _Conversion) -> None:
    game = str(c.take("env.env_id", "coinrun"))
    c.set("env.env_id", f"{game.capitalize()}Hard-v0")
    c.set("env.manager.type", "env_pool")
    c.note("env.env_id", f"{game} -> EnvPool's {game.capitalize()}Hard-v0 (env.manager.type='env_pool')")
    if c.take("env.control_level", True) is False:
        c.refuse("env.control_level", "False, one level for each episode by its seed, is not built")
    for name in ("start_level", "num_levels"):
        if f"env.{name}" in c.left:
            c.set(f"env.kwargs.{name}", c.take(f"env.{name}"))


def _minigrid(c: _Conversion) -> None:
    c.environment_id("MiniGrid-KeyCorridorS3R3-v0")
    limit = c.take("env.max_step")
    if limit is not None:
        c.set("env.kwargs", {"max_steps": limit})
        c.note("env.max_step", f"the argument max_steps={limit}, which MiniGrid's reward also depends on")
    if c.take("env.move_bonus"):
        c.refuse("env.move_bonus", "the bonus for moving towards the goal is not built")
    if c.take("env.full_obs"):
        c.wrap("minigrid.wrappers:FullyObsWrapper")
    if c.take("env.onehot_obs"):
        c.wrap("minigrid.wrappers:OneHotPartialObsWrapper")
    c.wrap("minigrid_flat" if c.take("env.flat_obs", True) else "minigrid_image")


# The types of environments in create_config.env.type: each function converts the keys that its class reads.
ENVIRONMENTS: dict[str, Callable[[_Conversion], object]] = {
    "cartpole": lambda c: c.environment_id("CartPole-v0"),
    "acrobot": lambda c: c.environment_id("Acrobot-v1"),
    "mountain_car": lambda c: c.environment_id("MountainCar-v0"),
    "pendulum": _pendulum,
    "lunarlander": _lunarlander,
    "bipedalwalker": _bipedalwalker,
    "mujoco": _mujoco,
    "atari": _atari,
    "procgen": _procgen,
    "minigrid": _minigrid,
}


# ---------------------------------------------------------------------- imports in config files

STAND_IN_PACKAGES = ("ding", "dizoo", "ditk")


@contextlib.contextmanager
def stand_ins(file: Path) -> Iterator[None]:
    """Lets a config file import names of DI-engine where it is not installed.

    Inside the ``with`` block, an import of ``ding``, ``dizoo`` or ``ditk`` gives a module whose names can be
    imported and written in annotations. Calling or subclassing one of them is an error. A source tree of
    DI-engine in the working directory is not imported, since without its dependencies it fails. No stand-in
    remains after the block.

    Args:
        file: the config file, for messages.
    """
    try:
        importlib.metadata.distribution("DI-engine")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:  # its own modules are imported
        yield
        return
    finder = _StandInFinder(file)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandInModule):
                del sys.modules[name]


class _StandInFinder(MetaPathFinder, Loader):
    def __init__(self, file: Path) -> None:
        self.file = file

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        is_real = not isinstance(sys.modules.get(package), (_StandInModule, type(None)))
        if package not in STAND_IN_PACKAGES or is_real:  # a script may have imported a source tree before
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StandInModule(spec.name)
        module.__dict__["_file"] = self.file
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has no code."""


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}", self.__dict__["_file"])


class _StandIn:
    """A name of a package that is not installed."""

    def __init__(self, path: str, file: Path) -> None:
        self._path, self._file = path, file

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self._path}.{name}", self._file)

    def __repr__(self) -> str:
        return f"{self._path} (not installed)"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("calls")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        self._refuse("subclasses")

    def __instancecheck__(self, instance: Any) -> NoReturn:
        self._refuse("tests for")

    def _refuse(self, verb: str) -> NoReturn:
        raise ConfigError(
            f"config file {self._file} {verb} {self._path}, but DI-engine is not installed. "
            "Its names can only be imported here; put code that uses them under "
            '`if __name__ == "__main__":`, or install it (pip install DI-engine)'
        )
