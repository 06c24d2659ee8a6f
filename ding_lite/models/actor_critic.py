"""Actor-critic models: the contract, and ``vac``, the model of PPO.

**To add a model**, subclass :class:`ActorCritic`, set ``actor_head``, and define ``compute_actor`` and
``compute_critic``. The class may be in any module that is imported before the config is compiled
(``--import MODULE``); ``model.type`` then takes its name::

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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from ding_lite.config.registry import MODEL_REGISTRY
from ding_lite.config.schema import Key
from ding_lite.errors import ContractError
from ding_lite.models.encoders import ACTIVATIONS, Encoder, encoder_faults, has_image, mlp
from ding_lite.models.heads import ActionHead, box_distribution_faults
from ding_lite.models.init import chrono, initialize
from ding_lite.models.memory import RECURRENT_LAYERS, Memory, MemoryEncoder, Sequences
from ding_lite.rl.distributions import Distribution
from ding_lite.trees import Tree


class ActorCritic(nn.Module):
    """The base class of models: the methods that a policy calls.

    Args:
        obs_space: of single observations.
        action_space: of single actions.

    Attributes:
        actor_head: makes the action distribution and converts actions for the environment.
        value_heads: the last linear layer of each value head; value_norm rescales them when the scale of
            the value targets changes.

    Shapes:
        obs: (N, ...) or a dict of those; logit: see ``rl.distributions``; value: (N,)
    """

    actor_head: ActionHead
    value_heads: tuple[nn.Linear, ...] = ()

    def __init__(self, obs_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.action_space = action_space

    def compute_actor(self, obs: Any) -> Any:
        """Returns ``logit``, the parameters of the action distribution.

        Shapes:
            obs: (N, ...) or a dict of those -> (N, ...) or a dict of those
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute_actor(obs)")

    def compute_critic(self, obs: Any) -> Tensor:
        """Returns the value, in units of the targets' std where the policy has value_norm.

        Shapes:
            obs: (N, ...) or a dict of those -> (N,)
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute_critic(obs)")

    def compute_actor_critic(self, obs: Any) -> tuple[Any, Tensor]:
        """Returns ``(logit, value)``. A model that shares layers between both overrides it to save work.

        Shapes:
            obs: (N, ...) or a dict of those -> logit, (N,)
        """
        return self.compute_actor(obs), self.compute_critic(obs)

    def initial_state(self, n: int) -> Tree | None:
        """Returns the memory (n, ...) before the first step of ``n`` episodes; None: the model has no memory.

        A model with memory is given :class:`~ding_lite.models.memory.Sequences` in place of observations,
        and defines :meth:`step`.
        """
        return None

    def step(self, inputs: Sequences) -> tuple[Any, Tensor, Tree]:
        """Returns ``(logit, value, state)``: outputs, and the memory (S, ...) after the last samples."""
        raise NotImplementedError(f"{type(self).__name__} must define step(inputs), since it has a memory")

    def distribution(self, logit: Any, mask: Any = None) -> Distribution:
        """Returns the action distribution with the parameters ``logit``; ``mask`` is True where legal."""
        return self.actor_head.distribution(logit, mask)


def computes_jointly(model: ActorCritic, method: str) -> bool:
    """Returns whether a method of several outputs was written for the model's own single ones.

    It was written for ``compute_actor`` and ``compute_critic`` of the class that defines it. If the model has
    others, of another class or assigned to it, the method bypasses them, or asks for both one by one, as that
    of :class:`ActorCritic` does. False also if the method itself is assigned, since nothing has compared it.
    """
    kind = next(kind for kind in type(model).__mro__ if method in vars(kind))
    names = (method, "compute_actor", "compute_critic")
    return all(_function(model, name) is getattr(kind, name, None) for name in names)


def _function(model: ActorCritic, name: str) -> Any:
    """Returns the function of a method, which is that of a class if nothing is assigned to the model.

    To look into ``vars(model)`` would not do: torch.compile takes what it finds there for a constant.
    """
    method = getattr(model, name)
    return getattr(method, "__func__", method)


@MODEL_REGISTRY.register("vac")
class VAC(ActorCritic):
    """A policy network and a value network, with separate encoders or a shared one.

    The arguments are the keys of ``config``.

    Shapes:
        obs: (N, ...) or a dict of those; logit: see ``rl.distributions``; value: (N,)
    """

    config = dict(
        # Whether policy and value share an encoder; None: only if the observations have images.
        share_encoder=Key(None, (bool,), optional=True),
        # {"type": "impala_cnn"}: of the images; {"leaf": {"type": ...}}: of a leaf; None: by the space.
        encoder=Key(None, (dict,), optional=True, faults=encoder_faults),
        # Encoder of images of 16 to 35 pixels for which ``encoder`` names none. Before this key existed they
        # had "minatar_cnn", whose layers after the convolution are large: 1.8 million parameters at 32 x 32.
        small_image_encoder=Key("small_cnn", choices=("small_cnn", "minatar_cnn")),
        # Widths of the layers after the encoder; None: 64-64 for vectors, the encoder's own for images.
        encoder_hidden_size_list=Key(None, (list,), item=int, low=1, optional=True),
        # Memory behind each encoder: "lstm" or "gru"; None: no memory.
        rnn=Key(None, choices=tuple(RECURRENT_LAYERS), optional=True),
        rnn_hidden_size=Key(128, low=1),  # units of a memory's layer
        rnn_layers=Key(1, low=1),  # layers of a memory
        # Steps that the units of a memory remember at first, from 1 up to this many (chrono init); 2: biases
        # of 0.
        rnn_timescale=Key(64.0, low=2),
        # Dtype that encoders compute in; parameters, heads and losses are float32.
        encoder_dtype=Key("float32", choices=("float32", "bfloat16")),
        # Activation of hidden layers; None: tanh, or relu if the observations have images.
        activation=Key(None, choices=tuple(ACTIVATIONS), optional=True),
        # Widths of the policy head's hidden layers, before its last linear layer.
        actor_head_hidden_size_list=Key([], item=int, low=1),
        # As actor_head_hidden_size_list, of the value head.
        critic_head_hidden_size_list=Key([], item=int, low=1),
        # Distribution of Box actions: "normal" (clipped to the bounds), "tanh_normal" or "beta" (both scaled
        # to them), a name that you registered, or "package.module:Class".
        box_distribution=Key("normal", (str, object), faults=box_distribution_faults),
        # Source of the std of Box actions: a free parameter, the features, or fixed_sigma_value.
        sigma_type=Key("independent", choices=("independent", "conditioned", "fixed")),
        # std at the start with sigma_type="independent", in units of the raw action
        initial_sigma_value=Key(1.0, above=0, high=7),
        fixed_sigma_value=Key(0.3, above=0),  # std with sigma_type="fixed", in units of the raw action
        # Bound on the mean of Box actions: "tanh" to -1 .. 1, "soft" to 5 tanh(m / 5); None: no bound.
        bound_type=Key(None, choices=("tanh", "soft"), optional=True),
        # Initial weights: "orthogonal", "normed" (as the PPG authors') or "torch" (the default of torch).
        init=Key("orthogonal", choices=("orthogonal", "normed", "torch")),
        init_gain=dict(
            hidden=Key(2**0.5, above=0),  # gain of the orthogonal init of hidden layers
            policy=Key(0.01, above=0),  # gain of the last layer of the policy
            value=Key(1.0, above=0),  # gain of the last layer of the value
        ),
        # Keys of DI-engine that other keys replace.
        norm_type=Key(None, fixed_because="ding_lite's networks have no normalisation layers"),
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
        small_image_encoder: str = "small_cnn",
        encoder_hidden_size_list: Sequence[int] | None = None,
        rnn: str | None = None,
        rnn_hidden_size: int = 128,
        rnn_layers: int = 1,
        rnn_timescale: float = 64.0,
        encoder_dtype: str = "float32",
        activation: str | None = None,
        actor_head_hidden_size_list: Sequence[int] = (),
        critic_head_hidden_size_list: Sequence[int] = (),
        box_distribution: str | type = "normal",
        sigma_type: str = "independent",
        initial_sigma_value: float = 1.0,
        fixed_sigma_value: float = 0.3,
        bound_type: str | None = None,
        init: str = "orthogonal",
        init_gain: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(obs_space, action_space)
        self.share_encoder = has_image(obs_space) if share_encoder is None else share_encoder
        activation = activation or default_activation(obs_space)
        self.activation = activation

        def make_encoder(name: str) -> Encoder | MemoryEncoder:
            widths = encoder_hidden_size_list
            made = Encoder(obs_space, encoder, widths, activation, encoder_dtype, small_image_encoder)
            if rnn is None:
                return made
            return MemoryEncoder(name, made, Memory(rnn, made.out_features, rnn_hidden_size, rnn_layers))

        self.actor_encoder = make_encoder("actor")
        self.critic_encoder = None if self.share_encoder else make_encoder("critic")
        features = self.actor_encoder.out_features
        self.actor_head = ActionHead(
            action_space,
            features,
            hidden_size_list=actor_head_hidden_size_list,
            activation=activation,
            box_distribution=box_distribution,
            sigma_type=sigma_type,
            initial_sigma_value=initial_sigma_value,
            fixed_sigma_value=fixed_sigma_value,
            bound_type=bound_type,
        )
        self.critic_head, last = value_head(features, critic_head_hidden_size_list, activation)
        self.value_heads = (last,)
        initialize(self, init, init_gain or {}, policy_layers=self.actor_head.out, value_layer=last)
        if init != "torch":
            chrono(self, rnn_timescale)

    def _bypasses(self, method: Callable[..., Any]) -> bool:
        """Returns whether a method of the library gives an output of this model that was replaced.

        A method of a subclass answers for itself, and expects the outputs of the library's layers of it.
        """
        name = method.__name__
        return _function(self, name) is method and not computes_jointly(self, name)

    def compute_actor(self, obs: Any) -> Any:
        return self.actor_head(self.actor_encoder(obs))

    def compute_critic(self, obs: Any) -> Tensor:
        return self._value(obs, self.actor_encoder(obs) if self.critic_encoder is None else None)

    def compute_actor_critic(self, obs: Any) -> tuple[Any, Tensor]:
        if self._bypasses(VAC.compute_actor_critic):
            return super().compute_actor_critic(obs)
        features = self.actor_encoder(obs)
        return self.actor_head(features), self._value(obs, features)

    def _value(self, obs: Any, actor_features: Tensor | None) -> Tensor:
        """Returns the values: obs (N, ...), actor_features (N, F) -> (N,).

        ``actor_features`` may be None if the value has an encoder of its own.
        """
        if self.critic_encoder is None:
            assert actor_features is not None
            features = self._shared_features(actor_features)
        else:
            features = self.critic_encoder(obs)
        value: Tensor = self.critic_head(features).squeeze(-1)
        return value

    def _shared_features(self, features: Tensor) -> Tensor:
        """Returns the input of the value head, of features that it shares with the policy's head."""
        return features

    def initial_state(self, n: int) -> Tree | None:
        encoders = [e for e in (self.actor_encoder, self.critic_encoder) if isinstance(e, MemoryEncoder)]
        return {encoder.name: encoder.memory.initial_state(n) for encoder in encoders} or None

    def step(self, inputs: Sequences) -> tuple[Any, Tensor, Tree]:
        if self._bypasses(VAC.step):
            raise ContractError(
                f"policy.model: {type(self).__name__} replaces compute_actor or compute_critic, and has a "
                "memory; it must define step(inputs), too, which acts"
            )
        actor, critic = self.actor_encoder, self.critic_encoder
        assert isinstance(actor, MemoryEncoder)
        features, state = actor.step(inputs)
        after = {actor.name: state}
        critic_features = self._shared_features(features)
        if isinstance(critic, MemoryEncoder):
            critic_features, after[critic.name] = critic.step(inputs)
        return self.actor_head(features), self.critic_head(critic_features).squeeze(-1), after


def default_activation(obs_space: gym.Space) -> str:
    """Returns the activation of a model whose config names none."""
    return "relu" if has_image(obs_space) else "tanh"


def value_head(
    features: int, hidden_size_list: Sequence[int], activation: str
) -> tuple[nn.Sequential, nn.Linear]:
    """Returns a value head and its last layer.

    Args:
        features: F.
        hidden_size_list: widths of its hidden layers.
        activation: of its hidden layers.

    Shapes:
        the head maps (N, F) -> (N, 1)
    """
    sizes = [features, *hidden_size_list]
    last = nn.Linear(sizes[-1], 1)
    return nn.Sequential(*mlp(sizes, activation), last), last
