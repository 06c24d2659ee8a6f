"""Rollouts cut into segments: each segment is a rollout with its own bootstrap observation."""

import pytest
import torch
from small_worlds import SeededEnv
from worlds import digest, policy_for, same_tree, trainee, vector_of

from ding_lite.data.collector import Collector
from ding_lite.data.rollout import as_rollout
from ding_lite.data.segments import in_segments, padded, put_together
from ding_lite.trees import to_dict

STEPS, COLUMNS = 12, 3


@pytest.fixture(scope="module", params=["same_step", "next_step"])
def collected(request):
    """A policy, and a rollout with terminations, truncations and, under NEXT_STEP, filler rows."""
    envs = vector_of(lambda index: SeededEnv(), COLUMNS, autoreset=request.param)
    policy = policy_for(envs, learn={"value_norm": False})
    collector = Collector(envs, policy.collect_mode, STEPS * COLUMNS)
    for _ in range(3):
        rollout = collector.collect()
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    return policy, rollout


@pytest.mark.parametrize("length", [2, 3, 4, 12])
def test_segments_are_pieces_of_the_rollout(collected, length):
    _, rollout = collected
    cut, pieces = in_segments(rollout, length), STEPS // length
    for name in ("obs", "action", "reward", "valid", "value"):
        for s in range(pieces):
            mine = cut[name][:, s * COLUMNS : (s + 1) * COLUMNS]
            assert torch.equal(mine, rollout[name][s * length : (s + 1) * length])
        assert torch.equal(put_together(cut[name], rollout), rollout[name])
    expected = torch.cat([*(rollout.obs[s * length] for s in range(1, pieces)), rollout.last_obs])
    assert torch.equal(cut.last_obs, expected)
    found = {
        (int(t) + int(env) // COLUMNS * length, int(env) % COLUMNS): obs.tolist()
        for t, env, obs in zip(cut.final.t, cut.final.env, cut.final.obs, strict=True)
    }
    final = rollout.final
    assert found == {
        (int(t), int(env)): obs.tolist() for t, env, obs in zip(final.t, final.env, final.obs, strict=True)
    }


@pytest.mark.parametrize("length", [2, 3, 4, 6])
def test_credit_of_a_segment_is_that_of_a_rollout_that_ends_there(collected, length):
    policy, rollout = collected
    found = policy.credit(in_segments(rollout, length))
    whole = policy.credit(rollout)
    fields = to_dict(rollout)
    for start in range(0, STEPS, length):
        end = start + length
        alone = {name: x[start:end] for name, x in fields.items() if name not in ("last_obs", "final")}
        alone["last_obs"] = rollout.obs[end] if end < STEPS else rollout.last_obs
        inside = (rollout.final.t >= start) & (rollout.final.t < end)
        if inside.any():
            final = fields["final"]
            alone["final"] = {name: leaf[inside] for name, leaf in final.items()} | {
                "t": final["t"][inside] - start
            }
        expected = policy.credit(as_rollout(alone))
        for name, field in expected.items():
            mine = put_together(found[name], rollout)[start:end]
            assert torch.allclose(mine, field, atol=1e-6), name
    assert not torch.allclose(put_together(found["advantage"], rollout), whole["advantage"], atol=1e-3)


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg"])
def test_one_segment_a_rollout_is_the_rollout_and_shorter_ones_are_not(kind):
    states = {}
    for length in (0, 1, 16, 4):
        options = {"learn": {"aux_freq": 2}} if kind == "ppg" else {}
        policy, collector = trainee(kind, collect={"unroll_len": length}, **options)
        for _ in range(4):
            policy.learn_mode.forward(collector.collect())
        states[length] = digest(policy.model.state_dict())
    assert states[0] == states[1] == states[16] != states[4]


def test_advantages_are_collected_in_segments():
    policy, collector = trainee("ppo", collect={"unroll_len": 4})
    rollout = collector.collect()
    expected = policy.credit(in_segments(rollout, 4))
    assert same_tree(put_together(expected["advantage"], rollout), rollout.advantage)


def test_a_length_that_does_not_divide_is_refused_where_something_goes_on(collected):
    _, rollout = collected
    with pytest.raises(ValueError, match="12 steps.*segments of 5.*unroll_len"):
        in_segments(rollout, 5)
    cut = in_segments(rollout, 5, whole_episodes=True)
    assert cut.valid.shape == (5, 3 * COLUMNS)
    assert torch.equal(put_together(cut.reward, rollout), rollout.reward)
    assert cut.valid.sum() == rollout.valid.sum()


def test_padding_adds_rows_that_are_not_valid(collected):
    _, rollout = collected
    longer = padded(rollout, STEPS + 2)
    assert not longer.valid[STEPS:].any()
    assert same_tree(to_dict(longer[:STEPS])["reward"], to_dict(rollout)["reward"])
    assert same_tree(longer.last_obs, rollout.last_obs)
    assert padded(rollout, STEPS) is rollout


def test_a_multiple_of_the_length_is_not_padded(collected):
    assert in_segments(collected[1], 4, whole_episodes=True).valid.shape == (4, STEPS // 4 * COLUMNS)
