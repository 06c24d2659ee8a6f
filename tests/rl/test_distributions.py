"""Action distributions against torch.distributions, closed forms, integrals and counted samples."""

import math

import pytest
import torch
from torch import distributions as T

from ding_lite.rl import distributions as D

N = 5  # rows of every case
DTYPE = torch.float64


def randn(seed, *shape):
    return torch.randn(*shape, dtype=DTYPE, generator=torch.Generator().manual_seed(seed))


def legal(seed, *shape):
    """Returns a random mask with at least one legal entry in each row."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[..., 1] = True
    mask[..., 0] = False
    return mask


LOW, HIGH = torch.tensor([-2.0, 1.0], dtype=DTYPE), torch.tensor([1.0, 5.0], dtype=DTYPE)
WIDTH = HIGH - LOW
CATEGORICAL_MASK = legal(90, N, 4)
BERNOULLI_MASK = legal(91, N, 3)
SIZES = (2, 4, 3)
MULTI_MASK = torch.cat([legal(92 + i, N, size) for i, size in enumerate(SIZES)], -1)


class Reference:
    """Parts of torch.distributions, each with a function from the library's action to its value."""

    def __init__(self, *parts):
        self.parts = parts

    def log_prob(self, action):
        return sum(summed(part.log_prob(pick(action))) for part, pick in self.parts)

    def entropy(self):
        return sum(summed(part.entropy()) for part, _ in self.parts)

    def kl(self, other):
        pairs = zip(self.parts, other.parts, strict=True)
        return sum(summed(T.kl_divergence(p, q)) for (p, _), (q, _) in pairs)


def summed(x):
    return x if x.dim() == 1 else x.flatten(1).sum(-1)


def same(action):
    return action


def masked(logit, mask, floor=-math.inf):
    return torch.where(mask, logit, floor)


def categorical(seed):
    logit = 1.5 * randn(seed, N, 4)
    return D.Categorical(logit), Reference((T.Categorical(logits=logit), same))


def masked_categorical(seed):
    logit = 1.5 * randn(seed, N, 4)
    kept = masked(logit, CATEGORICAL_MASK).softmax(-1)
    return D.Categorical(logit, CATEGORICAL_MASK), Reference((T.Categorical(probs=kept), same))


def multi_categorical(seed):
    logit = 1.5 * randn(seed, N, sum(SIZES))
    parts = [
        (T.Categorical(logits=part), lambda action, i=i: action[..., i])
        for i, part in enumerate(logit.split(SIZES, -1))
    ]
    return D.MultiCategorical(logit, SIZES), Reference(*parts)


def masked_multi_categorical(seed):
    logit = 1.5 * randn(seed, N, sum(SIZES))
    kept = [part.softmax(-1) for part in masked(logit, MULTI_MASK).split(SIZES, -1)]
    parts = [(T.Categorical(probs=p), lambda action, i=i: action[..., i]) for i, p in enumerate(kept)]
    return D.MultiCategorical(logit, SIZES, MULTI_MASK), Reference(*parts)


def bernoulli(seed):
    logit = 1.5 * randn(seed, N, 3)
    return D.Bernoulli(logit), Reference((T.Bernoulli(logits=logit), lambda a: a.to(DTYPE)))


def masked_bernoulli(seed):
    logit = 1.5 * randn(seed, N, 3)
    probs = logit.sigmoid() * BERNOULLI_MASK
    reference = Reference((T.Bernoulli(probs=probs), lambda a: a.to(DTYPE)))
    return D.Bernoulli(logit, BERNOULLI_MASK), reference


def gaussian(seed):
    return {"mu": randn(seed, N, 2), "sigma": (0.4 * randn(seed + 50, N, 2)).exp()}


def normal(seed):
    logit = gaussian(seed)
    return D.Normal(logit), Reference((T.Normal(logit["mu"], logit["sigma"]), same))


def tanh_normal(seed):
    logit = gaussian(seed)
    transforms = [T.TanhTransform(), T.AffineTransform((LOW + HIGH) / 2, WIDTH / 2)]
    base = T.Normal(logit["mu"], logit["sigma"])
    squashed = T.TransformedDistribution(base, transforms, validate_args=False)
    return D.TanhNormal(logit, WIDTH / 2), Reference(
        (squashed, lambda u: (LOW + HIGH) / 2 + u.tanh() * WIDTH / 2)
    )


