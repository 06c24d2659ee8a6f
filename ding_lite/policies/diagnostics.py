"""Metrics of a rollout, of a replay buffer, and of the network, taken before anything is learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.data.buffer import ReplayBuffer
from ding_lite.data.rollout import Rollout
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.encoders import ACTIVATIONS
from ding_lite.rl.returns import explained_variance

OLDEST_SHOWN = 8  # iterations; older samples are counted with it
SATURATED = 0.99  # of tanh
ROLLOUT_METRICS = ("explained_variance", "adv_max", "adv_mean", "value_max", "value_mean")


def describe_rollout(data: Rollout) -> dict[str, Tensor]:
    """Returns metrics () of the values and advantages of a rollout (T, B) with credit."""
    valid = data.valid
    value, target, advantage = data.value[valid], data.value_target[valid], data.advantage[valid]
    explained = explained_variance(value, target)
    found = (explained, advantage.max(), advantage.mean(), value.max(), value.mean())
    return dict(zip(ROLLOUT_METRICS, found, strict=True))


def describe_buffer(buffer: ReplayBuffer, ratio: Tensor | None, clip_ratio: Tensor) -> dict[str, float]:
    """Returns the age and the uses of the live samples, and how far the policy has moved since collection.

    Args:
        buffer: of rollouts (T, C).
        ratio: (T, C), pi_prox / mu; None is 1.
        clip_ratio: (), of the policy.
    """
    live = buffer.live()
    age = buffer.age.expand_as(live)[live].clamp(max=OLDEST_SHOWN)
    weight = torch.ones(len(age), device=age.device) if ratio is None else ratio[live]
    outside = (weight - 1).abs() > clip_ratio
    count = torch.bincount(age, minlength=OLDEST_SHOWN + 1)
    share = torch.bincount(age[outside], minlength=OLDEST_SHOWN + 1) / count
    return {
        "samples": float(live.sum()),
        "age": float(age.float().mean()),
        "uses": float(buffer.uses[live].float().mean()),
        "weight_mean": float(weight.mean()),
        "weight_max": float(weight.max()),
        **{f"outside_clip_age_{k}": float(share[k]) for k in range(len(share)) if int(count[k])},
    }


@torch.no_grad()
def dead_units(model: ActorCritic, obs: Any) -> Tensor:
    """Returns the share of hidden units that are 0 for every observation, or at one bound of tanh.

    A unit of a convolution is a channel. It is dead if it is dead at every place of every image.

    Shapes:
        obs: (N, ...) -> ()
    """
    dead: list[Tensor] = []

    def look(module: nn.Module, inputs: Any, output: Tensor) -> None:
        units = output.transpose(0, 1).flatten(1)  # (units, N places)
        low, high = units.amin(1), units.amax(1)
        at_bound = (low > SATURATED) | (high < -SATURATED) if isinstance(module, nn.Tanh) else high <= 0
        dead.append(at_bound)

    kinds = (ACTIVATIONS["relu"], ACTIVATIONS["tanh"])
    hooks = [m.register_forward_hook(look) for m in model.modules() if isinstance(m, kinds)]
    try:
        model.compute_actor_critic(obs)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(dead).float().mean() if dead else torch.zeros((), device=next(model.parameters()).device)
