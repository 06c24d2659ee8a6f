"""Several runs at a time: what is read of them while they train, their folders, their mean, their table."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from worlds import small_config

from ding_lite import compile_config
from ding_lite.cli.main import commands as program
from ding_lite.errors import ConfigError
from ding_lite.run.checkpoint import save_checkpoint
from ding_lite.run.folder import CsvFile
from ding_lite.tools.jobs import Needs, Processes, error_message, needs_of
from ding_lite.tools.seeds import (
    commands_to_continue,
    seed_trainings,
    seeds_report,
    seeds_table,
    summary_of,
)
from ding_lite.tools.several import Board, Crew, Rows, Training


def training(seed=0, **known):
    return Training(f"seed {seed}", seed, Path(f"runs/x_s{seed}"), [], 100, **known)


def ended(score, status="finished", seed=0):
    return training(
        seed, status=status, code=0, env_step=1536, result={"eval_value": score, "wall_time_s": 2.5}
    )


def test_seeds_that_have_not_begun_are_not_resumed(tmp_path):
    trainings = seed_trainings((0, 1), tmp_path / "c", ["train", "-c", "c.json"], 900)
    assert commands_to_continue(trainings) == [
        f"ding-lite train -c c.json -s 0,1 --exp-name {tmp_path / 'c'}"
    ]


def test_a_name_that_is_no_name_is_refused():
    with pytest.raises(ConfigError, match="expected the beginning of the folders' names"):
        seed_trainings((0, 1), Path(), ["train"], 900)


class Gone:
    """A training that a signal has ended."""

    def __init__(self, code):
        self.code = code

    def poll(self):
        return self.code

    def send(self, name):
        pass

    def error(self):
        return "ended"


@pytest.mark.parametrize(
    ("code", "result", "stops", "status"),
    [
        (130, {"status": "finished"}, True, "interrupted"),  # the result is that of an earlier session
        (0, {"status": "finished"}, True, "finished"),
        (-2, {}, True, "interrupted"),  # before it had a handler
        (-1, {}, True, "interrupted"),
        (-2, {}, False, "failed"),
        (5, {"status": "finished"}, True, "failed"),
    ],
)
def test_status_of_a_training_that_was_stopped(code, result, stops, status, tmp_path):
    one = training()
    one.folder = tmp_path
    (tmp_path / "result.json").write_text(json.dumps(result))
    place = SimpleNamespace(start=lambda arguments, folder: Gone(code))
    one.start(place)
    if stops:
        one.stop("SIGINT")
    assert list(one.follow()) != []
    assert one.status == status


@pytest.mark.parametrize(
    ("error", "score"),
    [
        ("no evaluation of the last 5 was above 9", 7.0),
        ("SIGTERM", None),
        ("KeyboardInterrupt: SIGINT", None),
        (None, None),
    ],
)
def test_a_run_that_a_hook_has_ended_is_complete_and_is_not_trained_further(error, score, tmp_path):
    one, again = training(), training()
    one.folder = again.folder = tmp_path
    started = []
    place = SimpleNamespace(start=lambda arguments, folder: started.append(folder) or Gone(0))
    one.start(place)
    result = {"status": "interrupted", "error": error, "eval_value": 7.0}
    (tmp_path / "result.json").write_text(json.dumps(result))
    again.start(place)
    assert len(started) == (2 if score is None else 1)
    for run in (one, again):
        list(run.follow())
        assert (run.status, run.code, run.score) == ("interrupted", 0, score)


# ------------------------------------------------------------------ rows


def test_rows_are_read_once_also_if_the_file_gets_a_column_or_is_cut(tmp_path):
    rows = Rows(tmp_path / "metrics.csv")
    assert rows.new() == []
    file = CsvFile(tmp_path / "metrics.csv", ["env_step"])
    assert rows.new() == []
    file.write([{"env_step": 10}, {"env_step": 20}])
    assert rows.new() == [{"env_step": "10"}, {"env_step": "20"}]
    assert rows.new() == []
    file.write([{"env_step": 30, "eval": 1.5}])  # a new file with a new header
    assert rows.new() == [{"env_step": "30", "eval": "1.5"}]
    file.cut_after(20)
    file.write([{"env_step": 30, "eval": 1.5}, {"env_step": 40, "eval": 2.0}])
    assert rows.new() == [{"env_step": "40", "eval": "2.0"}]
    file.close()


def test_half_a_row_waits_for_its_other_half(tmp_path):
    file = tmp_path / "metrics.csv"
    file.write_text("env_step,eval\n10,1.0\n2")
    rows = Rows(file)
    assert rows.new() == [{"env_step": "10", "eval": "1.0"}]
    with file.open("a") as stream:
        stream.write("0,3.0\n")
    assert rows.new() == [{"env_step": "20", "eval": "3.0"}]


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (
            "a warning\nding-lite train: error: c.py has 1 fault:\n  lr: unknown\n",
            2,
            "c.py has 1 fault:\n  lr: unknown",
        ),
        ("Traceback ...\nValueError: no\n\n", 1, "ValueError: no"),
        ("", -9, "ended by SIGKILL"),
        ("", 3, "ended with exit code 3"),
        ("\nending\n", 130, ""),
        ("a warning\n", 0, ""),
    ],
)
def test_error_of_a_training(text, code, message):
    assert error_message(text, code) == message


def test_error_of_another_command_is_read_as_that_of_a_training():
    text = "a warning\nding-lite profile: error: c.py has 1 fault:\n  lr: unknown\n"
    assert error_message(text, 2, "profile") == "c.py has 1 fault:\n  lr: unknown"


def test_exit_code_is_that_of_the_first_failure_and_that_of_a_killed_run_is_1():
    crew = Crew(Processes(Needs(1, 0)), 1, Board())
    assert crew.exit_code == 0
    crew.failures = [training(code=5), training(code=3)]
    assert crew.exit_code == 5
    crew.failures = [training(code=-9), training(code=3)]
    assert crew.exit_code == 1


# ------------------------------------------------------------------ folders and cores


def test_folders_that_exist_are_refused_and_named_before_a_run_starts(tmp_path):
    prefix = tmp_path / "run"
    made = seed_trainings([0, 3], prefix, ["train"], 100)
    assert [t.folder for t in made] == [tmp_path / "run_s0", tmp_path / "run_s3"]
    assert made[1].arguments == ["train", "-s", "3", "--exp-name", str(tmp_path / "run_s3")]
    (tmp_path / "run_s3").mkdir()
    with pytest.raises(ConfigError, match=r"these run folders exist: \S*run_s3; choose another --exp-name"):
        seed_trainings([0, 3], prefix, ["train"], 100)
    with pytest.raises(ConfigError, match=r"without a checkpoint to continue from: \S*run_s3; remove"):
        seed_trainings([0, 3], prefix, ["train"], 100, resume=True)


def test_only_seeds_that_are_resumed_are_overridden(tmp_path):
    checkpoint = tmp_path / "c_s1" / "ckpt" / "last.safetensors"
    save_checkpoint(checkpoint, {"progress": {"iteration": 1}}, {})
    made = seed_trainings([0, 1], tmp_path / "c", ["train", "a.b=1"], 100, resume=True, override=True)
    assert [one.arguments for one in made] == [
        ["train", "a.b=1", "-s", "0", "--exp-name", str(tmp_path / "c_s0")],
        ["train", "a.b=1", "--override", "-s", "1", "--resume", str(tmp_path / "c_s1")],
    ]
    words = f"ding-lite train a.b=1 --override -s 0,1 --resume {tmp_path / 'c'}"
    assert commands_to_continue(made) == [words]
    assert commands_to_continue(made[:1]) == [f"ding-lite train a.b=1 -s 0 --exp-name {tmp_path / 'c_s0'}"]


@pytest.mark.parametrize(
    ("changes", "cores"),
    [
        ({}, 1),
        ({"num_threads": 2}, 2),
        ({"env.manager": {"type": "subprocess", "worker_num": 3}}, 3),
        ({"env.manager": {"type": "subprocess", "worker_num": 9}}, 4),  # as many as environments
        ({"env.manager": {"type": "base", "worker_num": 3}}, 1),
    ],
)
def test_cores_that_a_run_keeps_busy(changes, cores, monkeypatch):
    needs = needs_of(compile_config(small_config(), changes))
    assert needs == Needs(cores, gpus=0)
    monkeypatch.setattr("ding_lite.tools.jobs.cores", lambda: 6)
    assert Processes(needs).slots() == 6 // cores


# ------------------------------------------------------------------ the summary


def test_mean_and_interval_over_seeds():
    assert summary_of([None, None]) == (0, None, None)
    assert summary_of([4.0, None]) == (1, 4.0, None)
    assert summary_of([4.0, 8.0]) == (2, 6.0, None)
    n, mean, (low, high) = summary_of([10.0, 20.0, None, 30.0, 40.0])
    assert (n, mean) == (4, 25.0)
    # The standard error of the mean is 5.6 (with divisor n); a normal interval would be [14.0, 36.0].
    assert 12.5 <= low <= 17.5
    assert 32.5 <= high <= 37.5


def test_table_and_json_of_seeds():
    failed = training(1, status="failed", code=5, error="broken")
    trainings = [ended(475.25), failed, ended(500.0, "solved", 10)]
    assert seeds_table(trainings) == (
        "seed    status  score  env steps  seconds  folder\n"
        "0     finished  475.2      1,536      2.5  runs/x_s0\n"
        "1       failed      -          0        -  runs/x_s1\n"
        "10      solved  500.0      1,536      2.5  runs/x_s10\n"
        "mean 487.6 over 2 of 3 seeds"
    )
    report = json.loads(json.dumps(seeds_report(trainings)))
    assert (report["n"], report["mean"], report["interval"]) == (2, 487.625, None)
    assert [run["score"] for run in report["runs"]] == [475.25, None, 500.0]
    assert report["runs"][1] | {"folder": 0} == {
        **{"seed": 1, "status": "failed", "score": None, "env_step": 0, "wall_time_s": None, "folder": 0},
        **{"exit_code": 5, "error": "broken", "last_evaluation": None},
    }


def test_last_evaluation_of_a_run_that_has_not_ended_stands_in_brackets():
    stopped = training(1, status="interrupted", code=130, evaluations=[(10, 5.0), (20, 162.25)], env_step=30)
    text = seeds_table([ended(475.25), stopped, training(2)])
    assert text == (
        "seed       status    score  env steps  seconds  folder\n"
        "0        finished    475.2      1,536      2.5  runs/x_s0\n"
        "1     interrupted  (162.2)         30        -  runs/x_s1\n"
        "2     not started        -          0        -  runs/x_s2\n"
        "(in brackets: the last evaluation of a seed that has not ended; no part of a mean)\n"
        "mean 475.2 over 1 of 3 seeds\n"
        "try: ding-lite -s 0,1,2 --resume runs/x"
    )
    assert [run["last_evaluation"] for run in seeds_report([ended(475.25), stopped])["runs"]] == [
        475.25,
        162.25,
    ]


def test_score_of_a_run_that_has_not_ended_in_order_does_not_count():
    assert ended(3.0, "interrupted").score is None
    assert ended(3.0, "pruned").score is None
    assert ended(3.0).score == 3.0


# ------------------------------------------------------------------ the commands that continue

BEGIN = "ding-lite train -c c.json --max-env-step 900 a.b=1"


@pytest.mark.parametrize(
    ("options", "statuses", "commands"),
    [
        ([], ["finished", "failed"], []),
        ([], ["interrupted", "finished"], [f"{BEGIN} --jobs 2 -s 0,1 --resume 'my runs/c'"]),
        (
            ["--override"],
            ["finished", "not started"],
            [f"{BEGIN} --override --jobs 2 -s 0,1 --resume 'my runs/c'"],
        ),
        ([], ["ended by a hook", "finished"], []),
        (  # a seed alone has its own folder, and no --jobs
            ["--init-from", "x"],
            ["interrupted", "not started", "not started"],
            [
                f"{BEGIN} -s 0 --resume 'my runs/c_s0'",
                f"{BEGIN} --init-from x --jobs 2 -s 1,2 --exp-name 'my runs/c'",
            ],
        ),
    ],
)
def test_the_commands_continue_the_seeds_that_a_signal_has_ended(options, statuses, commands):
    words = [*BEGIN.replace("train", "train --quiet").split()[1:], *options]
    trainings = seed_trainings(range(len(statuses)), Path("my runs/c"), words, 900)
    for training_of_seed, status in zip(trainings, statuses, strict=True):
        training_of_seed.status = status
        if status == "ended by a hook":
            training_of_seed.code = 0
            training_of_seed.result = {"status": "interrupted", "error": status}
            training_of_seed.status = "interrupted"
    assert commands_to_continue(trainings, ["--jobs", "2"]) == commands
    for command in commands:
        name, *arguments = shlex.split(command)[1:]
        program.get_command(None, name).make_context(name, arguments)


@pytest.mark.slow
def test_each_training_sees_one_of_several_gpus(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(
        "subprocess.Popen", lambda *args, **options: started.append(options["env"]) or start(*args, **options)
    )
    place = Processes(Needs(1, 1))
    for _ in range(3):
        assert place.start(["list"], Path()).error() == ""
    assert [variables["CUDA_VISIBLE_DEVICES"] for variables in started] == ["4", "7", "4"]
