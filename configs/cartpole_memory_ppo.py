"""A policy with memory, on CartPole without velocities (memory_env.py): two observations tell them.

ding-lite train -c cartpole_memory_ppo

Without memory (policy.model.rnn=None) the mean return stays far below.
"""

config = dict(
    max_env_step=200_000,
    env=dict(
        type="memory_env:cartpole_without_velocities",
        collector_env_num=8,
        evaluator_env_num=10,
        n_evaluator_episode=50,
        stop_value=475,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        model=dict(rnn="gru", rnn_hidden_size=64, encoder_hidden_size_list=[64]),
        learn=dict(batch_size=256, learning_rate=1e-3, sequence_length=32, value_norm=True),
        eval=dict(eval_freq=20_000),
    ),
)
