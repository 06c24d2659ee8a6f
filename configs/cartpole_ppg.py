"""Classic control: CartPole-v1 with PPG.

An auxiliary phase after every 8 iterations.

ding-lite train -c cartpole_ppg
"""

environments = {"CartPole-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=200_000,
    env=dict(env_id="CartPole-v1", evaluator_env_num=8, stop_value=475),
    policy=dict(
        type="ppg",
        learn=dict(learning_rate=1e-3, entropy_weight=0.01, aux_batch_size=256, value_norm_std=1.0),
        collect=dict(n_sample=1024),
    ),
)
