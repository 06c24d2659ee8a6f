"""Strategies of Hypothesis: trees of arrays, spaces with values, and of configs; and a strict equality."""

import math
from collections import OrderedDict
from pathlib import Path

import gymnasium as gym
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SPACES = gym.spaces
# Among them the names of a treetensor's methods, those of a Tuple's branches, and no identifiers.
NAMES = st.sampled_from(["b", "a", "0", "1", "items", "values", "left arm", "é", ""])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3)
FLOATS, INTS = (np.float32, np.float64), (np.uint8, np.int8, np.int32, np.int64)
# A short alphabet, since Hypothesis reads a table of all characters in seconds.
TEXTS = st.text("aB1._#:'\"\\\n[{= é\u2192\U0001f600", max_size=8)
ODD = st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ODD | TEXTS
KEYS = TEXTS | st.sampled_from(["a.b", "value", "class"])


def dicts(value, names=NAMES, min_size=0):
    return st.dictionaries(names, value, min_size=min_size, max_size=3)


def trees(leaf):
    """Trees, and single leaves."""
    return st.recursive(leaf, lambda branch: dicts(branch, min_size=1), max_leaves=6)


def places(node):
    """Yields each place in JSON data: the dict or the list, and the key in it."""
    for key in node if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from places(node[key])


def arrays():
    """Arrays of any numbers, with nan and inf, in either order of their bytes; also empty ones."""
    dtypes = st.sampled_from(["<f2", "<f4", "<f8", ">f8", ">i2", "<i8", "|i1", "|u1", "<u8", "|b1"])
    return hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))


def same(one, other):
    """Returns whether two values have the same types, order of keys, dtypes and bits, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return sorted(map(repr, one)) == sorted(map(repr, other))
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return repr(one) == repr(other)


# ------------------------------------------------------------------ spaces


@st.composite
def boxes(draw, dtypes=(*FLOATS, *INTS, np.bool_), shape=SHAPES, finite=False):
    """Boxes whose bounds differ by number and may be infinite; gymnasium can sample from them."""
    dtype, shape = np.dtype(draw(st.sampled_from(dtypes))), draw(shape)
    if dtype.kind == "f":
        ends = st.floats(-(2.0**40), 2.0**40, width=32)
    elif dtype.kind == "b":
        ends = st.booleans()
    else:
        limits = np.iinfo(dtype)
        ends = st.integers(max(limits.min, -(2**60)), min(limits.max, 2**60))
    bounds = [draw(hnp.arrays(dtype, shape, elements=ends)) for _ in range(2)]
    low, high = np.minimum(*bounds), np.maximum(*bounds)
    if dtype.kind == "f" and not finite:
        open_low, open_high = (draw(hnp.arrays(bool, shape)) for _ in range(2))
        low, high = np.where(open_low, -np.inf, low), np.where(open_high, np.inf, high)
    return SPACES.Box(np.asarray(low, dtype), np.asarray(high, dtype), shape, dtype)


def discretes():
    return st.builds(SPACES.Discrete, st.integers(1, 5), start=st.integers(-3, 3))


@st.composite
def multi_discretes(draw):
    shape = draw(hnp.array_shapes(max_dims=2, max_side=3))
    counts, starts = (draw(hnp.arrays(np.int64, shape, elements=st.integers(i, 5))) for i in (1, -3))
    return SPACES.MultiDiscrete(counts, start=starts)


def multi_binaries():
    return st.builds(
        SPACES.MultiBinary, st.integers(1, 3) | st.lists(st.integers(1, 3), min_size=1, max_size=2)
    )


def leaf_spaces():
    return st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries())


def spaces(leaf=None):
    """Supported spaces, and Dicts, whose keys are not sorted, and Tuples of them."""

    def above(space):
        in_dict = dicts(space, min_size=1).map(lambda parts: SPACES.Dict(OrderedDict(parts)))
        return in_dict | st.lists(space, min_size=1, max_size=3).map(SPACES.Tuple)

    return st.recursive(leaf or leaf_spaces(), above, max_leaves=5)


@st.composite
def values_of(draw, space, count):
    """Values that a space contains."""
    space.seed(draw(st.integers(0, 2**31)))
    return [space.sample() for _ in range(count)]


# ------------------------------------------------------------------ values of configs


def plain_values():
    """What a literal of Python, and a file, can say."""
    return st.recursive(
        SCALARS,
        lambda part: st.lists(part, max_size=3) | st.tuples(part, part) | dicts(part, KEYS),
        max_leaves=8,
    )


def _with_one_nan(array):
    """Returns an array in which all nan have the bits of NumPy's own: JSON has one."""
    return np.where(np.isnan(array), array.dtype.type(np.nan), array) if array.dtype.kind == "f" else array


def config_values():
    """What the arguments of an environment may be."""
    hashable = SCALARS | st.tuples(st.integers(), TEXTS)
    leaf = st.one_of(
        SCALARS,
        st.sets(hashable, max_size=3),
        st.frozensets(hashable, max_size=3),
        st.builds(Path, st.sampled_from(["maps/one", ".", "/a b"])),
        arrays().filter(lambda array: array.ndim).map(_with_one_nan),
    )
    return st.recursive(
        leaf,
        lambda part: st.lists(part, max_size=3) | st.tuples(part, part) | dicts(part, KEYS),
        max_leaves=8,
    )