def beta(seed):
    logit = {"alpha": 1 + randn(seed, N, 2).exp(), "beta": 1 + randn(seed + 50, N, 2).exp()}
    stretched = T.TransformedDistribution(
        T.Beta(logit["alpha"], logit["beta"]), [T.AffineTransform(LOW, WIDTH)], validate_args=False
    )
    return D.Beta(logit, WIDTH), Reference((stretched, lambda x: LOW + x * WIDTH))


def joint(seed):
    index, index_reference = masked_categorical(seed)
    force, force_reference = normal(seed + 20)
    bits, bits_reference = bernoulli(seed + 40)
    ours = D.Joint({"index": index, "deep": D.Joint({"force": force, "bits": bits})})
    picks = [
        (index_reference, lambda a: a["index"]),
        (force_reference, lambda a: a["deep"]["force"]),
        (bits_reference, lambda a: a["deep"]["bits"]),
    ]
    parts = [
        (part, lambda a, inner=inner, outer=outer: inner(outer(a)))
        for reference, outer in picks
        for part, inner in reference.parts
    ]
    return ours, Reference(*parts)


CASES = [
    categorical,
    masked_categorical,
    multi_categorical,
    masked_multi_categorical,
    bernoulli,
    masked_bernoulli,
    normal,
    tanh_normal,
    beta,
    joint,
]
# torch has no closed forms for transformed distributions.
CLOSED_FORM = [case for case in CASES if case not in (tanh_normal, beta)]
every_case = pytest.mark.parametrize("case", CASES)
every_masked_case = pytest.mark.parametrize(
    "case", [masked_categorical, masked_multi_categorical, masked_bernoulli, joint]
)


def tree_map(function, tree):
    if isinstance(tree, dict):
        return {name: tree_map(function, branch) for name, branch in tree.items()}
    return function(tree)


def tree_leaves(tree):
    if isinstance(tree, dict):
        return [leaf for branch in tree.values() for leaf in tree_leaves(branch)]
    return [tree]


def rebuilt(dist, logit):
    """Returns a distribution of the same class with other parameters."""
    if isinstance(dist, D.Joint):
        return D.Joint({name: rebuilt(part, logit[name]) for name, part in dist.parts.items()})
    if isinstance(dist, D.Categorical):
        return D.Categorical(logit, CATEGORICAL_MASK if (dist.log_probs < -1e20).any() else None)
    if isinstance(dist, D.MultiCategorical):
        hidden = any((part.log_probs < -1e20).any() for part in dist.parts)
        return D.MultiCategorical(logit, SIZES, MULTI_MASK if hidden else None)
    if isinstance(dist, D.Bernoulli):
        return D.Bernoulli(logit, dist.log_odds > -5e3)  # an illegal bit has -1e4
    if isinstance(dist, D.TanhNormal):
        return D.TanhNormal(logit, dist.half_width)
    if isinstance(dist, D.Beta):
        return D.Beta(logit, dist.width)
    return D.Normal(logit)


def draws(dist, count, seed=0):
    """Returns ``count`` samples of the first row, a tree with leaves (count, ...)."""
    logit = tree_map(lambda leaf: leaf[:1].expand(count, -1), dist.logit)
    generator = torch.Generator().manual_seed(seed)
    wide = many(dist, logit, count)
    return wide, wide.sample(generator)


def many(dist, logit, count):
    if isinstance(dist, D.Joint):
        return D.Joint({name: many(part, logit[name], count) for name, part in dist.parts.items()})
    if isinstance(dist, D.Categorical):
        mask = (dist.log_probs > -1e20)[:1].expand(count, -1)
        return D.Categorical(logit, mask)
    if isinstance(dist, D.MultiCategorical):
        mask = torch.cat([part.log_probs > -1e20 for part in dist.parts], -1)[:1].expand(count, -1)
        return D.MultiCategorical(logit, SIZES, mask)
    if isinstance(dist, D.Bernoulli):
        return D.Bernoulli(logit, (dist.log_odds > -5e3)[:1].expand(count, -1))
    return rebuilt(dist, logit)


def close_to_mean(samples, expected):
    """Returns whether ``expected`` is within five standard errors of the mean of ``samples``."""
    error = samples.std(0) / math.sqrt(len(samples))
    return bool(((samples.mean(0) - expected).abs() <= 5 * error + 1e-12).all())


