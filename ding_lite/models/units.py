"""Hidden units that carry nothing: the same for every observation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.encoders import ACTIVATIONS

SATURATED = 0.99  # of tanh


@torch.no_grad()
def dead_units(model: ActorCritic, obs: Any) -> Tensor:
    """Returns the share of hidden units that are 0 for every observation, or at one bound of tanh.

    A unit of a convolution is a channel: dead where it is at no place of any image alive.

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
