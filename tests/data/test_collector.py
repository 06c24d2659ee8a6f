"""The collector: fields of a rollout, ends of episodes, and values that raise errors before any learning."""

import contextlib
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import (
    SCRIPTS,
    SPACES,
    CountingEnv,
    Indexed,
    LengthEnv,
    SeededEnv,
    SpoiledEnv,
    StuckEnv,
    scripted,
)
from worlds import AUTORESET, digest, policy_for, vector_of

from ding_lite import PPOPolicy
from ding_lite.config.compile import compile_config
from ding_lite.data.collector import Collector
from ding_lite.data.samples import Recurrence
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import EnvContractError
from ding_lite.trees import from_tree, map_tree, to_dict, to_tree


def collector_of(make, num_envs=2, n_sample=16, autoreset="same_step", **policy):
    envs = vector_of(make, num_envs, autoreset=autoreset)
    return Collector(envs, policy_for(envs, **policy), n_sample)


def counting(n_sample=12, **options):
    return collector_of(lambda index: CountingEnv(SCRIPTS[index]), n_sample=n_sample, **options)


def test_rollout_has_every_field_in_its_shape_and_dtype():
    rollout = to_dict(counting(n_sample=12).collect())
    final = rollout.pop("final")
    fields = {name: (tuple(x.shape), str(x.dtype).removeprefix("torch.")) for name, x in rollout.items()}
    assert fields == {
        "obs": ((6, 2, 2), "float32"),
        "action": ((6, 2), "int64"),
        "log_prob": ((6, 2), "float32"),
        "reward": ((6, 2), "float32"),
        "terminated": ((6, 2), "bool"),
        "truncated": ((6, 2), "bool"),
        "valid": ((6, 2), "bool"),
        "value": ((6, 2), "float32"),
        "advantage": ((6, 2), "float32"),
        "value_target": ((6, 2), "float32"),
        "last_obs": ((2, 2), "float32"),
    }
    assert {name: tuple(x.shape) for name, x in final.items()} == {"obs": (2, 2), "t": (2,), "env": (2,)}


def test_rows_last_observations_and_episodes_are_those_counted_by_hand():
    collector = counting(n_sample=12)
    rollout = collector.collect()
    assert rollout.obs[:, 0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0]]
    assert rollout.reward[:, 0].tolist() == [1, 2, 11, 12, 13, 21]
    assert rollout.terminated[:, 0].tolist() == [False, True, False, False, False, False]
    assert rollout.truncated[:, 0].tolist() == [False, False, False, False, True, False]
    assert rollout.valid.all()
    assert rollout.final.t.tolist() == [3, 4]
    assert rollout.final.env.tolist() == [1, 0]
    assert rollout.final.obs.tolist() == [[1, 1], [1, 3]]
    assert rollout.last_obs.tolist() == [[2, 1], [3, 1]]
    episodes = [(e.env, e.episode_return, e.length) for e in collector.episodes]
    assert episodes == [(0, 3, 2), (1, 6, 3), (1, 11, 1), (0, 36, 3), (1, 21, 1)]
    assert collector.metrics() == {
        "episode_return": (3 + 6 + 11 + 36 + 21) / 5,
        "episode_length": 2.0,
        "episode_length_max": 3.0,
        "episode_count": 5.0,
        "env_restarts": 0.0,
    }


def marked_action(obs):
    """Returns an action for each observation that does not depend on the other observations."""
    action = torch.as_tensor(obs[:, 0] + 2 * obs[:, 1]).long() % 3
    return {"action": action, "log_prob": -torch.ones(len(obs))}


