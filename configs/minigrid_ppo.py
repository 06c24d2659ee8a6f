"""MiniGrid: DoorKey-5x5, or any task by env.env_id (extra minigrid).

    pip install "ding_lite[minigrid]"
    ding-lite train -c minigrid_ppo
    ding-lite train -c minigrid_ppo env.env_id=MiniGrid-Empty-Random-5x5-v0

Find a key, open a door, reach the goal. FourRooms, of 19 x 19 cells, has settings of its own below:
ding-lite train --env MiniGrid-FourRooms-v0
"""

environments = {  # `train --env` trains these with this config, and with these overrides
    "MiniGrid-DoorKey-5x5-v0": {},
    "MiniGrid-FourRooms-v0": dict(
        max_env_step=2_000_000,
        env=dict(collector_env_num=16, evaluator_env_num=16),
        policy=dict(
            learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3, entropy_weight=0.01),
            collect=dict(n_sample=4096),
            eval=dict(eval_freq=100_000),
        ),
    ),
    "MiniGrid-*": dict(max_env_step=1_000_000),
    "BabyAI-*": dict(max_env_step=1_000_000),
}
config = dict(
    max_env_step=100_000,
    num_threads=1,
    env=dict(env_id="MiniGrid-DoorKey-5x5-v0", wrappers=["minigrid_image"], evaluator_env_num=8),
    policy=dict(
        # The grid has codes of objects, not brightness, so it is neither scaled nor convolved.
        model=dict(
            share_encoder=False,
            encoder=dict(type="mlp"),
            encoder_hidden_size_list=[64, 64],
            activation="tanh",
        ),
        learn=dict(
            batch_size=128,
            learning_rate=5e-4,
            lr_schedule="linear",
            entropy_weight=0.03,  # with 0.01 some seeds do not find the goal in 100,000 steps
            entropy_schedule="linear",
            value_norm_std=1.0,
        ),
        collect=dict(n_sample=1024),
    ),
)