# ------------------------------------------------------------------ against torch.distributions


@every_case
def test_log_prob_equals_that_of_torch(case):
    ours, reference = case(0)
    for seed in range(5):
        action = ours.sample(torch.Generator().manual_seed(seed))
        assert torch.allclose(ours.log_prob(action), reference.log_prob(action), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CLOSED_FORM)
def test_entropy_equals_that_of_torch(case):
    ours, reference = case(1)
    # torch's masked probabilities are clamped at the rounding error of the dtype.
    assert torch.allclose(ours.entropy(), reference.entropy(), rtol=1e-9, atol=1e-9)


def test_beta_entropy_is_that_of_torch_and_the_log_width():
    ours, _ = beta(1)
    expected = T.Beta(ours.alpha, ours.beta).entropy() + WIDTH.log()
    assert torch.allclose(ours.entropy(), expected.sum(-1), rtol=1e-10)


@pytest.mark.parametrize("case", [*CLOSED_FORM, tanh_normal, beta])
def test_kl_equals_that_of_torch(case):
    (p, p_reference), (q, q_reference) = case(2), case(3)
    assert torch.allclose(p.kl(q), p_reference.kl(q_reference), rtol=1e-8, atol=1e-9)


@every_case
def test_shapes_are_those_of_the_batch(case):
    ours, _ = case(0)
    other, _ = case(1)
    action = ours.sample(torch.Generator().manual_seed(0))
    for result in (ours.log_prob(action), ours.entropy(), ours.kl(other)):
        assert result.shape == (N,)


# ------------------------------------------------------------------ by sampling


@every_case
def test_entropy_is_the_mean_negative_log_prob_of_samples(case):
    ours, _ = case(4)
    wide, action = draws(ours, 50_000)
    tolerance = 1e-2 if case is tanh_normal else 0.0
    surprise = -wide.log_prob(action)
    error = 5 * surprise.std() / math.sqrt(len(surprise)) + tolerance
    assert (surprise.mean() - ours.entropy()[0]).abs() <= error


@every_case
def test_kl_is_the_mean_log_ratio_of_samples(case):
    (p, _), (q, _) = case(5), case(6)
    p_wide, action = draws(p, 50_000)
    q_wide, _ = draws(q, 50_000)
    log_ratio = p_wide.log_prob(action) - q_wide.log_prob(action)
    assert close_to_mean(log_ratio, p.kl(q)[0])


@every_case
def test_kl_to_itself_is_zero(case):
    p, _ = case(7)
    assert p.kl(p).abs().max() < 1e-12


@every_case
def test_kl_of_two_is_positive(case):
    assert (case(8)[0].kl(case(9)[0]) > 0).all()


