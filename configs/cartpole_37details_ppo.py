"""Classic control: CartPole-v1 with the 13 core details of the 37 (CleanRL's ppo.py, key by key).

    ding-lite train -c cartpole_37details_ppo

CleanRL's other settings are defaults here: orthogonal initialisation with its gains, the value weight, the
clip range, normalised advantages, clipping of the gradient norm. docs/algorithms.md has the table.
"""

config = dict(
    max_env_step=500_000,
    env=dict(env_id="CartPole-v1", collector_env_num=4, evaluator_env_num=8),
    policy=dict(
        model=dict(share_encoder=False, encoder_hidden_size_list=[64, 64], activation="tanh"),
        learn=dict(
            epoch_per_collect=4,
            batch_size=128,  # 4 minibatches of 4 x 128 samples
            learning_rate=2.5e-4,
            lr_schedule="linear",
            value_clip=0.2,
            entropy_weight=0.01,
            value_norm=False,
        ),
        collect=dict(n_sample=512),
        eval=dict(eval_freq=50_000),
    ),
)
