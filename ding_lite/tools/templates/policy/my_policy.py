"""PPO with a loss of its own: the quadratic penalty of SPO (arXiv:2401.16025) in place of the clip.

ding-lite train -c my_policy.py
"""

import torch

from ding_lite import POLICY_REGISTRY, PPOPolicy
from ding_lite.rl.losses import approx_kl, weighted_mean


def penalized_surrogate(ratio, advantage, epsilon):
    """Returns r A - |A| (r - 1)^2 / (2 epsilon), the objective of each sample; it is highest at 1 ± epsilon.

    Shapes:
        ratio, advantage: (N,) -> (N,)
    """
    return ratio * advantage - advantage.abs() * (ratio - 1).square() / (2 * epsilon)


@POLICY_REGISTRY.register("my_policy")
class MyPolicy(PPOPolicy):
    """PPO with a penalty in place of the clip."""

    # New keys and their defaults. A config sets them as policy.learn.epsilon. All other keys are PPO's; keys
    # that only the loss of PPO reads (clip_ratio, dual_clip) have no effect here.
    config = dict(learn=dict(epsilon=0.2))

    def policy_loss(self, batch):
        """Returns the loss () and a dict of metrics (), which are logged as learn/<name>.

        The fields of ``batch`` are (N, ...), with N valid samples: obs, action, log_prob (of the policy that
        collected), advantage, and dist, the action distribution of the current policy. The method only
        computes with tensors: no ``.item()``, no ``if`` on their values, no random numbers of Python. So a
        CUDA graph can capture it.
        """
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        objective = penalized_surrogate(torch.exp(log_ratio), batch.advantage, self.cfg.learn.epsilon)
        loss = -weighted_mean(objective, batch.policy_weight)  # the weight is None on fresh samples
        entropy = batch.dist.entropy().mean()
        metrics = {"policy_loss": loss, "entropy_loss": entropy, "approx_kl": approx_kl(log_ratio)}
        # self.entropy_weight follows its schedule, as self.clip_ratio does; the config's value is constant.
        return loss - self.entropy_weight * entropy, metrics


config = dict(
    max_env_step=60_000,
    env=dict(env_id="CartPole-v1", stop_value=475),  # ends when evaluations reach this return
    policy=dict(
        type=MyPolicy,
        learn=dict(epsilon=0.2, epoch_per_collect=4, batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=1024),  # transitions of one iteration, over all environments
    ),
)
