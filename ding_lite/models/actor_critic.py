"""Actor-critic models: their base classes, ``vac``, the model of PPO, and ``ppg``, the model of PPG.

**To add a model**, see docs/own_parts.md#a-network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gymnasium as gym
from torch import Tensor, nn

from ding_lite.config.registry import BOX_DISTRIBUTION_REGISTRY, MODEL_REGISTRY
from ding_lite.config.schema import DROPPED, Choice, Key, Name
from ding_lite.errors import ConfigError
from ding_lite.models.encoders import ACTIVATIONS, Encoder, encoder_faults, for_groups, has_image, mlp
from ding_lite.models.heads import ActionHead
from ding_lite.models.init import chrono, initialize
from ding_lite.models.recurrent import RecurrentEncoder, RecurrentLayer, Sequences
from ding_lite.rl.distributions import Distribution
from ding_lite.trees import Tree, children

# Names of observation groups for the critic only: an actor that reads them cannot be deployed.
PRIVILEGED = ("critic", "privileged", "privileged_state")
RNN: dict[str, Any] = dict(needs="model.rnn")
FREE: dict[str, Any] = dict(needs="model.sigma_type=independent")
GAIN: dict[str, Any] = dict(above=0, needs="model.init=orthogonal")
# Methods with several results, and the methods whose results they must repeat.
COMBINED = {
    "compute_actor_critic": ("compute_actor", "compute_critic"),
    "step": ("compute_actor", "compute_critic"),
    "stacks": (
        "compute_actor",
        "compute_critic",
        "compute_actor_critic",
        "compute_auxiliary",
        "distribution",
        "from_raw",
    ),
}


class Stack(NamedTuple):
    """A network that NumPy may run, if ``fast.stacks`` supports all of its layers.

    Attributes:
        encoder: an ``Encoder`` or ``nn.Sequential``; stacks that read the same features share this module.
        head: layers behind the encoder; the last one is linear.
        detached: whether the gradient of the head stops at the features.
    """

    encoder: nn.Module
    head: nn.Sequential
    detached: bool = False


def group_faults(groups: Any, path: str) -> list[str]:
    """Returns the faults of ``policy.model.obs_groups`` that do not depend on the observation space."""
    if groups is None or (
        set(groups) == {"actor", "critic"}
        and all(isinstance(names, (list, tuple)) and names for names in groups.values())
    ):
        return []
    return [f'{path}: expected {{"actor": [names], "critic": [names]}}, got {groups!r:.80}']


def spaces_of_groups(space: gym.Space, groups: Mapping[str, Sequence[str]] | None) -> dict[str, gym.Space]:
    """Returns the spaces that the "actor" and the "critic" read: parts of the observation space.

    Raises:
        ConfigError: if a group is unknown, or if a privileged group exists and ``groups`` is None.
    """
    branches = children(space) or {}
    if groups is None:
        if privileged := [name for name in PRIVILEGED if name in branches]:
            rest = [name for name in branches if name not in PRIVILEGED]
            raise ConfigError(
                f"policy.model.obs_groups: observations have a group {privileged[0]!r}. Name what each "
                f'network reads, such as {{"actor": {rest}, "critic": {list(branches)}}}: an actor that '
                "reads what only the simulator knows cannot be deployed"
            )
        return {"actor": space, "critic": space}
    if unknown := [name for names in groups.values() for name in names if name not in branches]:
        raise ConfigError(
            f"policy.model.obs_groups: unknown group {unknown[0]!r}; the groups of {type(space).__name__} "
            f"observations are {list(branches)}"
        )
    return {
        network: gym.spaces.Dict({name: branch for name, branch in branches.items() if name in names})
        for network, names in groups.items()
    }


class ActorCritic(nn.Module):
    """The base class of models: the methods that a policy calls.

    An inherited method of ``COMBINED`` would ignore a subclass's own ``compute_actor``, for example. So it is
    reset: ``compute_actor_critic`` calls the single methods, ``stacks`` returns None, ``step`` raises.

    Args:
        obs_space: of single observations.
        action_space: of single actions.

    Attributes:
        actor_head: the policy head; its ``out`` makes action distributions and converts actions.
        value_heads: the last linear layer of each value head; value_norm rescales them when the scale of
            the value targets changes.
        share_encoder: whether actor and critic share most of the network: then one pass computes both, and
            the default of ``value_norm_std`` is 1.
        detaches_value: whether the value's gradient stops at shared features.
        obs_groups: the branches of a Dict that actor and critic read; None: all of them.

    Shapes:
        obs: (N, ...) or a dict of those; logit: see ``rl.distributions``; value: (N,)
    """

    actor_head: ActionHead
    value_heads: tuple[nn.Linear, ...] = ()
    share_encoder = False
    detaches_value = False
    obs_groups: Mapping[str, Sequence[str]] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, parts in COMBINED.items():
            owner = next(base for base in cls.__mro__ if name in vars(base))
            if any(getattr(cls, other, None) is not getattr(owner, other, None) for other in parts):
                setattr(cls, name, getattr(ActorCritic, name))

    def __init__(self, obs_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.action_space = action_space

    def compute_actor(self, obs: Any) -> Any:
        """Returns ``logit``, the parameters of the action distribution: (N, ...) or a dict of those."""
        raise NotImplementedError(f"{type(self).__name__} must define compute_actor(obs)")

    def compute_critic(self, obs: Any) -> Tensor:
        """Returns the value (N,), normalised where the policy has value_norm."""
        raise NotImplementedError(f"{type(self).__name__} must define compute_critic(obs)")

    def compute_actor_critic(self, obs: Any) -> tuple[Any, Tensor]:
        """Returns ``(logit, value)``. Models whose networks share layers override it to compute them once."""
        return self.compute_actor(obs), self.compute_critic(obs)

    def initial_hidden(self, n: int) -> Tree | None:
        """Returns the hidden state (n, ...) before the first step of ``n`` episodes; None: not recurrent.

        A recurrent model receives :class:`~ding_lite.models.recurrent.Sequences` in place of observations,
        and defines :meth:`step`.
        """
        return None

    def step(self, inputs: Sequences) -> tuple[Any, Tensor, Tree]:
        """Returns ``(logit, value, hidden)``: outputs, and the hidden state (S, ...) after each sequence."""
        raise NotImplementedError(
            f"{type(self).__name__} must define step(inputs), since it has a hidden state"
        )

    def stacks(self) -> dict[str, Stack] | None:
        """Returns the networks that NumPy may run, by output: "actor", "critic", with PPG "auxiliary"."""
        return None

    def from_raw(self, name: str, raw: Tensor) -> Any:
        """Converts the output of the stack ``name``: raw (N, K) -> logit, or (N, 1) -> value (N,)."""
        return self.actor_head.out.logit(raw) if name == "actor" else raw.squeeze(-1)

    def distribution(self, logit: Any, mask: Any = None) -> Distribution:
        """Returns the action distribution with the parameters ``logit``; ``mask`` is True where legal."""
        return self.actor_head.out.distribution(logit, mask)


@MODEL_REGISTRY.register("vac")
class VAC(ActorCritic):
    """A policy network and a value network, with separate encoders or a shared one.

    The arguments are the keys of ``config``; ``box_options`` are the options of ``heads.BoxHead``.
    """

    config = dict(
        share_encoder=Key(None, bool | None, doc="one encoder for policy and value; None: only for images"),
        encoder=Key(
            None,
            Choice | None,
            faults=encoder_faults,
            doc='{"type": name, ...}, or one {"type": ...} for each leaf',
        ),
        obs_groups=Key(
            None,
            dict | None,
            faults=group_faults,
            doc='branches of a Dict observation for each network: {"actor": ["policy"], "critic": ["policy", '
            '"privileged"]}; None: both read all',
        ),
        encoder_hidden_size_list=Key(
            None, list[int] | None, low=1, doc="widths of layers after the encoder; None: 64-64 for vectors"
        ),
        rnn=Key(None, Literal["lstm", "gru"] | None, doc="recurrent layers behind each encoder; None: none"),
        rnn_hidden_size=Key(128, low=1, **RNN, doc="units of a recurrent layer"),
        rnn_layers=Key(1, low=1, **RNN, doc="number of recurrent layers"),
        rnn_timescale=Key(64.0, low=2, **RNN, doc="most steps that units remember at first (chrono init)"),
        encoder_dtype=Key("float32", Literal["float32", "bfloat16"], doc="dtype that encoders compute in"),
        activation=Key(
            None, Literal[tuple(ACTIVATIONS)] | None, doc="None: tanh, or relu if there are images"
        ),
        actor_head_hidden_size_list=Key([], list[int], low=1, doc="hidden layers of the policy head"),
        critic_head_hidden_size_list=Key([], list[int], low=1, doc="hidden layers of the value head"),
        box_distribution=Key(
            "normal",
            Name,
            faults=BOX_DISTRIBUTION_REGISTRY.faults,
            doc='"normal" (clipped), "tanh_normal", "beta" (scaled)',
        ),
        sigma_type=Key(
            "independent",
            Literal["independent", "conditioned", "fixed"],
            doc="source of the std of raw Box actions",
        ),
        initial_sigma_value=Key(1.0, above=0, high=7, **FREE, doc="initial std, of the raw action"),
        fixed_sigma_value=Key(0.3, above=0, needs="model.sigma_type=fixed", doc="std, of the raw action"),
        bound_type=Key(None, Literal["tanh", "soft"] | None, doc='of the mean m; "soft" is 5 tanh(m / 5)'),
        init=Key("orthogonal", Literal["orthogonal", "normed", "torch"], doc='"normed": as the PPG authors'),
        init_gain=dict(
            hidden=Key(2**0.5, **GAIN, doc="gain of the orthogonal init of hidden layers"),
            policy=Key(0.01, **GAIN, doc="gain of the last layer of the policy"),
            value=Key(1.0, **GAIN, doc="gain of the last layer of the value"),
        ),
    )

    def __init__(
        self,
        obs_space: gym.Space,
        action_space: gym.Space,
        *,
        share_encoder: bool | None = None,
        encoder: Mapping[str, Any] | None = None,
        obs_groups: Mapping[str, Sequence[str]] | None = None,
        encoder_hidden_size_list: Sequence[int] | None = None,
        rnn: str | None = None,
        rnn_hidden_size: int = 128,
        rnn_layers: int = 1,
        rnn_timescale: float = 64.0,
        encoder_dtype: str = "float32",
        activation: str | None = None,
        actor_head_hidden_size_list: Sequence[int] = (),
        critic_head_hidden_size_list: Sequence[int] = (),
        init: str = "orthogonal",
        init_gain: Mapping[str, float] | None = None,
        **box_options: Any,
    ) -> None:
        super().__init__(obs_space, action_space)
        self.obs_groups, spaces = obs_groups, spaces_of_groups(obs_space, obs_groups)
        if share_encoder and obs_groups is not None:
            raise ConfigError("policy.model.obs_groups: networks that share an encoder read the same groups")
        by_kind = has_image(obs_space) and obs_groups is None
        self.share_encoder = by_kind if share_encoder is None else share_encoder
        self.activation = activation = activation or usual_activation(obs_space)

        def make_encoder(name: str) -> Encoder | RecurrentEncoder:
            choice = encoder if obs_groups is None else for_groups(encoder, obs_groups[name])
            network = Encoder(spaces[name], choice, encoder_hidden_size_list, activation, encoder_dtype)
            if rnn is None:
                return network
            layer = RecurrentLayer(rnn, network.out_features, rnn_hidden_size, rnn_layers)
            return RecurrentEncoder(name, network, layer)

        self.actor_encoder = make_encoder("actor")
        self.critic_encoder = None if self.share_encoder else make_encoder("critic")
        self.actor_head = ActionHead(
            action_space,
            self.actor_encoder.out_features,
            hidden_size_list=actor_head_hidden_size_list,
            activation=activation,
            **box_options,
        )
        features = (self.critic_encoder or self.actor_encoder).out_features
        self.critic_head, last = value_head(features, critic_head_hidden_size_list, activation)
        self.value_heads = (last,)
        initialize(self, init, init_gain or {}, policy_layers=self.actor_head.layers[-1], value_layer=last)
        if init != "torch":
            chrono(self, rnn_timescale)

    def compute_actor(self, obs: Any) -> Any:
        return self.actor_head(self.actor_encoder(obs))

    def compute_actor_critic(self, obs: Any) -> tuple[Any, Tensor]:
        features = self.actor_encoder(obs)
        return self.actor_head(features), self.compute_critic(obs, features)

    def compute_critic(self, obs: Any, features: Tensor | None = None) -> Tensor:
        """Returns the values (N,); ``features`` (N, F): the output of the policy's encoder, if known."""
        if self.critic_encoder is None:
            features = self.actor_encoder(obs) if features is None else features
            features = features.detach() if self.detaches_value else features
        else:
            features = self.critic_encoder(obs)
        return self.critic_head(features).squeeze(-1)

    def initial_hidden(self, n: int) -> Tree | None:
        encoders = [e for e in (self.actor_encoder, self.critic_encoder) if isinstance(e, RecurrentEncoder)]
        return {encoder.name: encoder.layer.initial_hidden(n) for encoder in encoders} or None

    def step(self, inputs: Sequences) -> tuple[Any, Tensor, Tree]:
        actor, critic = self.actor_encoder, self.critic_encoder
        assert isinstance(actor, RecurrentEncoder)
        features, hidden = actor.step(inputs)
        after = {actor.name: hidden}
        value_features = features.detach() if self.detaches_value else features
        if isinstance(critic, RecurrentEncoder):
            value_features, after[critic.name] = critic.step(inputs)
        return self.actor_head(features), self.critic_head(value_features).squeeze(-1), after

    def stacks(self) -> dict[str, Stack] | None:
        if type(self.actor_head) is not ActionHead:
            return None
        actor = Stack(self.actor_encoder, self.actor_head.layers)
        critic = Stack(self.critic_encoder or self.actor_encoder, self.critic_head, self.detaches_value)
        return {"actor": actor, "critic": critic}


