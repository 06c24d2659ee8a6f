"""MiniGrid-FourRooms-v0 (extra minigrid): a goal in one of four rooms, seen through a window of 7 x 7.

pip install "ding_lite[minigrid]"
ding-lite train -c minigrid_fourrooms_ppo
"""

config = dict(
    seed=0,
    max_env_step=2_000_000,
    num_threads=1,
    env=dict(
        env_id="MiniGrid-FourRooms-v0",
        wrappers=["minigrid_image"],
        collector_env_num=16,
        evaluator_env_num=16,
        n_evaluator_episode=16,
    ),
    policy=dict(
        type="ppo",
        # The grid has codes of objects, not brightness, so it is neither scaled nor convolved.
        model=dict(
            share_encoder=False,
            encoder=dict(type="mlp"),
            encoder_hidden_size_list=[64, 64],
            activation="tanh",
        ),
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            entropy_schedule="linear",
            value_norm=True,
        ),
        collect=dict(n_sample=4096, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=100_000),
    ),
)
