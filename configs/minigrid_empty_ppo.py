"""MiniGrid-Empty-5x5-v0 (extra minigrid), with its 7 x 7 x 3 grid of codes. Above 0.95 within 50k steps.

pip install "ding_lite[minigrid]"
ding-lite train -c minigrid_empty_ppo
"""

config = dict(
    seed=0,
    max_env_step=100_000,
    num_threads=1,
    env=dict(
        env_id="MiniGrid-Empty-5x5-v0",
        wrappers=["minigrid_image"],
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
        stop_value=0.95,
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
            epoch_per_collect=4, batch_size=256, learning_rate=1e-3, entropy_weight=0.01, value_norm=True
        ),
        collect=dict(n_sample=1024, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=10_000),
    ),
)
