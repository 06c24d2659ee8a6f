"""Keys that were changed although another key leaves them without effect; the first lines of a run name them.

They are notes, not errors: a feature may be off on purpose. A policy's ``config_faults`` refuses keys that
must be a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ding_lite.config.schema import default_values, leaves, merged_config

HAS_MEMORY = "has memory"  # among the values of the keys


class Need(NamedTuple):
    """Keys of the section ``policy`` that have an effect only with another one.

    Attributes:
        keys: their paths.
        need: what gives them an effect, as the user would write it.
        is_met: whether a section, by the paths of its keys, has that.
    """

    keys: tuple[str, ...]
    need: str
    is_met: Callable[[Mapping[str, Any]], Any]


def _is_scheduled(name: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda values: values.get(f"learn.{name}_schedule", "constant") != "constant"


def _has_several_passes(values: Mapping[str, Any]) -> bool:
    passes = values.get("learn.actor_epoch_per_collect", values.get("learn.epoch_per_collect", 1))
    return bool(passes > 1 or not values["on_policy"])


NEEDS = (
    Need(("nstep",), "policy.nstep_return=True", lambda v: v["nstep_return"]),
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
    Need(("learn.clip_final",), "policy.learn.clip_schedule", _is_scheduled("clip")),
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
        ("normalize.obs_clip", "normalize.obs_samples"), "policy.normalize.obs", lambda v: v["normalize.obs"]
    ),
    Need(("normalize.reward_discount",), "policy.normalize.reward=True", lambda v: v["normalize.reward"]),
    Need(
        ("learn.aux_freq", "learn.aux_bc_weight", "learn.aux_value_weight", "learn.aux_learning_rate"),
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
    except KeyError:  # a class of the user has one of the keys only
        return True


def keys_without_effect(cfg: Mapping[str, Any], policy: type, model: type, *, has_memory: bool) -> list[str]:
    """Returns a line for each need that is not met and of which a key was changed.

    Args:
        cfg: the complete section ``policy``.
        policy, model: classes whose ``config`` has the defaults.
        has_memory: whether the model has one, by whatever key.
    """
    values = {**dict(leaves(cfg)), HAS_MEMORY: has_memory}
    defaults = dict(leaves(default_values(merged_config(policy))))
    defaults |= {f"model.{path}": x for path, x in leaves(default_values(merged_config(model)))}
    notes = []
    for keys, need, is_met in NEEDS:
        changed = [key for key in keys if key in values.keys() & defaults and values[key] != defaults[key]]
        if changed and not _holds(is_met, values):
            shown = " and ".join(f"policy.{key}={values[key]}" for key in changed)
            notes.append(f"{shown}: no effect without {need}")
    return notes
