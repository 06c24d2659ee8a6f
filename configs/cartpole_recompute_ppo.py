"""Classic control: CartPole-v1 as in the PPO x Family course.

Advantages are recomputed at each of ten epochs over 127 transitions, in seven minibatches of 16 and one of
15, so that each epoch uses each transition once. In the published code the value target is V + advantage
with a gradient that cancels, so the critic never learns; here the target is fixed at the start of each epoch.

    ding-lite train -c cartpole_recompute_ppo
"""

config = dict(
    max_env_step=200_000,
    env=dict(env_id="CartPole-v1", collector_env_num=1, evaluator_env_num=8, stop_value=475),
    policy=dict(
        recompute_adv=True,
        model=dict(share_encoder=False, encoder_hidden_size_list=[64, 64], activation="tanh"),
        learn=dict(
            batch_size=16,
            learning_rate=1e-4,
            value_weight=1.0,  # 0.5 x squared error
            entropy_weight=0.001,
            value_norm=False,
        ),
        collect=dict(n_sample=127),
        eval=dict(eval_freq=20_000),
    ),
)
