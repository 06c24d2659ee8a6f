"""The policy network of a small model in NumPy, on the memory of torch's parameters.

It does the same float32 arithmetic on noise that torch's generator draws, in a third of the time. So the
actions and the saved generator are those of the model.

Shapes: N samples, F features, A action size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.fast.numpy_distributions import (
    NumpyCategorical,
    NumpyMultiCategorical,
    NumpyNormal,
    mask_of,
)
from ding_lite.fast.numpy_mlp import products_have_one_thread
from ding_lite.fast.numpy_network import BLOCK, NumpyEncoder, NumpyNetwork, find_network
from ding_lite.models.actor_critic import VAC
from ding_lite.models.heads import ActionHead, BoxHead, DiscreteHead, MultiDiscreteHead
from ding_lite.trees import MASK_KEY, children, leaf_at

ACTOR_MAX_WEIGHTS = 2**15  # in a layer; above it torch acts as fast for 128 environments and more
# OpenBLAS uses one thread up to this many products, whatever its number of threads. Waking the others costs
# more.
MAX_PRODUCTS = 2**18
NumpyDistribution = NumpyCategorical | NumpyMultiCategorical | NumpyNormal


def find_actor(model: VAC, encoder: NumpyEncoder | None) -> NumpyActor | None:
    """Returns the NumPy form of a model's policy network, or None if it has none.

    It has one if :func:`~ding_lite.fast.numpy_network.find_network` finds one, and the actions are Discrete,
    MultiDiscrete or a Normal whose sigma does not depend on the observation. A mask must be one array, not
    a Tuple of one for each component.

    Args:
        model: with a head as ``vac`` and ``ppg`` have it.
        encoder: of the policy.
    """
    head = model.actor_head
    if type(head) is not ActionHead or children(leaf_at(model.obs_space, [MASK_KEY])) is not None:
        return None
    make_distribution = _distribution_of(head.out)
    if make_distribution is None:
        return None
    network = find_network(model, encoder, head, [head.layers])
    return None if network is None else NumpyActor(network, make_distribution())


def _distribution_of(out: Any) -> Callable[[], NumpyDistribution] | None:
    """Returns what makes the NumPy form of a head's distribution, once its parameters are known to be there.

    None if it has no such form.
    """
    if type(out) is DiscreteHead:
        return NumpyCategorical
    if type(out) is MultiDiscreteHead:
        return partial(NumpyMultiCategorical, out.sizes)
    if type(out) is BoxHead and out.kind == "normal" and out.sigma_type in ("independent", "fixed"):
        return partial(NumpyNormal, out)
    return None


class NumpyActor:
    """Draws actions for one model; made by :func:`find_actor`."""

    def __init__(self, network: NumpyNetwork, distribution: NumpyDistribution) -> None:
        self.network, self.distribution = network, distribution
        # Rows at a time.
        self.block = BLOCK if products_have_one_thread() else MAX_PRODUCTS // network.largest

    def acts_faster(self) -> bool:
        """Returns whether it can act in the place of torch, and faster."""
        return self.network.largest <= ACTOR_MAX_WEIGHTS and not self.network.has_hooks()

    def draw(
        self, leaves: Sequence[np.ndarray], obs: Any, generator: torch.Generator
    ) -> tuple[Tensor, np.ndarray]:
        """Returns actions, as the model's distribution draws them, and the network's output.

        Shapes:
            leaves (N, ...), scaled where observations are -> (N,) or (N, A), and (N, A)
        """
        with np.errstate(all="ignore"):  # the learner checks for non-finite numbers
            output = self.output(leaves)
            return torch.from_numpy(self.distribution.sample(output, mask_of(obs), generator)), output

    def log_prob(self, output: np.ndarray, obs: Any, action: np.ndarray) -> Tensor:
        """Returns the log-probs of actions from the network's outputs.

        Shapes:
            with any leading dims: output (..., A), action (...,) or (..., A) -> (...,)
        """
        lead = output.shape[:-1]
        count = math.prod(lead)
        mask = mask_of(obs)
        with np.errstate(all="ignore"):
            log_prob = self.distribution.log_prob(
                output.reshape(count, -1),
                None if mask is None else mask.reshape(count, -1),
                action.reshape(count, *action.shape[len(lead) :]),
            )
        return torch.from_numpy(log_prob.reshape(lead))

    def mode(self, leaves: Sequence[np.ndarray], obs: Any) -> Tensor:
        """Returns the greedy actions (N,) or (N, A)."""
        with np.errstate(all="ignore"):
            return torch.from_numpy(self.distribution.mode(self.output(leaves), mask_of(obs)))

    def output(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the output of the last layer: a logit, or the mean before its bound.

        Shapes:
            (N, ...) of each leaf -> (N, A)
        """
        return self.network.forward(leaves, self.block)
