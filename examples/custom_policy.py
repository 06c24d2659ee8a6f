"""A custom policy: PPO with a KL penalty in place of the clip (arXiv:1707.06347, section 4).

    python examples/custom_policy.py

If the class is in a module, a config names it without further imports:
``policy=dict(type="my_package.my_policies:KLPenaltyPPO")``.
"""

from ding_lite import POLICY_REGISTRY, PPOPolicy, check_policy, serial_pipeline
from ding_lite.rl.losses import weighted_mean


@POLICY_REGISTRY.register("ppo_kl_penalty")
class KLPenaltyPPO(PPOPolicy):
    """A subclass declares new keys with defaults, and overrides the loss."""

    config = dict(learn=dict(kl_weight=1.0))

    def policy_loss(self, batch):
        """Returns the loss and its metrics.

        Shapes:
            batch: every field is (N, ...); ``batch.dist.log_prob(action)`` is (N,)
        """
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        ratio = log_ratio.exp()
        kl = ((ratio - 1) - log_ratio).mean()
        surrogate = -weighted_mean(ratio * batch.advantage, batch.policy_weight)
        entropy = batch.dist.entropy().mean()
        loss = surrogate + self.cfg.learn.kl_weight * kl - self.entropy_weight * entropy
        return loss, {"policy_loss": surrogate, "approx_kl": kl, "entropy_loss": entropy}


if __name__ == "__main__":
    check_policy("ppo_kl_penalty")  # checks that it acts, learns, saves and loads correctly
    serial_pipeline(
        dict(
            exp_name="cartpole_ppo_kl_penalty",
            max_env_step=60_000,
            env=dict(env_id="CartPole-v1", stop_value=475),
            policy=dict(
                type="ppo_kl_penalty",
                learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3),
                collect=dict(n_sample=1024),
            ),
        )
    )