@every_case
def test_sampling_repeats_with_its_generator_and_not_otherwise(case):
    ours, _ = case(0)
    _, first = draws(ours, 200, seed=3)
    _, again = draws(ours, 200, seed=3)
    _, other = draws(ours, 200, seed=4)
    pairs = zip(tree_leaves(first), tree_leaves(again), tree_leaves(other), strict=True)
    for a, b, c in pairs:
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@every_case
def test_sampling_leaves_the_global_generator_alone(case):
    ours, _ = case(0)
    before = torch.get_rng_state()
    ours.sample(torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("case", [categorical, masked_categorical])
def test_categorical_frequencies_pass_a_chi_square_test(case):
    ours, reference = case(10)
    count = 40_000
    _, action = draws(ours, count)
    expected = count * reference.parts[0][0].probs[0]
    kept = expected > 1e-6
    observed = torch.bincount(action, minlength=4).to(DTYPE)
    assert observed[~kept].sum() == 0
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    # The 99.9 % quantile of chi-square with three degrees of freedom.
    assert statistic < 16.27


def test_multi_categorical_columns_have_their_frequencies_and_are_independent():
    ours, reference = multi_categorical(11)
    _, action = draws(ours, 50_000)
    for i, (part, _) in enumerate(reference.parts):
        onehot = torch.nn.functional.one_hot(action[:, i], SIZES[i]).to(DTYPE)
        assert close_to_mean(onehot, part.probs[0])
    both = ((action[:, 0] == 1) & (action[:, 1] == 2)).to(DTYPE)
    assert close_to_mean(both, reference.parts[0][0].probs[0, 1] * reference.parts[1][0].probs[0, 2])


def test_bernoulli_bits_have_their_frequencies():
    ours, reference = bernoulli(12)
    _, action = draws(ours, 50_000)
    assert close_to_mean(action.to(DTYPE), reference.parts[0][0].probs[0])


@pytest.mark.parametrize("case", [normal, tanh_normal])
def test_gaussian_samples_have_their_moments(case):
    ours, _ = case(13)
    _, action = draws(ours, 50_000)
    assert close_to_mean(action, ours.mu[0])
    assert close_to_mean((action - ours.mu[0]) ** 2, ours.sigma[0] ** 2)
    assert close_to_mean(((action - ours.mu[0]) / ours.sigma[0]) ** 4, torch.tensor(3.0, dtype=DTYPE))


def test_beta_samples_have_their_moments_and_stay_inside():
    ours, _ = beta(14)
    _, action = draws(ours, 50_000)
    exact = T.Beta(ours.alpha[0], ours.beta[0])
    assert close_to_mean(action, exact.mean)
    assert close_to_mean((action - exact.mean) ** 2, exact.variance)
    assert action.min() > 0
    assert action.max() < 1


# ------------------------------------------------------------------ the greedy action


def test_mode_of_a_categorical_is_its_likeliest_index():
    assert D.Categorical(torch.tensor([[0.0, 3.0, 1.0]])).mode().tolist() == [1]


def test_entropy_of_a_masked_categorical_has_a_gradient_under_any_weight():
    logit = torch.tensor([[0.5, 3.0, 1.0]], requires_grad=True)
    entropy = D.Categorical(logit, torch.tensor([[True, False, True]])).entropy().sum()
    once, often = (torch.autograd.grad(w * entropy, logit, retain_graph=True)[0] for w in (1.0, 1e4))
    torch.testing.assert_close(often, 1e4 * once)
    assert once[0, 0] != 0


def test_mode_of_a_masked_categorical_is_legal():
    mask = torch.tensor([[True, False, True]])
    assert D.Categorical(torch.tensor([[0.0, 3.0, 1.0]]), mask).mode().tolist() == [2]


def test_mode_of_a_multi_categorical_is_taken_column_by_column():
    logit = torch.tensor([[0.0, 1.0, 5.0, 0.0, 1.0]])
    assert D.MultiCategorical(logit, (2, 3)).mode().tolist() == [[1, 0]]


def test_mode_of_a_bernoulli_is_one_where_one_is_likelier():
    mask = torch.tensor([[True, True, False]])
    assert D.Bernoulli(torch.tensor([[2.0, -2.0, 2.0]])).mode().tolist() == [[1, 0, 1]]
    assert D.Bernoulli(torch.tensor([[2.0, -2.0, 2.0]]), mask).mode().tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("kind", [D.Normal, lambda logit: D.TanhNormal(logit, torch.ones(1))])
def test_mode_of_a_gaussian_is_its_mean(kind):
    dist = kind({"mu": torch.tensor([[0.7]]), "sigma": torch.tensor([[2.0]])})
    assert torch.equal(dist.mode(), torch.tensor([[0.7]]))


def test_mode_of_a_beta_has_the_highest_density():
    ours, _ = beta(15)
    at_mode = ours.log_prob(ours.mode())
    assert (at_mode >= ours.log_prob(ours.mode() + 1e-3)).all()
    assert (at_mode >= ours.log_prob(ours.mode() - 1e-3)).all()


def test_mode_of_a_joint_is_the_mode_of_each_part():
    ours, _ = joint(16)
    mode = ours.mode()
    assert torch.equal(mode["index"], ours.parts["index"].mode())
    assert torch.equal(mode["deep"]["force"], ours.parts["deep"].parts["force"].mu)


@pytest.mark.parametrize("case", [categorical, multi_categorical, bernoulli])
def test_no_sample_is_likelier_than_the_mode(case):
    ours, _ = case(17)
    at_mode = ours.log_prob(ours.mode())
    for seed in range(50):
        assert (ours.log_prob(ours.sample(torch.Generator().manual_seed(seed))) <= at_mode + 1e-12).all()


# ------------------------------------------------------------------ by hand


def test_kl_of_two_action_categoricals_by_hand():
    p = D.Categorical(torch.tensor([[0.5, 0.5]], dtype=DTYPE).log())
    q = D.Categorical(torch.tensor([[0.25, 0.75]], dtype=DTYPE).log())
    assert p.kl(q).item() == pytest.approx(0.5 * math.log(4 / 3), rel=1e-12)
    assert q.kl(p).item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-12)


