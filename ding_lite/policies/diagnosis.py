"""What a collected rollout says by itself, before anything is learned from it."""

from __future__ import annotations

from typing import Any

import torch

from ding_lite.models.units import dead_units
from ding_lite.rl.returns import explained_variance
from ding_lite.rollout import Rollout, map_tree, to_dict

DEAD_UNITS_EVERY, DEAD_UNITS_OF = 10, 256  # iterations; observations


def describe_rollout(policy: Any, data: Rollout) -> dict[str, float]:
    """Returns the metrics of values and advantages, waiting for the device once; now and then dead units.

    Args:
        policy: a ``PPOPolicy``.
        data: (T, B), with credit.
    """
    valid = data.valid
    value, target, advantage = data.value[valid], data.value_target[valid], data.advantage[valid]
    told = {
        "explained_variance": explained_variance(value, target),
        "adv_max": advantage.max(),
        "adv_mean": advantage.mean(),
        "value_max": value.max(),
        "value_mean": value.mean(),
    }
    if policy.obs_norm is not None:
        told["obs_clipped"] = policy.obs_norm.clipped_share(data.obs, valid)
    if policy.buffers["policy"].iteration % DEAD_UNITS_EVERY == 0:
        some = map_tree(lambda leaf: leaf.flatten(0, 1)[:DEAD_UNITS_OF], to_dict(data.obs))
        told["dead_units"] = dead_units(policy.model, policy._inputs(some))
    return dict(zip(told, torch.stack(list(told.values())).tolist(), strict=True))
