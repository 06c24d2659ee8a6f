"""Off-policy PPO: what is drawn, what it is weighed by, and that on fresh data it is PPO, bit for bit."""

from __future__ import annotations

import copy
import itertools
import math
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from anything import Anything
from small_worlds import CountingEnv, SeededBox, SeededEnv, SeededTree
from worlds import digest, merged, policy_for, small_config, take_step, vector_of

from ding_lite import POLICY_REGISTRY, ConfigError, PPOPolicy, SerialPipeline, compile_config
from ding_lite.data.collector import Collector
from ding_lite.data.samples import minibatch_sizes
from ding_lite.models import VAC
from ding_lite.rl.losses import weighted_mean
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.testing import ACTION_SPACES, MatchEnv, check_policy
from ding_lite.trees import map_tree

BATCH, N_SAMPLE, ENVS = 16, 60, 3
REUSED = {  # four iterations of data, each with some steps on it
    "learn": {"update_per_collect": 5, "learning_rate": 0.02, "adv_norm": False},
    "other": {"replay_buffer": {"max_use": 100, "max_staleness": 3, "replay_buffer_size": 10_000}},
}


def make(kind="ppo_offpolicy", cls=SeededEnv, autoreset="same_step", env=None, envs=ENVS, **policy):
    """Returns (policy, collect); every transition of what ``collect()`` returns has a ``mark`` of its own."""
    base = {
        "type": kind,
        "model": {"encoder_hidden_size_list": [16]},
        "learn": {"batch_size": BATCH},
        "collect": {"n_sample": N_SAMPLE},
    }
    user = {"env": {"type": cls, "collector_env_num": envs}, "policy": merged(base, policy)}
    cfg = compile_config(user).values.policy
    envs = vector_of(lambda index: (env or cls)(), envs, autoreset=autoreset)
    policy = (POLICY_REGISTRY.get(kind) if isinstance(kind, str) else kind)(
        cfg, envs.obs_space, envs.action_space
    )
    collector, count = Collector(envs, policy.collect_mode, cfg.collect.n_sample), itertools.count()

    def collect():
        rollout = collector.collect()
        rollout.mark = 1000 * next(count) + torch.arange(rollout.valid.numel()).view(rollout.valid.shape)
        return rollout

    return policy, collect


def aged(iterations=4, **options):
    """Returns a policy in the middle of an iteration: a rollout of age 0 beside older ones, no step yet."""
    options = {"autoreset": "next_step", **merged(REUSED, options)}
    policy, collect = make(**options)
    for _ in range(iterations):
        policy.learn_mode.forward(collect())
    policy.sources["policy"].push(collect())
    assert policy.buffers["policy"].age.unique().tolist() == list(range(min(iterations, 3) + 1))
    return policy, policy.buffers["policy"]


def passes(policy):
    """Returns the passes of the policy's minibatches."""
    return policy.sources["policy"].passes(policy.clip_ratio)


def with_outputs(policy, batch):
    """Returns a batch with the outputs that the losses get."""
    logit, value = policy.model.compute_actor_critic(batch.obs)
    return batch.with_outputs(dist=policy.distribution(batch.obs, logit), new_value=value)


def first_pass(policy):
    """Returns all minibatches of the first pass, without a step between them."""
    policy.buffers["policy"].limits = copy.copy(policy.buffers["policy"].limits)
    object.__setattr__(policy.buffers["policy"].limits, "steps", 10_000)
    return list(next(passes(policy)))


def at(buffer, field, batch):
    """Returns the numbers of a field (T, C) at the transitions of a batch, found by their marks."""
    marks = buffer.data.mark.flatten()
    order = marks.argsort()
    return field.flatten()[order[torch.searchsorted(marks[order], batch.mark)]]


def ages_of(buffer, batch):
    return at(buffer, buffer.age.expand_as(buffer.uses), batch)


def log_prob_of(policy, obs, action):
    """Returns log pi(a|s) of a discrete policy in float64, with its network written out."""
    state = {name: tensor.double() for name, tensor in policy.model.state_dict().items()}

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    features = torch.tanh(linear(policy.inputs(obs).double(), "actor_encoder.trunk.0"))
    logit = linear(features, "actor_head.layers.0")
    return torch.distributions.Categorical(logits=logit).log_prob(action)


