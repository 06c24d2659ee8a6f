"""Classic control: Pendulum-v1 with off-policy PPG.

ding-lite train -c pendulum_ppg_offpolicy
"""

environments = {"Pendulum-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=300_000,
    env=dict(env_id="Pendulum-v1", evaluator_env_num=8),
    policy=dict(
        type="ppg_offpolicy",
        learn=dict(
            actor_epoch_per_collect=4,
            critic_epoch_per_collect=4,
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            aux_freq=8,
            aux_batch_size=256,
            value_norm_std=1.0,
        ),
        collect=dict(discount_factor=0.9),
        other=dict(replay_buffer=dict(max_use=4)),
        eval=dict(eval_freq=30_000),
    ),
)
