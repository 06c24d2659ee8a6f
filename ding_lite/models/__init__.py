"""Networks: encoders (observations to features), heads (raw outputs to actions), and whole models.

Importing this package registers its models in ``MODEL_REGISTRY``, its encoders in ``ENCODER_REGISTRY`` and
its intrinsic rewards in ``INTRINSIC_REGISTRY``.
The module docstrings say how to add a part:

    an encoder               ``models.encoders``
    a head                   ``models.heads``
    a model                  ``models.actor_critic``
    a Box distribution       ``rl.distributions``
    an intrinsic reward      ``models.intrinsic``
"""

from ding_lite.models.actor_critic import PPG, VAC, ActorCritic, PhasicActorCritic
from ding_lite.models.encoders import Encoder
from ding_lite.models.heads import ActionHead
from ding_lite.models.intrinsic import RND, IntrinsicReward

__all__ = [
    "PPG",
    "RND",
    "VAC",
    "ActionHead",
    "ActorCritic",
    "Encoder",
    "IntrinsicReward",
    "PhasicActorCritic",
]