def moved(policy, size=0.2):
    """Moves all parameters a little, as some steps would."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(size * torch.randn(p.shape, generator=draw))


# ------------------------------------------------------------------ on fresh data it is PPO

EQUAL = {
    "plain": {},
    "fillers": {"autoreset": "next_step"},
    "normalised": {"autoreset": "next_step", "normalize": {"obs": True, "reward": True}},
    "raw values": {"learn": {"value_norm": False, "value_clip": 0.3}},
    "batch": {"learn": {"adv_norm": "batch", "dual_clip": 3.0}},
    "box": {"cls": SeededBox, "autoreset": "next_step"},
    "tree": {"cls": SeededTree},
    "nstep": {"nstep_return": True},
    "kl": {"learn": {"kl_penalty": 0.5}, "cls": SeededTree},
    "target_kl": {"learn": {"target_kl": 1e-3}},
    "behaviour": {"off": {"learn": {"proximal": "behaviour"}}},
}


def learned(kind, iterations=2, **options):
    policy, collect = make(kind, **merged({"learn": {"learning_rate": 3e-3}}, options))
    metrics = [policy.learn_mode.forward(collect()) for _ in range(iterations)]
    state = policy.state_dict()
    return digest({name: state[name] for name in state if name != "policy_buffer"}), metrics


@pytest.mark.daily(8)
@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", EQUAL)
def test_fresh_data_give_the_parameters_of_ppo_bit_for_bit(name, recompute, epochs):
    shared = {"recompute_adv": recompute, **EQUAL[name]}
    off = shared.pop("off", {})
    steps = epochs * (math.ceil(N_SAMPLE / BATCH) if shared.get("autoreset") is None else 100)
    other = {"learn": {"update_per_collect": steps}, "other": {"replay_buffer": {"max_use": epochs}}}
    on, metrics = learned("ppo", **merged(shared, {"learn": {"epoch_per_collect": epochs}}))
    found, off_metrics = learned("ppo_offpolicy", **merged(merged(shared, other), off))
    assert found == on
    assert [m["updates"] for m in off_metrics] == [m["updates"] for m in metrics]
    assert N_SAMPLE % BATCH, "the last minibatch must be short"
    assert all(m["buffer_age"] == 0 for m in off_metrics)


DROPPED = {
    "nothing": {},
    "one step fewer": {"learn": {"update_per_collect": 15}},
    "one use more": {"learn": {"update_per_collect": 20}, "other": {"replay_buffer": {"max_use": 5}}},
    "older data": {"other": {"replay_buffer": {"max_use": 5}}},
    "priority": {"priority": True},
}


@pytest.mark.parametrize("name", DROPPED)
def test_negative_control_without_any_condition_the_parameters_differ(name):
    on, _ = learned("ppo", learn={"epoch_per_collect": 4})
    other = {"learn": {"update_per_collect": 16}, "other": {"replay_buffer": {"max_use": 4}}}
    assert (learned("ppo_offpolicy", **merged(other, DROPPED[name]))[0] == on) == (name == "nothing")


# ------------------------------------------------------------------ the objective


def test_fresh_samples_weigh_exactly_one_and_keep_their_stored_log_prob():
    policy, buffer = aged()
    stored = buffer.data.log_prob.clone()
    seen = set()
    for batch in first_pass(policy):
        age, own = ages_of(buffer, batch), at(buffer, stored, batch)
        fresh = age == 0
        assert torch.equal(batch.policy_weight[fresh], torch.ones(int(fresh.sum())))
        assert torch.equal(batch.log_prob[fresh], own[fresh])
        assert (batch.policy_weight <= 2.0).all()
        assert not torch.isclose(batch.policy_weight[~fresh], torch.ones(1), atol=1e-6).all()
        expected = (batch.log_prob - own).exp().clamp(max=2.0)
        assert torch.allclose(batch.policy_weight, expected, rtol=1e-6)
        seen |= set(age.tolist())
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("proximal", ["decoupled", "behaviour"])
@pytest.mark.parametrize("cls", [SeededEnv, SeededBox, SeededTree])
def test_ratio_of_the_first_minibatch_is_one_where_the_clip_is_centred(cls, proximal):
    policy, buffer = aged(cls=cls, learn={"proximal": proximal}, normalize={"obs": True})
    batch = with_outputs(policy, first_pass(policy)[0])
    ratio = (batch.dist.log_prob(batch.action) - batch.log_prob).exp()
    fresh = ages_of(buffer, batch) == 0
    assert fresh.any()
    assert not fresh.all()
    assert torch.allclose(ratio[fresh], torch.ones(1), atol=1e-5)
    assert torch.allclose(ratio, torch.ones(1), atol=1e-5) == (proximal == "decoupled")


def test_proximal_policy_is_computed_once_an_iteration_before_any_step(monkeypatch):
    policy, collect = make(**REUSED, autoreset="next_step")
    policy.learn_mode.forward(collect())
    calls, plain = [], policy.rollout_log_probs

    def spy(rollout, place):
        calls.append((plain(rollout, place), [p.detach().clone() for p in policy.model.parameters()]))
        return calls[-1][0]

    monkeypatch.setattr(policy, "rollout_log_probs", spy)
    for _ in range(2):
        # value_norm moves the value head alone, before the policy's own parameters are looked at.
        before = policy.model.actor_head.layers[0].weight.detach().clone()
        calls.clear()
        metrics = policy.learn_mode.forward(collect())
        assert metrics["updates"] == 5
        assert len(calls) == 1
        names = [n for n, _ in policy.model.named_parameters()]
        assert torch.equal(calls[0][1][names.index("actor_head.layers.0.weight")], before)


def test_share_outside_the_clip_by_age_is_that_counted_by_hand():
    policy, buffer = aged()
    start = copy.deepcopy(policy)
    first_pass(policy)
    told = policy.sources["policy"].metrics
    data, live = buffer.data, buffer.data.valid
    prox = log_prob_of(start, data.obs.flatten(0, 1), data.action.flatten()).view(live.shape)
    ratio = (prox - data.log_prob).exp()
    outside = (ratio - 1).abs() > 0.2
    for age in range(4):
        of_age = live & (buffer.age == age)
        expected = float(outside[of_age].float().mean())
        assert told[f"buffer_outside_clip_age_{age}"] == pytest.approx(expected, abs=1e-6)
        assert (expected > 0) == (age > 0)
    assert told["buffer_weight_mean"] == pytest.approx(float(ratio[live].mean()), rel=1e-5)
    assert told["buffer_weight_max"] == pytest.approx(float(ratio[live].max()), rel=1e-5)
    assert told["buffer_age"] == pytest.approx(float(buffer.age.expand_as(live)[live].float().mean()))
    assert told["buffer_samples"] == int(live.sum())


# ------------------------------------------------------------------ how much is drawn


def spied(policy):
    """Returns a list that every minibatch of the policy's loss is appended to."""
    seen, plain = [], policy.loss
    policy.loss = lambda batch: (seen.append(batch.mark.tolist()), plain(batch))[1]
    return seen


