"""The algorithms written from their formulas in float64, and a sweep that compares the library with them.

The reference is written for clarity, not for speed. Each function is one formula, with its equation number
where the paper has one. A rollout is a list of steps as the environments recorded them. The reference takes
three things from the library: the initial parameters, the sampled actions, and the order of the minibatches.
Only ``taps`` knows the library; it records a run, which the reference then replays.

    taps            what goes into the library, and what is read
    recording       environments that record their steps, and the rollout that results
    distributions   log-prob, entropy and KL of each action distribution
    networks        the layers of the policy, the value and the auxiliary value; LSTM and GRU
    normalizers     the scales of observations, rewards and value targets
    credit          GAE, V-trace and n-step targets, one step at a time
    intrinsic       random network distillation
    buffers         which steps may be drawn, how often and for how long
    losses          the objectives of a minibatch
    optimizer       Adam and gradient clipping
    algorithm       one iteration of PPO, off-policy PPO, PPG and off-policy PPG
    sweep           random configurations, and the comparison
    ranks           configurations that several processes share
    faults          faults of the library that the sweep must find
"""
