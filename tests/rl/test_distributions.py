"""Action distributions against torch.distributions, closed forms, integrals and counted samples."""

import math
from typing import NamedTuple

import pytest
import torch
from torch import distributions as T

from ding_lite.rl import distributions as D
from ding_lite.trees import map_tree, tree_leaves

N = 5  # rows of every case
DTYPE = torch.float64
LOW, HIGH = torch.tensor([-2.0, 1.0], dtype=DTYPE), torch.tensor([1.0, 5.0], dtype=DTYPE)
WIDTH = HIGH - LOW
SIZES = (2, 4, 3)
LEGAL = torch.tensor([False, True, True, False])
LEGAL_BITS = torch.tensor([True, False, True])
LEGAL_OF_EACH = torch.tensor([False, True, True, True, False, True, True, False, True])


def randn(seed, *shape):
    return torch.randn(*shape, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


class Case(NamedTuple):
    """A distribution: its random parameters by a seed, itself, and the same made of torch.distributions.

    ``reference`` returns pairs: a distribution of torch, and a function from our action to its value.
    """

    logit: object
    make: object
    reference: object


def gaussian(seed):
    return {"mu": randn(seed, N, 2), "sigma": (0.4 * randn(seed + 50, N, 2)).exp()}


def shapes_of_beta(seed):
    return {"alpha": 1 + randn(seed, N, 2).exp(), "beta": 1 + randn(seed + 50, N, 2).exp()}


def same(action):
    return action


def as_bits(action):
    return action.to(DTYPE)


def legal_probs(logit, mask):
    return torch.where(mask, logit, -math.inf).softmax(-1)


def columns(logit, masks):
    parts = zip(logit.split(SIZES, -1), masks.split(SIZES, -1), strict=True)
    return [(T.Categorical(probs=legal_probs(*p)), lambda a, i=i: a[..., i]) for i, p in enumerate(parts)]


def squashed(logit):
    base = T.Normal(logit["mu"], logit["sigma"])
    moves = [T.TanhTransform(), T.AffineTransform((LOW + HIGH) / 2, WIDTH / 2)]
    to_env = moves[1].__call__
    return [(T.TransformedDistribution(base, moves, validate_args=False), lambda u: to_env(u.tanh()))]


def stretched(logit):
    base = T.Beta(logit["alpha"], logit["beta"])
    move = T.AffineTransform(LOW, WIDTH)
    return [(T.TransformedDistribution(base, [move], validate_args=False), move)]


CASES = {
    "masked categorical": Case(
        lambda seed: 1.5 * randn(seed, N, 4),
        lambda logit: D.Categorical(logit, LEGAL),
        lambda logit: [(T.Categorical(probs=legal_probs(logit, LEGAL)), same)],
    ),
    "masked multi categorical": Case(
        lambda seed: 1.5 * randn(seed, N, 9),
        lambda logit: D.MultiCategorical(logit, SIZES, LEGAL_OF_EACH),
        lambda logit: columns(logit, LEGAL_OF_EACH),
    ),
    "bernoulli": Case(
        lambda seed: 1.5 * randn(seed, N, 3),
        D.Bernoulli,
        lambda logit: [(T.Bernoulli(logits=logit), as_bits)],
    ),
    "masked bernoulli": Case(
        lambda seed: 1.5 * randn(seed, N, 3),
        lambda logit: D.Bernoulli(logit, LEGAL_BITS),
        lambda logit: [(T.Bernoulli(probs=logit.sigmoid() * LEGAL_BITS), as_bits)],
    ),
    "normal": Case(gaussian, D.Normal, lambda logit: [(T.Normal(logit["mu"], logit["sigma"]), same)]),
    "tanh normal": Case(gaussian, lambda logit: D.TanhNormal(logit, WIDTH / 2), squashed),
    "beta": Case(shapes_of_beta, lambda logit: D.Beta(logit, WIDTH / 2), stretched),
}
PARTS = {"index": CASES["masked categorical"], "force": CASES["normal"], "bits": CASES["bernoulli"]}


def tree(function):
    """Returns the tree of joint actions, with ``function(name)`` as its leaves."""
    return {"index": function("index"), "deep": {"force": function("force"), "bits": function("bits")}}


def leaf(action, name):
    return action["index"] if name == "index" else action["deep"][name]


def make_joint(logit):
    index, force, bits = (PARTS[name].make(leaf(logit, name)) for name in PARTS)
    return D.Joint({"index": index, "deep": D.Joint({"force": force, "bits": bits})})


CASES["joint"] = Case(
    lambda seed: tree(lambda name: PARTS[name].logit(seed + len(name))),
    make_joint,
    lambda logit: [
        (part, lambda a, name=name, pick=pick: pick(leaf(a, name)))
        for name in PARTS
        for part, pick in PARTS[name].reference(leaf(logit, name))
    ],
)
INDICES = [name for name in CASES if "categorical" in name or "bernoulli" in name]
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def some_cases(*names):
    return pytest.mark.parametrize("case", [CASES[name] for name in names], ids=names)


def summed(x):
    return x if x.dim() == 1 else x.flatten(1).sum(-1)


def sampled(dist, seed=0):
    return dist.sample(torch.Generator().manual_seed(seed))


def many_samples(case, seed, count=50_000):
    """Returns the distribution of the first row ``count`` times, and a sample of each."""
    wide = case.make(map_tree(lambda x: x[:1].expand(count, -1), case.logit(seed)))
    return wide, sampled(wide)


def close_to_mean(samples, expected):
    """Returns whether ``expected`` is within five standard errors of the mean of ``samples``."""
    error = samples.std(0) / math.sqrt(len(samples))
    return bool(((samples.mean(0) - expected).abs() <= 5 * error + 1e-12).all())


# ------------------------------------------------------------------ against torch.distributions


@every_case
def test_log_prob_equals_that_of_torch(case):
    logit = case.logit(0)
    ours, parts = case.make(logit), case.reference(logit)
    for seed in range(5):
        action = sampled(ours, seed)
        expected = sum(summed(part.log_prob(pick(action))) for part, pick in parts)
        assert ours.log_prob(action).shape == (N,)
        assert torch.allclose(ours.log_prob(action), expected, rtol=1e-9, atol=1e-9)


@every_case
def test_entropy_equals_that_of_torch(case):
    logit = case.logit(1)
    expected = 0.0
    for part, _ in case.reference(logit):
        if isinstance(part, T.TransformedDistribution):  # torch has no closed form
            if case is CASES["tanh normal"]:
                return
            part, expected = part.base_dist, WIDTH.log().sum()
        expected = expected + summed(part.entropy())
    assert torch.allclose(case.make(logit).entropy(), expected, rtol=1e-9, atol=1e-9)


@every_case
def test_kl_equals_that_of_torch_and_is_zero_to_itself(case):
    one, other = case.logit(2), case.logit(3)
    pairs = zip(case.reference(one), case.reference(other), strict=True)
    expected = sum(summed(T.kl_divergence(p, q)) for (p, _), (q, _) in pairs)
    assert torch.allclose(case.make(one).kl(case.make(other)), expected, rtol=1e-8, atol=1e-9)
    assert case.make(one).kl(case.make(one)).abs().max() < 1e-12


# ------------------------------------------------------------------ samples


@some_cases(*INDICES)
def test_indices_have_their_frequencies_and_columns_are_independent(case):
    _, action = many_samples(case, 10)
    joint_probs, found = 1.0, 1.0
    for part, pick in case.reference(case.logit(10)):
        values = pick(action)
        if isinstance(part, T.Bernoulli):
            assert close_to_mean(values, part.probs[0])
            continue
        onehot = torch.nn.functional.one_hot(values, part.probs.shape[-1]).to(DTYPE)
        assert close_to_mean(onehot, part.probs[0])
        assert not onehot[:, part.probs[0] == 0].any(), "an illegal index is never drawn"
        joint_probs, found = joint_probs * part.probs[0, 1], found * onehot[:, 1]
    if isinstance(found, torch.Tensor):
        assert close_to_mean(found, joint_probs)


@some_cases("normal", "tanh normal", "beta")
def test_numbers_have_their_moments(case):
    dist, action = many_samples(case, 13)
    exact = (
        T.Beta(dist.alpha[0], dist.beta[0]) if case is CASES["beta"] else T.Normal(dist.mu[0], dist.sigma[0])
    )
    assert close_to_mean(action, exact.mean)
    assert close_to_mean((action - exact.mean) ** 2, exact.variance)
    if case is CASES["beta"]:
        assert 0 < action.min() < action.max() < 1
    else:
        assert close_to_mean(((action - exact.mean) / exact.stddev) ** 4, torch.tensor(3.0, dtype=DTYPE))


@every_case
def test_samples_repeat_with_their_generator_alone_and_carry_no_gradient(case):
    dist = case.make(map_tree(lambda x: x.repeat(40, 1).requires_grad_(), case.logit(0)))
    before = torch.get_rng_state()
    first, again, other = (sampled(dist, seed) for seed in (3, 3, 4))
    for a, b, c in zip(*map(tree_leaves, (first, again, other)), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert not a.requires_grad
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------ the greedy action

MASK = torch.tensor([[True, False, True]])
GAUSSIAN = {"mu": torch.tensor([[0.7]]), "sigma": torch.tensor([[2.0]])}
MODES = [
    (D.Categorical(torch.tensor([[0.0, 3.0, 1.0]])), [1]),
    (D.Categorical(torch.tensor([[0.0, 3.0, 1.0]]), MASK), [2]),
    (D.MultiCategorical(torch.tensor([[0.0, 1.0, 5.0, 0.0, 1.0]]), (2, 3)), [[1, 0]]),
    (D.Bernoulli(torch.tensor([[2.0, 2.0, -2.0]])), [[1, 1, 0]]),
    (D.Bernoulli(torch.tensor([[2.0, 2.0, -2.0]]), MASK), [[1, 0, 0]]),
    (D.Normal(GAUSSIAN), [[pytest.approx(0.7)]]),
    (D.TanhNormal(GAUSSIAN, torch.ones(1)), [[pytest.approx(0.7)]]),
    (
        D.Beta({"alpha": torch.tensor([[3.0]]), "beta": torch.tensor([[2.0]])}, WIDTH),
        [[pytest.approx(2 / 3)]],
    ),
    (D.Beta({"alpha": torch.ones(1, 1), "beta": torch.ones(1, 1)}, WIDTH), [[pytest.approx(0.5)]]),
]


@pytest.mark.parametrize(("dist", "mode"), MODES)
def test_greedy_action_by_hand(dist, mode):
    assert dist.mode().tolist() == mode
    assert D.Joint({"a": D.Joint({"b": dist})}).mode()["a"]["b"].tolist() == mode


# ------------------------------------------------------------------ masks


@some_cases("masked categorical", "masked multi categorical", "masked bernoulli", "joint")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_terms_and_their_gradients_are_finite_under_any_weight(case, dtype):
    old = case.make(map_tree(lambda x: x.to(dtype), case.logit(30)))
    leaves = map_tree(lambda x: x.to(dtype).requires_grad_(), case.logit(31))
    new = case.make(leaves)
    terms = torch.stack([new.log_prob(sampled(old)), new.entropy(), old.kl(new), new.kl(old)])
    once, often = (
        torch.autograd.grad(weight * terms.sum(), tree_leaves(leaves), retain_graph=True)
        for weight in (1.0, 1e4)
    )
    for one, other in zip(once, often, strict=True):
        torch.testing.assert_close(other, 1e4 * one, rtol=1e-3, atol=1.0)
        assert one.any()


@pytest.mark.parametrize(
    ("make", "mask"),
    [
        (D.Categorical, LEGAL),
        (lambda logit, mask: D.MultiCategorical(logit, SIZES, mask), LEGAL_OF_EACH),
        (D.Bernoulli, LEGAL_BITS),
    ],
)
def test_illegal_logits_have_no_influence_and_no_gradient(make, mask):
    logit = randn(32, N, len(mask)).requires_grad_()
    other = torch.where(mask, logit.detach(), 1e30)
    action = sampled(make(logit, mask))
    terms = [torch.stack([d.log_prob(action), d.entropy()]) for d in (make(logit, mask), make(other, mask))]
    assert torch.equal(*terms)
    terms[0].sum().backward()
    assert not logit.grad[:, ~mask].any()
    assert logit.grad[:, mask].any()
    everything = torch.ones_like(mask)
    assert torch.equal(make(logit, everything).entropy(), make(logit, None).entropy())


# ------------------------------------------------------------------ bounded densities


@pytest.mark.parametrize(
    ("sigma", "error"),
    [*((sigma, 2e-5) for sigma in (0.01, 0.5, 1.0, 2.0)), (4.0, 2e-4), (math.e**2, 1e-2), (15.0, 1e-1)],
)
@pytest.mark.parametrize("mu", [0.0, 1.0, -3.0])
def test_tanh_normal_entropy_and_its_gradient_are_those_of_an_integral(mu, sigma, error):
    logit = {name: torch.full((1, 1), x, dtype=DTYPE) for name, x in (("mu", mu), ("sigma", sigma))}
    for x in logit.values():
        x.requires_grad_()
    dist = D.TanhNormal(logit, torch.ones(1, dtype=DTYPE))
    z = torch.linspace(-10, 10, 200_001, dtype=DTYPE)
    weight = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    u = dist.mu + dist.sigma * z
    exact = D.Normal(logit).entropy() + (weight * 2 * (math.log(2) - torch.logaddexp(u, -u))).sum()
    assert dist.entropy().item() == pytest.approx(exact.item(), abs=error)
    found, expected = (torch.autograd.grad(x.sum(), list(logit.values())) for x in (dist.entropy(), exact))
    assert [x.item() for x in found] == pytest.approx([x.item() for x in expected], abs=error)


def test_the_ends_of_bounded_densities_are_finite():
    u = torch.tensor([[30.0]], requires_grad=True)
    log_prob = D.TanhNormal({"mu": torch.zeros(1, 1), "sigma": torch.ones(1, 1)}, torch.ones(1)).log_prob(u)
    log_prob.sum().backward()
    # log N(30) - 2 (log 2 - 30)
    expected = -450 - 0.5 * math.log(2 * math.pi) - 2 * math.log(2) + 60
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)
    assert u.grad.item() == pytest.approx(-30 + 2)
    steep = D.Beta({"alpha": torch.full((1000, 1), 1e6), "beta": torch.full((1000, 1), 1.0)}, torch.ones(1))
    assert 0 < sampled(steep).min() <= sampled(steep).max() < 1
    assert torch.isfinite(steep.log_prob(torch.tensor([[0.0], [1.0]]).repeat(500, 1))).all()
