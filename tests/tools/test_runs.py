"""Run folders: how they are found, read, described, grouped and labelled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_runs import write_run

from ding_lite.errors import ConfigError
from ding_lite.run.folder import locked
from ding_lite.tools.runs import find_runs, grouped, list_runs, read_run, runs_of

# Finding


def test_runs_are_found_at_any_depth_and_not_inside_of_runs(tmp_path):
    for name in ("run_10", "run_2", "sweep/a", ".hidden/a"):
        write_run(tmp_path / name)
    write_run(tmp_path / "run_2" / "ckpt" / "last.safetensors")
    (tmp_path / "empty").mkdir()
    (tmp_path / "sweep" / "log.txt").write_text("")
    (tmp_path / "sweep" / "sweep.json").write_text("{}")  # a sweep is its trials
    names = [str(folder.relative_to(tmp_path)) for folder in find_runs(tmp_path)]
    assert names == ["run_2", "run_10", "sweep/a"]


def test_an_argument_is_a_run_a_folder_of_runs_or_a_pattern(tmp_path):
    one, two, ten = (write_run(tmp_path / "runs" / f"a_{number}") for number in (1, 2, 10))
    odd = write_run(tmp_path / "runs" / "b[1]")
    assert runs_of(one, tmp_path / "runs" / ".." / "runs" / "a_1") == [one]
    assert runs_of(str(tmp_path / "runs" / "a_*")) == [one, two, ten]
    assert len(runs_of(tmp_path / "runs")) == 4
    assert runs_of(odd) == [odd]  # a folder that exists is no pattern
    (tmp_path / "best.py").write_text("")
    assert runs_of(one, tmp_path / "best.py") == [one]
    (tmp_path / "empty").mkdir()
    for nothing in ("nowhere", "nowhere*", "empty"):
        with pytest.raises(ConfigError, match=nothing.strip("*")):
            runs_of(one, tmp_path / nothing)


# Reading


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        (b"1,2\n2,abc\n", "line 3"),
        (b"1,\xff\xfe\n", "line 2"),
        (b"1,2\n\n9,1\n2,3\n", "env_step decreases"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, rows, place):
    folder = write_run(tmp_path / "run")
    (folder / "metrics.csv").write_bytes(b"env_step,collect/episode_return\n" + rows)
    with pytest.raises(ConfigError, match=rf"metrics\.csv.* {place}"):
        read_run(folder, wanted=["collect/episode_return"])


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run")
    metrics = folder / "metrics.csv"
    metrics.write_text(metrics.read_text() + "5000,4,1")
    assert read_run(folder).columns["env_step"].tolist() == [1000, 2000, 3000, 4000]


# One line a run


def test_every_kind_of_run_is_listed_with_its_status(tmp_path):
    for status in ("solved", "finished", "interrupted"):
        write_run(tmp_path / status, status=status)
    write_run(tmp_path / "killed", status=None)
    result = {"status": "failed", "error": "EnvError: no", "env_step": 4000}
    (write_run(tmp_path / "failed") / "result.json").write_text(json.dumps(result))
    (tmp_path / "failed" / "metrics.csv").write_text("")  # in its first iteration
    resumed = write_run(tmp_path / "resumed")  # and then killed: its result is that of the first session
    (resumed / "result.json").write_text(json.dumps({**result, "status": "finished", "env_step": 2000}))
    write_run(tmp_path / "no_evaluation", every=0)
    (write_run(tmp_path / "no_metrics") / "metrics.csv").write_text("{\n1\n")
    texts = ("{", "[]", "{}", '{"config": 3}', '{"config": {"policy": {"type": "ppo"}}}')
    for number, text in enumerate(texts):
        (write_run(tmp_path / f"config_{number}") / "config.json").write_text(text)
    with locked(write_run(tmp_path / "running")):
        found = {run.folder.name: run for run in list_runs(tmp_path)}
    assert {name: run.status for name, run in found.items()} == {
        **{name: name for name in ("solved", "finished", "interrupted", "killed", "failed", "running")},
        "resumed": "killed",
        "no_evaluation": "finished",
        **dict.fromkeys(("no_metrics", *(f"config_{number}" for number in range(5))), "unreadable"),
    }
    assert found["failed"].error == "EnvError: no"
    assert found["no_evaluation"].score is None
    assert "config.json" in (found["config_0"].error or "")


def test_the_newest_run_comes_first_with_its_last_evaluation(tmp_path):
    for name in ("a2", "a10", "b"):
        write_run(tmp_path / name, seed=3, returns=[1.0, 90.0, 3.0, 4.0, 5.0], policy="ppg")
    (tmp_path / "a10" / "log.txt").write_text("2031-01-01 00:00:00  new run\n")
    (tmp_path / "b" / "log.txt").unlink()
    runs = list_runs(tmp_path)
    assert [run.folder.name for run in runs] == ["a10", "a2", "b"]
    assert runs[1]._asdict() == {
        **{"folder": tmp_path / "a2", "status": "finished", "score": 9.0, "env_step": 5000},
        **{"started": "2030-01-02 03:04:05", "policy": "ppg", "env_id": "CartPole-v1", "seed": 3},
        **{"differs": {}, "error": None},
    }


def test_a_run_says_in_what_it_differs_from_others_of_its_policy_and_environment(tmp_path):
    for seed in (0, 1):
        for rate in (0.1, 0.2):
            write_run(tmp_path / f"{rate}_{seed}", seed=seed, learn={"rate": rate, "twice": 2 * rate})
    (write_run(tmp_path / "torn") / "config.json").write_text("{")
    write_run(tmp_path / "other", policy="ppg", learn={"rate": 7})
    write_run(tmp_path / "plain", policy="x")
    write_run(tmp_path / "heavy", policy="x", env={"kwargs": {"reward_weight": 2}})
    write_run(tmp_path / "longer", learn={"rate": 0.1, "twice": 0.2}, limit=8000)
    differs = {run.folder.name: run.differs for run in list_runs(tmp_path)}
    slow, fast = ({"policy.learn.rate": rate, "policy.learn.twice": 2 * rate} for rate in (0.1, 0.2))
    assert differs["0.1_0"] == differs["0.1_1"] == differs["longer"] == slow
    assert differs["0.2_0"] == fast
    assert differs["other"] == differs["plain"] == {}
    assert differs["heavy"] == {"env.kwargs.reward_weight": 2}  # a key that one of them has


# Groups and labels


def labels_of(folder: Path, *runs: dict[str, Any]) -> list[str]:
    """Returns the labels of written runs with the number of their seeds."""
    for index, each in enumerate(runs):
        write_run(folder / f"run{index}", **each)
    groups = grouped([folder], ["collect/episode_return"], [])
    return [f"{label} x{len(group)}" for label, group in groups.items()]


def pairs(key: str, *values: Any) -> list[dict[str, Any]]:
    return [{key: value} for value in values]


ADAPTIVE, LINEAR = (
    [
        {
            "seed": seed,
            "learn": {"lr_schedule": kind, "clip_schedule": "constant", "schedule_env_step": 9 + seed},
        }
        for seed in (0, 1)
    ]
    for kind in ("adaptive", "linear")
)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (pairs("seed", 0, 1, 2), ["ppo, CartPole-v1 x3"]),
        ([{"policy": p, "seed": s} for s in (0, 1) for p in ("ppo", "ppg")], ["ppo x2", "ppg x2"]),
        (pairs("env_id", "CartPole-v1", "Acrobot-v1"), ["CartPole-v1 x1", "Acrobot-v1 x1"]),
        # What follows from the policy or from another key is not repeated.
        ([{"policy": "ppo"}, {"policy": "ppg", "learn": {"aux_freq": 5}}], ["ppo x1", "ppg x1"]),
        (pairs("learn", {"rate": 1, "twice": 2}, {"rate": 2, "twice": 4}), ["rate=1 x1", "rate=2 x1"]),
        (
            pairs("learn", {"rate": 1, "clip": 2}, {"rate": 3, "clip": 2}, {"rate": 1}),
            ["rate=1, clip=2 x1", "rate=3, clip=2 x1", "rate=1, clip=- x1"],
        ),
        (
            pairs("learn", {"rate": 0.123456789}, {"rate": 0.123456788}),
            ["rate=0.1235, run0 x1", "rate=0.1235, run1 x1"],
        ),
        (
            pairs("env", {"manager": {"type": "base"}}, {"manager": {"type": "subprocess"}}),
            ["manager.type=base x1", "manager.type=subprocess x1"],
        ),
        # The limit sets the length of a schedule, which makes another group if there is one.
        (ADAPTIVE, ["ppo, CartPole-v1 x2"]),
        (LINEAR, ["schedule_env_step=9 x1", "schedule_env_step=10 x1"]),
    ],
)
def test_groups_are_labelled_by_what_distinguishes_them(tmp_path, runs, expected):
    assert labels_of(tmp_path, *runs) == expected


def test_a_seed_that_comes_twice_is_no_second_sample(tmp_path):
    for when in ("before", "after"):
        for seed in (0, 1, 2):
            write_run(tmp_path / f"{when}_s{seed}", seed=seed)
    write_run(tmp_path / "alone", seed=0)
    names = ("before_s*", "after_s*", "alone")
    groups = grouped([tmp_path / name for name in names], ["collect/episode_return"], [])
    assert {name: len(runs) for name, runs in groups.items()} == {"before": 3, "after": 3, "alone": 1}
    write_run(tmp_path / "before", seed=0)  # the name of a launch, and the seed of before_s0
    groups = grouped([tmp_path / name for name in ("before_s*", "before")], ["collect/episode_return"], [])
    assert list(map(len, groups.values())) == [1, 1, 1, 1]
