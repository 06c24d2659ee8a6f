"""Classic control: CartPole-v1 as in the 37 details of PPO (CleanRL).

    ding-lite train -c cartpole_37details_ppo

CleanRL's ppo.py has, beside the same settings, policy.learn.lr_schedule=linear and
policy.learn.entropy_weight=0.01. The orthogonal initialisation and its gains, Adam's epsilon of 1e-5, the
value weight, the clip range, the norms of advantages and gradients are the defaults.
"""

config = dict(
    max_env_step=200_000,
    env=dict(env_id="CartPole-v1", collector_env_num=4, evaluator_env_num=8),
    policy=dict(
        model=dict(share_encoder=False, encoder_hidden_size_list=[64, 64], activation="tanh"),
        learn=dict(
            epoch_per_collect=4,
            batch_size=128,  # 4 minibatches of 4 x 128 samples
            learning_rate=2.5e-4,
            value_clip=0.2,
            entropy_weight=0.0,
            value_norm=False,
            adam_eps=1e-5,
        ),
        collect=dict(n_sample=512),
        eval=dict(eval_freq=20_000),
    ),
)
