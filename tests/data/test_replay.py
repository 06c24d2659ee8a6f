"""The replay buffer and PPG's store: who stays, who may be drawn, and that nothing of it changes."""

import pytest
import torch
from small_worlds import SeededTree
from worlds import digest, save_checkpoint, trainee

from ding_lite.data.replay import Replay
from ding_lite.data.rollout import as_rollout
from ding_lite.data.samples import Runs, Samples, Store
from ding_lite.rl.scales import RAW
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.trees import map_tree, to_dict

ROWS, COLUMNS = 3, 2


def rollout(tag, columns=COLUMNS, rows=ROWS):
    """A rollout whose every number tells where it stands: 100 tag + 10 column + row."""
    place = 100 * tag + 10 * torch.arange(columns) + torch.arange(rows)[:, None]
    never = torch.zeros(rows, columns, dtype=torch.bool)
    fields = {
        "obs": {"image": place.to(torch.uint8)[..., None], "action_mask": (place % 3 > 0)[..., None]},
        "action": {"arm": {"0": place.float()[..., None] / 7}, "move": place},
        "reward": place.float(),
        "terminated": never.clone(),
        "truncated": never.clone(),
        "valid": ~never,
        "last_obs": {"image": place[-1].to(torch.uint8)[:, None], "action_mask": place[-1:].T % 3 > 0},
    }
    return as_rollout(fields)