def test_kl_of_gaussians_by_hand():
    p = D.Normal({"mu": torch.zeros(1, 1, dtype=DTYPE), "sigma": torch.ones(1, 1, dtype=DTYPE)})
    q = D.Normal({"mu": torch.ones(1, 1, dtype=DTYPE), "sigma": 2 * torch.ones(1, 1, dtype=DTYPE)})
    assert p.kl(q).item() == pytest.approx(math.log(2) + 2 / 8 - 0.5, rel=1e-12)
    assert q.kl(p).item() == pytest.approx(-math.log(2) + 5 / 2 - 0.5, rel=1e-12)


def test_entropy_of_a_uniform_categorical_is_the_log_of_the_legal_count():
    mask = torch.tensor([[True, False, True, True]])
    assert D.Categorical(torch.zeros(1, 4, dtype=DTYPE)).entropy().item() == pytest.approx(math.log(4))
    assert D.Categorical(torch.zeros(1, 4, dtype=DTYPE), mask).entropy().item() == pytest.approx(math.log(3))


def test_log_prob_of_a_joint_is_the_sum_over_its_parts():
    ours, _ = joint(18)
    action = ours.sample(torch.Generator().manual_seed(0))
    deep = ours.parts["deep"]
    expected = (
        ours.parts["index"].log_prob(action["index"])
        + deep.parts["force"].log_prob(action["deep"]["force"])
        + deep.parts["bits"].log_prob(action["deep"]["bits"])
    )
    assert torch.allclose(ours.log_prob(action), expected, rtol=1e-14)


# ------------------------------------------------------------------ gradients


@every_case
def test_kl_gradient_never_reaches_a_detached_first_argument(case):
    old, _ = case(20)
    new, _ = case(21)
    old_leaves = tree_map(lambda leaf: leaf.clone().requires_grad_(), old.logit)
    new_leaves = tree_map(lambda leaf: leaf.clone().requires_grad_(), new.logit)
    p = rebuilt(old, tree_map(torch.Tensor.detach, old_leaves))
    q = rebuilt(new, new_leaves)
    p.kl(q).sum().backward()
    assert all(leaf.grad is None for leaf in tree_leaves(old_leaves))
    assert all(leaf.grad.abs().sum() > 0 for leaf in tree_leaves(new_leaves))


@every_case
def test_kl_gradient_is_zero_where_the_two_are_equal(case):
    old, _ = case(22)
    leaves = tree_map(lambda leaf: leaf.clone().requires_grad_(), old.logit)
    old.kl(rebuilt(old, leaves)).sum().backward()
    assert all(leaf.grad.abs().max() < 1e-12 for leaf in tree_leaves(leaves))


@every_case
def test_sample_carries_no_gradient(case):
    ours, _ = case(0)
    dist = rebuilt(ours, tree_map(lambda leaf: leaf.clone().requires_grad_(), ours.logit))
    assert not any(leaf.requires_grad for leaf in tree_leaves(dist.sample(torch.Generator())))


@pytest.mark.parametrize("case", [categorical, bernoulli, normal, tanh_normal, beta])
def test_entropy_gradient_agrees_with_finite_differences(case):
    ours, _ = case(23)
    leaves = [leaf.clone().requires_grad_() for leaf in tree_leaves(ours.logit)]
    names = list(ours.logit) if isinstance(ours.logit, dict) else None

    def entropy(*values):
        return rebuilt(ours, dict(zip(names, values, strict=True)) if names else values[0]).entropy()

    assert torch.autograd.gradcheck(entropy, leaves)


@pytest.mark.parametrize("case", [categorical, masked_categorical, bernoulli, normal, tanh_normal, beta])
def test_log_prob_gradient_agrees_with_finite_differences(case):
    ours, _ = case(24)
    action = ours.sample(torch.Generator().manual_seed(0))
    leaves = [leaf.clone().requires_grad_() for leaf in tree_leaves(ours.logit)]
    names = list(ours.logit) if isinstance(ours.logit, dict) else None

    def log_prob(*values):
        logit = dict(zip(names, values, strict=True)) if names else values[0]
        return rebuilt(ours, logit).log_prob(action)

    assert torch.autograd.gradcheck(log_prob, leaves)


