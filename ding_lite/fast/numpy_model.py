"""The NumPy form of a model: its policy network, its value network, and PPG's auxiliary value network."""

from __future__ import annotations

from typing import NamedTuple

from ding_lite.fast.numpy_actor import NumpyActor, find_actor
from ding_lite.fast.numpy_network import NumpyNetwork, find_encoder, find_network
from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.phasic import PPG


class NumpyModel(NamedTuple):
    """The networks of a model that have a NumPy form; None for the others.

    Networks that read the same features have the same encoder.

    Attributes:
        actor: the policy network and its distribution.
        critic: the value network.
        auxiliary: the auxiliary value network, behind the encoder of the policy.
    """

    actor: NumpyActor | None = None
    critic: NumpyNetwork | None = None
    auxiliary: NumpyNetwork | None = None

    def network(self, name: str) -> NumpyNetwork | None:
        """Returns the network ``name``: "actor", "critic" or "auxiliary"."""
        if name == "actor":
            return None if self.actor is None else self.actor.network
        return self.critic if name == "critic" else self.auxiliary

    def is_current(self) -> bool:
        """Returns whether the model still has the same modules, parameters and methods."""
        networks = map(self.network, ("actor", "critic", "auxiliary"))
        return all(network is None or network.is_current() for network in networks)


def find_numpy_model(model: ActorCritic) -> NumpyModel:
    """Returns the networks of ``model`` that have a NumPy form."""
    if not isinstance(model, VAC):
        return NumpyModel()
    policys = find_encoder(model, model.actor_encoder)
    values = policys if model.critic_encoder is None else find_encoder(model, model.critic_encoder)
    actor, critic = find_actor(model, policys), find_network(model, values, model.critic_head)
    if not isinstance(model, PPG):
        return NumpyModel(actor, critic)
    if critic is not None and model.arch == "detach":
        critic = critic._replace(is_detached=True)
    return NumpyModel(actor, critic, find_network(model, policys, model.auxiliary_head))
