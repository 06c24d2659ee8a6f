"""The commands that look at runs, configs and environments, in this process: their output and their JSON."""

import json
import re

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


def test_config_shows_every_value_with_its_source(well):
    lines = well("config", "-c", "tiny.py", "policy.learn.batch_size=32").splitlines()
    cells = {line.split()[0]: line.split()[1:] for line in lines}
    assert cells["policy.learn.batch_size"] == ["32", "command", "line"]
    assert cells["policy.learn.learning_rate"] == ["0.001", "tiny.py"]
    assert cells["policy.learn.clip_ratio"] == ["0.2", "default"]


def test_explain_says_what_a_key_does(well):
    said = well("config", "--explain", "gamma")
    (key, text), *_ = re.findall(r"^(\S+) = .+ \(.+\)\n((?:    .+\n)+)", said, re.MULTILINE)
    assert key == "policy.collect.discount_factor"
    assert len(text.split()) > 3


def test_list_has_every_kind_and_what_a_module_registers(well, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ding_lite import POLICY_REGISTRY, PPOPolicy\n\n\n"
        '@POLICY_REGISTRY.register("another")\nclass Mine(PPOPolicy):\n    """PPO of my own."""\n'
    )
    first = "cartpole_ppo Classic control: CartPole-v1, the first config to try; it trains in seconds."
    lines = [" ".join(line.split()) for line in well("list", "--import", "mine.py").splitlines()]
    assert {"policies", "models", "configs", "another PPO of my own.", first} <= set(lines)
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
    report = json.loads(well("compare", "slow=runs/slow*", "fast=runs/fast*", "--json"))
    assert ([group["group"] for group in report["groups"]], len(report["runs"])) == (["slow", "fast"], 6)
    assert report["differences"] == {"policy.learn.learning_rate": {"slow": "0.0001", "fast": "0.001"}}
    assert ding_lite("plot", "runs/fast*", "-o", "b.png")[:2] == (0, "b.png\n")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
