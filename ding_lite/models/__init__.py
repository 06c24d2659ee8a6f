"""Networks: encoders (observation to features), heads (features to action), and whole models.

Importing this package registers what it ships in ``MODEL_REGISTRY`` and ``ENCODER_REGISTRY``.
"""

from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.encoders import Encoder
from ding_lite.models.heads import ActionHead
from ding_lite.models.phasic import PPG, PhasicActorCritic

__all__ = ["PPG", "VAC", "ActionHead", "ActorCritic", "Encoder", "PhasicActorCritic"]
