"""A network for policy and value: one trunk with layer normalisation and residual connections.

ding-lite train -c my_model.py
"""

import gymnasium as gym
import torch
from torch import nn

from ding_lite import MODEL_REGISTRY, ActionHead, ActorCritic, Key
from ding_lite.models.init import orthogonal


@MODEL_REGISTRY.register("my_model")
class MyModel(ActorCritic):
    """A residual network for observations that are one vector.

    Args:
        obs_space, action_space: of the environment.
        width: of each layer.
        blocks: number of residual blocks.

    Shapes:
        obs: (N, D) -> logit, the parameters of the action distribution; value: (N,)
    """

    # The arguments, as keys of policy.model, with their defaults and ranges.
    config = dict(width=Key(64, low=1), blocks=Key(2, low=0))

    def __init__(self, obs_space, action_space, width, blocks):
        super().__init__(obs_space, action_space)
        self.first = nn.Linear(gym.spaces.flatdim(obs_space), width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)
        )
        self.actor_head = ActionHead(action_space, width)  # for every action space
        self.critic_head = nn.Linear(width, 1)
        self.value_heads = (self.critic_head,)  # last layers of values: value_norm rescales them
        orthogonal(self.actor_head.layers[-1], 0.01)  # at first, all actions are about equally likely

    def compute_actor(self, obs):
        return self.actor_head(self._trunk(obs))

    def compute_critic(self, obs):
        return self.critic_head(self._trunk(obs)).squeeze(-1)

    def compute_actor_critic(self, obs):  # optional: both in one pass over the trunk
        x = self._trunk(obs)
        return self.actor_head(x), self.critic_head(x).squeeze(-1)

    def _trunk(self, obs):
        x = torch.relu(self.first(obs.flatten(1)))
        for block in self.blocks:
            x = x + block(x)
        return x


config = dict(
    max_env_step=60_000,
    env=dict(env_id="CartPole-v1", stop_value=475),  # ends when evaluations reach this return
    policy=dict(
        model=dict(type=MyModel, width=64, blocks=2),
        learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=1024),  # transitions of one iteration, over all environments
    ),
)
