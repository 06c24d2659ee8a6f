"""Pendulum-v1 with off-policy PPO: a transition is used in several iterations.

ding-lite train -c pendulum_ppo_offpolicy
"""

config = dict(
    seed=0,
    max_env_step=300_000,
    env=dict(env_id="Pendulum-v1", collector_env_num=8, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo_offpolicy",
        recompute_adv=True,
        learn=dict(reuse=6, batch_size=128, learning_rate=1e-3, lr_schedule="linear", value_norm=True),
        collect=dict(n_sample=1024, discount_factor=0.9, gae_lambda=0.95),
        other=dict(replay_buffer=dict(replay_buffer_size=8192, max_use=12, max_staleness=4)),
        eval=dict(eval_freq=30_000),
    ),
)
