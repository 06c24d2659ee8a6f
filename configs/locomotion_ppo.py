"""Legged robots in a simulator on a GPU: the settings of rsl_rl, with which they are usually trained.

    pip install playground
    ding-lite train -c locomotion_ppo
    ding-lite train -c locomotion_ppo env.type=my_robot:make env.kwargs={} policy.model.obs_groups=None

Isaac Lab, mjlab and environments of your own: docs/tensors.md. rsl_rl itself clips each network's gradient
separately, adapts the learning rate before each minibatch, and scales observations only in some tasks.
"""

config = dict(
    max_env_step=150_000_000,
    env=dict(
        type="playground",
        kwargs=dict(env_id="Go1JoystickFlatTerrain"),
        manager=dict(type="vector"),
        collector_env_num=4096,
    ),
    policy=dict(
        model=dict(
            obs_groups=dict(actor=["state"], critic=["privileged_state"]),
            encoder_hidden_size_list=[512, 256, 128],
            activation="elu",
            init="torch",
        ),
        collect=dict(n_step=24),
        learn=dict(
            learning_rate=1e-3,
            lr_schedule="adaptive",
            batch_size=24_576,  # a quarter of a rollout
            epoch_per_collect=5,
            adv_norm="batch",
            grad_clip_value=1.0,
            value_norm=False,
            adam_eps=1e-8,
            value_weight=2.0,
            value_clip=0.2,
            entropy_weight=0.005,
        ),
        normalize=dict(obs=True),
        eval=dict(eval_freq=10_000_000),
    ),
    checkpoint=dict(freq=5_000_000),
)
