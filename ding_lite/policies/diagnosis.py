"""What collected rollouts say by themselves, before anything is learned from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ding_lite.buffer import ReplayBuffer
from ding_lite.models.units import dead_units
from ding_lite.rl.returns import explained_variance
from ding_lite.rollout import Rollout, map_tree, to_dict

OLDEST_SHOWN = 8  # iterations: what is older is counted with it
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


def describe_buffer(buffer: ReplayBuffer, ratio: Tensor | None, clip_ratio: Tensor) -> dict[str, float]:
    """Returns how old and how used the live transitions are, and how far the policy has moved on.

    Args:
        ratio: (T, C), pi_prox / mu; None is 1.
        clip_ratio: how far the policy may move in one iteration.
    """
    live = buffer.live()
    age = buffer.age.expand_as(live)[live].clamp(max=OLDEST_SHOWN)
    weight = torch.ones(len(age), device=age.device) if ratio is None else ratio[live]
    outside = ((weight - 1).abs() > clip_ratio).float()
    count = torch.bincount(age, minlength=OLDEST_SHOWN + 1)
    share = torch.bincount(age, outside, OLDEST_SHOWN + 1) / count
    return {
        "samples": float(live.sum()),
        "age": float(age.float().mean()),
        "uses": float(buffer.uses[live].float().mean()),
        "weight_mean": float(weight.mean()),
        "weight_max": float(weight.max()),
        **{f"outside_clip_age_{k}": float(share[k]) for k in range(len(share)) if int(count[k])},
    }
