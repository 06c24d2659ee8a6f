"""MuJoCo: HalfCheetah-v5 or Ant-v5 (extra mujoco).

    pip install "ding_lite[mujoco]"
    ding-lite train -c halfcheetah_ppo
    ding-lite train --env Ant-v5

Tianshou's settings: 64 environments, less noise, advantages as they are. Ant normalises values, and does not
observe contact forces, which were in effect absent from Ant-v3, too.
"""

environments = {  # `train --env` trains these with this config, and with these overrides
    "HalfCheetah-v[45]": {},
    "Ant-v5": dict(
        env=dict(kwargs=dict(include_cfrc_ext_in_observation=False)), policy=dict(learn=dict(value_norm=True))
    ),
}
config = dict(
    env=dict(env_id="HalfCheetah-v5", collector_env_num=64, evaluator_env_num=8),
    policy=dict(
        recompute_adv=True,
        model=dict(initial_sigma_value=0.6065),
        learn=dict(lr_schedule="linear", adv_norm=False, value_weight=0.25, value_norm=False),
        normalize=dict(obs=True, reward=True, reward_clip=10.0),
        eval=dict(eval_freq=100_000),
    ),
)
