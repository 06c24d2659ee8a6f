"""MuJoCo: Hopper-v5, or another task by env.env_id (extra mujoco).

    pip install "ding_lite[mujoco]"
    ding-lite train -c mujoco_ppo
    ding-lite train -c mujoco_ppo env.env_id=Walker2d-v5

CleanRL's settings on eight environments. HalfCheetah, Ant, Swimmer and InvertedDoublePendulum return more
with halfcheetah_ppo, swimmer_ppo and inverted_double_pendulum_ppo.
"""

environments = {
    "Hopper-v[45]": {},
    "Walker2d-v[45]": {},
    "Reacher-v[45]": {},
}  # `train --env` trains these with this config
config = dict(
    env=dict(env_id="Hopper-v5", evaluator_env_num=8),
    policy=dict(
        recompute_adv=True,
        learn=dict(lr_schedule="linear", value_norm_std=1.0),
        normalize=dict(obs=True, reward=True, reward_clip=10.0),
        eval=dict(eval_freq=50_000),
    ),
)
