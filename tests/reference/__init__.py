"""The algorithms written from their formulas in float64, and a sweep that compares the library with them.

Nothing here is fast. One function is one formula, with its number in the paper where it has one; a rollout
is a list of steps as the environments themselves recorded them. The library gives three things: the layers of
the network at the start, the actions that it sampled, and the order of its minibatches. Only ``taps`` knows
where it keeps these.

    recording       environments that keep a record, and the rollout that follows from it
    distributions   log-prob, entropy and KL of each action distribution
    networks        which layers make the policy, the value and the auxiliary value
    normalizers     the scales of observations, rewards and value targets
    credit          GAE, V-trace and n-step targets, one step at a time
    buffers         who may be drawn, how often and for how long
    losses          the objectives of a minibatch
    optimizer       Adam, and what is done to a gradient before it
    algorithm       one iteration of PPO, off-policy PPO, PPG and off-policy PPG
    sweep           random configurations, and the comparison
    mutations       faults of the library that the sweep must find
"""
