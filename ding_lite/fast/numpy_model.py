"""The NumPy form of a model: its policy network, its value network, and PPG's auxiliary value network."""

from __future__ import annotations

from typing import NamedTuple

from ding_lite.fast.numpy_actor import NumpyActor, find_actor
from ding_lite.fast.numpy_network import NumpyNetwork, NumpyPart, find_encoder, find_network
from ding_lite.models.actor_critic import VAC, ActorCritic


class NumpyModel(NamedTuple):
    """The networks of a model that have a NumPy form; None for the others.

    Networks that read the same features have the same encoder.

    Attributes:
        actor: the policy network and its distribution.
        critic: the value network.
        auxiliary: the auxiliary value network, behind the encoder of the policy.
        parts: encoders and heads of all networks, each once.
    """

    actor: NumpyActor | None = None
    critic: NumpyNetwork | None = None
    auxiliary: NumpyNetwork | None = None
    parts: tuple[NumpyPart, ...] = ()

    @property
    def networks(self) -> dict[str, NumpyNetwork | None]:
        """The networks by name."""
        actor = None if self.actor is None else self.actor.network
        return {"actor": actor, "critic": self.critic, "auxiliary": self.auxiliary}

    def is_form_of(self, model: ActorCritic) -> bool:
        """Returns whether ``model``, in which this was found, still has the same modules and parameters."""
        if self.critic is not None and self.critic.is_detached != _detaches_value(model):
            return False
        return all(part.is_current() for part in self.parts)


def find_numpy_model(model: ActorCritic) -> NumpyModel:
    """Returns the networks of ``model`` that have a NumPy form."""
    if not isinstance(model, VAC):
        return NumpyModel()
    actor_encoder = find_encoder(model, model.actor_encoder)
    has_own = model.critic_encoder is not None
    critic_encoder = find_encoder(model, model.critic_encoder) if has_own else actor_encoder
    # A subclass may have deleted a head that it does not use.
    critic_head, auxiliary_head = (getattr(model, name, None) for name in ("critic_head", "auxiliary_head"))
    actor = find_actor(model, actor_encoder)
    critic = find_network(model, critic_encoder, critic_head, [critic_head])
    if critic is not None and _detaches_value(model):
        critic = critic._replace(is_detached=True)
    found = NumpyModel(actor, critic, find_network(model, actor_encoder, auxiliary_head, [auxiliary_head]))
    networks = [network for network in found.networks.values() if network is not None]
    return found._replace(parts=tuple(dict.fromkeys(part for network in networks for part in network.parts)))


def _detaches_value(model: ActorCritic) -> bool:
    """Returns whether the gradient of the value stops at the features, as in ``VAC._value``."""
    return isinstance(model, VAC) and model.critic_encoder is None and model.detaches_value
