"""Pendulum-v1 with off-policy PPG: policy and value each have a replay buffer.

ding-lite train -c pendulum_ppg_offpolicy
"""

config = dict(
    seed=0,
    max_env_step=300_000,
    env=dict(env_id="Pendulum-v1", collector_env_num=8, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppg_offpolicy",
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
        other=dict(replay_buffer=dict(policy=dict(max_use=4), value=dict(max_use=8))),
        eval=dict(eval_freq=30_000),
    ),
)
