"""Pendulum-v1, made easy by a short horizon (gamma 0.9). Reaches about -160 within 200k steps.

ding-lite train -c pendulum_ppo
"""

config = dict(
    seed=0,
    max_env_step=200_000,
    env=dict(env_id="Pendulum-v1", collector_env_num=8, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        learn=dict(
            epoch_per_collect=10, batch_size=128, learning_rate=1e-3, lr_schedule="linear", value_norm=True
        ),
        collect=dict(n_sample=2048, discount_factor=0.9, gae_lambda=0.95),
        eval=dict(eval_freq=20_000),
    ),
)
