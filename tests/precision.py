"""How exact numbers in float32 must be: by what torch errs on the same numbers, beside float64."""

import copy

import torch

from ding_lite.models.encoders import VectorEncoder
from ding_lite.trees import map_tree, tree_leaves

# A product of matrices without fused multiply-add, in 4 lanes instead of 16, adds up to 8 times as many
# rounded numbers in a row as another one: NumPy's and torch's kernels differ by that, and by the CPU.
TIMES = 8
ROUNDINGS = 8 * torch.finfo(torch.float32).eps  # of the largest number, where torch is exact by chance


def float64(part):
    """Returns a copy of a model, or of a policy, whose model computes in float64."""
    copied = copy.deepcopy(part)
    model = getattr(copied, "model", copied).double()
    for encoder in (module for module in model.modules() if isinstance(module, VectorEncoder)):
        # It converts observations to float32.
        encoder.layers.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    return copied


def doubles(tree):
    """Returns a tree of tensors whose floats are float64."""
    return map_tree(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, tree)


def flat(tree):
    return torch.cat([torch.as_tensor(leaf).detach().double().flatten() for leaf in tree_leaves(tree)])


def assert_accurate(found, exact, plain, exact_of_plain=None):
    """Compares trees of numbers with float64: none errs more than a multiple of the largest error of torch.

    Args:
        found: whose numbers are tested.
        exact: the same in float64.
        plain: the same by torch in float32.
        exact_of_plain: the numbers of ``plain`` in float64, where they are not ``exact``.
    """
    exact_of_plain = exact if exact_of_plain is None else exact_of_plain
    off, allowed = (
        (flat(one) - flat(other)).abs().max() for one, other in ((found, exact), (plain, exact_of_plain))
    )
    allowed = TIMES * allowed + ROUNDINGS * flat(exact).abs().max()
    assert off <= allowed, f"{off:.2g} off; allowed are {allowed:.2g}"
