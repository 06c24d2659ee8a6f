"""``ding-lite profile --tune``: what is tried, which of two is taken, and that the time is kept to."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import time
from random import Random

import pytest

from ding_lite import compile_config
from ding_lite.cli import main
from ding_lite.cli.profile import _verdict
from ding_lite.config.compile import parse_overrides
from ding_lite.envs.workers.cores import default_workers
from ding_lite.tools.profile import PHASES, Phase, Profile
from ding_lite.tools.tune import OutOfTimeError, SettingTrial, TrainingProcess, TrialError, Tuner, settings

STEPS, UPDATES = 1000, 10  # an iteration's
BASE = {"env.manager.type": "base"}
ONE_WORKER, TWO_WORKERS, FOUR_WORKERS, EIGHT_WORKERS = (
    {"env.manager.type": "subprocess", "env.manager.worker_num": count} for count in (1, 2, 4, 8)
)
HALVES = {
    "env.manager.type": "subprocess",
    "env.manager.worker_num": min(8, default_workers(double_buffer=True)),
    "env.manager.double_buffer": True,
}
WHOLE = {"env.manager.double_buffer": False}
IN_WORKERS = {name: value for name, value in HALVES.items() if name not in WHOLE}
VECTOR = {"env.manager.type": "vector"}
TYPED_WORKERS = ["env.manager.type=subprocess", "env.manager.worker_num=2"]
TWO_THREADS, COMPILED = {"num_threads": 2}, {"policy.learn.compile": True}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("ding_lite.tools.tune.cores", lambda: 2)


def measured(speed=1000.0, iterations=1, seconds=0.0, compiled=False, **phases):
    rows = tuple(Phase(name, phases.get(name, 0.0), 1) for name in PHASES)
    seconds += iterations * STEPS / speed
    counts = (iterations, iterations * STEPS, iterations * UPDATES)
    return Profile(rows, *counts, seconds, "cpu", "8 environments", 1, compiled)


class World:
    """A fake machine: each setting has the speed of a table, multiplied by noise.

    Args:
        speeds: env steps a second by a setting's last key and value; others are as fast as the present.
            An error is raised.
        noise: factors, one a measurement, over and over.
        compile_seconds: that the first measurement of a compiled training takes longer.
    """

    def __init__(self, speeds, noise=(1.0,), compile_seconds=0.0):
        self.speeds, self.noise, self.compile_seconds = speeds, itertools.cycle(noise), compile_seconds
        self.now, self.started, self.open = 0.0, [], 0

    def start(self, setting):
        self.started.append(dict(setting))
        self.open += 1
        return FakeTraining(self, setting)

    def tuner(self, config=None, seconds=math.inf, present=None):
        present = present or measured(env=0.9)
        return Tuner(compile_config(config or config_of()), present, self.start, seconds, lambda: self.now)


class FakeTraining:
    def __init__(self, world, setting):
        self.world, self.first = world, True
        self.compiled = setting.get("policy.learn.compile", False)
        self.speed = 1000.0
        for key, value in setting.items():
            found = world.speeds.get((key, value), 1.0)
            self.speed = found if isinstance(found, Exception) else self.speed * found

    def measure(self, iterations):
        if isinstance(self.speed, Exception):
            raise self.speed
        extra = self.world.compile_seconds if self.compiled and self.first else 0.0
        self.first = False
        found = measured(self.speed * next(self.world.noise), iterations, extra, self.compiled)
        self.world.now += found.seconds
        return found

    def close(self):
        self.world.open -= 1


def config_of(manager="subprocess", policy="ppo", **options):
    env = dict(env_id="CartPole-v1", collector_env_num=8, manager=manager)
    return dict(env=env, policy=dict(type=policy, learn=dict(compile=False)), **options)


def verdicts(trials):
    return {json.dumps(trial.setting): trial.verdict for trial in trials}


# ------------------------------------------------------------------ what is tried


def test_what_the_largest_phase_hangs_on_comes_first():
    config = compile_config(config_of("base"))
    by_phase = {
        name: settings(config, measured(**{"env": 0.2, "gradient": 0.2, "act": 0.2, name: 0.5}))[0]
        for name in ("env", "gradient", "act")
    }
    assert by_phase == {"env": VECTOR, "gradient": TWO_THREADS, "act": TWO_THREADS}


def test_compiling_is_tried_last_since_it_takes_the_longest():
    config = compile_config(config_of("base"))
    assert settings(config, measured(gradient=1.0))[-1] == COMPILED
    assert settings(config, measured(env=1.0))[-1] == COMPILED


def test_a_setting_that_the_config_has_is_not_tried():
    config = config_of("base", num_threads=2)
    config["policy"]["learn"]["compile"] = True  # and yet not compiled, such as without a compiler
    found = settings(compile_config(config), measured())
    assert COMPILED not in found
    assert TWO_THREADS not in found
    # Not even as twice the workers of another setting that is faster.
    world = World({("env.manager.worker_num", 2): 2.0})
    tuner = world.tuner(config_of(dict(type="subprocess", worker_num=4)))
    tried = [trial.setting for trial in tuner.trials()]
    assert tuner.best == TWO_WORKERS
    assert FOUR_WORKERS not in tried


@pytest.mark.parametrize(
    ("manager", "tried"),
    [
        ("auto", [BASE, ONE_WORKER, TWO_WORKERS, HALVES]),  # CartPole's own vector environment
        ("base", [VECTOR, ONE_WORKER, TWO_WORKERS, HALVES]),
        ("subprocess", [VECTOR, BASE, ONE_WORKER, HALVES, FOUR_WORKERS]),
        (dict(type="subprocess", worker_num=1), [VECTOR, BASE, TWO_WORKERS, HALVES]),
        (
            dict(type="subprocess", worker_num=HALVES["env.manager.worker_num"], double_buffer=True),
            [VECTOR, BASE, {**ONE_WORKER, **WHOLE}, {**TWO_WORKERS, **WHOLE}],
        ),
        # The key is there, and does nothing yet.
        (
            dict(type="base", double_buffer=True),
            [VECTOR, {**ONE_WORKER, **WHOLE}, {**TWO_WORKERS, **WHOLE}, IN_WORKERS],
        ),
        ("env_pool", []),
    ],
)
def test_backends_other_than_the_present_one_are_tried(manager, tried):
    found = settings(compile_config(config_of(manager)), measured(env=1.0))
    assert found == [*tried, TWO_THREADS, COMPILED]


@pytest.mark.parametrize(
    "env", [dict(wrappers=["step_counter"]), dict(on_bad_value="reset_env"), dict(kwargs=dict(a=1))]
)
def test_vector_environment_is_not_tried_where_it_would_be_another_one(env):
    config = config_of("base")
    config["env"] |= env
    assert VECTOR not in settings(compile_config(config), measured())


def test_thread_and_worker_counts_double_up_to_the_cores(monkeypatch):
    monkeypatch.setattr("ding_lite.tools.tune.cores", lambda: 6)
    found = settings(compile_config(config_of("base")), measured())
    assert [s["num_threads"] for s in found if "num_threads" in s] == [2, 4, 6]
    counts = [s["env.manager.worker_num"] for s in found if "env.manager.worker_num" in s]
    assert counts == [1, 2, 4, 6, HALVES["env.manager.worker_num"]]


def test_twice_as_many_workers_are_tried_as_long_as_that_is_faster():
    world = World(
        {("env.manager.worker_num", count): speed for count, speed in ((2, 2.0), (4, 3.9), (8, 3.8))}
    )
    tuner = world.tuner(config_of("base"))
    found = [(t.setting, t.verdict) for t in tuner.trials() if "env.manager.worker_num" in t.setting]
    assert found == [
        (ONE_WORKER, "no difference"),
        (TWO_WORKERS, "taken"),
        (FOUR_WORKERS, "taken"),
        (EIGHT_WORKERS, "slower"),
        (HALVES, "slower"),
    ]
    assert tuner.best == FOUR_WORKERS


@pytest.mark.parametrize("count", [8, 5])
def test_there_are_at_most_as_many_workers_as_environments(count):
    config = config_of("base")
    config["env"]["collector_env_num"] = count
    world = World({("env.manager.worker_num", workers): workers for workers in range(2, 9)})
    tried = [trial.setting.get("env.manager.worker_num", 0) for trial in world.tuner(config).trials()]
    assert max(tried) == count


def test_one_environment_has_no_halves():
    config = config_of("base")
    config["env"]["collector_env_num"] = 1
    assert HALVES not in settings(compile_config(config), measured())


def test_a_policy_with_memory_is_not_compiled():
    config = config_of("base")
    plain = settings(compile_config(config), measured(gradient=1.0))
    config["policy"] = {**config.get("policy", {}), "model": {"rnn": "gru"}}
    with_memory = settings(compile_config(config), measured(gradient=1.0))
    assert any("policy.learn.compile" in setting for setting in plain)
    assert not any("policy.learn.compile" in setting for setting in with_memory)


def test_nothing_that_changes_what_is_learned_is_tried():
    tried = settings(compile_config(config_of("base")), measured())
    keys = {key for setting in tried for key in setting}
    managers = {f"env.manager.{name}" for name in ("type", "worker_num", "double_buffer")}
    assert keys == managers | {"num_threads", "policy.learn.compile"}


# ------------------------------------------------------------------ which is taken


def test_faster_settings_are_taken_and_built_upon():
    world = World({("env.manager.type", "base"): 2.0, ("num_threads", 2): 1.5})
    tuner = world.tuner()
    report = {json.dumps(t.setting): (t.verdict, t.present, t.speed) for t in tuner.trials()}
    assert tuner.best == {**BASE, **TWO_THREADS}
    assert tuner.gain == pytest.approx(3)
    assert report[json.dumps(BASE)] == ("taken", pytest.approx(1000), pytest.approx(2000))
    assert report[json.dumps(TWO_THREADS)] == ("taken", pytest.approx(2000), pytest.approx(3000))
    assert world.open == 0


def test_slower_settings_are_not_taken():
    tuner = World({("env.manager.type", "base"): 0.8, ("num_threads", 2): 0.1}).tuner()
    report = verdicts(tuner.trials())
    assert (report[json.dumps(BASE)], report[json.dumps(TWO_THREADS)]) == ("slower", "slower")
    assert tuner.best == {}
    assert tuner.gain == 1


def test_hopeless_setting_gets_no_whole_slice():
    world = World({("num_threads", 2): 0.01})
    tuner = world.tuner(config_of("env_pool"))
    trials = list(tuner.trials())
    # The warm-up and two glimpses, of two iterations each, at a hundredth of the speed.
    assert world.now < 700
    assert trials[0].verdict == "slower"


@pytest.mark.daily(1)
@pytest.mark.parametrize(("speed", "least", "most"), [(1.0, 0, 0.05), (1.5, 0.95, 1), (0.7, 0, 0)])
def test_how_often_a_setting_is_taken_on_a_noisy_machine(speed, least, most):
    random, taken = Random(0), 0
    for _ in range(400):
        noise = [math.exp(random.gauss(0, 0.1)) for _ in range(101)]
        tuner = World({("num_threads", 2): speed}, noise).tuner(config_of("env_pool"))
        taken += next(trial.taken for trial in tuner.trials() if trial.setting == TWO_THREADS)
    assert least <= taken / 400 <= most


def test_tie_keeps_the_present_setting():
    tuner = World({}).tuner()
    assert set(verdicts(tuner.trials()).values()) == {"no difference"}
    assert tuner.best == {}


def test_a_machine_whose_speed_moves_is_reported_from_one_where_nothing_differs():
    random = Random(0)
    for sigma, expected, unexpected in (
        (0.4, "not clear", "no difference"),
        (0.02, "no difference", "not clear"),
    ):
        noise = [math.exp(random.gauss(0, sigma)) for _ in range(101)]
        found = verdicts(World({}, noise).tuner().trials()).values()
        assert expected in found
        assert unexpected not in found


def test_difference_that_is_certain_but_small_is_let_be():
    tuner = World({("env.manager.type", "base"): 1.01}).tuner()
    assert verdicts(tuner.trials())[json.dumps(BASE)] == "no difference"


def test_setting_that_does_not_train_is_reported_and_skipped():
    fault = TrialError("no such environment")
    world = World({("env.manager.type", "base"): fault, ("num_threads", 2): 1.5})
    tuner = world.tuner()
    trials = {json.dumps(trial.setting): trial for trial in tuner.trials()}
    assert trials[json.dumps(BASE)][:2] == (BASE, "failed")
    assert trials[json.dumps(BASE)].reason == "no such environment"
    assert tuner.best == TWO_THREADS
    assert world.open == 0


# ------------------------------------------------------------------ compiling


@pytest.mark.parametrize(("max_env_step", "verdict"), [(200_000, "faster"), (400_000, "taken")])
def test_compiling_is_taken_where_it_pays_within_the_run(max_env_step, verdict):
    # An update takes 0.1 s, compiled 0.05 s: 150 s of compiling are paid by 3,000 updates, 300,000 env steps.
    world = World({("policy.learn.compile", True): 2.0}, compile_seconds=150.0)
    tuner = world.tuner(config_of("env_pool", max_env_step=max_env_step))
    trial = next(t for t in tuner.trials() if t.setting == COMPILED)
    assert trial.verdict == verdict
    assert trial.compilation == pytest.approx((150, 3000, max_env_step * UPDATES / STEPS))
    assert tuner.best == (COMPILED if verdict == "taken" else {})


@pytest.mark.parametrize(("max_env_step", "taken"), [(200_000, True), (400_000, False)])
def test_compiling_is_given_up_where_it_does_not_pay(max_env_step, taken):
    # Uncompiled takes twice as long; the present setting, compiled, is the table's 1,000 steps a second.
    world = World({("policy.learn.compile", False): 0.6}, compile_seconds=200.0)
    start = world.start
    world.start = lambda setting: start({"policy.learn.compile": True, **setting})
    config = config_of("env_pool", max_env_step=max_env_step)
    config["policy"]["learn"]["compile"] = True
    tuner = world.tuner(config, present=measured(compiled=True))
    trial = next(t for t in tuner.trials() if "policy.learn.compile" in t.setting)
    assert trial.setting == {"policy.learn.compile": False}
    assert trial.taken == taken
    assert trial.compilation.pays_after == pytest.approx(3000)


def test_compiling_without_a_gain_never_pays():
    trials = World({}, compile_seconds=5.0).tuner(config_of("env_pool")).trials()
    trial = next(t for t in trials if t.setting == COMPILED)
    assert (trial.verdict, trial.compilation.pays_after) == ("no difference", math.inf)


# ------------------------------------------------------------------ the time


def test_no_trial_begins_after_the_time_is_up():
    world = World({("env.manager.type", "base"): 2.0})
    tuner = world.tuner(seconds=35)  # one trial takes 2 * 2 * (3 warm-ups) and 3 pairs of slices: 18 to 24 s
    report = list(verdicts(tuner.trials()).values())
    assert report == ["no difference", "taken", *["not tried"] * 5]
    assert world.now < 60


def test_trial_that_is_cut_short_is_not_judged():
    tuner = World({("env.manager.type", "base"): OutOfTimeError()}).tuner()
    assert verdicts(tuner.trials())[json.dumps(BASE)] == "not tried"


def test_where_nothing_was_measured_the_verdict_is_how_long_it_takes(tmp_path, monkeypatch, capsys):
    """A machine that is too busy to start two trainings within the time."""
    world = World({})
    monkeypatch.setattr(world, "start", lambda setting: OutOfTime(world))
    monkeypatch.setattr("ding_lite.tools.tune.TrainingProcess", lambda *args: world.start({}))
    command = ["profile", "-c", "cartpole_ppo", "--tune", "--minutes", "0.5"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "keep the config as it is" not in text
    assert re.search(r"^Nothing could be measured in this time: try --minutes \d+", text, re.MULTILINE)
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["verdict"] for row in report["tried"]} == {"not tried"}
    assert report["minutes_needed"] >= 1


class OutOfTime(FakeTraining):
    def __init__(self, world):
        super().__init__(world, {})
        world.open += 1

    def measure(self, iterations):
        self.world.now += 50
        raise OutOfTimeError


def test_the_time_of_a_trial_is_that_of_the_start_that_was_cut_short_and_of_its_slices():
    world = World({})
    world.start = lambda setting: OutOfTime(world)
    tuner = world.tuner(seconds=60)
    assert {trial.verdict for trial in tuner.trials()} == {"not tried"}
    training = 2 * (3 * 2 + 3 * 1)  # seconds: two trainings, their warm-ups and slices
    assert tuner.seconds_per_trial(start=10) == pytest.approx(2 * 50 + training)
    assert tuner.seconds_per_trial(start=500) == pytest.approx(500 + training)


def test_ppg_is_compared_over_whole_auxiliary_cycles():
    config = config_of(policy="ppg")
    config["policy"]["learn"]["aux_freq"] = 6
    asked = []
    world = World({})
    start = world.start

    def listening(setting):
        training = start(setting)
        measure = training.measure
        training.measure = lambda iterations: (asked.append(iterations), measure(iterations))[1]
        return training

    world.start = listening
    list(world.tuner(config).trials())
    assert asked
    assert all(iterations % 6 == 0 for iterations in asked)


# ------------------------------------------------------------------ the command

SLOW = (
    *("-c", "cartpole_ppo", "env.type=slow_worlds:SlowEnv", "env.kwargs={'pause':0.02}"),
    *("env.stop_value=None", "env.manager=base", "env.collector_env_num=2", "policy.collect.n_sample=32"),
    *("policy.learn.batch_size=32", "env.evaluator_env_num=2"),
)


@pytest.mark.slow
def test_workers_are_found_for_a_slow_environment_and_train_takes_the_command(tmp_path, monkeypatch, capfd):
    """The environments sleep, so two workers are nearly twice as fast, even on a busy machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ding_lite.tools.tune.settings", lambda *args: [TWO_WORKERS])
    assert main(["profile", *SLOW, "--tune", "--minutes", "3", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["overrides"] == TWO_WORKERS
    assert [row["verdict"] for row in report["tried"]] == ["taken"]
    assert 0.4 < report["gain"] < 1.5
    program, *command = shlex.split(report["command"])
    assert program == "ding-lite"
    assert command[-2:] == TYPED_WORKERS
    assert list(tmp_path.iterdir()) == []
    assert main([*command, "max_env_step=64", "exp_name=tuned", "-q"]) == 0
    saved = json.loads((tmp_path / "runs/tuned/config.json").read_text())["config"]
    assert saved["env"]["manager"]["worker_num"] == 2


def tuned(monkeypatch, capfd, world, *arguments):
    """Runs the command in a fake world; returns its JSON, and the commands it would have started."""
    commands = []

    def start(command, deadline):
        commands.append(command)
        return world.start(parse_overrides([token for token in command if "=" in token]))

    monkeypatch.setattr("ding_lite.tools.tune.TrainingProcess", start)
    assert main(["profile", "-c", "cartpole_ppo", "--tune", "--json", *arguments]) == 0
    return json.loads(capfd.readouterr().out), commands


def test_command_repeats_what_was_typed_with_the_fastest_in_its_place(tmp_path, monkeypatch, capfd):
    mine = tmp_path / "mine_to_tune.py"
    mine.write_text("")
    world = World({("num_threads", 2): 1.5, ("env.manager.worker_num", 2): 2.0})
    typed = ["-s", "3", "--import", str(mine), "env.stop_value=400", "num_threads=1", "env.manager=base"]
    report, commands = tuned(monkeypatch, capfd, world, *typed)
    named = ["-c", "cartpole_ppo", "-s", "3", "--import", str(mine)]
    kept, found = ["env.stop_value=400", "env.manager=base"], [*TYPED_WORKERS, "num_threads=2"]
    program, command, *rest = shlex.split(report["command"])
    assert (program, command, rest[:6]) == ("ding-lite", "train", named)
    assert rest[6:8] == kept
    assert sorted(rest[8:]) == sorted(found)
    assert all(command[:8] == ["profile", "--contestant", *named] for command in commands)
    assert all("policy.eval.eval_freq=0" in command for command in commands)


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([], "There is no other setting to try: keep the config as it is."),
        (["failed"], "Nothing was measured: no setting could train, as said above."),
        (["failed", "not tried"], "Nothing was measured: increase --minutes."),
        (["slower", "failed"], "No setting that was tried is faster: keep the config as it is."),
    ],
)
def test_verdict_without_a_faster_setting_says_what_was_measured(trials, said):
    gains = {"slower": -0.5}
    made = [SettingTrial(BASE, verdict, gain=gains.get(verdict)) for verdict in trials]
    assert _verdict(World({}).tuner(), made, "ding-lite train", None)[-1] == said


