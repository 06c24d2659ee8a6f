"""Keys that were changed although another key leaves them without effect; the first lines of a run name them.

They are notes, not errors: a feature may be off on purpose. A policy's ``config_faults`` refuses keys that
must be a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ding_lite.config.schema import default_values, leaves, merged_config
from ding_lite.rl.schedules import ADAPTIVE

# What else the needs read, beside the keys:
HAS_MEMORY = "has memory"
SCALES_OBS = "scales observations"  # whether normalize.obs finds floats to scale
ENTROPY_WEIGHT = "default entropy weight"
ONE_LOOP = "one loop"  # whether one optimiser takes the steps of policy and value


class Need(NamedTuple):
    """Keys of the section ``policy`` that have an effect only with another one.

    Attributes:
        keys: their paths.
        need: what gives them an effect, as the user would write it.
        is_met: whether a section, by the paths of its keys and the names above, has that.
    """

    keys: tuple[str, ...]
    need: str
    is_met: Callable[[Mapping[str, Any]], Any]


def _is_scheduled(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda values: values.get(f"learn.{name}_schedule", "constant") not in ("constant", ADAPTIVE)


def _has_several_passes(values: Mapping[str, Any]) -> bool:
    passes = values.get("learn.actor_epoch_per_collect", values.get("learn.epoch_per_collect", 1))
    return bool(passes > 1 or not values["on_policy"])


NEEDS = (
    Need(("nstep",), "policy.nstep_return=True", lambda v: v["nstep_return"]),
    Need(
        ("learn.value_weight",),
        "one loop for policy and value: the value's own Adam nearly divides it out",
        lambda v: v[ONE_LOOP] or v["learn.value_weight"] == 0,
    ),
    Need(
        ("learn.reuse",),
        "policy.learn.update_per_collect=None",
        lambda v: v["learn.update_per_collect"] is None,
    ),
    Need(
        ("learn.target_kl",),
        "a second pass of the policy over a rollout, which it would leave out",
        _has_several_passes,
    ),
    Need(
        ("learn.clip_ratio", "learn.clip_schedule"),
        "the clip, which policy.learn.kl_penalty replaces",
        lambda v: v["learn.kl_penalty"] is None or v["learn.value_clip"] is not None,
    ),
    Need(("learn.kl_type",), "policy.learn.kl_beta", lambda v: v["learn.kl_beta"]),
    Need(("learn.lr_final",), "policy.learn.lr_schedule", _is_scheduled("lr")),
    Need(
        ("learn.desired_kl",),
        "policy.learn.lr_schedule='adaptive'",
        lambda v: v["learn.lr_schedule"] == ADAPTIVE,
    ),
    Need(("learn.clip_final",), "policy.learn.clip_schedule", _is_scheduled("clip")),
    Need(
        ("learn.entropy_schedule",),
        "policy.learn.entropy_weight, which is 0",
        lambda v: v[ENTROPY_WEIGHT] if v["learn.entropy_weight"] is None else v["learn.entropy_weight"],
    ),
    Need(("learn.entropy_final",), "policy.learn.entropy_schedule", _is_scheduled("entropy")),
    Need(("learn.grad_clip_value",), "policy.learn.grad_clip_type", lambda v: v["learn.grad_clip_type"]),
    Need(("learn.value_norm_decay",), "policy.learn.value_norm=True", lambda v: v["learn.value_norm"]),
    Need(
        ("learn.weight_bound",),
        "policy.learn.proximal='decoupled'",
        lambda v: v["learn.proximal"] == "decoupled",
    ),
    Need(("other.replay_buffer.alpha",), "policy.priority=True", lambda v: v["priority"]),
    Need(("other.replay_buffer.beta",), "policy.priority_IS_weight=True", lambda v: v["priority_IS_weight"]),
    Need(
        ("normalize.obs",),
        "an observation of floats: images and indices are not scaled",
        lambda v: v[SCALES_OBS] or not v["normalize.obs"],
    ),
    Need(("normalize.obs_clip",), "policy.normalize.obs", lambda v: v["normalize.obs"]),
    Need(
        ("normalize.obs_samples",),
        "policy.normalize.obs or policy.intrinsic.type",
        lambda v: v["normalize.obs"] or v["intrinsic.type"],
    ),
    Need(("normalize.reward_discount",), "policy.normalize.reward=True", lambda v: v["normalize.reward"]),
    Need(
        (
            *("learn.aux_freq", "learn.aux_bc_weight", "learn.aux_value_weight", "learn.aux_learning_rate"),
            *("learn.aux_batch_size", "learn.aux_grad_accum"),
        ),
        "an auxiliary phase (policy.learn.aux_train_epoch)",
        lambda v: v["learn.aux_train_epoch"],
    ),
    Need(
        (
            "learn.sequence_length",
            "learn.burn_in",
            "model.rnn_hidden_size",
            "model.rnn_layers",
            "model.rnn_timescale",
        ),
        "policy.model.rnn",
        lambda v: v[HAS_MEMORY],
    ),
    Need(
        ("model.rnn_timescale",),
        "policy.model.init='orthogonal' or 'normed'",
        lambda v: v["model.init"] != "torch",
    ),
    Need(
        ("model.sigma_type", "model.bound_type", "model.initial_sigma_value"),
        "a distribution with mu and sigma, such as policy.model.box_distribution='normal'",
        lambda v: v["model.box_distribution"] != "beta",
    ),
    Need(
        ("model.initial_sigma_value",),
        "policy.model.sigma_type='independent'",
        lambda v: v["model.sigma_type"] == "independent",
    ),
    Need(
        ("model.fixed_sigma_value",),
        "policy.model.sigma_type='fixed'",
        lambda v: v["model.sigma_type"] == "fixed",
    ),
    Need(
        ("model.init_gain.hidden", "model.init_gain.policy", "model.init_gain.value"),
        "policy.model.init='orthogonal'",
        lambda v: v["model.init"] == "orthogonal",
    ),
)


def _holds(is_met: Callable[[Mapping[str, Any]], Any], values: Mapping[str, Any]) -> bool:
    try:
        return bool(is_met(values))
    except KeyError:  # a class has one of the keys only
        return True


def keys_without_effect(
    cfg: Mapping[str, Any], policy: type, model: type, facts: Mapping[str, Any]
) -> list[str]:
    """Returns a line for each need that is not met and of which a key was changed.

    Args:
        cfg: the complete section ``policy``.
        policy, model: classes whose ``config`` has the defaults.
        facts: by the names at the beginning of this file; a policy without one of them has all its needs.
    """
    values = {**dict(leaves(cfg)), **facts}
    defaults = dict(leaves(default_values(merged_config(policy))))
    defaults |= {f"model.{path}": x for path, x in leaves(default_values(merged_config(model)))}
    notes = []
    for keys, need, is_met in NEEDS:
        changed = [key for key in keys if key in values.keys() & defaults and values[key] != defaults[key]]
        if changed and not _holds(is_met, values):
            shown = " and ".join(f"policy.{key}={values[key]}" for key in changed)
            notes.append(f"{shown}: no effect without {need}")
    return notes
