"""The replay buffer and the auxiliary memory: who stays, who may be drawn, and that nothing of it changes."""

import copy

import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import digest, policy_for, same_tree, vector_of

from ding_lite.data import sample_memory
from ding_lite.data.buffer import Limits, ReplayBuffer
from ding_lite.data.collector import Collector
from ding_lite.data.rollout import as_rollout
from ding_lite.data.sample_memory import AuxiliarySamples, host_memory
from ding_lite.data.segments import select_columns, side_by_side
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.trees import map_tree, to_dict

ROWS, COLUMNS = 3, 2


def rollout(tag, columns=COLUMNS, rows=ROWS, cuts=((1, 0), (2, 1))):
    """A rollout whose every number tells where it stands: 100 tag + 10 column + row; ends at ``cuts``."""
    place = 100 * tag + 10 * torch.arange(columns) + torch.arange(rows)[:, None]
    truncated = torch.zeros(rows, columns, dtype=torch.bool)
    fields = {
        "obs": {"image": place.to(torch.uint8)[..., None], "action_mask": (place % 3 > 0)[..., None]},
        "action": {"arm": {"0": place.float()[..., None] / 7}, "move": place},
        "log_prob": -place.float() / 3,
        "reward": place.float(),
        "terminated": torch.zeros(rows, columns, dtype=torch.bool),
        "truncated": truncated,
        "valid": torch.ones(rows, columns, dtype=torch.bool),
        "last_obs": {"image": place[-1].to(torch.uint8)[:, None], "action_mask": place[-1:].T % 3 > 0},
    }
    if cuts:
        t, env = (torch.tensor(x) for x in zip(*cuts, strict=True))
        truncated[t, env] = True
        at = place[t, env]
        fields["final"] = {
            "obs": {"image": at.to(torch.uint8)[:, None], "action_mask": (at % 3 > 0)[:, None]},
            "t": t,
            "env": env,
        }
    return as_rollout(fields)