@pytest.mark.parametrize(("num_envs", "num_workers"), [(5, 2), (2, 1)])
def test_rollouts_of_two_halves_are_those_of_one_process(num_envs, num_workers):
    options = dict(num_workers=num_workers, double_buffer=True)
    with contextlib.closing(SubprocessVectorEnv(scripted, num_envs, **options)) as halves:
        found = []
        for envs in (halves, InProcessVectorEnv(scripted, num_envs)):
            policy = policy_for(envs)
            policy._forward_collect = marked_action
            collector = Collector(envs, policy, 12 * num_envs)
            collector.collect()
            last, episodes = to_dict(collector.collect()), collector.episodes
            key = np.lexsort((last["final"]["env"], last["final"]["t"]))  # halves come one after the other
            last["final"] = {name: leaf[key] for name, leaf in last["final"].items()}
            found.append((last, sorted(episodes), collector.metrics()))
    (one, *rest), (other, *other_rest) = found
    assert digest(one) == digest(other)
    assert rest == other_rest
    assert len(rest[0]) > 3


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_no_transition_crosses_an_episode(autoreset):
    """The obs (episode, step) and the reward 10 * episode + step + 1 of a valid row are of the same step."""
    collector = counting(n_sample=60, autoreset=autoreset)
    for _ in range(3):
        rollout = collector.collect()
        obs, valid, final = rollout.obs, rollout.valid, rollout.final
        assert torch.equal(rollout.reward[valid], (10 * obs[..., 0] + obs[..., 1] + 1)[valid])
        assert torch.equal(final.obs, obs[final.t, final.env] + torch.tensor([0.0, 1.0]))
        assert rollout.truncated[final.t, final.env].all()
        assert len(final.t) == int(rollout.truncated.sum())


# ---------------------------------------------------------------------- lost episodes, and hidden states


def counted(envs, length):
    """Returns a recurrent policy whose hidden state counts the steps of its episode."""

    def forward(obs, hidden):
        return {**marked_action(obs), "log_prob": hidden["h"][:, 0], "hidden": {"h": hidden["h"] + 1}}

    policy = policy_for(envs)
    policy.recurrence = Recurrence(length, lambda n: {"h": torch.zeros(n, 1)})
    policy._forward_collect, policy._complete_rollout = forward, lambda rollout: rollout
    return policy


@pytest.mark.parametrize("autoreset", ["next_step", "halves", "same_step", "disabled"])
def test_hidden_states_are_those_before_the_rows_of_runs_and_of_cut_episodes(autoreset):
    if autoreset == "halves":
        options = dict(num_workers=1, double_buffer=True)
        made = SubprocessVectorEnv(scripted, 4, **options)
    else:
        made = vector_of(lambda index: CountingEnv(SCRIPTS[index % 2]), 4, autoreset=autoreset)
    with contextlib.closing(made) as envs:
        collector = Collector(envs, counted(envs, 3), 40)
        for _ in range(3):
            rollout = collector.collect()
            assert torch.equal(
                rollout.hidden.h[..., 0], torch.where(rollout.valid, rollout.obs[..., 1], 0)[::3]
            )
            assert rollout.hidden.h.shape == (4, 4, 1)
            assert torch.equal(rollout.final.hidden.h[:, 0], rollout.final.obs[:, 1])
            ended = rollout.terminated[-1] | rollout.truncated[-1] | ~rollout.valid[-1]
            expected = torch.where(ended, 0, rollout.last_obs[:, 1])
            assert torch.equal(rollout.last_hidden.h[:, 0], expected)


def test_an_episode_that_is_lost_is_cut_at_its_last_known_observation():
    def make(index):
        return EpisodeRecorder(SpoiledEnv(5 if index else -1, lambda result: 1 / 0, ((100, "terminated"),)))

    envs = SubprocessVectorEnv(make, 2, num_workers=2, restart_share=1.0)
    with contextlib.closing(envs), pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        rollout = Collector(envs, counted(envs, 4), 16).collect()
    assert (~rollout.valid).nonzero().tolist() == [[4, 1]]
    assert rollout.truncated.nonzero().tolist() == [[3, 1]]
    final = rollout.final
    assert (final.t.tolist(), final.env.tolist()) == ([3], [1])
    assert final.obs.tolist() == [[0, 4]] == rollout.obs[4, 1:].tolist()
    assert final.hidden.h.tolist() == [[4]]
    assert rollout.obs[5:, 1].tolist() == [[0, 0], [0, 1], [0, 2]]


