"""Checks that the rows of a rollout of ``faulty_worlds.Marked`` follow one another."""


def check_chain(rollout):
    """Checks that the next step of the episode, or an end, follows every valid row; returns their number."""
    obs, valid = rollout.obs.numpy(), rollout.valid.numpy()
    terminated, truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
    finals = {}
    if "final" in rollout:
        rows = zip(rollout.final.t.tolist(), rollout.final.env.tolist(), strict=True)
        finals = dict(zip(rows, rollout.final.obs.numpy(), strict=True))
    steps, num_envs = valid.shape
    for t in range(steps):
        for env in range(num_envs):
            if not valid[t, env] or terminated[t, env]:
                continue
            if truncated[t, env]:
                following = finals.pop((t, env))
            else:
                following = rollout.last_obs.numpy()[env] if t + 1 == steps else obs[t + 1, env]
                assert t + 1 == steps or valid[t + 1, env]
            assert following.tolist() == [obs[t, env, 0], obs[t, env, 1] + 1]
            assert rollout.reward[t, env] == obs[t, env, 1] + 1
    assert not finals
    return int(valid.sum())