@pytest.mark.parametrize("steps", [1, 3, 11])
@pytest.mark.parametrize("priority", [False, True])
def test_update_per_collect_is_the_number_of_steps(steps, priority):
    policy, collect = make(**merged(REUSED, {"priority": priority, "learn": {"update_per_collect": steps}}))
    for _ in range(3):
        seen = spied(policy)
        metrics = policy.learn_mode.forward(collect())
        assert metrics["updates"] == len(seen) == steps
        assert metrics["buffer_missing_updates"] == 0
        policy.loss = type(policy).loss.__get__(policy)


@pytest.mark.parametrize(
    ("reuse", "batch", "steps"), [(3.0, 16, 12), (0.1, 16, 1), (1.0, 60, 1), (2.5, 32, 5)]
)
def test_default_number_of_steps_is_that_of_the_reuse(reuse, batch, steps):
    policy, collect = make(
        learn={"reuse": reuse, "batch_size": batch}, other={"replay_buffer": {"max_use": 50}}
    )
    assert steps == math.ceil(reuse * N_SAMPLE / batch)
    for _ in range(2):
        assert policy.learn_mode.forward(collect())["updates"] == steps


def test_too_few_live_samples_are_all_taken_and_the_missing_steps_told():
    policy, collect = make(learn={"update_per_collect": 11}, other={"replay_buffer": {"max_use": 2}})
    seen = spied(policy)
    metrics = policy.learn_mode.forward(collect())
    assert metrics["updates"] == 8
    assert metrics["buffer_missing_updates"] == 3
    assert sorted(itertools.chain(*seen)) == sorted([*range(N_SAMPLE), *range(N_SAMPLE)])


