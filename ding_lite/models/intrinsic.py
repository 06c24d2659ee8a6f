"""Intrinsic rewards: how new a transition is to a network that is trained on all transitions.

``policies.intrinsic`` scales the rewards, estimates their returns and adds their advantages.

**To add an intrinsic reward**, see docs/own_parts.md#an-intrinsic-reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from ding_lite.config.registry import INTRINSIC_REGISTRY
from ding_lite.config.schema import Choice, Key
from ding_lite.models.encoders import Encoder, encoder_faults, mlp
from ding_lite.models.init import orthogonal


class Steps(NamedTuple):
    """Steps of environments. Observations are scaled, images too.

    Shapes:
        obs, action, next_obs: (N, ...) or trees of those; done: (N,) bool, whether the episode ended with the
        step

    Where done is True, next_obs is the first observation of the next episode. If a rollout ends between an
    episode and its reset (autoreset "next_step"), next_obs is the last observation of the episode.
    """

    obs: Any
    action: Any
    next_obs: Any
    done: Tensor


class IntrinsicReward(nn.Module):
    """The base class of intrinsic rewards.

    Args:
        obs_space: of single observations.
        action_space: of single actions.
    """

    # Keys of policy.intrinsic that all intrinsic rewards have; ``policies.intrinsic`` uses them.
    config: dict[str, Any] = dict(
        extrinsic_weight=Key(2.0, low=0, doc="weight of the advantages of the environment's reward"),
        weight=Key(1.0, low=0, doc="weight of the advantages of the intrinsic reward"),
        discount_factor=Key(
            0.99, low=0, below=1, doc="discount of intrinsic returns, which continue across episode ends"
        ),
        epoch_per_collect=Key(4, low=1, doc="passes of its networks over each rollout"),
        update_proportion=Key(0.25, above=0, high=1, doc="share of the steps that its loss is trained on"),
        learning_rate=Key(1e-4, above=0, doc="step size of Adam for its networks"),
        obs_clip=Key(5.0, above=0, doc="bound of its scaled observations, including images"),
    )

    def __init__(self, obs_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.action_space = action_space

    def reward(self, steps: Steps) -> Tensor:
        """Returns the intrinsic rewards (N,) of steps, in any unit."""
        raise NotImplementedError

    def loss(self, steps: Steps) -> Tensor:
        """Returns the losses (N,) of steps, which training minimises."""
        raise NotImplementedError


@INTRINSIC_REGISTRY.register("rnd")
class RND(IntrinsicReward):
    """Random network distillation (arXiv:1810.12894): the error at predicting random features.

        r_t = mean_k (f_k(s_{t+1}) - g_k(s_{t+1}))^2

    f is a random network that is not trained. g, with two more layers, is trained to predict the features of
    f, so its error is small for familiar observations. The arguments are the keys of ``config``.
    """

    config = dict(
        feature_size=Key(128, low=1, doc="features of the random network"),
        encoder=Key(
            None, Choice | None, faults=encoder_faults, doc="as policy.model.encoder, of both networks"
        ),
        encoder_hidden_size_list=Key(
            None, list[int] | None, low=1, doc="as policy.model's, of both networks"
        ),
    )

    def __init__(
        self,
        obs_space: gym.Space,
        action_space: gym.Space,
        *,
        feature_size: int = 128,
        encoder: Mapping[str, Any] | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
    ) -> None:
        super().__init__(obs_space, action_space)
        target, predictor = (Encoder(obs_space, encoder, encoder_hidden_size_list, "relu") for _ in range(2))
        size = target.out_features
        self.target = nn.Sequential(target, nn.Linear(size, feature_size))
        hidden = mlp([size, feature_size, feature_size], "relu")
        self.predictor = nn.Sequential(predictor, *hidden, nn.Linear(feature_size, feature_size))
        orthogonal(self, 2**0.5)
        self.target.requires_grad_(False)

    def reward(self, steps: Steps) -> Tensor:
        return self.loss(steps)

    def loss(self, steps: Steps) -> Tensor:
        with torch.no_grad():
            features = self.target(steps.next_obs)
        return (self.predictor(steps.next_obs) - features).square().mean(-1)
