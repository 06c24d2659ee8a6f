"""Filler rows, which are only a reset (NEXT_STEP): their values never reach the parameters."""

import copy

import pytest
import torch
from cases import drawn
from small_worlds import SeededBox, SeededEnv
from worlds import digest, policy_for, uncredited, vector_of

from ding_lite.data.collector import Collector
from ding_lite.data.rollout import as_rollout
from ding_lite.trees import map_tree, to_dict

LENGTH = 4  # of the runs of a recurrent network
VARIANTS = {
    "plain": {"learn": {"value_norm": False}},
    "value_norm": {},
    "old advantages": {"recompute_adv": False},
    "advantages over the batch": {"learn": {"adv_norm": "batch"}},
    "normalised": {"normalize": {"obs": True, "reward": True, "reward_clip": 5.0}},
    "value clip and target_kl": {"learn": {"value_clip": 0.2, "target_kl": 0.001}},
    "segments": {"collect": {"unroll_len": 6}},
    "recurrent": {"model": {"rnn": "lstm", "rnn_hidden_size": 8}, "learn": {"sequence_length": LENGTH}},
}


def raw_rollout(cls, options, n_sample=60):
    """Returns the environments, a policy that has learned once, and a second rollout without advantages."""
    envs = vector_of(lambda index: cls(), 3, autoreset="next_step")
    policy = policy_for(envs, **options)
    policy.learn_mode.forward(Collector(envs, policy, n_sample).collect())
    rollout = to_dict(uncredited(Collector(envs, policy, n_sample)))
    assert not rollout["valid"].all()
    return envs, policy, rollout


def poisoned(rollout, value):
    """Writes ``value`` into what no valid transition uses: fillers, and last_obs of columns that ended."""
    rollout = map_tree(torch.clone, rollout)
    filler = ~rollout["valid"]
    for name in ("obs", "reward", "log_prob", "action"):
        field = rollout[name]
        field[filler] = value if field.is_floating_point() else 0
    ended = rollout["terminated"][-1] | rollout["truncated"][-1]
    rollout["last_obs"][ended] = value
    map_tree(
        lambda leaf: leaf.index_put_((filler[::LENGTH],), torch.tensor(value)), rollout.get("hidden", {})
    )
    return rollout


def learned(envs, options, state, rollout):
    policy = policy_for(envs, seed=5, **options)
    policy.load_state_dict(copy.deepcopy(state))
    rollout = policy.collect_mode.get_train_sample(as_rollout(map_tree(torch.clone, rollout)))
    metrics = policy.learn_mode.forward(rollout)
    return digest(policy.state_dict()), metrics


@pytest.mark.parametrize(
    ("variant", "value"), drawn(len(VARIANTS), VARIANTS, [1e30, -1e30, float("nan"), float("inf")])
)
def test_poisoned_fillers_leave_the_whole_state_bit_equal(variant, value):
    options = VARIANTS[variant]
    envs, policy, rollout = raw_rollout(SeededEnv, options)
    state = policy.state_dict()
    clean, clean_metrics = learned(envs, options, state, rollout)
    dirty, dirty_metrics = learned(envs, options, state, poisoned(rollout, value))
    assert dirty == clean
    assert dirty_metrics == clean_metrics


@pytest.mark.parametrize("value", [1e30, float("nan")])
def test_poisoned_box_actions_on_fillers_leave_the_whole_state_bit_equal(value):
    envs, policy, rollout = raw_rollout(SeededBox, {})
    state = policy.state_dict()
    clean, _ = learned(envs, {}, state, rollout)
    dirty, _ = learned(envs, {}, state, poisoned(rollout, value))
    assert dirty == clean


def test_poison_on_a_valid_row_is_seen():
    """Negative control: the comparison above detects a changed valid row."""
    envs, policy, rollout = raw_rollout(SeededEnv, {})
    state = policy.state_dict()
    clean, _ = learned(envs, {}, state, rollout)
    changed = map_tree(torch.clone, rollout)
    t, env = changed["valid"].nonzero()[0]
    changed["reward"][t, env] += 1
    assert learned(envs, {}, state, rollout)[0] == clean
    assert learned(envs, {}, state, changed)[0] != clean


def test_env_steps_of_the_schedules_count_valid_rows_alone():
    _, policy, rollout = raw_rollout(SeededEnv, {})
    before = policy.schedules.env_step
    policy.learn_mode.forward(policy.collect_mode.get_train_sample(as_rollout(rollout)))
    assert policy.schedules.env_step - before == int(rollout["valid"].sum()) < rollout["valid"].numel()