def tags(buffer):
    """The tags of the rollouts that are in a buffer."""
    return [] if buffer.data is None else sorted(set((buffer.data.reward.long() // 100).flatten().tolist()))


def all_of(buffer):
    return torch.arange(buffer.uses.numel())


# ------------------------------------------------------------------ who may be drawn


@pytest.mark.parametrize("max_use", [1, 2, 5])
def test_transition_is_live_for_exactly_max_use_draws(max_use):
    buffer = ReplayBuffer(Limits(max_use))
    buffer.push(rollout(0))
    for _ in range(max_use):
        assert buffer.live().flatten()[4]
        buffer.use(torch.tensor([4]))
    live = buffer.live().flatten()
    assert not live[4]
    assert live.sum() == ROWS * COLUMNS - 1
    assert buffer.uses.flatten().tolist() == [0, 0, 0, 0, max_use, 0]


def found_live(buffer):
    return buffer.live().flatten().nonzero().squeeze(-1).tolist()


def test_live_places_are_those_that_live_says_however_they_are_drawn():
    buffer = ReplayBuffer(Limits(max_use=3, max_staleness=2))
    assert not buffer.is_fresh
    for number in range(6):
        buffer.push(rollout(number))
        assert buffer.is_fresh == (number == 0)
        for share in ((1, 2), (1, 1), (2, 3))[number % 3]:
            rows = buffer.live_places()
            assert rows.tolist() == found_live(buffer)
            buffer.use(rows.flip(0)[: -(-len(rows) // share)])
            assert buffer.live_places().tolist() == found_live(buffer)
        state = buffer.state_dict()
        buffer.end_iteration()
        assert buffer.data is None or buffer.live_places().tolist() == found_live(buffer)
        loaded = ReplayBuffer(buffer.limits)
        loaded.push(rollout(9))
        loaded.live_places()
        loaded.load_state_dict(state)
        loaded.end_iteration()
        assert not loaded.is_fresh
        assert tags(loaded) == tags(buffer)
    assert len(tags(buffer)) > 1


def test_a_fresh_rollout_that_is_drawn_whole_is_looked_at_once(monkeypatch):
    buffer, looks = ReplayBuffer(Limits(max_use=2)), []
    live = ReplayBuffer.live
    monkeypatch.setattr(ReplayBuffer, "live", lambda self: looks.append(1) or live(self))
    buffer.push(rollout(0))
    for _ in range(2):
        assert len(buffer.live_places()) == ROWS * COLUMNS
        buffer.use(buffer.live_places())
    assert not len(buffer.live_places())
    buffer.end_iteration()
    assert buffer.data is None
    assert len(looks) == 1


@pytest.mark.parametrize("staleness", range(4))
def test_transition_is_live_until_its_age_is_past_max_staleness(staleness):
    buffer = ReplayBuffer(Limits(9, staleness))
    buffer.push(rollout(0))
    for age in range(staleness + 1):
        assert buffer.age.tolist() == [age, age]
        assert buffer.live().all()
        buffer.end_iteration()
    assert buffer.data is None


def test_age_counts_iterations_in_which_nothing_came_too():
    buffer = ReplayBuffer(Limits(9, 5))
    buffer.push(rollout(0))
    buffer.end_iteration()
    buffer.end_iteration()
    buffer.push(rollout(1, columns=1, cuts=()))
    assert buffer.age.tolist() == [2, 2, 0]


def test_filler_is_never_live_and_a_rollout_of_spent_ones_and_fillers_leaves():
    buffer = ReplayBuffer(Limits(1, 9))
    one = rollout(0)
    one.valid[1, 1] = False
    buffer.push(one)
    assert not buffer.live()[1, 1]
    buffer.use(buffer.live().flatten().nonzero().squeeze(-1))
    buffer.end_iteration()
    assert buffer.data is None


def test_rollout_with_one_live_transition_stays_whole():
    """Credit is assigned over whole columns, and other environments' columns came in with them."""
    buffer = ReplayBuffer(Limits(1, 9))
    buffer.push(rollout(0))
    buffer.end_iteration()
    buffer.push(rollout(1))
    old, new = ROWS * COLUMNS, buffer.uses.numel()
    is_old = (buffer.version == 0).expand_as(buffer.uses).flatten()
    assert is_old.sum() == old
    buffer.use(all_of(buffer)[is_old][1:])
    buffer.end_iteration()
    assert tags(buffer) == [0, 1]
    assert buffer.live().sum() == new - old + 1
    buffer.use(buffer.live().flatten().nonzero()[:1, 0])
    buffer.end_iteration()
    assert tags(buffer) == [1], "the last one of the old rollout was drawn"


def test_uses_versions_and_priorities_stay_with_their_columns_when_others_leave():
    buffer = ReplayBuffer(Limits(2, 9))
    for tag in range(3):
        buffer.push(rollout(tag), priority=torch.full((ROWS, COLUMNS), float(tag)))
        if tag < 2:
            buffer.end_iteration()
    gone = (buffer.version == 1).expand_as(buffer.uses).flatten().nonzero().squeeze(-1)
    buffer.use(gone)
    buffer.use(gone)
    buffer.use(torch.tensor([0, 5]))  # row 0: column 0 of the first, column 1 of the third
    buffer.end_iteration()
    assert tags(buffer) == [0, 2]
    assert buffer.version.tolist() == [0, 0, 2, 2]
    assert buffer.uses.tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert buffer.priority.tolist() == [[0.0, 0.0, 2.0, 2.0]] * ROWS


# ------------------------------------------------------------------ who leaves for want of room


@pytest.mark.parametrize(("capacity", "kept"), [(6, 1), (11, 1), (12, 2), (17, 2), (18, 3), (24, 4), (99, 5)])
def test_capacity_in_transitions_keeps_the_newest_whole_rollouts(capacity, kept):
    buffer = ReplayBuffer(Limits(9, 99, capacity))
    for tag in range(5):
        buffer.push(rollout(tag))
        assert buffer.uses.numel() <= capacity
        assert buffer.data.valid.shape == buffer.uses.shape == buffer.priority.shape
        buffer.end_iteration()
    assert tags(buffer) == list(range(5 - kept, 5))


def test_large_rollout_pushes_out_as_many_small_ones_as_it_needs():
    buffer = ReplayBuffer(Limits(9, 99, 18))
    for tag in range(3):
        buffer.push(rollout(tag))
        buffer.end_iteration()
    buffer.push(rollout(3, columns=3))
    assert tags(buffer) == [2, 3]
    assert buffer.version.tolist() == [2, 2, 3, 3, 3]


def test_nothing_of_an_evicted_rollout_is_left_in_any_field():
    buffer = ReplayBuffer(Limits(9, 99, 12))
    for tag in range(3):
        buffer.push(rollout(tag))
        buffer.end_iteration()
    assert same_tree(to_dict(buffer.data), to_dict(side_by_side(rollout(1), rollout(2))))


def test_rollout_larger_than_the_buffer_is_refused():
    with pytest.raises(ValueError, match="a rollout of 6 does not fit into 5"):
        ReplayBuffer(Limits(9, 99, 5)).push(rollout(0))


def test_rollout_of_another_length_replaces_those_before():
    buffer = ReplayBuffer(Limits(9, 99, 24))
    buffer.push(rollout(0))
    buffer.push(rollout(1))
    assert tags(buffer) == [0, 1]
    buffer.push(rollout(2, rows=4, columns=3))
    assert tags(buffer) == [2]
    assert buffer.uses.shape == (4, 3)


def test_whole_episodes_longer_than_the_buffer_stay_alone_and_leave_no_rows_behind():
    buffer = ReplayBuffer(Limits(9, 99, 12, whole_episodes=True))
    for tag, rows, there in ((1, 3, [1]), (2, 9, [2]), (3, 2, [3]), (4, 3, [3, 4])):
        buffer.push(rollout(tag, rows=rows, cuts=((1, 0), (1, 1))))
        assert sorted(set((buffer.data.reward[buffer.data.valid].long() // 100).tolist())) == there
        assert len(buffer.data.valid) == len(buffer.uses) == max(rows, 2)
        buffer.end_iteration()


@pytest.mark.parametrize("lengths", [(3, 5), (5, 3), (3, 5, 4)])
def test_rollouts_of_several_lengths_lie_side_by_side_with_rows_that_nobody_draws(lengths):
    buffer = ReplayBuffer(Limits(9, 99, whole_episodes=True))
    for tag, rows in enumerate(lengths):
        buffer.push(rollout(tag, rows=rows), torch.full((rows, COLUMNS), 1.0 + tag))
        buffer.use(all_of(buffer)[buffer.data.valid.flatten()])
        buffer.end_iteration()
    for tag, rows in enumerate(lengths):
        mine = slice(tag * COLUMNS, (tag + 1) * COLUMNS)
        assert torch.equal(buffer.data.reward[:rows, mine], rollout(tag, rows=rows).reward)
        assert buffer.data.valid[:, mine].sum(0).tolist() == [rows] * COLUMNS
        assert (buffer.uses[:rows, mine] == len(lengths) - tag).all()
        assert (buffer.priority[:rows, mine] == 1.0 + tag).all()
    assert len(buffer.live_places()) == sum(lengths) * COLUMNS
    state = buffer.state_dict()
    again = ReplayBuffer(buffer.limits)
    again.load_state_dict(state)
    assert same_tree(again.state_dict(), state)


# ------------------------------------------------------------------ what stands in it


def test_kept_data_are_copies_that_the_next_collect_cannot_overwrite():
    buffer = ReplayBuffer(Limits(9, 99))
    storage = rollout(0)
    for tag in range(3):
        _overwrite(storage, rollout(tag))
        buffer.push(storage)
        buffer.end_iteration()
        _overwrite(storage, rollout(77))
    expected = side_by_side(side_by_side(rollout(0), rollout(1)), rollout(2))
    assert same_tree(to_dict(buffer.data), to_dict(expected))


def _overwrite(storage, other):
    target, source = to_dict(storage), to_dict(other)

    def write(a, b):
        for name in a:
            write(a[name], b[name]) if isinstance(a[name], dict) else a[name].copy_(b[name])

    write(target, source)


@pytest.mark.parametrize("cuts", [((), ()), (((1, 0),), ()), ((), ((1, 0),)), (((0, 1), (1, 0)), ((2, 1),))])
def test_final_observations_stay_with_their_rows(cuts):
    wide = side_by_side(rollout(0, cuts=cuts[0]), rollout(1, cuts=cuts[1]))
    for kept in ([0, 1, 2, 3], [0], [1, 2], [3], [0, 3]):
        chosen = to_dict(select_columns(wide, torch.tensor(kept)))
        assert chosen["truncated"].sum() == len(chosen.get("final", {"t": []})["t"])
        if "final" in chosen:
            final = chosen["final"]
            assert chosen["truncated"][final["t"], final["env"]].all()
            # Of these rollouts the true last observation shows the number of its row.
            assert torch.equal(final["obs"]["image"], chosen["obs"]["image"][final["t"], final["env"]])
        assert torch.equal(chosen["last_obs"]["image"], chosen["obs"]["image"][-1])


def raw_rollouts(cls, autoreset, count=4):
    """Returns a policy of exact values (no matrix products), and rollouts before their advantages."""
    envs = vector_of(lambda index: cls(), 3, autoreset=autoreset)
    policy = policy_for(envs, learn={"value_norm": False})
    policy.model.compute_critic = lambda obs: obs[:, 0] * 0.5 - obs[:, 1] * 0.25 + obs[:, 2]
    mode = policy.collect_mode._replace(get_train_sample=lambda rollout: rollout)
    collector = Collector(envs, mode, 30)
    found = [as_rollout(copy.deepcopy(to_dict(collector.collect()))) for _ in range(count)]
    draw = torch.Generator().manual_seed(0)
    weights = [torch.rand(r.reward.shape, generator=draw) for r in found]
    return policy, found, weights


def together(rollouts):
    wide = rollouts[0]
    for one in rollouts[1:]:
        wide = side_by_side(wide, one)
    return wide


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("cls", [SeededEnv, SeededBox])
@pytest.mark.parametrize("nstep", [False, True])
def test_credit_of_each_column_is_that_of_its_own_rollout_alone(cls, autoreset, nstep):
    policy, rollouts, weights = raw_rollouts(cls, autoreset)
    policy.cfg.nstep_return = nstep
    ends = [sum(int(r[kind].sum()) for r in rollouts) for kind in ("terminated", "truncated")]
    assert min(ends) > 3, "the rollouts must have both ends"
    assert autoreset != "next_step" or not all(r.valid.all() for r in rollouts)
    alone = [policy.credit(r, w) for r, w in zip(rollouts, weights, strict=True)]
    columns = torch.arange(12)
    for kept in (columns, columns[3:], columns[[0, 4, 5, 11]]):
        wide = select_columns(together(rollouts), kept)
        found = policy.credit(wide, torch.cat(weights, 1)[:, kept])
        for name, field in found.items():
            assert torch.equal(field, torch.cat([one[name] for one in alone], 1)[:, kept]), name


def test_negative_control_final_observations_of_another_column_give_other_credit():
    policy, rollouts, _ = raw_rollouts(SeededEnv, "same_step")
    wide = together(rollouts)
    right = policy.credit(wide)["advantage"]
    wide.final.env = wide.final.env % 3  # as if they were not moved to their new place
    assert not torch.allclose(policy.credit(wide)["advantage"], right, atol=1e-2)


# ------------------------------------------------------------------ saved and loaded


def saved_and_loaded(state, tmp_path):
    save_checkpoint(tmp_path / "one", {"part": state}, {})
    return load_checkpoint(tmp_path / "one")[0]["part"]


def filled_buffer():
    buffer = ReplayBuffer(Limits(3, 4, 18))
    for tag in range(4):
        buffer.push(rollout(tag), priority=torch.rand(ROWS, COLUMNS))
        buffer.use(torch.arange(tag + 1))
        buffer.end_iteration()
    return buffer


def test_buffer_is_the_same_bit_for_bit_after_a_checkpoint_and_goes_on_alike(tmp_path):
    buffer, other = filled_buffer(), ReplayBuffer(Limits(3, 4, 18))
    other.load_state_dict(saved_and_loaded(buffer.state_dict(), tmp_path))
    assert digest(other.state_dict()) == digest(buffer.state_dict())
    for one in (buffer, other):
        one.push(rollout(4))
        one.use(torch.tensor([1, 2, 7]))
        one.end_iteration()
    assert digest(other.state_dict()) == digest(buffer.state_dict())
    other.use(torch.tensor([3]))
    assert digest(other.state_dict()) != digest(buffer.state_dict()), "negative control"


def test_empty_buffer_is_saved_and_empties_the_one_that_loads_it(tmp_path):
    buffer = ReplayBuffer(Limits(1))
    buffer.push(rollout(0))
    buffer.end_iteration()
    other = filled_buffer()
    other.load_state_dict(saved_and_loaded(buffer.state_dict(), tmp_path))
    assert other.data is None
    assert digest(other.state_dict()) == digest(buffer.state_dict())


@pytest.mark.parametrize("name", ["iteration", "uses", "version", "priority", "data"])
def test_buffer_state_that_lacks_a_part_is_refused(name):
    state = filled_buffer().state_dict()
    del state[name]
    with pytest.raises(KeyError, match=name):
        ReplayBuffer(Limits(3, 4)).load_state_dict(state)


# ------------------------------------------------------------------ samples for the auxiliary phase


def samples(start, count):
    number = torch.arange(start, start + count)
    return {
        "obs": {
            "image": number.to(torch.uint8).view(-1, 1, 1).repeat(1, 2, 2),
            "action_mask": number % 2 > 0,
        },
        "value_target": number.double() / 3,
    }


def memory_of(*counts, capacity=20):
    memory = AuxiliarySamples()
    memory.reserve(capacity)
    for i, count in enumerate(counts):
        memory.append(i + 5, samples(sum(counts[:i]), count))
    return memory


def test_memory_keeps_every_sample_in_order_with_its_own_dtype():
    memory = memory_of(4, 1, 7)
    assert memory.size == 12
    assert memory.starts == {5: 0, 6: 4, 7: 5}
    assert same_tree(memory.all(), samples(0, 12))
    assert memory.all()["obs"]["image"].dtype == torch.uint8
    index = torch.tensor([11, 0, 4, 4])
    assert same_tree(
        memory.read(index, torch.device("cpu")), map_tree(lambda leaf: leaf[index], samples(0, 12))
    )


def test_memory_is_allocated_once_and_reads_are_views_of_it():
    memory = memory_of(4)
    before = memory.all()["value_target"].data_ptr()
    memory.append(6, samples(4, 16))
    assert memory.all()["value_target"].data_ptr() == before
    memory.clear()
    memory.append(7, samples(0, 3))
    assert memory.all()["value_target"].data_ptr() == before


def test_memory_holds_copies():
    memory, given = AuxiliarySamples(), samples(0, 3)
    memory.reserve(3)
    memory.append(0, given)
    map_tree(lambda leaf: leaf.zero_(), given)
    assert same_tree(memory.all(), samples(0, 3))


def test_memory_writes_over_some_fields_of_one_iteration_alone():
    memory = memory_of(4, 3)
    memory.write(memory.starts[6], {"value_target": torch.tensor([7.0, 8.0, 9.0], dtype=torch.float64)})
    expected = samples(0, 7)
    expected["value_target"][4:] = torch.tensor([7.0, 8.0, 9.0])
    assert same_tree(memory.all(), expected)


def test_memory_that_is_full_refuses_more_and_says_how_full():
    memory = memory_of(4, 15)
    with pytest.raises(ValueError, match="2 samples do not fit: 19 of 20 are there already"):
        memory.append(9, samples(0, 2))
    assert memory.size == 19
    memory.append(9, samples(19, 1))


def test_cleared_memory_has_room_for_all_of_its_capacity_again():
    memory = memory_of(20)
    memory.clear()
    assert memory.size == 0
    assert memory.starts == {}
    memory.append(9, samples(50, 20))
    assert same_tree(memory.all(), samples(50, 20))


def test_memory_is_the_same_bit_for_bit_after_a_checkpoint_and_goes_on_alike(tmp_path):
    memory, other = memory_of(4, 3), AuxiliarySamples()
    other.load_state_dict(saved_and_loaded(memory.state_dict(), tmp_path))
    assert other.starts == memory.starts
    for one in (memory, other):
        one.reserve(20)
        one.append(8, samples(7, 2))
    assert digest(other.state_dict()) == digest(memory.state_dict())
    assert same_tree(other.all(), samples(0, 9))


def test_empty_memory_is_saved_and_empties_the_one_that_loads_it(tmp_path):
    memory = memory_of(4)
    memory.load_state_dict(saved_and_loaded(AuxiliarySamples().state_dict(), tmp_path))
    assert (memory.size, memory.starts, memory.all()) == (0, {}, {})


@pytest.mark.parametrize("name", ["capacity", "iterations", "starts", "fields"])
def test_memory_state_that_lacks_a_part_is_refused(name):
    state = memory_of(4).state_dict()
    del state[name]
    with pytest.raises(KeyError, match=name):
        AuxiliarySamples().load_state_dict(state)


# ------------------------------------------------------------------ how much the host has


def host(tmp_path, monkeypatch, available=None, **group):
    monkeypatch.setattr(sample_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(sample_memory, "CGROUP", tmp_path)
    if available is not None:
        (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable:  {available} kB\n")
    for name, text in group.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    return host_memory()


def test_free_memory_is_what_the_system_calls_available(tmp_path, monkeypatch):
    assert host(tmp_path, monkeypatch, available=2000) == 2000 * 1024


def test_container_without_a_limit_is_no_limit(tmp_path, monkeypatch):
    assert host(tmp_path, monkeypatch, available=2000, max="max", current=5) == 2000 * 1024


@pytest.mark.parametrize(("cache", "free"), [(0, 300_000), (200_000, 500_000), (9_000_000, 2000 * 1024)])
def test_container_limit_counts_and_its_file_cache_is_free(tmp_path, monkeypatch, cache, free):
    stat = f"anon 1\ninactive_file {cache}\nactive_file 7"
    assert host(tmp_path, monkeypatch, 2000, max=1_000_000, current=700_000, stat=stat) == free


def test_unknown_memory_is_none(tmp_path, monkeypatch):
    assert host(tmp_path, monkeypatch) is None


def test_memory_of_this_machine_is_known_or_none():
    assert host_memory() is None or host_memory() > 0


def test_the_rows_of_the_longest_rollout_leave_with_it():
    buffer = ReplayBuffer(Limits(1, 9, whole_episodes=True))
    buffer.push(rollout(0, rows=9))
    buffer.end_iteration()
    buffer.push(rollout(1, rows=3))
    old = (buffer.data.valid & (buffer.version == 0)).flatten()
    buffer.use(all_of(buffer)[old])
    buffer.end_iteration()
    assert tags(buffer) == [1]
    assert len(buffer.data.valid) == len(buffer.uses) == len(buffer.priority) == 3
