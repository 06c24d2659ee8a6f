"""Run folders: how they are found, read, described and grouped."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from written_runs import write_run

from ding_lite.errors import ConfigError
from ding_lite.tools.compare import compare
from ding_lite.tools.runs import (
    distinguishing_keys,
    find_runs,
    group_runs,
    list_runs,
    natural,
    read_run,
    runs_of,
    short_names,
    status_of,
    without_files,
)

# Finding


def test_runs_are_found_at_any_depth_and_not_inside_of_runs(tmp_path):
    for name in ("run_10", "run_2", "sweep/a", ".hidden/a"):
        write_run(tmp_path / name)
    write_run(tmp_path / "run_2" / "ckpt" / "last.safetensors")
    (tmp_path / "empty").mkdir()
    names = [str(folder.relative_to(tmp_path)) for folder in find_runs(tmp_path)]
    assert names == ["run_2", "run_10", "sweep/a"]
    assert find_runs(tmp_path / "run_2") == [tmp_path / "run_2"]


def test_links_are_followed_and_a_run_with_two_names_is_one(tmp_path):
    elsewhere = write_run(tmp_path / "disk" / "run_1")
    folder = tmp_path / "runs"
    run = write_run(folder / "run_2")
    (folder / "run_1").symlink_to(elsewhere)
    (folder / "latest").symlink_to(run)
    (folder / "circle").symlink_to(folder)
    assert find_runs(folder) == [run, folder / "run_1"]


def test_a_sweep_is_its_trials(tmp_path):
    sweep = tmp_path / "sweep"
    trials = [write_run(sweep / f"trial_{number:03}_s0") for number in range(3)]
    (sweep / "log.txt").write_text("2030-01-02 03:04:05  trial 0: learning_rate=0.001\n")
    assert find_runs(tmp_path) == [sweep]  # negative control: it looks like a run
    (sweep / "sweep.json").write_text("{}")
    assert find_runs(tmp_path) == find_runs(sweep) == runs_of(sweep) == trials
    assert [run.status for run in list_runs(sweep)] == ["finished"] * 3


def test_an_argument_is_a_run_a_folder_of_runs_or_a_pattern(tmp_path):
    one, two, ten = (write_run(tmp_path / "runs" / f"a_{number}") for number in (1, 2, 10))
    write_run(tmp_path / "runs" / "b[1]")
    assert runs_of(one) == [one]
    assert runs_of(str(tmp_path / "runs" / "a_*")) == [one, two, ten]
    assert len(runs_of(tmp_path / "runs")) == 4
    # A folder that exists is no pattern, whatever its name.
    assert runs_of(tmp_path / "runs" / "b[1]") == [tmp_path / "runs" / "b[1]"]


def test_arguments_without_runs_are_errors(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no run folder .*nowhere"):
        runs_of(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no folder matches .*nowhere\*"):
        runs_of(tmp_path / "nowhere*")
    with pytest.raises(ConfigError, match=r"empty is not a run folder and has none in it: none of log\.txt"):
        runs_of(tmp_path / "empty")


def test_numbers_in_names_are_sorted_by_value():
    names = ["a10", "a9", "b", "a", "10", "9"]
    assert sorted(names, key=natural) == ["9", "10", "a", "a9", "a10", "b"]


# Reading


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"config": 3}'])
def test_a_config_that_cannot_be_read(tmp_path, text):
    folder = write_run(tmp_path / "run")
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"cannot read the config in .*config\.json"):
        read_run(folder)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (b"1,2\n2,abc\n", r"metrics\.csv, line 3: .*abc"),
        (b"1,2\n2,3,4\n", r"metrics\.csv, line 3: 3 cells where the header has 2"),
        (b"1,2\n2\n", r"metrics\.csv, line 3: 1 cells"),
        (b"1,\xff\xfe\n", r"metrics\.csv, line 2: "),
        (b"1,2\n\n9,1\n2,3\n", r"metrics\.csv, line 5: env_step goes back from 9 to 2"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, rows, message):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.csv").write_bytes(b"env_step,collect/episode_return\n" + rows)
    with pytest.raises(ConfigError, match=message):
        read_run(folder, wanted=["collect/episode_return"])


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run")
    metrics = folder / "metrics.csv"
    metrics.write_text(metrics.read_text() + "5000,4,1")
    assert read_run(folder).x.tolist() == [1000, 2000, 3000, 4000]


# One line a run


def statuses(folder: Path) -> dict[str, str]:
    return {run.folder.name: run.status for run in list_runs(folder)}


def test_a_run_is_described_by_its_last_evaluation(tmp_path):
    write_run(tmp_path / "run", seed=3, returns=[1.0, 90.0, 3.0, 4.0, 5.0], limit=4500, policy="ppg")
    (run,) = list_runs(tmp_path)
    assert (run.status, run.score, run.score_std, run.best_score) == ("finished", 9.0, 2.5, 95.0)
    assert (run.env_step, run.max_env_step, run.started) == (5000, 4500, "2030-01-02 03:04:05")
    file = run.folder / "result.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "best_eval_value": 9.0})
    )  # of the newest task
    assert list_runs(tmp_path)[0].best_score == 9.0
    assert (run.policy, run.env_id, run.seed, run.differs) == ("ppg", "CartPole-v1", 3, {})


def test_the_keys_that_differ_are_found_once_for_all_runs_of_a_task(tmp_path, monkeypatch):
    for number in range(4):
        write_run(tmp_path / f"run_{number}")
    find = mock.Mock(wraps=distinguishing_keys)
    monkeypatch.setattr("ding_lite.tools.runs.distinguishing_keys", find)
    assert len(list_runs(tmp_path)) == 4
    assert find.call_count == 1


def test_every_kind_of_run_is_listed_with_its_status(tmp_path):
    for status in ("solved", "finished", "interrupted"):
        write_run(tmp_path / status, status=status)
    write_run(tmp_path / "killed", status=None)
    failed = write_run(tmp_path / "failed")
    result = {"status": "failed", "error": "EnvError: no", "env_step": 4000}
    (failed / "result.json").write_text(json.dumps(result))
    resumed = write_run(tmp_path / "resumed")  # and then killed: its result is that of the first session
    (resumed / "result.json").write_text(json.dumps({**result, "status": "finished", "env_step": 2000}))
    write_run(tmp_path / "no_evaluation", every=0)
    for name, file in {
        "no_config": "config.json",
        "no_metrics": "metrics.csv",
        "bad_result": "result.json",
    }.items():
        (write_run(tmp_path / name) / file).write_text("{")
    (write_run(tmp_path / "no_seed") / "config.json").write_text('{"config": {"policy": {"type": "ppo"}}}')
    with (write_run(tmp_path / "running") / "log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        found = {run.folder.name: run for run in list_runs(tmp_path)}
    assert {name: run.status for name, run in found.items()} == {
        "solved": "solved",
        "finished": "finished",
        "interrupted": "interrupted",
        "killed": "killed",
        "failed": "failed",
        "resumed": "killed",
        "no_evaluation": "finished",
        "no_config": "unreadable",
        "no_metrics": "unreadable",
        "bad_result": "unreadable",
        "no_seed": "unreadable",
        "running": "running",
    }
    assert statuses(tmp_path)["running"] == "finished"  # the lock is gone
    assert found["failed"].error == "EnvError: no"
    assert found["no_evaluation"].score is None
    assert found["bad_result"].env_id == "CartPole-v1"
    assert "config.json" in (found["no_config"].error or "")
    assert "no column 'env_step'" in (found["no_metrics"].error or "")


def test_runs_are_sorted_by_start_score_steps_and_name(tmp_path):
    write_run(tmp_path / "a2", returns=[1.0, 1.0])
    write_run(tmp_path / "a10", returns=[3.0, 3.0, 3.0])
    write_run(tmp_path / "b", every=0)
    (tmp_path / "a2" / "log.txt").write_text("2031-01-01 00:00:00  new run\n")
    (tmp_path / "b" / "log.txt").unlink()

    def names(order: str) -> list[str]:
        return [run.folder.name for run in list_runs(tmp_path, order)]

    assert names("started") == ["a2", "a10", "b"]
    assert names("score") == ["a10", "a2", "b"]
    assert names("steps") == ["b", "a10", "a2"]
    assert names("name") == ["a2", "a10", "b"]


def test_a_run_says_in_what_it_differs_from_others_of_its_policy_and_environment(tmp_path):
    for seed in (0, 1):
        for rate in (0.1, 0.2):
            write_run(tmp_path / f"{rate}_{seed}", seed=seed, learn={"rate": rate, "twice": 2 * rate})
    write_run(tmp_path / "other", policy="ppg", learn={"rate": 7})
    write_run(tmp_path / "longer", learn={"rate": 0.1, "twice": 0.2}, limit=8000)
    differs = {run.folder.name: run.differs for run in list_runs(tmp_path)}
    slow, fast = ({"policy.learn.rate": rate, "policy.learn.twice": 2 * rate} for rate in (0.1, 0.2))
    assert differs["0.1_0"] == differs["0.1_1"] == differs["longer"] == slow
    assert differs["0.2_0"] == fast
    assert differs["other"] == {}


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no folder .*nowhere"):
        list_runs(tmp_path / "nowhere")
    assert list_runs(tmp_path) == []


def test_status_of_a_run_without_a_log_is_that_of_its_result(tmp_path):
    folder = write_run(tmp_path / "run", status="solved")
    (folder / "log.txt").unlink()
    assert status_of(read_run(folder)) == ("solved", None)


# Groups and labels


def label(tmp_path: Path, *runs: dict[str, Any]) -> list[str]:
    folders = [write_run(tmp_path / f"run{index}", **each) for index, each in enumerate(runs)]
    return [group.label for group in group_runs([read_run(folder) for folder in folders])]


def test_the_seeds_of_one_config_are_one_group(tmp_path):
    assert label(tmp_path, *({"seed": seed} for seed in range(5))) == ["ppo, CartPole-v1, n=5 seeds"]


def test_a_run_alone_names_its_seed(tmp_path):
    assert label(tmp_path, {"seed": 3}) == ["ppo, CartPole-v1, seed 3"]


def test_labels_say_only_what_differs(tmp_path):
    runs = [{"policy": policy, "seed": seed} for seed in (0, 1) for policy in ("ppo", "ppg")]
    assert label(tmp_path / "policy", *runs) == ["ppo, n=2 seeds", "ppg, n=2 seeds"]
    runs = [{"env_id": env_id} for env_id in ("CartPole-v1", "Acrobot-v1")]
    assert label(tmp_path / "env", *runs) == ["CartPole-v1, seed 0", "Acrobot-v1, seed 0"]
    # What follows from the policy is not repeated.
    runs = [{"policy": "ppo"}, {"policy": "ppg", "learn": {"learning_rate": 0.1, "aux_freq": 5}}]
    assert label(tmp_path / "follows", *runs) == ["ppo, seed 0", "ppg, seed 0"]


def test_labels_fall_back_on_the_first_keys_that_differ(tmp_path):
    runs = [{"learn": {"learning_rate": rate, "twice": 2 * rate}} for rate in (0.1, 0.2)]
    expected = [f"learning_rate={rate}, +1 key, seed 0" for rate in (0.1, 0.2)]
    assert label(tmp_path / "one", *runs) == expected
    runs = [{"learn": {"rate": 1, "clip": 2}}, {"learn": {"rate": 3, "clip": 2}}, {"learn": {"rate": 1}}]
    expected = ["rate=1, clip=2, seed 0", "rate=3, clip=2, seed 0", "rate=1, clip=not set, seed 0"]
    assert label(tmp_path / "two", *runs) == expected


def test_labels_show_what_is_learned_with_before_other_keys(tmp_path):
    runs = [
        {"learn": {"rate": rate}, "hooks": [f"hook{rate}"], "env": {"manager": {"worker_num": rate}}}
        for rate in (1, 2)
    ]
    assert label(tmp_path, *runs) == ["rate=1, +2 keys, seed 0", "rate=2, +2 keys, seed 0"]


def test_a_key_whose_last_part_says_little_is_shown_with_its_section(tmp_path):
    runs = [{"env": {"manager": {"type": kind}}} for kind in ("base", "subprocess")]
    assert label(tmp_path, *runs) == ["manager.type=base, seed 0", "manager.type=subprocess, seed 0"]
    keys = ["env.kwargs.size", "policy.learn.rate", "policy.model.size"]
    assert list(short_names(keys).values()) == ["kwargs.size", "rate", "model.size"]


def test_an_environment_without_an_id_has_the_name_of_its_type(tmp_path):
    mine = {"env_id": None, "env": {"type": "my_worlds:Mine"}}
    assert label(tmp_path / "one", mine) == ["ppo, my_worlds:Mine, seed 0"]
    assert label(tmp_path / "two", mine, {}) == ["my_worlds:Mine, seed 0", "CartPole-v1, seed 0"]
    listed = list_runs(tmp_path / "one")
    assert [run.env_id for run in listed] == ["my_worlds:Mine"]


def test_numbers_with_many_digits_are_rounded_in_labels(tmp_path):
    runs = [{"learn": {"rate": rate}} for rate in (0.008096117930775642, 0.00012031042514203794, 475.0)]
    assert label(tmp_path / "far", *runs) == [
        f"rate={text}, seed 0" for text in ("0.008096", "0.0001203", "475.0")
    ]
    near = [{"learn": {"rate": rate}} for rate in (0.0080961179, 0.0080961178)]
    assert label(tmp_path / "near", *near) == [f"rate=0.008096, run{n}, seed 0" for n in (0, 1)]


def test_a_seed_that_comes_twice_is_no_second_sample(tmp_path):
    runs = [read_run(write_run(tmp_path / when / "s1", seed=1)) for when in ("before", "after")]
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [1, 1]
    assert [group.label for group in groups] == [
        str(Path(when) / "s1") + ", seed 1" for when in ("before", "after")
    ]


def test_two_launches_of_a_config_are_two_groups(tmp_path):
    folders = [tmp_path / f"{when}_s{seed}" for when in ("before", "after") for seed in (0, 1, 2)]
    runs = [read_run(write_run(folder, seed=int(folder.name[-1]))) for folder in folders]
    one_more = read_run(write_run(tmp_path / "alone", seed=0))
    groups = group_runs([*runs, one_more])
    assert [group.label for group in groups] == ["before, n=3 seeds", "after, n=3 seeds", "alone, seed 0"]
    same_name = read_run(write_run(tmp_path / "before", seed=0))  # and the seed of before_s0
    assert [len(group.runs) for group in group_runs([*runs[:3], same_name])] == [1, 1, 1, 1]


def test_files_beside_runs_are_left_out(tmp_path):
    run, file = write_run(tmp_path / "run"), tmp_path / "best.py"
    file.write_text("config = {}\n")
    assert without_files([run, file]) == [run]
    assert without_files([file]) == [file]  # so that the user is told


def test_a_seed_that_was_resumed_with_a_higher_limit_belongs_to_its_group(tmp_path):
    runs = [{"seed": 0}, {"seed": 1, "limit": 8000}]
    assert label(tmp_path / "limit", *runs) == ["ppo, CartPole-v1, n=2 seeds"]


@pytest.mark.parametrize(("kind", "groups"), [("constant", 1), ("linear", 2)])
def test_the_length_of_a_schedule_makes_another_group_if_there_is_one(kind, groups, tmp_path):
    """The limit sets it."""
    learn = {"lr_schedule": kind, "clip_schedule": "constant"}
    runs = [{"seed": seed, "learn": {**learn, "schedule_env_step": 4000 + seed}} for seed in (0, 1)]
    assert len(label(tmp_path / kind, *runs)) == groups


def test_a_run_whose_last_rows_are_lost_is_left_out(tmp_path):
    whole, torn = (write_run(tmp_path / name, seed=seed) for seed, name in enumerate(("whole", "torn")))
    text = (torn / "metrics.csv").read_text()
    (torn / "metrics.csv").write_text(text[:-40])
    with pytest.raises(ConfigError, match=r"torn.metrics\.csv has lost rows: it ends at 3,000 .* at 4,000"):
        status_of(read_run(torn))
    comparison = compare([whole, torn])
    assert comparison.ends == {"CartPole-v1": 4000}
    assert "lost rows" in comparison.notes[0]


def test_the_same_keys_distinguish_the_configs_of_every_task():
    first = [{"policy.type": "ppo", "a": 1, "b": 1}, {"policy.type": "ppo", "a": 2, "b": 1}]
    second = [{"policy.type": "ppo", "a": 5, "b": 1}, {"policy.type": "ppo", "a": 5, "b": 2}]
    assert distinguishing_keys([first]) == ["a"]
    assert distinguishing_keys([second]) == ["b"]
    assert distinguishing_keys([first, second]) == ["a", "b"]
    assert distinguishing_keys([first[:1], second[:1]]) == []