# ------------------------------------------------------------------ masks


def test_illegal_index_is_never_drawn_in_ten_thousand():
    mask = torch.tensor([[True, False, True, False]]).expand(10_000, -1)
    logit = torch.tensor([[-5.0, 50.0, 0.0, 5.0]]).expand(10_000, -1)
    action = D.Categorical(logit, mask).sample(torch.Generator().manual_seed(0))
    assert torch.bincount(action, minlength=4).tolist()[1::2] == [0, 0]


def test_only_legal_index_is_always_drawn():
    mask = torch.tensor([[False, False, True]]).expand(10_000, -1)
    dist = D.Categorical(torch.zeros(10_000, 3), mask)
    assert (dist.sample(torch.Generator().manual_seed(0)) == 2).all()
    assert dist.entropy().abs().max() == 0
    assert dist.log_prob(torch.full((10_000,), 2)).abs().max() == 0


def test_illegal_index_of_a_column_is_never_drawn_in_ten_thousand():
    mask = torch.tensor([[True, False, False, True, True]]).expand(10_000, -1)
    logit = torch.tensor([[0.0, 9.0, 9.0, 0.0, 0.0]]).expand(10_000, -1)
    action = D.MultiCategorical(logit, (2, 3), mask).sample(torch.Generator().manual_seed(0))
    assert (action[:, 0] == 0).all()
    assert (action[:, 1] > 0).all()
    assert 4_700 < (action[:, 1] == 1).sum() < 5_300


def test_masked_bit_is_never_one_in_ten_thousand():
    mask = torch.tensor([[True, False]]).expand(10_000, -1)
    action = D.Bernoulli(torch.full((10_000, 2), 8.0), mask).sample(torch.Generator().manual_seed(0))
    assert action[:, 1].sum() == 0
    assert action[:, 0].sum() > 9_900


@every_masked_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_log_prob_entropy_kl_and_their_gradients_are_finite(case, dtype):
    p, _ = case(30)
    q, _ = case(31)
    action = p.sample(torch.Generator().manual_seed(0))
    leaves = tree_map(lambda leaf: leaf.to(dtype).clone().requires_grad_(), q.logit)
    old = rebuilt(p, tree_map(lambda leaf: leaf.to(dtype), p.logit))
    new = rebuilt(q, leaves)
    terms = torch.stack([new.log_prob(action), new.entropy(), old.kl(new), new.kl(old)])
    assert torch.isfinite(terms).all()
    terms.sum().backward()
    assert all(torch.isfinite(leaf.grad).all() for leaf in tree_leaves(leaves))


def test_illegal_logits_get_no_gradient():
    logit = randn(32, N, 4).requires_grad_()
    dist = D.Categorical(logit, CATEGORICAL_MASK)
    action = dist.sample(torch.Generator().manual_seed(0))
    (dist.log_prob(action) + dist.entropy()).sum().backward()
    assert torch.count_nonzero(logit.grad[~CATEGORICAL_MASK]) == 0
    assert torch.count_nonzero(logit.grad[CATEGORICAL_MASK]) > 0


def test_mask_of_all_legal_changes_nothing():
    logit = randn(33, N, 4)
    masked_all = D.Categorical(logit, torch.ones(N, 4, dtype=torch.bool))
    assert torch.equal(masked_all.log_probs, D.Categorical(logit).log_probs)


def test_illegal_logit_has_no_influence_whatever_it_is():
    logit = randn(34, N, 4)
    other = torch.where(CATEGORICAL_MASK, logit, 1e30)
    assert torch.equal(
        D.Categorical(logit, CATEGORICAL_MASK).log_probs, D.Categorical(other, CATEGORICAL_MASK).log_probs
    )


# ------------------------------------------------------------------ bounded densities


