"""Memory: an LSTM on a T-maze.

    ding-lite train -c memory_ppo
    ding-lite train -c memory_ppo env.type=memory_env:RepeatFirst env.stop_value=0.96

The first of 21 observations decides the last action (memory_env.py). Without memory (policy.model.rnn=None)
the mean return stays near 1.95 of 4.
"""

config = dict(
    max_env_step=300_000,
    env=dict(
        type="memory_env:TMaze",
        collector_env_num=16,
        evaluator_env_num=10,
        n_evaluator_episode=50,
        stop_value=3.9,
    ),
    policy=dict(
        recompute_adv=True,
        model=dict(rnn="lstm", rnn_hidden_size=64, encoder_hidden_size_list=[64]),
        learn=dict(batch_size=512, learning_rate=1e-3, entropy_weight=0.03, value_norm_std=1.0),
    ),
)
