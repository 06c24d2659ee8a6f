"""MinAtar SpaceInvaders (extra minatar), minimal action set, sticky actions.

    pip install "ding_lite[minatar]"
    ding-lite train -c minatar_space_invaders_ppo

The environment has no time limit; env.max_eval_steps limits the evaluation episodes.
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    num_threads=1,  # 10 x 10 cells: more threads are slower
    env=dict(
        env_id="MinAtar/SpaceInvaders-v1", collector_env_num=16, evaluator_env_num=16, n_evaluator_episode=32
    ),
    policy=dict(
        type="ppo",
        model=dict(encoder=dict(type="minatar_cnn")),
        learn=dict(
            epoch_per_collect=3,
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            value_norm=True,
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.9),
        eval=dict(eval_freq=250_000),
    ),
)
