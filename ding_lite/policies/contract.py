"""What a policy's arguments, its losses and the spaces that a config declares must be.

The contract of models is in ``models.checks``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from ding_lite.errors import ConfigError, ContractError
from ding_lite.models.checks import kind_of
from ding_lite.trees import tree_leaves

FIELDS = ("learn", "collect", "eval")
DECLARED = ("obs_shape", "action_shape", "action_space")  # keys of policy.model that are no arguments of it
# Metrics of the library's own, which a loss may not return.
TAKEN_METRICS = (
    *("total_loss", "grad_norm", "updates", "epochs", "skipped_steps", "cur_lr", "clip_ratio"),
    *("adv_mean", "adv_max", "value_mean", "value_max", "explained_variance", "obs_clipped", "dead_units"),
    *("kl_coefficient", "kl_of_iteration", "policy_cur_lr", "value_cur_lr", "policy_adv_abs_max"),
    *("reference_kl", "value_grad_norm", "value_explained_variance"),
    *("aux_memory", "aux_grad_norm", "aux_updates", "aux_cur_lr"),
)
TAKEN_PREFIXES = (
    *("intrinsic_", "buffer_", "policy_buffer_", "value_buffer_"),
    *("aux_kl_epoch_", "aux_explained_variance"),
)


def check_arguments(cfg: Any, obs_space: Any, action_space: Any, enable_field: Any) -> None:
    """Checks the kinds of a policy's arguments.

    Raises:
        ConfigError: if ``cfg`` is not a complete section, ``enable_field`` names no modes, or torch's default
            dtype is not float32.
        ContractError: if a space is none.
    """
    missing = [name for name in ("model", *FIELDS) if not isinstance(cfg, Mapping) or name not in cfg]
    if missing:
        raise ConfigError(
            f"cfg: expected the section policy of a complete config, compile_config(config).values.policy; "
            f"it lacks {', '.join(missing)}"
        )
    if torch.get_default_dtype() != torch.float32:
        raise ConfigError(
            f"torch's default dtype is {torch.get_default_dtype()}, and models compute in float32; call "
            "torch.set_default_dtype(torch.float32) first"
        )
    for name, space in (("obs_space", obs_space), ("action_space", action_space)):
        if not isinstance(space, gym.Space):
            raise ContractError(f"{name}: expected a gymnasium space of one environment, got {space!r:.80}")
    unknown = [name for name in enable_field or () if name not in FIELDS]
    if unknown or isinstance(enable_field, str):
        raise ConfigError(f"enable_field: expected a list of {', '.join(FIELDS)}, got {enable_field!r}")


def check_constructor(factory: Any) -> None:
    """Checks that a class of policies can be made as :class:`Policy` is.

    Raises:
        ContractError: if its ``__init__`` lacks an argument.
    """
    try:
        inspect.signature(factory).bind(None, None, None, model=None, enable_field=None, seed=0)
    except TypeError as error:
        raise ContractError(
            f"policy.type: {factory.__name__}.__init__ does not take the arguments of a policy: {error}. "
            "Declare __init__(self, cfg, obs_space, action_space, **options), and pass them on to "
            "super().__init__"
        ) from error


def checked_loss(
    returned: Any, policy: Any, method: str, output: Any = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns what a loss has returned, if it is ``(0-d loss, dict of 0-d metrics)``.

    Args:
        returned: by the method of the policy.
        policy, method: for the message.
        output: of the model, that the loss must have a gradient for; None: not checked.

    Raises:
        ContractError: if it is something else.
    """
    where = f"{type(policy).__name__}.{method}"
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        got = "a tensor alone" if isinstance(returned, Tensor) else kind_of(returned)
        raise ContractError(f"{where} must return (loss, dict of metrics), got {got}")
    loss, metrics = returned
    for name in metrics:
        if not isinstance(name, str) or name in TAKEN_METRICS or name.startswith(TAKEN_PREFIXES):
            problem = "the library has one of this name" if isinstance(name, str) else "a name is a text"
            raise ContractError(f"{where} returns the metric {name!r}: {problem}")
    for what, value in {"loss": loss, **{f"metric {name!r}": x for name, x in metrics.items()}}.items():
        if not isinstance(value, Tensor) or value.dim():
            advice = "take the mean over the minibatch" if isinstance(value, Tensor) else "use torch.tensor"
            raise ContractError(
                f"{where} must return a 0-d tensor as its {what}, got {kind_of(value)}: {advice}"
            )
    # A number on the host, such as torch.tensor(beta), is as good as one on the device of the loss.
    metrics = {
        name: torch.full_like(loss, float(value)) if value.device.type == "cpu" != loss.device.type else value
        for name, value in metrics.items()
    }
    trains = output is not None and any(leaf.requires_grad for leaf in tree_leaves(output))
    if trains and not loss.requires_grad:
        raise ContractError(
            f"{where} has no gradient, so it would teach the model nothing: its result is detached, or is "
            "not computed from the fresh output, batch.dist or batch.new_value (batch.log_prob and "
            "batch.value come from earlier networks). To leave a loss out for a while, multiply it by 0"
        )
    return loss, metrics


def check_declared(
    obs_space: gym.Space, action_space: gym.Space, declared: Mapping[str, Any], section: str
) -> None:
    """Compares the spaces that a config declares (None: not declared) with those of the environment.

    Args:
        obs_space, action_space: of one environment.
        declared: by the names of keys.
        section: of these keys, for the message.

    Raises:
        ConfigError: if they differ.
    """
    accepted: dict[str, list[Any]] = {
        "obs_shape": [list(obs_space.shape or ())],
        "action_shape": [list(action_space.shape or ())],
        "action_space": [action_kind(action_space)],
    }
    if isinstance(action_space, gym.spaces.Discrete):
        accepted["action_shape"] = [[int(action_space.n)]]
    if isinstance(action_space, gym.spaces.MultiDiscrete):  # in DI-engine the choices of each action
        accepted["action_shape"].append(action_space.nvec.tolist())
    for name, value in declared.items():
        if value is not None and ([value] if isinstance(value, int) else value) not in accepted[name]:
            actual = " or ".join(map(repr, accepted[name]))
            raise ConfigError(
                f"{section}.{name}: the config says {value!r}, the environment {actual}; leave the key "
                f"out ({section}.{name}=None on the command line), spaces are read from the environment"
            )


def action_kind(space: gym.Space) -> str:
    """Returns DI-engine's name for a kind of action space."""
    if isinstance(space, gym.spaces.Box):
        return "continuous"
    return "hybrid" if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)) else "discrete"