def tags(replay):
    """Returns the tags of the rollouts that are there."""
    return [int(each.rollout.reward[0, 0]) // 100 for each in replay.rollouts]


def found_live(replay):
    """Returns which transitions may be drawn, by their places in all rollouts."""
    return torch.cat([replay.live(each).flatten() for each in replay.rollouts])


def use(replay, *places):
    replay.use(torch.tensor(places))


@pytest.mark.parametrize("max_use", [1, 2, 5])
def test_a_transition_is_live_for_exactly_max_use_draws(max_use):
    replay = Replay(99, max_use, 9)
    replay.push(rollout(0))
    replay.push(rollout(1, columns=3))
    for _ in range(max_use):
        assert found_live(replay).all()
        use(replay, 10, 4)
    assert (~found_live(replay)).nonzero()[:, 0].tolist() == [4, 10]
    assert [each.uses.flatten().nonzero()[:, 0].tolist() for each in replay.rollouts] == [[4], [4]]
    use(replay, *range(15))
    assert [each.uses.max() for each in replay.rollouts] == [max_use + 1] * 2


@pytest.mark.parametrize("staleness", range(4))
def test_a_rollout_is_live_until_its_age_is_past_max_staleness(staleness):
    replay = Replay(99, 9, staleness)
    replay.push(rollout(0))
    for age in range(staleness + 1):
        assert [replay.age(each) for each in replay.rollouts] == [age]
        assert replay.has_live()
        replay.end_iteration()
    assert not replay.rollouts
    assert not replay.has_live()


def test_rows_that_are_not_valid_are_never_live_and_keep_no_rollout():
    replay, one = Replay(99, 1, 9), rollout(0)
    one.valid[1, 1] = False
    replay.push(one)
    assert found_live(replay).tolist() == [True, True, True, False, True, True]
    use(replay, 0, 1, 2, 4)
    replay.end_iteration()
    assert tags(replay) == [0], "one transition is left"
    use(replay, 5)
    assert not replay.has_live()
    replay.end_iteration()
    assert not replay.rollouts


@pytest.mark.parametrize(
    ("capacity", "kept"), [(0, 1), (5, 1), (11, 1), (12, 2), (17, 2), (18, 3), (24, 4), (99, 5)]
)
def test_capacity_in_transitions_keeps_the_newest_whole_rollouts(capacity, kept):
    replay = Replay(capacity, 9, 99)
    for tag in range(5):
        replay.push(rollout(tag))
        replay.end_iteration()
    assert tags(replay) == list(range(5 - kept, 5))


def test_metrics_are_those_counted_by_hand():
    replay = Replay(99, 2, 9)
    replay.push(rollout(0))
    replay.end_iteration()
    replay.push(rollout(1))
    use(replay, 0)
    use(replay, 0, 1, 6, 7, 8)  # transition 0 is spent
    ratios = torch.tensor([[9.0, 1.1], [1.5, 0.5], [1.0, 0.9]]), torch.ones(3, 2)
    for stored, ratio in zip(replay.rollouts, ratios, strict=True):
        stored.ratio = ratio
    assert replay.metrics(torch.tensor(0.2)) == pytest.approx(
        {
            "samples": 11,
            "age": 5 / 11,
            "uses": 4 / 11,
            "ratio_mean": (1.1 + 1.5 + 0.5 + 1.0 + 0.9 + 6) / 11,
            "ratio_max": 1.5,
            "outside_clip": 2 / 11,
        }
    )


def test_nothing_of_a_transition_changes_while_it_is_in_the_buffer():
    """The collector's arrays are overwritten meanwhile."""
    limits = {"max_use": 100, "max_staleness": 3, "replay_buffer_size": 10_000}
    options = {"learn": {"update_per_collect": 5}, "other": {"replay_buffer": limits}}
    policy, collector = trainee("ppo_offpolicy", SeededTree, autoreset="next_step", **options)
    policy.value_norm.load_state_dict(RAW)
    first = None
    for _ in range(4):
        rollout = collector.collect()
        first = map_tree(torch.clone, to_dict(rollout)) if first is None else first
        policy.learn_mode.forward(rollout)
        oldest = policy.replay.rollouts[0]
        if oldest.iteration == 0:
            kept = to_dict(oldest.rollout)
            assert [name for name in first if digest(kept[name]) != digest(first[name])] == []
    assert len(policy.replay.rollouts) == 3


def saved_and_loaded(state, tmp_path):
    save_checkpoint(tmp_path / "one.safetensors", {"part": state}, {})
    return load_checkpoint(tmp_path / "one.safetensors")[0]["part"]


def test_a_replay_is_the_same_bit_for_bit_after_a_checkpoint_and_goes_on_alike(tmp_path):
    replay, other = Replay(18, 3, 4), Replay(18, 3, 4)
    for tag in range(4):
        replay.push(rollout(tag))
        use(replay, *range(tag + 1))
        replay.end_iteration()
    other.push(rollout(9))
    other.load_state_dict(saved_and_loaded(replay.state_dict(), tmp_path))
    assert digest(other.state_dict()) == digest(replay.state_dict())
    for tag in (4, 5):
        for one in (replay, other):
            one.push(rollout(tag))
            use(one, *range(12))
            one.end_iteration()
        assert digest(other.state_dict()) == digest(replay.state_dict())
    assert tags(other) == [3, 4, 5]


# ------------------------------------------------------------------ the store of an auxiliary phase


def samples_of(tag, n, runs=()):
    place = 50 * tag + torch.arange(n)
    fields = {"obs": {"image": place.to(torch.uint8)[:, None]}, "value_target": place.float()}
    if not runs:
        return Samples(fields)
    length = torch.tensor(runs)
    hidden = {"h": (10.0 * tag + torch.arange(len(runs)))[:, None]}
    return Samples(fields, Runs(length, hidden))


@pytest.mark.parametrize("planned", [0, 7, 100])
def test_a_store_holds_all_samples_in_their_order_and_type(planned):
    """Whether it had room for them or not."""
    store = Store()
    for tag, n in enumerate((4, 3, 5)):
        store.append(samples_of(tag, n), planned)
    assert (store.iterations, store.size, len(store.samples())) == (3, 12, 12)
    fields = store.samples().fields
    assert fields["value_target"].tolist() == [0, 1, 2, 3, 50, 51, 52, 100, 101, 102, 103, 104]
    assert fields["obs"]["image"].dtype == torch.uint8
    assert fields["obs"]["image"][:, 0].tolist() == fields["value_target"].tolist()


def test_a_store_keeps_copies_and_runs_with_their_hidden_states():
    store, given = Store(), samples_of(1, 5, (2, 3))
    store.append(samples_of(0, 4, (4,)), 9)
    store.append(given, 9)
    given.fields["value_target"].zero_()
    given.runs.hidden["h"].zero_()
    found = store.samples()
    assert found.fields["value_target"].tolist() == [0, 1, 2, 3, 50, 51, 52, 53, 54]
    assert found.runs.length.tolist() == [4, 2, 3]
    assert found.runs.hidden["h"].tolist() == [[0], [10], [11]]


@pytest.mark.parametrize("runs", [(), (1, 3)])
def test_a_store_is_the_same_after_a_checkpoint_and_goes_on_alike(runs, tmp_path):
    store, other = Store(), Store()
    for tag in range(2):
        store.append(samples_of(tag, 4, runs), 12)
    other.append(samples_of(9, 7), 7)
    other.load_state_dict(saved_and_loaded(store.state_dict(), tmp_path))
    for each in (store, other):
        each.append(samples_of(2, 4, runs), 12)
    assert digest(other.state_dict()) == digest(store.state_dict())
    assert other.size == 12
    other.load_state_dict(saved_and_loaded(Store().state_dict(), tmp_path / "empty"))
    assert (other.iterations, other.size, other.state_dict()["runs"]) == (0, 0, [])
