"""Acting in NumPy: actions, log-probs and draws are the model's; values of networks with a shared encoder."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from broken_worlds import Masked, Sound
from fast_cases import DISCRETE, MIXED, NETWORKS, VECTOR, observations, policy_for
from precision import assert_accurate, doubles, float64
from small_worlds import SeededBox, SeededEnv, SeededMulti
from torch import nn
from worlds import merged, trainee

from ding_lite.data.rollout import as_field, as_rollout
from ding_lite.fast.acting import RAW_OUTPUT
from ding_lite.models import VAC
from ding_lite.trees import map_tree, to_dict

# Of actions, whose noise would be other numbers in float64: 80 units of the last place of a number near 1.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def compare(policy, obs):
    """Compares what acts in NumPy with the model in 3 rows: results, and the generator after them."""
    generator = policy.generator
    state = generator.get_state()
    expected, after = [policy._forward_collect(obs) for _ in range(3)], generator.get_state()
    assert not torch.equal(state, after)
    generator.set_state(state)
    n = len(expected[0]["log_prob"])
    fast = policy.acting(3 * n)
    assert fast.name == "NumPy"
    rows = [{"obs": obs, **fast.sample(obs), "valid": np.ones(n, bool)} for _ in expected]
    stacked = map_tree(lambda *leaves: torch.stack([torch.as_tensor(x) for x in leaves]), *rows)
    rollout = fast.sample.__self__.with_log_probs(as_rollout(stacked))
    exact, inputs = float64(policy), doubles(as_field(policy._inputs(obs)))
    for t, row in enumerate(expected):
        equal(rollout[t].action, row["action"])
        with torch.no_grad():
            log_probs = [
                exact.log_prob(inputs, doubles(as_field(each["action"]))) for each in (rollout[t], row)
            ]
        assert_accurate(rollout[t].log_prob, log_probs[0], row["log_prob"], log_probs[1])
    equal(fast.greedy(obs)["action"], policy._forward_eval(obs)["action"])
    assert torch.equal(generator.get_state(), after)
    return expected[0]["action"]


def equal(found, expected):
    torch.testing.assert_close(*(map_tree(torch.as_tensor, tree) for tree in (found, expected)), **CLOSE)


@pytest.mark.parametrize("network", NETWORKS)
def test_numpy_acts_as_the_model_does(network, monkeypatch):
    monkeypatch.setattr("ding_lite.fast.stacks.LARGE", 64)  # some layers are copied
    obs_space, action_space, options, _ = NETWORKS[network]
    policy = policy_for(obs_space, action_space, model=options)
    for n in (1, 8, 50, 2**10 + 3):  # 8: torch fills 16 Normals at a time
        compare(policy, observations(obs_space, n, torch.Generator().manual_seed(n)))


def test_groups_of_unequal_size_draw_the_numbers_that_torch_draws():
    policy, other = (policy_for(VECTOR, gym.spaces.Box(-1, 1, (2,), np.float32)) for _ in range(2))
    acting = policy.acting(3 * 17)
    for n in 3 * (9, 8):  # 18 and 16 Normals: torch draws multiples of 16 in another way
        obs = observations(VECTOR, n, torch.Generator().manual_seed(n))
        equal(acting.sample(obs)["action"], other._forward_collect(obs)["action"])
    assert torch.equal(policy.generator.get_state(), other.generator.get_state())


@pytest.mark.parametrize("obs_space", [VECTOR, MIXED])
def test_observations_are_scaled(obs_space):
    policy = policy_for(obs_space, normalize={"obs": True})
    obs = observations(obs_space, 50, torch.Generator())
    before = compare(policy, obs)
    policy.obs_norm.update(map_tree(lambda x: 5 * torch.as_tensor(x), obs), torch.ones(50, dtype=torch.bool))
    assert not torch.equal(compare(policy, obs), before)


class OtherActor(VAC):
    def compute_actor(self, obs):
        return -super().compute_actor(obs)


def test_what_says_something_else_is_asked_itself():
    assert policy_for(made=OtherActor(VECTOR, DISCRETE)).acting().name == "torch"


# ------------------------------------------------------------------ within a rollout


def by_torch(policy):
    """Adds a hook, so that torch runs the model."""
    policy.model.register_forward_hook(lambda *_: None)
    return policy


@pytest.mark.parametrize(
    "case",
    [
        {"kind": "ppo", "world": SeededEnv, "normalize": {"obs": True}},
        {"kind": "ppo", "world": SeededMulti},
        {"kind": "ppo", "world": SeededBox},
        {"kind": "ppo", "world": SeededBox, "model": {"bound_type": "tanh"}},
        {"kind": "ppg_offpolicy", "world": SeededEnv},
    ],
)
def test_a_rollout_is_the_one_that_torch_collects(case):
    (policy, collector), (other, others) = (trainee(n_sample=96, **case) for _ in range(2))
    by_torch(other)
    for one, each in ((policy, collector), (other, others)):
        if one.warm_up_steps:
            one.warm_up(torch.from_numpy(each.random_observations(50, 0)))
    for _ in range(2):
        stored, expected = recorded(policy, collector), recorded(other, others)
        assert RAW_OUTPUT in stored[1]
        assert "log_prob" not in stored[1]
        assert "log_prob" in expected[1]
        found, its = to_dict(stored[0]), to_dict(expected[0])
        assert found.keys() == its.keys()
        for name, field in found.items():
            torch.testing.assert_close(field, its[name], rtol=1e-5, atol=1e-5)
        assert found["log_prob"].std() > 1e-3, "so that one row's would not do for another's"
        policy.learn_mode.forward(stored[0])
        other.load_state_dict(policy.state_dict())


def recorded(policy, collector):
    """Returns the next rollout, and what the collector had stored before it was given its advantages."""
    stored = []

    def acting(samples):
        found = type(policy).acting(policy, samples)
        return found._replace(finish=lambda rollout: stored.append(to_dict(rollout)) or found.finish(rollout))

    policy.acting = acting
    rollout = collector.collect()
    del policy.acting
    return rollout, stored[0]


class OneForbidden(Masked):
    def obs(self):
        self.mask = np.ones(3, np.int8)
        self.mask[self.np_random.integers(3)] = 0
        return {"action_mask": self.mask.copy(), "pose": Sound.obs(self)}


def test_log_probs_of_masked_actions_are_those_of_their_masks():
    policy, collector = trainee("ppo", OneForbidden, n_sample=96)
    rollout, stored = recorded(policy, collector)
    assert RAW_OUTPUT in stored
    found = policy.over_rollout(policy.log_prob, rollout, "action")
    torch.testing.assert_close(rollout.log_prob, found, **CLOSE)
    rollout.obs.action_mask = torch.ones_like(rollout.obs.action_mask)
    found = policy.over_rollout(policy.log_prob, rollout, "action")
    assert not torch.allclose(rollout.log_prob, found, atol=1e-2)


def test_a_network_that_is_replaced_between_two_rollouts_acts_no_more():
    policy, collector = trainee("ppo")
    collector.collect()
    layer = nn.Linear(8, 3)
    policy.model.actor_head.layers[-1] = layer
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([0.0, 99.0, 0.0]))
    assert collector.collect().action.unique().tolist() == [1]
    heard = []
    layer.register_forward_hook(lambda *_: heard.append(1))
    collector.collect()
    assert len(heard) >= 16


# ------------------------------------------------------------------ values of a shared encoder


SHARED = {"model": {"activation": "gelu", "share_encoder": True}}  # NumPy has no gelu


@pytest.mark.parametrize(
    ("kind", "options", "world"),
    [
        ("ppo", merged(SHARED, {"learn": {"value_norm": True}, "normalize": {"obs": True}}), SeededBox),
        ("ppo", {"model": {"rnn": "lstm", "rnn_hidden_size": 4}}, SeededEnv),
        ("ppg", {"model": {"activation": "gelu", "arch": "shared"}}, SeededEnv),
    ],
)
def test_values_given_while_acting_are_those_of_the_value_network(kind, options, world):
    policy, collector = trainee(kind, world, n_sample=96, **options)
    if policy.warm_up_steps:
        policy.warm_up(torch.from_numpy(collector.random_observations(50, 0)))
    for _ in range(2):
        policy.learn_mode.forward(collector.collect())
    rollout, stored = recorded(policy, collector)
    assert torch.equal(rollout.value, stored["value"])
    assert rollout.value.std() > 1e-3, "so that one sample's would not do for another's"
    fields = {name: field for name, field in to_dict(rollout).items() if name != "value"}
    again, valid = policy.credit(as_rollout(fields)), rollout.valid
    for name in ("value", "advantage", "value_target"):
        torch.testing.assert_close(rollout[name][valid], again[name][valid], rtol=1e-4, atol=1e-4)
