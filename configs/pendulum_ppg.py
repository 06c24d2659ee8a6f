"""Pendulum-v1 with PPG: an auxiliary phase after every 8 iterations.

ding-lite train -c pendulum_ppg
"""

config = dict(
    seed=0,
    max_env_step=300_000,
    env=dict(env_id="Pendulum-v1", collector_env_num=8, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppg",
        learn=dict(
            actor_epoch_per_collect=4,
            critic_epoch_per_collect=4,
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            aux_freq=8,
            aux_train_epoch=6,
            aux_batch_size=256,
        ),
        collect=dict(n_sample=2048, discount_factor=0.9, gae_lambda=0.95),
        eval=dict(eval_freq=30_000),
    ),
)
