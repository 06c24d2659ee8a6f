"""Values that a shared network gives as it acts: those of the value network, and only while they are new."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import merged, rollout_log_probs, trainee

from ding_lite.fast.acting import ACTING_VALUE
from ding_lite.models.actor_critic import VAC
from ding_lite.policies import PPOPolicy
from ding_lite.trees import to_dict

WIDE = {"model": {"encoder_hidden_size_list": [200, 200]}}  # too wide for NumPy to act in its place
SHARED = merged(WIDE, {"model": {"share_encoder": True}})
POLICIES = {
    "ppo": ("ppo", SHARED),
    "ppo, value_norm off": ("ppo", merged(SHARED, {"learn": {"value_norm": False}})),
    "ppo, scaled observations": ("ppo", merged(SHARED, {"normalize": {"obs": True}})),
    "off-policy ppo": ("ppo_offpolicy", SHARED),
    "ppg, shared": ("ppg", merged(WIDE, {"model": {"arch": "shared"}})),
    "ppg, detach": ("ppg", merged(WIDE, {"model": {"arch": "detach"}})),
}


def recorded(policy, collector):
    """Returns the next rollout, and what the collector had stored before it was given its advantages."""
    stored = []

    def watched(rollout, get_train_sample):
        stored.append(to_dict(rollout))
        return get_train_sample(rollout)

    def specialize(mode):
        mode = policy.collect_mode.for_rollout()
        return mode._replace(get_train_sample=lambda rollout: watched(rollout, mode.get_train_sample))

    collector.mode = policy.collect_mode._replace(specialize=specialize)
    return collector.collect(), stored[0]


@pytest.mark.daily(3)
@pytest.mark.parametrize("world", [SeededEnv, SeededBox])
@pytest.mark.parametrize(("kind", "options"), POLICIES.values(), ids=POLICIES)
def test_values_are_those_of_the_value_network(kind, options, world):
    policy, collector = trainee(kind, world, n_sample=96, **options)
    for _ in range(3):
        policy.learn_mode.forward(collector.collect())
    rollout, stored = recorded(policy, collector)
    values = policy.rollout_values(rollout)
    assert torch.allclose(stored[ACTING_VALUE], values, atol=1e-5)
    assert torch.equal(rollout.value, stored[ACTING_VALUE])
    assert ACTING_VALUE not in to_dict(rollout)
    assert values.std() > 0.01  # so that one sample's would not do for another's
    again = policy.credit(rollout)
    for name in ("advantage", "value_target"):
        assert torch.allclose(again[name], rollout[name], atol=1e-4)


def test_a_rollout_that_is_looked_at_again_gets_the_newest_values():
    policy, collector = trainee("ppo", **SHARED)
    rollout = collector.collect()
    first = rollout.value.clone()
    policy.learn_mode.forward(rollout)
    renewed = policy.collect_mode.get_train_sample(rollout)
    assert torch.allclose(renewed.value, policy.rollout_values(rollout))
    assert not torch.allclose(renewed.value, first, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("ppo", WIDE), ("ppg", WIDE), ("ppo", {"model": {"share_encoder": True}})],
    ids=["an encoder of its own", "dual", "NumPy acts"],
)
def test_where_nothing_is_shared_the_value_network_sees_the_whole_rollout_at_once(kind, options):
    policy, collector = trainee(kind, **options)
    rollout, stored = recorded(policy, collector)
    assert ACTING_VALUE not in stored
    assert torch.allclose(rollout.value, policy.rollout_values(rollout))


def seven(self, obs, state=None):
    return torch.full((len(obs),), 7.0)


@pytest.mark.parametrize("where", ["class", "instance"])
@pytest.mark.parametrize("method", ["values"])
def test_a_value_function_of_ones_own_is_asked(method, where):
    cls = type("Sevens", (PPOPolicy,), {method: seven} if where == "class" else {})
    policy, collector = trainee("ppo", cls=cls, **merged(SHARED, {"learn": {"value_norm": False}}))
    if where == "instance":
        setattr(policy, method, partial(seven, policy))
    assert (collector.collect().value == 7).all()


TILT = torch.tensor([2.0, 0.0, -2.0])


class OddCritic(VAC):
    def compute_critic(self, obs):
        return super().compute_critic(obs) * 2 + 5


class OddActor(VAC):
    def compute_actor(self, obs):
        return super().compute_actor(obs) + TILT


class OddBoth(OddActor):
    """Shares work again, in its own words."""

    def compute_actor_critic(self, obs):
        logit, value = VAC.compute_actor_critic(self, obs)
        return logit + TILT, value


@pytest.mark.parametrize(
    ("model", "shares"), [("vac", True), (OddCritic, False), (OddActor, False), (OddBoth, True)]
)
def test_a_model_that_says_anew_how_one_is_computed_is_asked_for_each(model, shares):
    # No head of OddCritic makes its values.
    changed = {"model": {"type": model}, "learn": {"value_norm": False}}
    policy, collector = trainee("ppo", **merged(SHARED, changed))
    agrees_with_its_model(policy, collector, shares)


class OddAll(OddBoth, OddCritic):
    """Has a joint method that does not know its values, from a class before the one that they come from."""


@pytest.mark.parametrize(("kind", "shares"), [(OddBoth, True), (OddAll, False)])
def test_values_of_a_model_that_is_exchanged_are_its_own(kind, shares):
    policy, collector = trainee("ppo", **SHARED)
    wide = SHARED["model"]["encoder_hidden_size_list"]
    spaces = policy.obs_space, policy.action_space
    policy.model = kind(*spaces, share_encoder=True, encoder_hidden_size_list=wide)
    agrees_with_its_model(policy, collector, shares)


def agrees_with_its_model(policy, collector, shares):
    rollout, stored = recorded(policy, collector)
    assert (ACTING_VALUE in stored) == shares
    assert torch.allclose(rollout.value, policy.rollout_values(rollout), atol=1e-5)
    log_prob = rollout_log_probs(policy, rollout)
    assert torch.allclose(rollout.log_prob, log_prob, atol=1e-5)


class Wanders(PPOPolicy):
    """Acts by the network on every other row alone, and on observations of its own."""

    rows = 0

    def _forward_collect(self, obs, state=None, first=None):
        self.rows += 1
        output = super()._forward_collect(0 * obs)
        return output if self.rows % 2 else {**output, "action": 0 * output["action"]}


class Keeps(PPOPolicy):
    """Has advantages of its own."""

    def _get_train_sample(self, rollout):
        credit = self.credit(rollout)
        for name, field in credit.items():
            setattr(rollout, name, field)
        return rollout


@pytest.mark.parametrize("cls", [Wanders, Keeps])
def test_a_policy_that_collects_in_its_own_way_gets_the_values_of_what_is_stored(cls):
    policy, collector = trainee("ppo", cls=cls, **SHARED)
    for _ in range(2):
        rollout = collector.collect()
        assert torch.allclose(rollout.value, policy.rollout_values(rollout), atol=1e-5)
        assert ACTING_VALUE not in to_dict(rollout)
        policy.learn_mode.forward(rollout)


class OtherValues(PPOPolicy):
    """Has values of its own for a whole rollout."""

    def rollout_values(self, rollout):
        return 3 + super().rollout_values(rollout)


@pytest.mark.parametrize("options", [SHARED, {"model": {"rnn": "gru", "rnn_hidden_size": 4}}])
def test_a_policy_with_its_own_values_of_a_rollout_has_them(options):
    policy, collector = trainee("ppo", cls=OtherValues, **options)
    rollout = collector.collect()
    assert torch.allclose(rollout.value, policy.rollout_values(rollout), atol=1e-5)
    assert ACTING_VALUE not in to_dict(rollout)
    own = PPOPolicy.rollout_values(policy, rollout)
    assert not torch.allclose(rollout.value, own, atol=1)


def test_actions_are_the_same_with_values_and_without():
    shared, _ = trainee("ppo", **SHARED)
    plain, _ = trainee("ppo", **SHARED)
    obs = np.random.default_rng(0).normal(size=(64, *shared.obs_space.shape)).astype(np.float32)
    one, other = shared.collect_mode.for_rollout().forward(obs), plain.collect_mode.forward(obs)
    assert one.keys() - other.keys() == {ACTING_VALUE}
    for name in ("action", "log_prob"):
        assert torch.equal(one[name], other[name])


class Pictures(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.look(), {}

    def look(self):
        return self.np_random.integers(0, 256, (36, 36, 3), np.uint8)

    def step(self, action):
        return self.look(), 1.0, False, bool(self.np_random.random() < 0.1), {}


def test_images_are_seen_once_by_the_shared_encoder():
    """But for those after the last row, and the last ones of episodes that were cut."""
    policy, collector = trainee("ppo", Pictures, n_sample=64, model={"encoder_hidden_size_list": None})
    seen = []
    policy.model.actor_encoder.register_forward_hook(lambda layer, inputs, out: seen.append(len(out)))
    rollout = collector.collect()
    assert rollout.truncated.any()
    assert sum(seen) == 64 + 4 + int(rollout.truncated.sum())
