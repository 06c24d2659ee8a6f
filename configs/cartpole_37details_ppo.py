"""The vectorised PPO of "The 37 Implementation Details of PPO" on CartPole-v1, without annealing.

ding-lite train -c cartpole_37details_ppo
"""

config = dict(
    seed=0,
    max_env_step=200_000,
    env=dict(env_id="CartPole-v1", collector_env_num=4, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        model=dict(
            share_encoder=False,
            encoder_hidden_size_list=[64, 64],
            activation="tanh",
            init="orthogonal",
            init_gain=dict(hidden=2**0.5, policy=0.01, value=1.0),
        ),
        learn=dict(
            epoch_per_collect=4,
            batch_size=128,  # 4 minibatches of 4 x 128 samples
            learning_rate=2.5e-4,
            adam_eps=1e-5,
            value_weight=0.5,
            value_clip=0.2,
            entropy_weight=0.0,
            clip_ratio=0.2,
            adv_norm="minibatch",
            grad_clip_type="clip_norm",
            grad_clip_value=0.5,
        ),
        collect=dict(n_sample=512, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=20_000),
    ),
)
