"""Actions of every kind, and comparisons of transitions bit for bit."""

import functools

import numpy as np

from ding_lite.trees import map_tree


def batches(kind, num_envs, seed=0):
    """Endless batches of actions of the named space, in the dtypes that policies give."""
    rng = np.random.default_rng(seed)
    while True:
        whole = functools.partial(rng.integers, size=num_envs)
        box = rng.uniform(-1, 1, (num_envs, 2)).astype(np.float32)
        yield {
            "discrete": whole(5),
            "box": box,
            "tuple": {"0": whole(3), "1": box},
            "dict": {"a": rng.integers(0, 2, (num_envs, 2)), "b": whole(4)},
        }[kind]


def assert_same(a, b):
    """Bit for bit, dtypes too."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif a is None or b is None:
        assert a is b
    else:
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def assert_same_transition(x, y):
    for name in ("obs", "reward", "terminated", "truncated", "valid", "final_obs", "final_env"):
        assert_same(getattr(x, name), getattr(y, name))
    assert x.episodes == y.episodes


def assert_same_rows(part, rows, whole):
    """Compares the transition of one group with those rows of the whole vector's."""
    numbers = np.arange(len(whole.reward))[rows]
    for name in ("obs", "reward", "terminated", "truncated", "valid"):
        assert_same(getattr(part, name), map_tree(lambda leaf: leaf[rows], getattr(whole, name)))
    here = np.isin(whole.final_env, numbers)
    assert numbers[part.final_env].tolist() == whole.final_env[here].tolist()
    if here.any():
        assert_same(part.final_obs, map_tree(lambda leaf: leaf[here], whole.final_obs))
    episodes = [one._replace(env=numbers[one.env]) for one in part.episodes]
    assert episodes == [one for one in whole.episodes if one.env in numbers]
