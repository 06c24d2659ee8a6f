"""Distributions in NumPy: draws, log-probs, entropies and gradients are torch's, for extreme logits too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ding_lite.fast.numpy_distributions import NumpyCategorical, NumpyMultiCategorical
from ding_lite.rl import distributions as D

MULTI_SIZES = {"two components": (2, 3), "three components": (1, 4, 2)}
LOGITS = ("plain", "large", "nan")
MASKS = ("no mask", "mask", "one legal", "none legal")


def logit_of(kind, rows, size, draw):
    logit = torch.randn(rows, size, generator=draw)
    if kind == "large":
        return logit.sign() * 1e4
    if kind == "nan":
        logit[rows // 2, -2:] = torch.nan
    return logit


def mask_of(kind, rows, size, draw):
    if kind == "no mask":
        return None
    if kind == "mask":
        return torch.rand(rows, size, generator=draw) > 0.4
    mask = torch.zeros(rows, size, dtype=torch.bool)
    mask[:, 1::2] = kind == "one legal"
    return mask


@pytest.mark.parametrize("rows", [1, 8, 100])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("logit", LOGITS)
@pytest.mark.parametrize("sizes", [None, *MULTI_SIZES.values()], ids=["one component", *MULTI_SIZES])
def test_numbers_are_those_of_torch(sizes, logit, mask, rows):
    draw = torch.Generator().manual_seed(0)
    size = 3 if sizes is None else sum(sizes)
    logit, mask = logit_of(logit, rows, size, draw).requires_grad_(), mask_of(mask, rows, size, draw)
    expected = D.Categorical(logit, mask) if sizes is None else D.MultiCategorical(logit, sizes, mask)
    found = NumpyCategorical() if sizes is None else NumpyMultiCategorical(sizes)
    given = logit.detach().numpy(), None if mask is None else mask.numpy()

    one, other = (torch.Generator().manual_seed(5) for _ in range(2))
    with np.errstate(all="ignore"):
        for _ in range(3):
            action = found.sample(*given, one)
            np.testing.assert_array_equal(action, expected.sample(other).numpy(), strict=True)
        assert torch.equal(one.get_state(), other.get_state())
        known = expected.entropy().isfinite().numpy()  # a row with nan has no mode
        np.testing.assert_array_equal(found.mode(*given)[known], expected.mode().numpy()[known], strict=True)
        log_prob = found.log_prob(*given, action)
        result = found.evaluate(*given, action)
        weight = torch.randn(rows, generator=draw)
        slope = result.backward(weight.numpy(), 0.3, None)

    actions = torch.from_numpy(action)
    (weight @ expected.log_prob(actions) + 0.3 * expected.entropy().mean()).backward(retain_graph=True)
    close = dict(rtol=1e-5, atol=1e-6)
    for numbers in (log_prob, result.log_prob):
        np.testing.assert_allclose(numbers, expected.log_prob(actions).detach().numpy(), **close)
        assert numbers.dtype == np.float32
    np.testing.assert_allclose(result.entropy, expected.entropy().mean().item(), **close)
    np.testing.assert_allclose(slope, logit.grad.numpy(), **close)
    assert slope.dtype == np.float32

    logit.grad = None
    old_logit = logit_of("plain", rows, size, draw)
    old = D.Categorical(old_logit, mask) if sizes is None else D.MultiCategorical(old_logit, sizes, mask)
    (0.7 * old.kl(expected).sum()).backward()
    with np.errstate(all="ignore"):
        divergence = found.kl([old_logit.numpy()], *given)
        slope = divergence.backward(0.7, None)
    np.testing.assert_allclose(divergence.kl, old.kl(expected).detach().numpy(), **close)
    np.testing.assert_allclose(slope, logit.grad.numpy(), **close)
    assert divergence.kl.dtype == slope.dtype == np.float32
