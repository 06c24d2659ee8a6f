"""HalfCheetah-v5 (extra mujoco) with off-policy PPG: policy and value each have a replay buffer.

pip install "ding_lite[mujoco]"
ding-lite train -c halfcheetah_ppg_offpolicy
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="HalfCheetah-v5", collector_env_num=8, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppg_offpolicy",
        learn=dict(
            actor_epoch_per_collect=4,
            critic_epoch_per_collect=4,
            batch_size=64,
            learning_rate=3e-4,
            lr_schedule="linear",
            aux_freq=8,
            aux_train_epoch=6,
            aux_batch_size=256,
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.95),
        normalize=dict(obs=True, reward=True, reward_clip=10.0),
        other=dict(replay_buffer=dict(policy=dict(max_use=4), value=dict(max_use=8))),
        eval=dict(eval_freq=50_000),
    ),
)