@pytest.mark.parametrize("model", [{}, {"rnn": "gru", "rnn_hidden_size": 4}])
def test_state_goes_on_exactly_where_it_was_saved(model):
    def fresh():
        envs = vector_of(lambda index: SeededEnv(), 3)
        policy = policy_for(envs, model=model)
        return Collector(envs, policy, 30), policy

    (one, policy), (other, other_policy) = fresh(), fresh()
    one.collect()
    other_policy.load_state_dict(policy.state_dict())
    other.load_state_dict(one.state_dict())
    assert other.metrics() == one.metrics()
    assert digest(to_dict(other.collect())) == digest(to_dict(one.collect()))
    assert other.metrics() == one.metrics()


# ---------------------------------------------------------------------- values that are refused


def bad_obs(value):
    return lambda result: (np.array([0, value], np.float32), *result[1:])


def bad_reward(value):
    return lambda result: (result[0], value, *result[2:])


@pytest.mark.parametrize(
    ("at", "spoil", "message"),
    [
        (2, bad_reward(np.nan), r"episode 0, step 2\).*reward = nan"),
        (2, bad_reward(-np.inf), r"episode 0, step 2\).*reward = -inf"),
        (2, bad_obs(np.inf), r"episode 0, step 2\).*observation\[1\] = inf"),
        (4, bad_reward(np.nan), r"episode 0, step 4\)"),  # the last one of its episode
        (4, bad_obs(np.nan), ""),  # the value network reads it
        (0, lambda result: (np.array([0, np.nan], np.float32), {}), ""),  # before the policy acts on it
        (8, bad_obs(np.nan), ""),  # the last row
    ],
)
def test_a_value_that_is_not_finite_is_refused_and_nothing_is_learned(at, spoil, message):
    envs = vector_of(lambda index: SpoiledEnv(at if index == 1 else -1, spoil, ((4, "truncated"),)), 2)
    policy = policy_for(envs)
    before = digest(policy.model.state_dict())
    with pytest.raises(EnvContractError, match=f"env 1 .*{message}"):
        Collector(envs, policy, 16).collect()
    assert digest(policy.model.state_dict()) == before


@pytest.mark.parametrize("backend", ["base", "subprocess", "vector"])
def test_index_outside_of_its_range_is_refused_at_its_step_by_every_backend(backend):
    make = partial(Indexed, {"at": 7}, "truncated")
    if backend == "base":
        envs = vector_of(lambda index: make(), 2)
    elif backend == "subprocess":
        envs = SubprocessVectorEnv(lambda index: EpisodeRecorder(make()), 2, num_workers=1)
    else:
        envs = NativeVectorEnv(gym.vector.SyncVectorEnv([make, make]))
    with contextlib.closing(envs):
        collector = Collector(envs, policy_for(envs), 40)
        with pytest.raises(EnvContractError, match=r"env 0 .*\['at'\] = 7.*Discrete\(3\)"):
            collector.collect()


@pytest.mark.parametrize("stuck_after", [4, 5])
@pytest.mark.parametrize("autoreset", AUTORESET)
def test_mask_of_an_episodes_last_observation_may_leave_no_action(autoreset, stuck_after):
    """No action follows it. Under NEXT_STEP it is observed, and the action is ignored."""
    envs = vector_of(lambda index: StuckEnv(stuck_after), 2, autoreset=autoreset)
    collector = Collector(envs, policy_for(envs), 40)
    if stuck_after == 5:  # the length of its episodes
        assert collector.collect().valid.sum() == (34 if envs.has_fillers else 40)
        return
    with pytest.raises(EnvContractError, match=r"env 0 .*step 4\).*action_mask"):
        collector.collect()


