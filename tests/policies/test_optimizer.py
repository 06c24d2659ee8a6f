"""The gradient step against torch's own clipping and Adam, taken one after the other."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from worlds import take_step

from ding_lite.data.samples import Batch
from ding_lite.errors import NumericsError
from ding_lite.policies.optimizer import BadSteps, GradientSteps, Optimizer

RATE, EPS, BOUND = 1e-2, 1e-3, 0.5


def network():
    """Two layers side by side: a loss may reach only one of them."""
    torch.manual_seed(0)
    return nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 1)})


def steps():
    """Returns some minibatches, each with the layers that its loss reaches; the second misses one."""
    obs = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(1))
    return list(zip(5 * obs, ("ab", "a", "ab", "b", "ab", "ab"), strict=True))


PARTS = {1: [8], 4: [1, 2, 2, 3]}  # sizes of the parts of a minibatch


def parts_of(obs, count):
    """Returns a minibatch in parts that are not all of one size."""
    return [Batch(obs=part, value_target=part[:, 0]) for part in obs.split(PARTS[count])]


def loss_of(net, obs, reached):
    return sum(net[name](obs).square().mean() for name in reached)


def by_torch(clip):
    """Returns the parameters after all steps, and the norms before clipping."""
    net, norms = network(), []
    adam = torch.optim.Adam(net.parameters(), lr=RATE, eps=EPS)
    for obs, reached in steps():
        adam.zero_grad()
        loss_of(net, obs, reached).backward()
        given = [p for p in net.parameters() if p.grad is not None]
        norms.append(nn.utils.get_total_norm([p.grad for p in given]))
        if clip == "clip_norm":
            nn.utils.clip_grad_norm_(given, BOUND)
        elif clip == "clip_value":
            nn.utils.clip_grad_value_(given, BOUND)
        adam.step()
    return net, torch.stack(norms).detach()


def optimizer_of(net, clip, on_host=True, **others):
    options = dict(learning_rate=RATE, eps=EPS, grad_clip_type=clip, grad_clip_value=BOUND)
    optimizer = Optimizer(net.parameters(), **options, **others)
    assert optimizer.on_host
    optimizer.on_host = on_host  # False: as on a device, which is not waited for
    return optimizer


def same(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("clip", ["clip_norm", "clip_value", None])
def test_steps_are_those_of_torch_whatever_a_loss_reaches(clip, parts, on_host):
    net, norms = network(), []
    optimizer = optimizer_of(net, clip, on_host)
    for obs, reached in steps():

        def loss(batch, reached=reached):
            return loss_of(net, batch.obs, reached), {"one": torch.tensor(1.0), "mean": batch.obs.mean()}

        told = take_step(optimizer, loss, *parts_of(obs, parts))
        assert float(told["one"]) == pytest.approx(1)
        assert float(told["mean"]) == pytest.approx(float(obs.mean()), abs=1e-6)
        norms.append(told["grad_norm"])
    expected, expected_norms = by_torch(clip)
    assert torch.allclose(torch.stack(norms), expected_norms, rtol=1e-5)
    assert float(expected_norms.min()) > BOUND, "nothing was clipped"
    assert same(net, expected)
    others = {"clip_norm", "clip_value", None} - {clip}
    assert not any(same(net, by_torch(other)[0]) for other in others)


def test_saved_in_the_middle_it_goes_on_with_the_same_moments_and_its_own_eps():
    nets = [network(), network()]
    one, other = (optimizer_of(net, "clip_norm") for net in nets)
    for number, (obs, reached) in enumerate(steps()):
        if number == 3:
            nets[1].load_state_dict(nets[0].state_dict())
            state = copy.deepcopy(one.state_dict())
            other.eps = one.eps = 2 * EPS  # as a resumed run may be told
            other.load_state_dict(state)
            assert one.eps == other.eps == 2 * EPS
        for net, optimizer in zip(nets, (one, other), strict=True) if number >= 3 else [(nets[0], one)]:
            loss = lambda batch, net=net, r=reached: (loss_of(net, batch.obs, r), {})  # noqa: E731
            take_step(optimizer, loss, Batch(obs=obs))
    assert all(torch.equal(a, b) for a, b in zip(*(net.parameters() for net in nets), strict=True))


@pytest.mark.slow
def test_a_run_that_is_not_compiled_never_loads_the_compiler(tmp_path):
    code = (
        "import sys; from ding_lite import SerialPipeline\n"
        "for _ in SerialPipeline('cartpole_ppo', folder='run', max_env_step=2000): pass\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("on_host", [True, False])
def test_a_gradient_that_is_not_finite_moves_nothing_though_its_loss_is(on_host):
    net = network()
    optimizer = optimizer_of(net, "clip_norm", on_host)
    steps = GradientSteps(optimizer, NumericsError)
    before = copy.deepcopy(net)
    batch, loss = Batch(obs=torch.zeros(1, 3)), torch.sqrt  # of 0: a slope without end
    steps.take(lambda batch: (loss((0 * net["a"].weight).sum()), {}), batch, remake=None)
    assert steps.settle() == 0
    assert same(net, before)
    assert not optimizer.state_dict()["counts"].any()


@pytest.mark.parametrize("on_host", [True, False])
@pytest.mark.parametrize("budget", [0, 1])
def test_a_step_after_one_that_was_not_finite_is_taken_only_where_the_run_survives_it(budget, on_host):
    net = network()
    optimizer = optimizer_of(net, "clip_norm", on_host, bad_steps=BadSteps(budget))
    steps = GradientSteps(optimizer, NumericsError)
    before, batch = copy.deepcopy(net), Batch(obs=torch.ones(1, 3))
    steps.take(lambda batch: (math.nan * loss_of(net, batch.obs, "ab"), {}), batch, remake=None)
    assert same(net, before)
    steps.take(lambda batch: (loss_of(net, batch.obs, "ab"), {}), batch, remake=None)
    assert same(net, before) == (budget == 0)
    assert steps.settle() == (0 if budget == 0 else None)
    steps.take(lambda batch: (loss_of(net, batch.obs, "ab"), {}), batch, remake=None)
    assert not same(net, before), "the next pass begins anew"


@pytest.mark.parametrize("on_host", [True, False])
def test_the_step_beyond_the_budget_is_the_one_reported_and_the_last_one_taken(on_host):
    net = network()
    bad_steps = BadSteps(2)
    bad_steps.count = 1  # of an earlier phase
    optimizer = optimizer_of(net, "clip_norm", on_host, bad_steps=bad_steps)
    steps = GradientSteps(optimizer, NumericsError)
    moved, batch = [], Batch(obs=torch.ones(1, 3))
    for number in range(7):
        before, share = copy.deepcopy(net), math.nan if number in (1, 3, 5) else 1.0
        steps.take(lambda batch, k=share: (k * loss_of(net, batch.obs, "ab"), {}), batch, remake=None)
        moved.append(not same(net, before))
    assert moved == [True, False, True, False, False, False, False]
    assert steps.settle() == 3
    assert bad_steps.left == 0


@pytest.mark.parametrize("place", ["counts", "mean", "square"])
def test_a_state_of_another_shape_is_refused_even_where_it_would_spread(place):
    optimizer = optimizer_of(network(), "clip_norm")
    state = copy.deepcopy(optimizer.state_dict())
    (state if place == "counts" else state["moments"][1])[place] = torch.zeros(1)
    with pytest.raises(ValueError, match=rf"{place}.*expected \(\d,\), got \(1,\)"):
        optimizer.load_state_dict(state)


class Laid:
    """A parameter of 3 x 4 numbers that lie in memory as ``stored`` has them."""

    def __init__(self, stored, **options):
        numbers = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        self.parameter = nn.Parameter(stored(numbers))
        assert torch.equal(self.parameter, numbers)
        options = dict(learning_rate=RATE, eps=EPS, grad_clip_value=BOUND) | options
        self.optimizer = Optimizer([self.parameter], **options)

    def step(self, gradient):
        """Takes a step along ``gradient(weight)``, which is what a loss with this gradient gives."""

        class Given(torch.autograd.Function):
            @staticmethod
            def forward(ctx, parameter):
                return parameter.sum()

            @staticmethod
            def backward(ctx, of_loss):
                return gradient

        batch = Batch(obs=torch.zeros(1, 1))
        with self.optimizer.phase(NumericsError) as steps:
            steps.take(lambda batch: (Given.apply(self.parameter), {}), batch, remake=lambda: batch)
        return self.parameter.detach().clone()


STORED = {
    "as torch does": lambda x: x.clone(),
    "turned": lambda x: x.t().contiguous().t(),
    "a slice": lambda x: nn.functional.pad(x, (0, 3))[:, :4],
    "turned, a slice": lambda x: nn.functional.pad(x.t(), (0, 3))[:, :3].t(),
}
WEIGHT = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3))
GRADIENTS = {
    "as torch does": lambda step: WEIGHT[step],
    "turned": lambda step: WEIGHT[step].t().contiguous().t(),
    "a slice": lambda step: nn.functional.pad(WEIGHT[step], (0, 3))[:, :4],
    "one number, shown as twelve": lambda step: torch.tensor(0.5 + step).expand(3, 4),
    "a row, shown as three": lambda step: WEIGHT[step, 0].expand(3, 4),
}


@pytest.mark.parametrize("clip", [None, "clip_norm", "clip_value"])
@pytest.mark.parametrize("of_gradient", GRADIENTS)
@pytest.mark.parametrize("stored", STORED)
def test_steps_are_those_of_torch_however_parameter_and_gradient_lie_in_memory(stored, of_gradient, clip):
    # Adam's kernel goes through the memory of both side by side, and does not ask for their strides.
    laid = Laid(STORED[stored], grad_clip_type=clip)
    plain = nn.Parameter(laid.parameter.detach().clone(memory_format=torch.contiguous_format))
    adam = torch.optim.Adam([plain], lr=RATE, eps=EPS, foreach=False, fused=False)
    for step in range(2):
        found = laid.step(GRADIENTS[of_gradient](step))
        plain.grad = GRADIENTS[of_gradient](step).contiguous().clone()
        if clip == "clip_norm":
            nn.utils.clip_grad_norm_([plain], BOUND)
        elif clip == "clip_value":
            nn.utils.clip_grad_value_([plain], BOUND)
        adam.step()
        torch.testing.assert_close(found, plain.detach(), rtol=1e-5, atol=1e-7)


def test_moments_follow_a_parameter_that_is_given_other_memory_between_two_phases():
    results = []
    for moved in (False, True):
        laid = Laid(STORED["as torch does"], grad_clip_type=None)
        laid.step(WEIGHT[0])
        if moved:
            laid.parameter.data = laid.parameter.data.t().contiguous().t()
        results.append(laid.step(WEIGHT[1]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=0)
