"""The actor of a small network in NumPy, on the parameters' own memory.

Acting on some observations costs far more in torch's calls than in arithmetic. This does the same
arithmetic in a third of the time: the same float32 operations, on noise that the same torch generator
draws, so that the same actions come out and a saved generator goes on as it would have.

:func:`fast_actor` is the one place that says for which models; all others act by themselves.

Shapes: N samples, F features, A action size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.heads import ActionHead, BoxHead, DiscreteHead
from ding_lite.models.numpy_heads import NumpyCategorical, NumpyNormal, mask_of
from ding_lite.models.towers import BLOCK, Tower, find_tower, owns, products_have_one_thread
from ding_lite.rollout import leaf_at

MAX_WEIGHTS = 2**14  # in a layer; beyond, torch acts as fast
# Up to here OpenBLAS multiplies on one thread, however many it has: waking the others would cost more.
MAX_PRODUCTS = 2**18
METHODS = ("compute_actor", "compute_actor_critic", "distribution")  # of the model, that this stands for


def fast_actor(model: ActorCritic, max_weights: int = MAX_WEIGHTS) -> FastActor | None:
    """Returns the NumPy twin of a model's actor, None where there is none.

    There is one for ``compute_actor`` and ``distribution`` as ``vac`` and ``ppg`` have them, a network that
    :func:`~ding_lite.models.towers.find_tower` knows, and Discrete actions or a Normal whose sigma does not
    depend on the observation.

    Args:
        max_weights: of its layers.
    """
    if not isinstance(model, VAC) or not owns(model, VAC, "compute_actor"):
        return None
    if not owns(model, ActorCritic, "distribution"):
        return None
    head = model.actor_head
    if type(head) is not ActionHead or not _is_plain_head(head.out):
        return None
    tower = find_tower(model, METHODS, model.actor_encoder, head, [head.hidden, head.out.layer])
    return None if tower is None or tower.largest > max_weights else FastActor(tower, head.out)


def _is_plain_head(out: Any) -> bool:
    if type(out) is BoxHead:
        return out.kind == "normal" and out.sigma_type in ("independent", "fixed")
    return type(out) is DiscreteHead


class FastActor:
    """Draws actions for one model; made by :func:`fast_actor`."""

    def __init__(self, tower: Tower, out: DiscreteHead | BoxHead) -> None:
        self.tower = tower
        self.block = BLOCK if products_have_one_thread() else MAX_PRODUCTS // tower.largest  # rows at a time
        self.head: NumpyNormal | NumpyCategorical = (
            NumpyNormal(out) if isinstance(out, BoxHead) else NumpyCategorical()
        )

    def leaf(self, obs: Any) -> np.ndarray | None:
        """Returns what the encoder reads of observations, None where these are not arrays of its shape."""
        obs = leaf_at(obs, self.tower.path)
        if not isinstance(obs, np.ndarray) or not obs.size:
            return None
        return obs if obs.size == len(obs) * self.tower.in_features else None

    def draw(self, leaf: np.ndarray, obs: Any, generator: torch.Generator) -> tuple[Tensor, np.ndarray]:
        """Returns actions as the model's distribution would draw them, and what :meth:`output` gave for them.

        Shapes:
            leaf: what :meth:`leaf` gave, perhaps scaled -> (N,) or (N, A), (N, A)
        """
        with np.errstate(all="ignore"):  # torch says nothing either: the learner looks for what is not finite
            output = self.output(leaf)
            return torch.from_numpy(self.head.sample(output, mask_of(obs), generator)), output

    def log_prob(self, output: np.ndarray, obs: Any, action: np.ndarray) -> Tensor:
        """Returns the log-probs of actions that were drawn from these outputs for these observations.

        Shapes:
            with any leading dims: output (..., A), action (...,) or (..., A) -> (...,)
        """
        lead = output.shape[:-1]
        count = math.prod(lead)
        mask = mask_of(obs)
        with np.errstate(all="ignore"):
            log_prob = self.head.log_prob(
                output.reshape(count, -1),
                None if mask is None else mask.reshape(count, -1),
                action.reshape(count, *action.shape[len(lead) :]),
            )
        return torch.from_numpy(log_prob.reshape(lead))

    def greedy(self, leaf: np.ndarray, obs: Any) -> dict[str, Tensor]:
        """Returns the greedy actions."""
        with np.errstate(all="ignore"):
            return {"action": torch.from_numpy(self.head.mode(self.output(leaf), mask_of(obs)))}

    def output(self, leaf: np.ndarray) -> np.ndarray:
        """Returns the output of the last layer: a logit, or the mean before its bound.

        Shapes:
            leaf: (N, ...) -> (N, A)
        """
        return self.tower.forward(leaf, self.block)
