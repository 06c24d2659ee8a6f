"""``ding-lite check-env`` as a user meets it: exit codes, lines, JSON, and the table of a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest

from ding_lite.cli import main
from ding_lite.cli.program import parse
from ding_lite.config.registry import ENV_REGISTRY

TESTS = Path(__file__).parents[1]
HEAVY = ("torch", "numpy", "gymnasium")
WORLD = """\
import broken_worlds
from ding_lite import ENV_REGISTRY

ENV_REGISTRY.register("my_sound")(broken_worlds.Sound)


class Cut(broken_worlds.Sound):
    def __init__(self, boost=0.0):
        print("a word of the environment's own")
        self.boost = boost

    def reward(self):
        return super().reward() + self.boost
"""
CONFIG = """\
config = dict(
    seed=3,
    env=dict(type="my_world:Cut", kwargs=dict(boost=float("inf"))),
    policy=dict(type="ppo"),
)
"""


def run(*arguments, cwd, **options):
    command = [processes.ding_lite(), "check-env", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120, **options
    )


def environment():
    return {**os.environ, "PYTHONPATH": str(TESTS), "COLUMNS": "120"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder where a user works: a module with environments, and a config."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "my_world.py").write_text(WORLD)
    (folder / "my_config.py").write_text(CONFIG)
    return folder


@pytest.fixture
def here(home, monkeypatch, capsys):
    """Runs the command in this process, in that folder; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(ENV_REGISTRY, "_entries", dict(ENV_REGISTRY._entries))

    def call(*arguments):
        code = main(["check-env", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield call
    sys.modules.pop("my_world", None)


def test_sound_environment_is_reported_in_aligned_lines(home):
    done = run("LunarLander-v3", "--steps", "300", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    assert last == "LunarLander-v3: 24 checks, 0 failed, 0 warned (300 steps, seed 0)"
    assert len(lines) == 24
    assert all(re.fullmatch(r"OK    [a-z_ ]{20} \S.*", line) for line in lines), lines
    assert sum("transitions equal the reference" in line for line in lines) == 6


@pytest.mark.slow
def test_fault_is_exit_code_3_with_what_to_do(home):
    done = run("broken_worlds:OldStep", cwd=home)
    assert (done.returncode, done.stderr) == (3, "")
    lines = done.stdout.splitlines()
    assert lines[2] == f"FAIL  {'step':<20} step returned 4 values, not 5"
    assert re.match(r" {26} -> This is the old gym API\..*pip install shimmy", lines[3])
    assert lines[-1] == "broken_worlds:OldStep: 3 checks, 1 failed, 0 warned (1000 steps, seed 0)"


@pytest.mark.slow
def test_json_is_alone_on_stdout(home):
    done = run("my_world:Cut", "--json", "--steps", "60", "env.kwargs.boost=2000000", cwd=home)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert {name: report[name] for name in ("env", "steps", "seed", "failed", "warned")} == {
        "env": "my_world:Cut",
        "steps": 60,
        "seed": 0,
        "failed": 0,
        "warned": 0,
    }
    assert len(report["findings"]) == 24
    assert set(report["findings"][0]) == {"check", "verdict", "seen", "advice"}
    reward = next(row for row in report["findings"] if row["check"] == "reward")
    assert reward["seen"] == "numbers from 2e+06 to 2e+06"  # the override, after an option
    assert "a word of the environment's own" in done.stderr


def test_environment_of_a_config_is_checked_with_its_seed(here):
    code, out, _ = here("-c", "my_config.py", "--steps", "40", "--json")
    assert code == 3
    report = json.loads(out)
    assert (report["env"], report["seed"]) == ("my_world:Cut", 3)
    [bad] = [row for row in report["findings"] if row["verdict"] == "FAIL"]
    assert bad["check"] == "finite"
    assert re.fullmatch(r"episode 0 \(seed \d+\), step 1: reward = inf", bad["seen"])


def test_rollout_is_printed_as_a_tree_and_nothing_else_is_done(here):
    code, out, err = here("my_sound", "--import", "my_world", "--rollout", "12", "-s", "4")
    assert (code, err) == (0, "")
    title, *tree = out.splitlines()
    assert title == "12 random steps of my_sound, seed 4"
    assert [line.split()[1] for line in tree[:6]] == [
        "obs",
        "action",
        "reward",
        "terminated",
        "truncated",
        "next",
    ]
    assert re.fullmatch(r"├── obs         \(12, 2\)  float32  \S+ \.\. \S+", tree[0])
    assert re.fullmatch(r"    └── obs     \(12, 2\)  float32  \S+ \.\. \S+", tree[6])


def test_rollout_as_json_has_the_shapes(here):
    _, out, _ = here("my_world:Cut", "--rollout", "5", "--json")
    assert json.loads(out)["next"] == {"obs": {"shape": [5, 2], "dtype": "float32"}}


@pytest.mark.slow
def test_terminal_gets_a_table(home):
    master, slave = os.openpty()
    command = [sys.executable, "-m", "ding_lite", "check-env", "broken_worlds:OldDone", "--steps", "60"]
    with subprocess.Popen(command, cwd=home, env={**environment(), "TERM": "xterm"}, stdout=slave) as process:
        os.close(slave)
        shown = b""
        while chunk := read(master):
            shown += chunk
    os.close(master)
    assert process.returncode == 0
    text = shown.decode()
    assert all(head in text for head in ("check", "what was seen", "what to do"))
    assert "WARN" in text
    assert "┃" in text
    assert "\x1b[" in text
    assert "24 checks, 0 failed, 1 warned" in text


def read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "no environment"),
        (("CartPole-v1", "Pendulum-v1"), "got CartPole-v1 and Pendulum-v1"),
        (("CartPole-v1", "-c", "my_config.py"), "-c and CartPole-v1"),
        (("CartPole-v1", "env.kwarg.x=1"), "unknown key 'kwarg'; did you mean 'kwargs'"),
    ],
)
def test_wrong_usage_is_one_plain_sentence(here, arguments, expected):
    code, out, err = here(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("ding-lite check-env: error: ")
    assert expected in err


def test_class_that_cannot_be_imported_is_a_row_of_the_table(here):
    code, out, err = here("no_module:Env")
    assert (code, err) == (3, "")
    assert re.match(r"FAIL  make +environment 'no_module:Env' cannot be imported", out)


@pytest.mark.parametrize(
    "arguments",
    [
        ["CartPole-v1", "env.kwargs.x=1", "env.kwargs.y=2", "--steps", "5"],
        ["--steps", "5", "CartPole-v1", "env.kwargs.x=1", "--json", "env.kwargs.y=2"],
        ["env.kwargs.x=1", "--steps=5", "CartPole-v1", "env.kwargs.y=2"],
    ],
)
def test_overrides_may_stand_anywhere(arguments):
    args = parse(["check-env", *arguments])
    assert sorted(args.overrides) == ["CartPole-v1", "env.kwargs.x=1", "env.kwargs.y=2"]
    assert args.steps == 5


def test_help_loads_nothing_heavy(home):
    code = (
        "import sys; from ding_lite.cli import main\n"
        "try: main(['check-env', '--help'])\n"
        f"except SystemExit: print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("usage: ding-lite check-env")
    assert done.stdout.endswith("\n[]\n")


SLOW_WORLD = """\
import time

import broken_worlds


class Slow(broken_worlds.Sound):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


class Refuses(broken_worlds.Sound):
    def __init__(self, size=3):
        raise ValueError(f"the size {size} is wrong")


class SameStart(broken_worlds.Sound):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=0)
        self.steps = 0
        return self.observation_space.low * 0, {}

    def step(self, action):
        self.steps += 1
        obs, reward, *_ = super().step(action)
        return obs, reward, self.steps == 7, False, {}


class OtherStarts(SameStart):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low * 0 + seed % 100 / 1000, {}
"""


@pytest.fixture(scope="module")
def slow_world(home):
    (home / "slow_world.py").write_text(SLOW_WORLD)
    return home


@pytest.mark.slow
def test_a_slow_environment_gets_a_verdict_within_its_time(slow_world):
    """All steps would take 140 s: 1,000 to play, and 22 for each of 250 rows to compare."""
    done = run("slow_world:Slow", "--seconds", "6", "--json", cwd=slow_world)
    assert done.returncode == 0
    found = {row["check"]: row for row in json.loads(done.stdout)["findings"]}
    played, seeds, rows = map(int, re.findall(r"(\d+) of \d+", found["time"]["seen"]))
    assert 20 < played < 150
    assert 1 <= seeds < 20
    assert 1 <= rows < 20
    assert found["base same_step"]["seen"].startswith(f"{4 * rows} transitions equal")


@pytest.mark.slow
def test_time_for_nothing_is_said_and_a_time_below_zero_is_refused(slow_world):
    done = run("slow_world:Slow", "--seconds", "0.1", cwd=slow_world)
    assert done.returncode == 0
    assert "WARN  time" in done.stdout
    assert "0 of 250 on each backend, to stay within 0.1 s" in done.stdout
    assert "base same_step" not in done.stdout
    assert (
        "--seconds: expected a number above 0, got -1" in run("x", "--seconds", "-1", cwd=slow_world).stderr
    )


def test_an_error_of_the_environments_own_code_does_not_advise_to_correct_the_id(slow_world, here):
    code, out, _ = here("slow_world:Refuses", "env.kwargs.size=4")
    assert code == 3
    assert "the size 4 is wrong (at slow_world.py" in out
    assert "Correct the id" not in out
    assert "The environment's own code raised this" in out
    _, out, _ = here("CartPol-v1")
    assert "Correct the id" in out


@pytest.mark.parametrize(("name", "named"), [("SameStart", True), ("OtherStarts", False)])
def test_equal_lengths_may_come_from_equal_starts(slow_world, here, name, named):
    _, out, _ = here(f"slow_world:{name}", "--steps", "60")
    assert "every episode terminated at exactly 7 steps" in out
    assert ("Equal starts may be the reason" in out) is named


@pytest.mark.slow
@pytest.mark.parametrize("command", [("check-env",), ("train", "--max-env-step", "64", "--env")])
def test_minigrid_names_the_wrappers_that_take_its_mission_away(home, command):
    pytest.importorskip("minigrid", reason="the extra minigrid")
    words = [sys.executable, "-m", "ding_lite", *command, "MiniGrid-Empty-5x5-v0"]
    done = subprocess.run(words, cwd=home, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    said = done.stdout + done.stderr
    assert "env.wrappers=['minigrid_image']" in said
    assert "'minigrid_flat'" in said