class PhasicActorCritic(ActorCritic):
    """The base class of models for PPG: an :class:`ActorCritic` with :meth:`compute_auxiliary`."""

    def compute_auxiliary(self, obs: Any) -> tuple[Any, Tensor, Tensor]:
        """Returns ``(logit, auxiliary value (N,), value (N,))``.

        Both values are normalised where the policy has value_norm.
        """
        raise NotImplementedError(f"{type(self).__name__} must define compute_auxiliary(obs)")


@MODEL_REGISTRY.register("ppg")
class PPG(VAC, PhasicActorCritic):
    """``vac`` with an auxiliary value head on the encoder of the policy (arXiv:2009.04416, section 2).

        dual      obs - encoder - policy, auxiliary value        obs - encoder - value
        shared    obs - encoder - policy, auxiliary value, value
        detach    as shared, but the value's gradient stops at the value head

    The auxiliary value head is trained only in the auxiliary phase. Its gradient trains the encoder of the
    policy to predict values. The arguments are the keys of ``config``; ``arch`` replaces ``share_encoder``.
    """

    config = dict(
        arch=Key(
            "dual", Literal["dual", "shared", "detach"], doc="encoders of policy and value (models.PPG)"
        ),
        share_encoder=DROPPED,
    )

    def __init__(
        self,
        obs_space: gym.Space,
        action_space: gym.Space,
        *,
        arch: str = "dual",
        **options: Any,
    ) -> None:
        super().__init__(obs_space, action_space, share_encoder=arch != "dual", **options)
        self.arch = arch
        self.detaches_value = arch == "detach"
        # Made last, so that all other layers have the same first weights as in ``vac``.
        features, sizes = self.actor_encoder.out_features, options.get("critic_head_hidden_size_list", ())
        self.auxiliary_head, last = value_head(features, sizes, self.activation)
        init, gain = options.get("init", "orthogonal"), options.get("init_gain") or {}
        initialize(self.auxiliary_head, init, gain, value_layer=last)
        self.value_heads = (*self.value_heads, last)

    def compute_auxiliary(self, obs: Any) -> tuple[Any, Tensor, Tensor]:
        features = self.actor_encoder(obs)
        if type(self).compute_actor_critic is not VAC.compute_actor_critic:  # a subclass overrides it
            logit, value = self.compute_actor_critic(obs)
        else:
            logit, value = self.actor_head(features), self.compute_critic(obs, features)
        return logit, self.auxiliary_head(features).squeeze(-1), value

    def stacks(self) -> dict[str, Stack] | None:
        stacks = super().stacks()
        return stacks and {**stacks, "auxiliary": Stack(self.actor_encoder, self.auxiliary_head)}


def usual_activation(obs_space: gym.Space) -> str:
    """Returns the activation of models whose config names none."""
    return "relu" if has_image(obs_space) else "tanh"


def value_head(
    features: int, hidden_size_list: Sequence[int], activation: str
) -> tuple[nn.Sequential, nn.Linear]:
    """Returns a value head, (N, F) -> (N, 1), with hidden layers of these widths, and its last layer."""
    sizes = [features, *hidden_size_list]
    last = nn.Linear(sizes[-1], 1)
    return nn.Sequential(*mlp(sizes, activation), last), last
