"""CartPole-v1 with PPG: an auxiliary phase after every 8 iterations.

ding-lite train -c cartpole_ppg
"""

config = dict(
    seed=0,
    max_env_step=200_000,
    env=dict(
        env_id="CartPole-v1",
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
        stop_value=475,
    ),
    policy=dict(
        type="ppg",
        learn=dict(
            actor_epoch_per_collect=1,
            critic_epoch_per_collect=1,
            batch_size=64,
            learning_rate=1e-3,
            entropy_weight=0.01,
            aux_freq=8,
            aux_train_epoch=6,
            aux_bc_weight=1.0,
            aux_batch_size=256,
        ),
        collect=dict(n_sample=1024, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=10_000),
    ),
)
