"""Fine-tuning: from CartPole-v1 to a pole with a tenth of the length.

ding-lite train -c cartpole_pole_ppo

pole_env.py makes the environment. To train a policy of CartPole-v1 further:

ding-lite train -c cartpole_ppo
ding-lite train -c cartpole_pole_ppo --init-from runs/cartpole_ppo policy.learn.kl_beta=0.1 \\
    policy.learn.pretrained_model_path=runs/cartpole_ppo

With kl_beta it forgets less of the long pole (docs/algorithms.md, "Fine-tuning").
"""

config = dict(
    max_env_step=40_000,
    env=dict(
        type="pole_env:cartpole",
        kwargs=dict(length=0.05),
        evaluator_env_num=10,
        n_evaluator_episode=20,
    ),
    policy=dict(
        recompute_adv=True,
        model=dict(encoder_hidden_size_list=[64, 64], activation="tanh"),  # as in cartpole_ppo
        learn=dict(batch_size=256, learning_rate=1e-3, value_norm_std=1.0),
    ),
)
