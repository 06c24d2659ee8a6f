"""The gradient step against torch's own clipping and Adam, taken one after the other."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ding_lite.data.samples import Batch
from ding_lite.errors import NumericsError
from ding_lite.fast.gradients import Objective
from ding_lite.policies.optimizer import Optimizer

RATE, EPS, BOUND = 1e-2, 1e-3, 0.5


def network():
    """Two layers side by side: a loss may reach only one of them."""
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 1)})


def steps():
    """Returns some minibatches, each with the layers that its loss reaches; the second misses one."""
    obs = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(1))
    return list(zip(5 * obs, ("ab", "a", "ab", "b", "ab", "ab"), strict=True))


def loss_of(net, obs, reached):
    return sum(net[name](obs).square().mean() for name in reached)


CLIPS = {
    "clip_norm": nn.utils.clip_grad_norm_,
    "clip_value": nn.utils.clip_grad_value_,
    None: lambda parameters, bound: None,
}


def by_torch(clip):
    """Returns the parameters after all steps, and the norms before clipping."""
    net, norms = network(), []
    adam = torch.optim.Adam(net.parameters(), lr=RATE, eps=EPS)
    for obs, reached in steps():
        adam.zero_grad()
        loss_of(net, obs, reached).backward()
        given = [p for p in net.parameters() if p.grad is not None]
        norms.append(float(nn.utils.get_total_norm([p.grad for p in given])))
        CLIPS[clip](given, BOUND)
        adam.step()
    return net, norms


def optimizer_of(net, clip, on_host=True):
    learn = dict(adam_eps=EPS, grad_clip_type=clip, grad_clip_value=BOUND)
    optimizer = Optimizer(net, SimpleNamespace(**learn))
    assert optimizer.on_host
    optimizer.on_host = on_host  # False: as on a device, which is not waited for
    return optimizer


def take(optimizer, loss, *batches):
    """Takes a step for each batch down ``loss(batch)``, and returns the metrics."""
    batches = batches or (Batch(obs=torch.zeros(1, 3)),)
    gradient_of = optimizer.gradient_of(Objective(lambda batch: (loss(batch), {})))
    return optimizer.steps(gradient_of, batches, RATE)


def same(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("clip", CLIPS)
def test_steps_are_those_of_torch_whatever_a_loss_reaches(clip, on_host):
    net, norms = network(), []
    optimizer = optimizer_of(net, clip, on_host)
    for obs, reached in steps():
        (told,) = take(optimizer, lambda batch, r=reached: loss_of(net, batch.obs, r), Batch(obs=obs))
        norms.append(float(told["grad_norm"]))
    expected, expected_norms = by_torch(clip)
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert min(norms) > BOUND, "nothing was clipped"
    assert same(net, expected)
    assert not any(same(net, by_torch(other)[0]) for other in CLIPS.keys() - {clip})


def test_saved_in_the_middle_it_goes_on_with_the_same_moments():
    nets = [network(), network()]
    one, other = (optimizer_of(net, "clip_norm") for net in nets)
    for number, (obs, reached) in enumerate(steps()):
        if number == 3:
            nets[1].load_state_dict(nets[0].state_dict())
            other.load_state_dict(copy.deepcopy(one.state_dict()))
        for net, optimizer in list(zip(nets, (one, other), strict=True))[: 1 + (number >= 3)]:
            take(optimizer, lambda batch, n=net, r=reached: loss_of(n, batch.obs, r), Batch(obs=obs))
    assert all(torch.equal(a, b) for a, b in zip(*(net.parameters() for net in nets), strict=True))


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("bad", [0, 2])
def test_a_step_that_is_not_finite_moves_nothing_and_is_named(bad, on_host):
    """Its loss is finite, and its slope is not."""
    net, number = network(), iter(range(9))
    optimizer = optimizer_of(net, "clip_norm", on_host)

    def loss(batch):
        without_end = torch.sqrt((0 * net["a"].weight).sum()) if next(number) == bad else 0.0
        return loss_of(net, batch.obs, "ab") + without_end

    batches = [Batch(obs=obs) for obs, _ in steps()[:4]]
    with pytest.raises(NumericsError, match=rf"gradient step {bad + 1} of the loss .*'grad_norm': nan"):
        take(optimizer, loss, *batches)
    expected = network()
    of_expected, taken = optimizer_of(expected, "clip_norm"), batches[:bad]
    if not on_host:
        taken = taken + batches[bad + 1 :]
    for batch in taken:
        take(of_expected, lambda batch: loss_of(expected, batch.obs, "ab"), batch)
    assert same(net, expected)
    assert optimizer.state_dict()["counts"].tolist() == [len(taken)] * 4


@pytest.mark.parametrize("place", ["counts", "means", "squares"])
def test_a_state_of_another_shape_is_refused_even_where_it_would_spread(place):
    optimizer = optimizer_of(network(), "clip_norm")
    state = copy.deepcopy(optimizer.state_dict())
    owner, key = (state, place) if place == "counts" else (state[place], "1")
    owner[key] = torch.zeros(1)
    with pytest.raises(ValueError, match=rf"{place}.*expected \(\d,\), got \(1,\)"):
        optimizer.load_state_dict(state)


STORED = {"as torch does": lambda x: x.clone(), "turned": lambda x: x.t().contiguous().t()}
WEIGHT = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3))
GRADIENTS = {
    "as torch does": lambda step: WEIGHT[step],
    "turned": lambda step: WEIGHT[step].t().contiguous().t(),
    "a slice": lambda step: nn.functional.pad(WEIGHT[step], (0, 3))[:, :4],
    "a row, shown as three": lambda step: WEIGHT[step, 0].expand(3, 4),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("of_gradient", GRADIENTS)
@pytest.mark.parametrize("stored", STORED)
def test_steps_are_those_of_torch_however_parameter_and_gradient_lie_in_memory(stored, of_gradient, clip):
    # Adam's kernel goes through the memory of both side by side, and does not ask for their strides.
    numbers = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    net = nn.ParameterDict({"p": nn.Parameter(STORED[stored](numbers))})
    optimizer = optimizer_of(net, clip)
    plain = nn.Parameter(numbers.clone())
    adam = torch.optim.Adam([plain], lr=RATE, eps=EPS, foreach=False, fused=False)
    for step in range(2):
        gradient = GRADIENTS[of_gradient](step)

        class Given(torch.autograd.Function):
            @staticmethod
            def forward(ctx, parameter):
                return parameter.sum()

            @staticmethod
            def backward(ctx, of_loss, gradient=gradient):
                return gradient

        take(optimizer, lambda batch, given=Given: given.apply(net["p"]))
        plain.grad = gradient.contiguous().clone()
        CLIPS[clip]([plain], BOUND)
        adam.step()
        torch.testing.assert_close(net["p"].detach(), plain.detach(), rtol=1e-5, atol=1e-7)
