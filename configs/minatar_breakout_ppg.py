"""MinAtar Breakout (extra minatar), minimal action set, sticky actions, with PPG.

    pip install "ding_lite[minatar]"
    ding-lite train -c minatar_breakout_ppg

The environment has no time limit; env.max_eval_steps limits the evaluation episodes.
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    num_threads=1,  # 10 x 10 cells: more threads are slower
    env=dict(
        env_id="MinAtar/Breakout-v1", collector_env_num=32, evaluator_env_num=16, n_evaluator_episode=32
    ),
    policy=dict(
        type="ppg",
        recompute_adv=False,
        model=dict(arch="dual", encoder=dict(type="minatar_cnn")),
        learn=dict(
            actor_epoch_per_collect=1,
            critic_epoch_per_collect=1,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            aux_freq=16,
            aux_train_epoch=6,
            aux_batch_size=512,
        ),
        collect=dict(n_sample=4096, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=100_000),
    ),
)
