"""The commands that look at runs, configs and environments, in this process: their output and their JSON."""

import json
import re
import sys

import pytest
from written_runs import write_run

SMALL = ("max_env_step=256", "policy.collect.n_sample=256", "policy.eval.eval_freq=256")


@pytest.fixture
def run(well):
    """A finished run in the folder ``run``."""
    well("train", "-q", "-c", "tiny.py", *SMALL, "--exp-name", "run")


def test_eval_plays_as_many_episodes_as_asked_with_the_best_checkpoint(run, well, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    report = json.loads(well("eval", "run", "-n", 5, "-s", 3, "--json"))
    assert (report["episodes"], report["seed"]) == (5, 3)
    assert report["checkpoint"].startswith("run/ckpt/best")
    assert report["mean"] == pytest.approx(sum(report["returns"]) / 5)
    assert report["returns"] == report["lengths"]  # CartPole: 1 a step
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    table = well("eval", "run", "-n", 5, "-s", 3)
    assert f"{report['mean']:.2f}" in table.splitlines()[2].split()
    sampled = json.loads(well("eval", "run", "-n", 5, "-s", 3, "--stochastic", "--json"))
    assert sampled["returns"] != report["returns"]
    short = json.loads(well("eval", "run", "env.max_eval_steps=3", "--json"))
    assert set(short["lengths"]) == {3}


@pytest.mark.slow
def test_eval_records_videos(run, well, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    report = json.loads(well("eval", "run", "--video", "videos", "--json"))
    assert report["episodes"] == 3
    assert len(list((tmp_path / "videos").glob("eval-episode-*.mp4"))) == 3


def test_a_changed_environment_prints_beside_the_json(run, ding_lite, tmp_path):
    (tmp_path / "loud.py").write_text(
        "import gymnasium as gym\n\n\nclass Loud(gym.Wrapper):\n    def reset(self, **options):\n"
        "        print('a word')\n        return self.env.reset(**options)\n"
    )
    words = ("env.wrappers=['loud:Loud']", "--import", "loud.py")
    done = ding_lite("eval", "run", "-n", 2, "--json", *words)
    assert json.loads(done.out)["episodes"] == 2
    assert set(done.err.splitlines()) == {"a word"}


def test_config_shows_every_value_with_its_source(well):
    lines = well("config", "-c", "tiny.py", "policy.learn.batch_size=32").splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in lines}
    assert cells["policy.learn.batch_size"] == ["32", "command", "line"]
    assert cells["policy.learn.learning_rate"] == ["0.001", "tiny.py"]
    assert cells["policy.learn.clip_ratio"] == ["0.2", "default"]


def test_config_can_be_given_back(well):
    shown = json.loads(well("config", "seed=4", "-c", "tiny.py", "policy.learn.batch_size=32", "--json"))
    assert (shown["config"]["seed"], shown["config"]["policy"]["learn"]["batch_size"]) == (4, 32)
    well("config", "-c", "tiny.py", "seed=4", "policy.learn.batch_size=32", "-o", "mine.py")
    again = json.loads(well("config", "-c", "mine.py", "--json"))
    assert again["config"] == shown["config"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("learn.clip_r", "policy.learn.clip_ratio"),
        ("gamma", "policy.collect.discount_factor"),
        ("aux_freq", "policy.learn.aux_freq"),
    ],
)
def test_explain_says_what_a_key_does(text, path, well):
    first, *_ = re.findall(
        r"^(\S+) = .+ \(.+\)\n((?:    .+\n)+)", well("config", "--explain", text), re.MULTILINE
    )
    assert first[0] == path
    assert len(first[1].split()) > 3


def test_list_has_every_kind_and_what_a_module_registers(well, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ding_lite import POLICY_REGISTRY, PPOPolicy\n\n\n"
        '@POLICY_REGISTRY.register("mine", force=True)\nclass Mine(PPOPolicy):\n    """PPO of my own."""\n'
    )
    first = "cartpole_ppo Classic control: CartPole-v1, the first config to try: seconds."
    lines = [" ".join(line.split()) for line in well("list", "--import", "mine.py").splitlines()]
    assert {"policies", "models", "configs", "mine PPO of my own.", first} <= set(lines)
    assert "cartpole_ppo" not in well("list", "policies")


def test_runs_are_listed_plotted_and_compared(ding_lite, well, tmp_path):
    for seed in range(3):
        write_run(tmp_path / "runs" / f"slow_{seed}", seed=seed, learn={"learning_rate": 1e-4})
        write_run(tmp_path / "runs" / f"fast_{seed}", seed=seed, returns=[20.0, 40.0, 60.0, 80.0])
    write_run(tmp_path / "runs" / "killed", status=None, policy="ppg")
    (write_run(tmp_path / "runs" / "torn") / "config.json").write_text("{")
    lines = well("runs").splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert [rows[name].split()[1] for name in ("fast_0", "killed", "torn")] == [
        "finished",
        "killed",
        "unreadable",
    ]
    assert rows["fast_0"].rstrip().endswith("ppo, CartPole-v1, learning_rate=0.001")
    assert "torn: " in lines[-1]
    assert len(json.loads(well("runs", "--json"))["runs"]) == 8
    output = well("compare", "runs/slow*", "runs/fast*", "-o", "page.html", "--title", "Two rates")
    rows = [re.split(r"  +", line.strip()) for line in output.splitlines()]
    assert ["learning_rate=0.0001", "3"] in [row[:2] for row in rows]
    assert ["policy.learn.learning_rate", "0.0001", "0.001"] in rows
    assert "Two rates" in (tmp_path / "page.html").read_text()
    assert len(json.loads(well("compare", "slow=runs/slow*", "fast=runs/fast*", "--json"))["runs"]) == 6
    assert ding_lite("plot", "runs/fast*", "-o", "b.png")[:2] == (0, "b.png\n")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_tables_fit_a_terminal_of_80_columns(well, tmp_path, monkeypatch):
    for seed in range(3):
        write_run(tmp_path / "runs" / f"cartpole_ppo_s{seed}", seed=seed, learn={"learning_rate": 1e-4})
        write_run(tmp_path / "runs" / f"cartpole_ppg_s{seed}", seed=seed, policy="ppg")
    write_run(tmp_path / "runs" / "cartpole_lr", learn={"learning_rate": 2e-4})
    monkeypatch.setenv("TERM", "dumb")  # of 80 columns, without colours
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for words in (["runs"], ["compare", "runs/cartpole_pp*"]):
        lines = well(*words).partition("what differs")[0].splitlines()
        assert max(map(len, lines)) <= 80
        rows = {line.split()[0]: line.split() for line in lines if line.strip()}
        if words == ["runs"]:
            shown = ["cartpole_ppg_s0", "finished", "45.0", "4,000", "0", "ppg,", "CartPole-v1"]
            assert rows["cartpole_ppg_s0"] == shown
        else:
            assert rows["ppg"][1:] == ["3", "45.0", "45.0", "[45.0,", "45.0]", "-"]


def test_profile_shows_where_the_time_goes(well, tmp_path):
    small = ("--env", "CartPole-v1", "policy.collect.n_sample=128", "--iterations", 2)
    report = json.loads(well("profile", *small, "--json"))
    assert report["iterations"] == 2
    table = well("profile", *small)
    assert all(phase in table for phase in report["phases"])
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.py"]
