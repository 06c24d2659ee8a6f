"""LunarLander-v3 (extra box2d) with off-policy PPG: policy and value each have a replay buffer.

pip install "ding_lite[box2d]"
ding-lite train -c lunarlander_ppg_offpolicy
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="LunarLander-v3", collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppg_offpolicy",
        learn=dict(
            actor_epoch_per_collect=2,
            critic_epoch_per_collect=2,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            entropy_schedule="linear",
            aux_freq=8,
            aux_train_epoch=6,
            aux_batch_size=256,
        ),
        collect=dict(n_sample=4096, discount_factor=0.999, gae_lambda=0.98),
        other=dict(replay_buffer=dict(policy=dict(max_use=3), value=dict(max_use=6))),
        eval=dict(eval_freq=100_000),
    ),
)
