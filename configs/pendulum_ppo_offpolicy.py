"""Classic control: Pendulum-v1 with off-policy PPO.

A transition is used in several iterations.

ding-lite train -c pendulum_ppo_offpolicy
"""

environments = {"Pendulum-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=300_000,
    env=dict(env_id="Pendulum-v1", evaluator_env_num=8),
    policy=dict(
        type="ppo_offpolicy",
        recompute_adv=True,
        learn=dict(reuse=6, batch_size=128, lr_schedule="linear", value_norm_std=1.0),
        collect=dict(n_sample=1024, discount_factor=0.9),
        other=dict(replay_buffer=dict(replay_buffer_size=8192, max_use=12)),
        eval=dict(eval_freq=30_000),
    ),
)