@pytest.mark.parametrize(
    ("mask", "actions", "message"),
    [
        (SPACES.MultiBinary(4), SPACES.Discrete(3), r"Box\(False, True, \(3,\), bool\)"),
        (SPACES.MultiBinary((1, 3)), SPACES.Discrete(3), r"Box\(False, True, \(3,\), bool\)"),
        (SPACES.MultiBinary(2), SPACES.MultiDiscrete([2, 3]), r"Box.*\(5,\), bool\)"),
        (SPACES.MultiBinary(2), SPACES.Box(-1, 1, (2,)), r"Box\(-1"),
        (SPACES.MultiBinary(3), SPACES.Tuple([SPACES.Discrete(3)]), r"Dict\('0': Box"),
        (SPACES.MultiBinary(5), SPACES.MultiDiscrete([2, 3]), ""),
        (SPACES.Tuple([SPACES.MultiBinary(5)]), SPACES.MultiDiscrete([2, 3]), r"Box.*\(5,\), bool\)"),
        (SPACES.Dict(a=SPACES.MultiBinary(3)), SPACES.Dict(a=SPACES.Discrete(3), b=SPACES.Discrete(2)), ""),
    ],
)
def test_masks_of_another_size_than_the_actions_are_refused(mask, actions, message):
    ones = map_tree(np.ones_like, to_tree(mask.sample(), mask))

    class Masked(gym.Env):
        observation_space = SPACES.Dict(at=SPACES.Discrete(1), action_mask=mask)
        action_space = actions

        def reset(self, *, seed=None, options=None):
            return {"at": 0, "action_mask": from_tree(ones, mask)}, {}

        def step(self, action):
            return self.reset()[0], 0.0, False, False, {}

    if not message:
        assert collector_of(lambda index: Masked()).collect().valid.all()
        return
    with pytest.raises(EnvContractError, match=rf"action_mask.*{message}"):
        collector_of(lambda index: Masked())


@pytest.mark.parametrize("double_buffer", [False, True])
def test_a_rollout_that_was_broken_off_can_be_begun_anew(double_buffer):
    """The step that the other half was taking is discarded, and is not mixed with later steps."""
    options = dict(num_workers=1, double_buffer=double_buffer)
    with contextlib.closing(SubprocessVectorEnv(scripted, 4, **options)) as envs:
        policy, calls = policy_for(envs), []

        def sometimes(obs):
            calls.append(len(obs))
            if len(calls) == 6:
                raise ZeroDivisionError
            return PPOPolicy._forward_collect(policy, obs)

        policy._forward_collect = sometimes
        collector = Collector(envs, policy, 40)
        with pytest.raises(ZeroDivisionError):
            collector.collect()
        rollout = collector.collect()
        assert rollout.valid.all()
        at, ended = rollout.obs[..., 1], rollout.terminated | rollout.truncated
        assert torch.equal(at[1:], torch.where(ended[:-1], 0, at[:-1] + 1))


class NumberedEpisodes(LengthEnv):
    """Ends after one step, and tells the number of the episode."""

    number = 0

    def step(self, action):
        *result, info = super().step(action)
        self.number += 1
        return *result, {**info, "number": self.number}


def test_numbers_of_infos_are_means_over_the_last_hundred_episodes():
    env = {"type": NumberedEpisodes, "kwargs": {"length": 1}, "info_keys": ["number"]}
    envs = make_vector_env(compile_config({"env": env}).values.env, 1, seed=0)
    collector = Collector(envs, policy_for(envs), 300)
    collector.collect()
    assert collector.metrics()["number"] == np.mean(range(201, 301))


class Fitting(CountingEnv):
    """Takes a gradient step of its own in each step."""

    def step(self, action):
        weight = torch.ones(2, requires_grad=True)
        (weight * torch.ones(2)).sum().backward()
        assert weight.grad is not None
        return super().step(action)


@pytest.mark.parametrize("model", [{}, {"activation": "gelu"}])
def test_an_environment_may_use_autograd(model):
    assert collector_of(lambda index: Fitting(SCRIPTS[index]), model=model).collect().valid.all()