def test_what_is_drawn_is_exactly_what_the_limits_allow():
    """Ten iterations against a plain account of every transition: uses, ages, and room."""
    max_use, staleness, room, steps = 3, 2, 150, 9
    policy, collect = make(
        autoreset="next_step",
        learn={"update_per_collect": steps},
        other={"replay_buffer": dict(max_use=max_use, max_staleness=staleness, replay_buffer_size=room)},
    )
    seen, uses, kept = spied(policy), {}, []
    reasons = set()
    for iteration in range(10):
        rollout = collect()
        uses |= dict.fromkeys(rollout.mark[rollout.valid].tolist(), 0)
        kept.append(iteration)
        while len(kept) * N_SAMPLE > room:
            reasons.add("room")
            del kept[0]
        seen.clear()
        policy.learn_mode.forward(rollout)
        assert len(seen) == steps
        batches = iter(seen)
        left = steps
        while left:
            young = [born for born in kept if iteration - born <= staleness]
            live = [mark for mark in uses if mark // 1000 in young and uses[mark] < max_use]
            sizes = minibatch_sizes(len(live), BATCH)[:left]
            drawn = [next(batches) for _ in sizes]
            assert [len(batch) for batch in drawn] == sizes
            together = list(itertools.chain(*drawn))
            assert len(set(together)) == len(together), "a sample was drawn twice in one pass"
            assert set(together) <= set(live)
            if sum(sizes) == len(live):
                reasons.add("whole pass")
                assert set(together) == set(live)
            for mark in together:
                uses[mark] += 1
            left -= len(sizes)
        reasons |= {"spent"} if max_use in uses.values() else set()
        kept = [
            born
            for born in kept
            if iteration + 1 - born <= staleness
            and any(n < max_use for mark, n in uses.items() if mark // 1000 == born)
        ]
        buffer = policy.buffers["policy"]
        assert sorted(set(buffer.version.tolist())) == kept
        marks, counts = buffer.data.mark[buffer.data.valid], buffer.uses[buffer.data.valid]
        assert {m: uses[m] for m in marks.tolist()} == dict(zip(marks.tolist(), counts.tolist(), strict=True))
    assert max(uses.values()) == max_use
    assert reasons == {"room", "whole pass", "spent"}


# ------------------------------------------------------------------ priorities

PRIORITY = {"priority": True, "priority_IS_weight": True}


def chi_square(counts, share):
    """Returns the statistic in units of its own standard deviation from its mean."""
    expected = share * counts.sum()
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


def test_priority_is_a_power_of_the_advantage():
    policy, collect = make(**PRIORITY, other={"replay_buffer": {"alpha": 0.5}})
    rollout = collect()
    policy.sources["policy"].push(rollout)
    expected = rollout.advantage.double().abs().sqrt().float()
    assert torch.allclose(policy.buffers["policy"].priority, expected, atol=2e-3)
    assert expected.std() > 0.1


@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_spent_is_not_drawn_in_a_later_pass(recompute):
    kept = {"max_use": 2, "max_staleness": 0, "alpha": 1.0}
    options = merged(PRIORITY, {"other": {"replay_buffer": kept}, "recompute_adv": recompute})
    policy, collect = make(**options, learn={"update_per_collect": 100, "reuse": 1.0})
    rollout = collect()
    policy.sources["policy"].push(rollout)
    drawn = []
    for minibatches in passes(policy):
        drawn.append([])
        for batch in minibatches:
            drawn[-1].append(batch.mark)
    assert len(drawn) > 2
    marks, draws = torch.cat([torch.cat(marks) for marks in drawn]).unique(return_counts=True)
    assert marks.tolist() == rollout.mark.flatten().tolist()
    assert draws.tolist() == len(marks) * [2]


class Noting(VAC):
    """Notes of each computation of values whether it has a gradient and whether it is in training mode."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen = set()

    def compute_critic(self, obs):
        self.seen.add((torch.is_grad_enabled(), self.training))
        return super().compute_critic(obs)


@pytest.mark.parametrize("priority", [False, True])
def test_values_between_gradient_steps_are_those_of_eval_mode(priority):
    policy, collect = make(priority=priority, model={"type": Noting}, learn={"compile": False})
    rollout = collect()
    policy.model.seen.clear()
    policy.learn_mode.forward(rollout)
    assert policy.model.seen == {(False, False), (True, True)}


def test_a_prioritised_minibatch_is_made_again_with_its_weights():
    policy, collect = make(**PRIORITY)
    policy.sources["policy"].push(collect())
    for minibatches in passes(policy):
        for batch in minibatches:
            fields, again = batch.fields(), batch.remake().fields()
            assert again.keys() == fields.keys() >= {"value_weight", "policy_weight"}
            assert all(torch.equal(again[name], fields[name]) for name in fields if name != "obs")


@pytest.mark.daily(1)
@pytest.mark.parametrize("size", [1, 2])
def test_priorities_are_sampled_in_proportion(size):
    policy, collect = make(**PRIORITY, learn={"batch_size": size, "adv_norm": False}, collect={"n_sample": 6})
    policy.sources["policy"].push(collect())
    buffer = policy.buffers["policy"]
    buffer.priority = torch.tensor([1.0, 2.0, 3.0, 5.0, 8.0, 0.5]).view(2, 3)
    buffer.limits = type(buffer.limits)(10**9)
    source, rows = policy.sources["policy"], torch.arange(6)
    training_set = source.training_set(buffer.data)
    p = buffer.priority.double().flatten() / buffer.priority.sum()
    outcomes = list(itertools.combinations(range(6), size))
    # Without replacement: one after the other, each in proportion among those left.
    share = torch.tensor(
        [
            sum(p[order[0]] * (p[order[1]] / (1 - p[order[0]]) if size == 2 else 1) for order in orders)
            for orders in (list(itertools.permutations(outcome)) for outcome in outcomes)
        ]
    )
    counts = torch.zeros(len(outcomes), dtype=torch.float64)
    for _ in range(4000):
        batch = next(source._prioritized(training_set, buffer.data.advantage.flatten(), rows, 1))
        counts[outcomes.index(tuple(sorted(batch.mark.tolist())))] += 1
    assert chi_square(counts, share) < 5
    assert chi_square(counts, torch.full_like(share, 1 / len(share))) > 50, "negative control"


@pytest.mark.parametrize("stale", [False, True])
def test_importance_weights_are_those_of_the_formula_on_both_losses(stale):
    options = merged(PRIORITY, {"other": {"replay_buffer": {"beta": 0.7}}})
    policy, buffer = aged(iterations=4 if stale else 0, **options)
    live = buffer.live()
    share = buffer.priority.double()[live] / buffer.priority.double()[live].sum()
    weight = torch.zeros(live.shape, dtype=torch.float64)
    weight[live] = (len(share) * share) ** -0.7
    weight /= weight.max()
    batch = with_outputs(policy, next(next(passes(policy))))
    expected = at(buffer, weight, batch)
    assert torch.allclose(batch.value_weight.double(), expected, rtol=1e-4)
    mu = buffer.data.log_prob
    old = at(buffer, (policy.sources["policy"]._proximal.get("log_prob", mu) - mu).exp(), batch).clamp(max=2)
    assert torch.allclose(batch.policy_weight.double(), expected * old, rtol=1e-4)
    assert torch.allclose(batch.value_weight, batch.policy_weight, rtol=1e-3) != stale
    assert batch.value_weight.std() > 0.01

    _, metrics = policy.loss(batch)
    error = 0.5 * (batch.new_value.detach() - batch.value_target) ** 2
    assert float(metrics["value_loss"].detach()) == pytest.approx(float((expected * error).mean()), rel=1e-4)
    assert float(metrics["value_loss"].detach()) != pytest.approx(float(error.mean()), rel=1e-3)
    ratio = (batch.dist.log_prob(batch.action) - batch.log_prob).exp()
    surrogate = torch.min(ratio * batch.advantage, ratio.clamp(0.8, 1.2) * batch.advantage)
    by_hand = -float((expected * old * surrogate.detach()).mean())
    assert float(metrics["policy_loss"].detach()) == pytest.approx(by_hand, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("value_norm", [False, True])
def test_priorities_are_refreshed_after_use_and_only_of_what_was_used(value_norm):
    policy, buffer = aged(**merged(PRIORITY, {"learn": {"value_norm": value_norm}}))
    before = buffer.priority.clone()
    minibatches = next(passes(policy))
    first = next(minibatches)
    assert torch.equal(buffer.priority, before)
    moved(policy)  # or the newest value would be that of the pass's start
    batch = next(minibatches)
    value = policy.model.compute_critic(batch.obs).detach()
    take_step(policy.optimizer, policy.loss, batch)
    next(minibatches)
    scale = float(policy.value_norm.std) if value_norm else 1.0
    # Of these stale rollouts the weights of V-trace are in the targets, and not in the advantages.
    newest = at(buffer, buffer.data.advantage, batch) - scale * (value - batch.value)
    assert torch.allclose(at(buffer, buffer.priority, batch), (newest.abs() + 1e-6) ** 0.6, rtol=1e-4)
    used = torch.isin(buffer.data.mark, torch.cat([first.mark, batch.mark]))
    assert torch.equal(buffer.priority[~used], before[~used])
    assert not torch.allclose(buffer.priority[used], before[used], rtol=1e-3)


def test_max_use_holds_under_priority_and_no_sample_is_left_alone():
    kept = {"max_use": 2, "max_staleness": 3, "alpha": 1.0}
    policy, collect = make(
        priority=True,
        learn={"update_per_collect": 50},
        collect={"n_sample": 4 * BATCH + 1},
        other={"replay_buffer": kept},
        env=SeededEnv,
    )
    seen = spied(policy)
    for _ in range(3):
        seen.clear()
        rollout = collect()
        policy.learn_mode.forward(rollout)
        drawn = list(itertools.chain(*seen))
        assert sorted(drawn) == sorted(2 * rollout.mark.flatten().tolist())
        assert all(len(set(batch)) == len(batch) > 1 for batch in seen)


def test_last_sample_of_a_prioritised_pass_joins_the_minibatch_before():
    policy, collect = make(
        priority=True,
        learn={"update_per_collect": 50, "batch_size": 59},
        other={"replay_buffer": {"max_use": 1}},
    )
    seen = spied(policy)
    policy.learn_mode.forward(collect())
    assert [len(batch) for batch in seen] == [60]


# ------------------------------------------------------------------ what is refused before training

REFUSED = {
    "a buffer smaller than a rollout": (
        "ppo_offpolicy",
        {"other": {"replay_buffer": {"replay_buffer_size": 59}}},
        r"replay_buffer_size: 59 transitions, and a rollout alone has 60",
    ),
    "a buffer of the default size smaller than a rollout": (
        "ppg_offpolicy",
        {"collect": {"n_sample": 2}, "learn": {"batch_size": 2}, "envs": 9},
        r"value\.replay_buffer_size: 8 transitions, and a rollout alone has 9",
    ),
    "a minibatch larger than a rollout": (
        "ppo_offpolicy",
        {"learn": {"batch_size": 61}},
        r"policy\.learn\.batch_size: .* 61 .* 60\b",
    ),
    "max_use 0": (
        "ppo_offpolicy",
        {"other": {"replay_buffer": {"max_use": 0}}},
        r"max_use.*at least 1 .*got 0",
    ),
    "a bound below the weight of fresh samples": (
        "ppo_offpolicy",
        {"learn": {"weight_bound": 0.5}},
        r"weight_bound.*at least 1, got 0.5",
    ),
    "importance weights without priority": (
        "ppo_offpolicy",
        {"priority_IS_weight": True},
        r"priority_IS_weight: True would change nothing, since it weighs the draws of policy\.priority",
    ),
    "nstep_return with value_clip": (
        "ppo_offpolicy",
        {"nstep_return": True, "learn": {"value_clip": 0.2}},
        r"nstep_return: .*value_clip",
    ),
    "epochs off-policy": (
        "ppo_offpolicy",
        {"learn": {"epoch_per_collect": 3}},
        r"learn\.epoch_per_collect: 3 would change nothing, since it is for fresh rollouts.*learn\.reuse",
    ),
    "priority of PPG": (
        "ppg_offpolicy",
        {"priority": True},
        r"priority.*equal probability",
    ),
}
OFF_POLICY_VALUES = {
    "priority": True,
    "priority_IS_weight": True,
    "learn.update_per_collect": 7,
    "learn.reuse": 2.0,
    "learn.proximal": "behaviour",
    "learn.weight_bound": 3.0,
    "other.replay_buffer.replay_buffer_size": 5000,
    "other.replay_buffer.max_use": 4,
    "other.replay_buffer.max_staleness": 1,
    "other.replay_buffer.alpha": 0.5,
    "other.replay_buffer.beta": 0.5,
}


@pytest.mark.parametrize("name", REFUSED)
def test_config_that_cannot_work_is_refused_saying_why(name):
    kind, options, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        make(kind, **options)


@pytest.mark.parametrize("path", OFF_POLICY_VALUES)
def test_key_of_the_other_column_is_refused_on_policy(path):
    nested = OFF_POLICY_VALUES[path]
    for name in reversed(path.split(".")):
        nested = {name: nested}
    pattern = rf"policy\.{path}: .* would change nothing, since it belongs to on_policy=False"
    with pytest.raises(ConfigError, match=pattern):
        make("ppo", **nested)
    needed = {"priority": True} if path == "priority_IS_weight" else {}
    make("ppo", on_policy=False, **nested, **needed)


# ------------------------------------------------------------------ everything else it must work with


class Unclipped(PPOPolicy):
    """A policy of one's own: a plain policy gradient with the weights it is given."""

    def policy_loss(self, batch):
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        loss = -weighted_mean(log_ratio.exp() * batch.advantage, batch.policy_weight)
        return loss, {"policy_loss": loss}


@pytest.mark.parametrize("on_policy", [True, False])
def test_policy_of_ones_own_works_in_both_columns(on_policy):
    check_policy(Unclipped, {"on_policy": on_policy}, learns=False)
    options = {} if on_policy else {**PRIORITY, **REUSED}
    policy, collect = make(Unclipped, on_policy=on_policy, cls=SeededTree, **options)
    for _ in range(3):
        metrics = policy.learn_mode.forward(collect())
    assert np.isfinite(metrics["policy_loss"])
    assert on_policy or metrics["buffer_age"] > 0


@pytest.mark.daily(6)
@pytest.mark.parametrize("objective", ["decoupled", "behaviour", "kl"])
@pytest.mark.parametrize("title", ACTION_SPACES)
def test_every_action_space_learns_from_old_data(title, objective):
    how = {"kl_penalty": 0.5} if objective == "kl" else {"proximal": objective}
    policy, collect = make(
        cls=MatchEnv,
        env=lambda: MatchEnv(ACTION_SPACES[title]),
        normalize={"obs": True, "reward": True},
        learn={**how, "update_per_collect": 5},
        other=REUSED["other"],
        **PRIORITY,
    )
    before = digest(policy.model.state_dict())
    given = set()
    for iteration in range(4):
        metrics = policy.learn_mode.forward(collect())
        assert all(math.isfinite(value) for value in metrics.values())
        assert (metrics["buffer_age"] > 0) == (iteration > 0)
        given |= set(metrics)
    assert given == set(policy.learn_mode.monitor_vars())
    assert digest(policy.model.state_dict()) != before


def dict_world():
    """Masked actions beside an image, a number and a vector."""
    env = Anything("nested", "discrete", mask=True)
    return MaskInDict(env)


class MaskInDict(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        mask = gym.spaces.MultiBinary(3)
        self.observation_space = gym.spaces.Dict({**env.observation_space.spaces, "action_mask": mask})

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        return {**obs, "action_mask": info["action_mask"]}, info

    def step(self, action):
        obs, *others, info = self.env.step(action)
        return ({**obs, "action_mask": info["action_mask"]}, *others, info)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_masks_and_trees_stay_with_their_transitions_as_they_age(autoreset):
    policy, buffer = aged(
        cls=Anything,
        env=dict_world,
        autoreset=autoreset,
        model={"encoder_hidden_size_list": [16]},
        learn={"kl_penalty": 0.1},
        normalize={"obs": True},
    )
    obs = buffer.data.obs
    assert obs.ape.eye.dtype == torch.uint8
    chosen = obs.action_mask.gather(-1, buffer.data.action[..., None])[buffer.data.valid]
    assert chosen.bool().all(), "an action was stored beside the mask of another"
    for batch in first_pass(policy):
        loss, _ = policy.loss(batch)
        log_prob = with_outputs(policy, batch).dist.log_prob(batch.action)
        assert (log_prob > -50).all(), "an action that its mask forbids"
        assert torch.allclose(log_prob, batch.log_prob, atol=1e-4)
        assert torch.isfinite(loss)
    batch.obs.action_mask = 1 - batch.obs.action_mask.long()
    log_prob = with_outputs(policy, batch).dist.log_prob(batch.action)
    assert (log_prob < -50).any(), "negative control"


# ------------------------------------------------------------------ stopped and resumed

RUN = small_config(
    SeededEnv,
    max_env_step=10_000,
    env={"collector_env_num": 3, "manager": {"type": "base", "autoreset": "next_step"}},
    policy={
        "type": "ppo_offpolicy",
        "priority": True,
        "priority_IS_weight": True,
        "normalize": {"obs": True, "reward": True},
        "learn": {"update_per_collect": 5, "batch_size": 16, "learning_rate": 3e-3},
        "collect": {"n_sample": 60},
        "other": REUSED["other"],
    },
)
del RUN["policy"]["learn"]["epoch_per_collect"]


def state_after(pipeline, iterations):
    for progress in pipeline:
        if progress.iteration == iterations:
            break
    pipeline.close()
    state, config = load_checkpoint(pipeline.folder / "ckpt" / "last")
    state.pop("clock")
    return state, config


@pytest.mark.daily(1)
@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("priority", [False, True])
def test_half_and_half_with_old_data_in_the_buffer_equal_straight_through(priority, cut, tmp_path):
    both = {"priority": priority, "priority_IS_weight": priority}
    config = merged(RUN, {"policy": both})
    straight, _ = state_after(SerialPipeline(config, folder=tmp_path / "straight"), 6)
    half, _ = state_after(SerialPipeline(config, folder=tmp_path / "half"), cut)
    assert len(np.unique(half["policy"]["policy_buffer"]["version"])) == cut
    whole, _ = state_after(SerialPipeline.resume(tmp_path / "half", trust=["small_worlds"]), 6)
    assert {k: digest(v) for k, v in whole.items()} == {k: digest(v) for k, v in straight.items()}


CHANGES = {
    "nothing": lambda buffer: None,
    "uses": lambda buffer: buffer["uses"].__setitem__(0, 100),
    "version": lambda buffer: buffer["version"].__iadd__(1),
    "priority": lambda buffer: buffer["priority"].__setitem__(0, 9.0),
    "log_prob": lambda buffer: buffer["data"]["log_prob"].__imul__(1.5),
    "data": lambda buffer: buffer.update(data=None),
}


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A run that was stopped after 3 iterations, and its network after 5."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    state_after(SerialPipeline(RUN, folder=folder), 3)
    copied = shutil.copytree(folder, folder.with_name("whole"))
    whole, _ = state_after(SerialPipeline.resume(copied, trust=["small_worlds"]), 5)
    return folder, digest(whole["policy"]["model"])


@pytest.mark.parametrize("name", CHANGES)
def test_negative_control_resuming_with_another_buffer_ends_elsewhere(name, cut, tmp_path):
    run, expected = shutil.copytree(cut[0], tmp_path / "run"), cut[1]
    state, config = load_checkpoint(run / "ckpt" / "last")
    CHANGES[name](state["policy"]["policy_buffer"])
    save_checkpoint(run / "ckpt" / "last", state, config)
    found, _ = state_after(SerialPipeline.resume(run, trust=["small_worlds"]), 5)
    assert (digest(found["policy"]["model"]) == expected) == (name == "nothing")


def test_nothing_of_a_transition_changes_while_it_is_in_the_buffer():
    """But its credit and its priority; the collector's arrays are overwritten meanwhile."""
    policy, collect = make(**REUSED, autoreset="next_step", cls=SeededTree)
    first = None
    for _ in range(4):
        rollout = collect()
        if first is None:
            first = map_tree(torch.clone, rollout)
        policy.learn_mode.forward(rollout)
        buffer = policy.buffers["policy"]
        if (buffer.version == 0).any():
            for name in ("obs", "action", "log_prob", "reward", "terminated", "truncated", "valid", "mark"):
                kept = map_tree(lambda x, of=buffer.version == 0: x[:, of], buffer.data[name])
                assert digest(kept) == digest(first[name]), name
    assert policy.buffers["policy"].age.max() == 3


def test_importance_weights_are_on_the_kl_penalty_too():
    learn = {"kl_penalty": 0.7, "entropy_weight": 0.0}
    policy, _ = aged(**merged(PRIORITY, {"learn": learn}))
    batch = next(next(passes(policy)))
    moved(policy)
    batch = with_outputs(policy, batch)
    kl = policy.distribution(batch.obs, batch.old_logit).kl(batch.dist).detach()
    gain = ((batch.dist.log_prob(batch.action) - batch.log_prob).exp() * batch.advantage).detach()
    by_hand = (0.7 * batch.value_weight * kl - batch.policy_weight * gain).mean()
    other = (0.7 * kl - batch.policy_weight * gain).mean()
    found = float(policy.policy_loss(batch)[1]["policy_loss"].detach())
    assert found == pytest.approx(float(by_hand), rel=1e-4)
    assert found != pytest.approx(float(other), rel=1e-3)


def test_the_largest_importance_weight_is_that_of_what_may_still_be_drawn():
    policy, collect = make(
        priority=True,
        priority_IS_weight=True,
        learn={"update_per_collect": 50},
        other={"replay_buffer": {"max_use": 1, "beta": 0.7}},
    )
    policy.sources["policy"].push(collect())
    buffer = policy.buffers["policy"]
    minibatches = next(passes(policy))
    for k in range(3):
        left = (buffer.uses < 1).flatten()
        priority = buffer.priority.flatten().double()
        weight = (priority / priority[left].sum() * int(left.sum())) ** -0.7
        batch = next(minibatches)
        expected = at(buffer, weight / weight[left].max(), batch)
        assert torch.allclose(batch.value_weight.double(), expected, rtol=1e-4), k


def test_nstep_targets_bootstrap_after_an_ignored_termination():
    from ding_lite.data.collector import Collector

    envs = vector_of(lambda index: CountingEnv(((3, "terminated"),)), 1, final_of_terminated=True)
    policy = policy_for(
        envs,
        nstep_return=True,
        nstep=2,
        learn={"ignore_done": True, "value_norm": False},
        collect={"discount_factor": 0.5},
    )
    rollout = Collector(envs, policy.collect_mode, 4).collect()
    after = float(policy.values(torch.tensor([[0.0, 3.0]])))
    assert abs(after) > 1e-3
    assert float(rollout.value_target[2, 0]) == pytest.approx(3 + 0.5 * after, abs=1e-5)
    assert float(rollout.value_target[1, 0]) == pytest.approx(2 + 0.5 * 3 + 0.25 * after, abs=1e-5)


def test_a_pass_that_is_cut_short_takes_a_random_part_of_the_live_samples():

    policy, collect = make(learn={"update_per_collect": 1}, other={"replay_buffer": {"max_use": 50}})
    seen = spied(policy)
    policy.learn_mode.forward(collect())
    assert [len(minibatch) for minibatch in seen] == [BATCH]
    assert max(seen[0]) >= 2 * BATCH, "the first rows alone"


def test_a_sample_without_an_advantage_may_still_be_drawn():
    policy, collect = make(**PRIORITY)
    rollout = collect()
    rollout.advantage[:] = 0.0
    policy.sources["policy"].push(rollout)
    assert (policy.buffers["policy"].priority > 0).all()