def test_json_has_each_trial_and_no_infinity(monkeypatch, capfd):
    report, _ = tuned(monkeypatch, capfd, World({}, compile_seconds=1.0))
    assert (report["overrides"], report["gain"]) == ({}, 0)
    rows = {row["verdict"]: row for row in report["tried"] if "policy.learn.compile" in row["setting"]}
    assert rows["no difference"]["compilation"]["pays_after"] is None


@pytest.mark.slow
def test_table_keeps_to_the_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    assert main(["profile", "-c", "cartpole_ppo", "--tune", "--minutes", "0.005"]) == 0  # less than a start
    assert time.monotonic() - began < 20
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cartpole_ppo on cpu: CartPoleVectorEnv, 8 environments in one call, ")
    assert lines[3].split() == ["setting", "steps/s", "best", "so", "far", "gain"]
    assert lines[-1].startswith("Nothing could be measured in this time: try --minutes ")
    assert list(tmp_path.iterdir()) == []


def test_training_process_answers_each_request_with_a_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["policy.collect.n_sample=128", "env.collector_env_num=4"]
    command = ["profile", "--contestant", "--env", "CartPole-v1", *small]
    training = TrainingProcess(command, deadline=time.monotonic() + 120)
    profiles = [training.measure(iterations) for iterations in (1, 2)]
    training.close()
    assert [profile.iterations for profile in profiles] == [1, 2]
    assert all([phase.name for phase in profile.phases] == list(PHASES) for profile in profiles)
    assert 0 < profiles[0].env_steps <= 128 < profiles[1].env_steps <= 256  # resets are no env steps
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_error_of_a_training_process_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training = TrainingProcess(
        ["profile", "--contestant", "--env", "NoSuchEnv-v0"], deadline=time.monotonic() + 60
    )
    with pytest.raises(TrialError, match="NoSuchEnv"):
        training.measure(1)
    training.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--minutes", "0"], "'--minutes'"),
        (["--iterations", "3"], "--iterations"),
    ],
)
def test_faults_are_reported_with_exit_code_2(arguments, expected, capsys):
    assert main(["profile", "-c", "cartpole_ppo", "--tune", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_help_says_what_is_not_touched(capsys):
    main(["profile", "--help"])
    report = capsys.readouterr().out
    assert "policy.collect.n_sample" in report
    assert "--contestant" not in report
