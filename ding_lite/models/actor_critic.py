"""Models that act and estimate value: the contract, and ``vac``, the one PPO uses.

A model of your own subclasses :class:`ActorCritic`, makes an ``actor_head`` and writes two methods::

    @MODEL_REGISTRY.register("mine")
    class Mine(ActorCritic):
        config = dict(width=64)

        def __init__(self, obs_space, action_space, width):
            super().__init__(obs_space, action_space)
            self.body = torch.nn.Linear(obs_space.shape[0], width)
            self.actor_head = ActionHead(action_space, width)
            self.critic_head = torch.nn.Linear(width, 1)
            self.value_heads = (self.critic_head,)

        def compute_actor(self, obs):
            return self.actor_head(self.body(obs))

        def compute_critic(self, obs):
            return self.critic_head(self.body(obs)).squeeze(-1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from ding_lite.models import init
from ding_lite.models.encoders import (
    ACTIVATIONS,
    Encoder,
    encoder_faults,
    is_image,
    mlp,
    observation_leaves,
)
from ding_lite.models.heads import ActionHead
from ding_lite.registry import MODEL_REGISTRY
from ding_lite.rl.distributions import Distribution
from ding_lite.schema import Key


class ActorCritic(nn.Module):
    """The contract of a model: what a policy calls.

    Shapes:
        obs: (N, ...) or a dict of such; logit: see ``rl.distributions``; value: (N,)
    """

    actor_head: ActionHead
    # The last linear layer of each value head: value_norm corrects them when the scale moves.
    value_heads: tuple[nn.Linear, ...] = ()

    def __init__(self, obs_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.action_space = action_space

    def compute_actor(self, obs: Any) -> Any:
        """Returns the ``logit`` of the action distribution."""
        raise NotImplementedError(f"{type(self).__name__} must define compute_actor(obs)")

    def compute_critic(self, obs: Any) -> Tensor:
        """Returns the value (N,), normalised where the policy has value_norm."""
        raise NotImplementedError(f"{type(self).__name__} must define compute_critic(obs)")

    def compute_actor_critic(self, obs: Any) -> tuple[Any, Tensor]:
        """Returns both; override it where they share work."""
        return self.compute_actor(obs), self.compute_critic(obs)

    def distribution(self, logit: Any, mask: Any = None) -> Distribution:
        """Returns the action distribution with the parameters ``logit``."""
        return self.actor_head.distribution(logit, mask)


@MODEL_REGISTRY.register("vac")
class VAC(ActorCritic):
    """Policy and value networks, with encoders of their own or with a shared one."""

    config = dict(
        # Separate encoders for vectors, one for images, when None.
        share_encoder=Key(None, (bool,), optional=True),
        # Encoder of the images, or of each leaf of a Dict: {"type": "impala_cnn"}; None: by the space.
        encoder=Key(None, (dict,), optional=True, faults=encoder_faults),
        # Widths of the layers after the encoder; None: 64-64 for vectors, the encoder's for images.
        encoder_hidden_size_list=Key(None, (list,), low=1, optional=True),
        # "bfloat16": what encoders compute in; parameters, heads and losses stay float32.
        encoder_dtype=Key("float32", choices=("float32", "bfloat16")),
        # tanh for vectors, relu for images, when None.
        activation=Key(None, choices=tuple(ACTIVATIONS), optional=True),
        # Hidden layers of each head, before its one linear layer.
        actor_head_hidden_size_list=Key([], low=1),
        critic_head_hidden_size_list=Key([], low=1),
        # Box actions: "normal" is clipped at the environment, the others respect the bounds.
        box_distribution=Key("normal", choices=("normal", "tanh_normal", "beta")),
        # Where the std of a Box action comes from: a free parameter, the features, or a constant.
        sigma_type=Key("independent", choices=("independent", "conditioned", "fixed")),
        fixed_sigma_value=Key(0.3, above=0),
        # Bounds the mean of a Box action: "tanh" to -1 .. 1, "soft" to 5 tanh(m / 5).
        bound_type=Key(None, choices=("tanh", "soft"), optional=True),
        # "orthogonal", "normed" (the PPG authors') or "torch" (each layer's own default).
        init=Key("orthogonal", choices=("orthogonal", "normed", "torch")),
        # Gains of the orthogonal init: hidden layers, last policy layer, last value layer.
        init_gain=dict(hidden=Key(2**0.5, above=0), policy=Key(0.01, above=0), value=Key(1.0, above=0)),
        # DI-engine's, said elsewhere here.
        norm_type=Key(None, fixed_because="networks have no normalisation layers here"),
        impala_cnn_encoder=Key(False, fixed_because="write encoder={'type': 'impala_cnn'}"),
        actor_head_hidden_size=Key(None, fixed_because="write actor_head_hidden_size_list=[...]"),
        actor_head_layer_num=Key(None, fixed_because="write actor_head_hidden_size_list=[...]"),
        critic_head_hidden_size=Key(None, fixed_because="write critic_head_hidden_size_list=[...]"),
        critic_head_layer_num=Key(None, fixed_because="write critic_head_hidden_size_list=[...]"),
    )

    def __init__(
        self,
        obs_space: gym.Space,
        action_space: gym.Space,
        *,
        share_encoder: bool | None = None,
        encoder: Mapping[str, Any] | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        encoder_dtype: str = "float32",
        activation: str | None = None,
        actor_head_hidden_size_list: Sequence[int] = (),
        critic_head_hidden_size_list: Sequence[int] = (),
        box_distribution: str = "normal",
        sigma_type: str = "independent",
        fixed_sigma_value: float = 0.3,
        bound_type: str | None = None,
        init: str = "orthogonal",
        init_gain: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(obs_space, action_space)
        images = any(is_image(leaf) for _, leaf in observation_leaves(obs_space))
        self.share_encoder = images if share_encoder is None else share_encoder
        self.activation = activation = activation or ("relu" if images else "tanh")

        options = (encoder, encoder_hidden_size_list, activation, encoder_dtype)
        self.actor_encoder = Encoder(obs_space, *options)
        self.critic_encoder = None if self.share_encoder else Encoder(obs_space, *options)
        features = self.actor_encoder.out_features
        self.actor_head = ActionHead(
            action_space,
            features,
            hidden_size_list=actor_head_hidden_size_list,
            activation=activation,
            box_distribution=box_distribution,
            sigma_type=sigma_type,
            fixed_sigma_value=fixed_sigma_value,
            bound_type=bound_type,
        )
        self.critic_head, last = value_head(features, critic_head_hidden_size_list, activation)
        self.value_heads = (last,)
        initialize(self, init, init_gain or {}, policy_layers=self.actor_head.out, value_layers=(last,))

    def compute_actor(self, obs: Any) -> Any:
        return self.actor_head(self.actor_encoder(obs))

    def compute_critic(self, obs: Any) -> Tensor:
        return self.critic_head((self.critic_encoder or self.actor_encoder)(obs)).squeeze(-1)

    def compute_actor_critic(self, obs: Any) -> tuple[Any, Tensor]:
        features = self.actor_encoder(obs)
        critic_features = features if self.critic_encoder is None else self.critic_encoder(obs)
        return self.actor_head(features), self.critic_head(critic_features).squeeze(-1)


def value_head(
    features: int, hidden_size_list: Sequence[int], activation: str
) -> tuple[nn.Sequential, nn.Linear]:
    """Returns the layers of a value head, (N, F) -> (N, 1), and its last one, which is linear."""
    sizes = [features, *hidden_size_list]
    last = nn.Linear(sizes[-1], 1)
    return nn.Sequential(*mlp(sizes, activation), last), last


def initialize(
    module: nn.Module,
    kind: str,
    gain: Mapping[str, float],
    *,
    policy_layers: nn.Module | None = None,
    value_layers: Sequence[nn.Module] = (),
) -> None:
    """Initialises fresh layers: hidden ones alike, the last of each head with its own gain."""
    if kind == "torch":
        return
    if kind == "orthogonal":
        init.orthogonal(module, gain.get("hidden", 2**0.5))
        if policy_layers is not None:
            init.orthogonal(policy_layers, gain.get("policy", 0.01))
        for layer in value_layers:
            init.orthogonal(layer, gain.get("value", 1.0))
        return
    init.normed_hidden_layers(module)
    for head in (*([policy_layers] if policy_layers is not None else []), *value_layers):
        init.normed(head, 0.1)
