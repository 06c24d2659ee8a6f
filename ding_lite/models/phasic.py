"""The model of PPG (arXiv:2009.04416, section 2): an actor-critic with an auxiliary value head.

    dual      obs - encoder - policy, auxiliary value        obs - encoder - value
    shared    obs - encoder - policy, auxiliary value, value
    detach    as shared, but the value's gradient stops at the value head

The auxiliary value head reads the features of the policy and is trained only in the auxiliary phase. Its
gradient trains the encoder of the policy to predict values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor

from ding_lite.config.registry import MODEL_REGISTRY
from ding_lite.config.schema import Key
from ding_lite.models.actor_critic import VAC, ActorCritic, value_head
from ding_lite.models.init import initialize


class PhasicActorCritic(ActorCritic):
    """The base class of models for PPG: an :class:`ActorCritic` with :meth:`compute_auxiliary`."""

    def compute_auxiliary(self, obs: Any) -> tuple[Any, Tensor, Tensor]:
        """Returns ``(logit, auxiliary value, value)``.

        Both values are in units of the targets' std where the policy has value_norm.

        Shapes:
            obs: (N, ...) or a dict of those -> logit (see ``rl.distributions``), (N,), (N,)
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute_auxiliary(obs)")


@MODEL_REGISTRY.register("ppg")
class PPG(VAC, PhasicActorCritic):
    """``vac`` with an auxiliary value head on the encoder of the policy.

    The arguments are the keys of ``config``; ``arch`` replaces ``share_encoder``.

    Shapes:
        obs: (N, ...) or a dict of those; logit: see ``rl.distributions``; values: (N,)
    """

    config = dict(
        # dual: a separate value network; shared: one encoder for policy and value; detach: one encoder, and
        # the value's gradient stops at the value head in both phases.
        arch=Key("dual", choices=("dual", "shared", "detach")),
        share_encoder=Key(
            None,
            fixed_because="the auxiliary head must share the policy's encoder; set model.arch to choose "
            "whether the value network shares it too",
        ),
    )

    def __init__(
        self,
        obs_space: gym.Space,
        action_space: gym.Space,
        *,
        arch: str = "dual",
        critic_head_hidden_size_list: Sequence[int] = (),
        init: str = "orthogonal",
        init_gain: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            obs_space,
            action_space,
            share_encoder=arch != "dual",
            critic_head_hidden_size_list=critic_head_hidden_size_list,
            init=init,
            init_gain=init_gain,
            **options,
        )
        self.arch = arch
        # Made last, so that all other layers start with the same random weights as those of ``vac``.
        self.auxiliary_head, last = value_head(
            self.actor_encoder.out_features, critic_head_hidden_size_list, self.activation
        )
        initialize(self.auxiliary_head, init, init_gain or {}, value_layer=last)
        self.value_heads = (*self.value_heads, last)

    def _shared_features(self, features: Tensor) -> Tensor:
        return features.detach() if self.arch == "detach" else features

    def compute_auxiliary(self, obs: Any) -> tuple[Any, Tensor, Tensor]:
        features = self.actor_encoder(obs)
        if self._bypasses(PPG.compute_auxiliary):
            logit, value = self.compute_actor(obs), self.compute_critic(obs)
        else:
            value = self._value(obs, features)
            logit = self.actor_head(features)
        return logit, self.auxiliary_head(features).squeeze(-1), value