def one_dimensional(kind, logit, low, high):
    width = torch.tensor([high - low], dtype=DTYPE)
    return D.TanhNormal(logit, width / 2) if kind == "tanh_normal" else D.Beta(logit, width)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("tanh_normal", 0.0, 1.0),
        ("tanh_normal", 0.8, 0.3),
        ("tanh_normal", -0.5, 0.6),
        ("beta", 2.0, 3.0),
        ("beta", 1.5, 1.5),
        ("beta", 6.0, 1.2),
    ],
)
def test_density_integrates_to_one_over_the_environment_actions(kind, first, second):
    low, high, count = -2.0, 5.0, 400_000
    a = low + (torch.arange(count, dtype=DTYPE).unsqueeze(-1) + 0.5) * (high - low) / count
    unit = (a - low) / (high - low)
    names = ("mu", "sigma") if kind == "tanh_normal" else ("alpha", "beta")
    logit = {name: torch.full((1, 1), x, dtype=DTYPE) for name, x in zip(names, (first, second), strict=True)}
    raw = torch.atanh(2 * unit - 1) if kind == "tanh_normal" else unit
    dist = one_dimensional(kind, logit, low, high)
    total = dist.log_prob(raw).exp().sum() * (high - low) / count
    assert total.item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 0.999, 1.0, 2.0, 4.0, math.e**2, 30.0])
@pytest.mark.parametrize("mu", [0.0, 1.0, -3.0])
def test_tanh_normal_entropy_and_its_gradient_are_those_of_an_integral(mu, sigma):
    """Within 2e-4 of a sum over 200,001 points, for narrow and for wide distributions."""
    logit = {name: torch.full((1, 1), x, dtype=DTYPE) for name, x in (("mu", mu), ("sigma", sigma))}
    for leaf in logit.values():
        leaf.requires_grad_()
    dist = D.TanhNormal(logit, torch.ones(1, dtype=DTYPE))
    z = torch.linspace(-10, 10, 200_001, dtype=DTYPE)
    weight = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    u = dist.mu + dist.sigma * z
    log_det = (weight * 2 * (math.log(2) - torch.logaddexp(u, -u))).sum()
    exact = D.Normal(logit).entropy() + log_det
    assert dist.entropy().item() == pytest.approx(exact.item(), abs=2e-4)
    found, expected = (torch.autograd.grad(x.sum(), list(logit.values())) for x in (dist.entropy(), exact))
    assert [x.item() for x in found] == pytest.approx([x.item() for x in expected], abs=2e-4)


def test_tanh_normal_log_prob_is_finite_far_out():
    dist = D.TanhNormal({"mu": torch.zeros(1, 1), "sigma": torch.ones(1, 1)}, torch.ones(1))
    u = torch.tensor([[30.0]], requires_grad=True)
    log_prob = dist.log_prob(u)
    log_prob.sum().backward()
    # log N(30) - 2 (log 2 - 30)
    assert log_prob.item() == pytest.approx(
        -450 - 0.5 * math.log(2 * math.pi) - 2 * math.log(2) + 60, rel=1e-6
    )
    assert u.grad.item() == pytest.approx(-30 + 2)


def test_half_width_shifts_log_prob_and_entropy_and_leaves_the_kl():
    logit, other = gaussian(40), gaussian(41)
    narrow, wide = (D.TanhNormal(logit, w * torch.ones(2, dtype=DTYPE)) for w in (1.0, 3.0))
    action = narrow.sample(torch.Generator().manual_seed(0))
    shift = 2 * math.log(3)
    assert torch.allclose(narrow.log_prob(action) - wide.log_prob(action), torch.tensor(shift, dtype=DTYPE))
    assert torch.allclose(wide.entropy() - narrow.entropy(), torch.tensor(shift, dtype=DTYPE))
    assert torch.equal(narrow.kl(D.TanhNormal(other, WIDTH)), wide.kl(D.TanhNormal(other, WIDTH)))


def test_beta_log_prob_is_finite_at_the_very_ends():
    dist = D.Beta({"alpha": torch.tensor([[2.0]]), "beta": torch.tensor([[3.0]])}, torch.ones(1))
    assert torch.isfinite(dist.log_prob(torch.tensor([[0.0]]))).all()
    assert torch.isfinite(dist.log_prob(torch.tensor([[1.0]]))).all()


def test_beta_samples_stay_inside_in_float32_too():
    logit = {"alpha": torch.full((1000, 1), 1e6), "beta": torch.full((1000, 1), 1.0)}
    action = D.Beta(logit, torch.ones(1)).sample(torch.Generator().manual_seed(0))
    assert action.min() > 0
    assert action.max() < 1


def test_mode_of_a_flat_beta_is_the_middle():
    logit = {"alpha": torch.ones(1, 1), "beta": torch.ones(1, 1)}
    assert D.Beta(logit, torch.ones(1)).mode().item() == pytest.approx(0.5)
