"""Classic control: CartPole-v1 with off-policy PPO.

A transition is used nine times.

ding-lite train -c cartpole_ppo_offpolicy
"""

environments = {"CartPole-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=200_000,
    env=dict(env_id="CartPole-v1", evaluator_env_num=8, stop_value=475),
    policy=dict(
        type="ppo_offpolicy",
        recompute_adv=True,
        learn=dict(batch_size=256, entropy_weight=0.01, value_norm_std=1.0),
        collect=dict(n_sample=512),
    ),
)
