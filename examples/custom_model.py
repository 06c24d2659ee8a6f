"""A custom model: policy and value heads on one small residual trunk.

python examples/custom_model.py
"""

import torch
from torch import nn

from ding_lite import MODEL_REGISTRY, ActionHead, ActorCritic, SerialPipeline


@MODEL_REGISTRY.register("residual")
class Residual(ActorCritic):
    """A residual network. ``ActionHead`` outputs the parameters of the distribution for any action space."""

    config = dict(width=64, blocks=2)
    share_encoder = True  # policy and value have one trunk

    def __init__(self, obs_space, action_space, width, blocks):
        super().__init__(obs_space, action_space)
        self.first = nn.Linear(obs_space.shape[0], width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.actor_head = ActionHead(action_space, width)
        self.critic_head = nn.Linear(width, 1)
        self.value_heads = (self.critic_head,)  # the last layers, which value_norm rescales

    def trunk(self, obs):
        x = torch.tanh(self.first(obs))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x

    def compute_actor(self, obs):
        return self.actor_head(self.trunk(obs))

    def compute_critic(self, obs):
        return self.critic_head(self.trunk(obs)).squeeze(-1)

    def compute_actor_critic(self, obs):  # one pass over the trunk for both
        x = self.trunk(obs)
        return self.actor_head(x), self.critic_head(x).squeeze(-1)


if __name__ == "__main__":
    config = dict(
        exp_name="cartpole_residual",
        max_env_step=60_000,
        env=dict(env_id="CartPole-v1", stop_value=475),
        policy=dict(
            model=dict(type="residual", width=64),
            learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3),
            collect=dict(n_sample=1024),
        ),
    )
    for progress in SerialPipeline(config):
        if progress.evaluation:
            print(f"{progress.env_step:>8} steps  return {progress.evaluation.mean:.1f}")
