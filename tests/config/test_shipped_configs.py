"""Every shipped config runs, made small, repeats no default, and is found in an installed package."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from cases import slow_but

from ding_lite import SerialPipeline, load_policy
from ding_lite.config.compile import compile_config, differences, load_config, read_config, shipped_configs
from ding_lite.config.schema import leaves
from ding_lite.envs.packages import EXTRAS
from ding_lite.errors import ConfigError, EnvError

ROOT = Path(__file__).parents[2]
CONFIGS = shipped_configs()
PAPER = ROOT / "examples" / "procgen_paper_ppg.py"


def learning(policy):
    """Returns overrides for 8 updates per iteration, and an auxiliary phase in the second iteration."""
    if not policy.type.startswith("ppg"):
        updates = {"epoch_per_collect": 2} if policy.on_policy else {"update_per_collect": 8}
    else:
        epochs = {f"{who}_epoch_per_collect": 2 for who in ("actor", "critic")}
        updates = {**epochs, "aux_batch_size": 16, "aux_freq": 2, "aux_train_epoch": 1}
    return {f"policy.learn.{name}": value for name, value in updates.items()}


def small(name):
    """Returns a shipped config with rollouts of 4 minibatches of 8 samples, and a run of two of them."""
    values = load_config(name).values
    envs = min(2, values.env.collector_env_num)
    overrides = {
        "max_train_iter": 9,  # one iteration has 8 updates, or fewer where rows were resets
        "num_threads": 1,
        "env.collector_env_num": envs,
        "env.evaluator_env_num": 1,
        "env.n_evaluator_episode": 1,
        "env.max_eval_steps": 15,
        "env.stop_value": None,
        "env.manager.worker_num": 2,
        "policy.device": "cpu",
        "policy.collect.n_sample": 32,
        "policy.collect.n_step": None,
        "policy.learn.batch_size": 8,
        "policy.learn.sequence_length": 8,
        **learning(values.policy),
        "policy.eval.eval_freq": 0,
        "checkpoint.freq": 0,
        "logger.trackers": [],
    }
    return compile_config(values, overrides)


def lacking(error):
    """Returns whether an error says how to install a package that is indeed not installed."""
    text = str(error)
    if "requires the system Qt 5" in text:  # of EnvPool's Procgen; it is no Python package
        return find_library("Qt5Gui") is None
    if "No module named 'mujoco_playground'" in text:
        return True
    find = importlib.util.find_spec
    missing = {extra for extra, modules in EXTRAS.items() if not all(map(find, modules.split()))}
    return any(f'pip install "ding_lite[{extra}]"' in text for extra in missing)


def begun(name, folder):
    """Returns the pipeline; skips the test if the error says how to install its extra, which is missing."""
    try:
        return SerialPipeline(small(name), folder=folder)
    except EnvError as error:
        if not lacking(error):
            raise
        pytest.skip(str(error))


DAILY = ("cartpole_ppo", "pendulum_ppg", "memory_ppo", "cliffwalking_ppo")


# Box2D is built with an old SWIG, whose types Python complains about when they are imported.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")
@pytest.mark.parametrize("name", slow_but(DAILY, [*CONFIGS, PAPER]), ids=lambda name: Path(name).stem)
def test_shipped_config_runs_two_iterations_and_its_policy_acts(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file wherever it is
    pipeline = begun(name, tmp_path / "run")
    updates = [progress.metrics["learn/updates"] for progress in pipeline]
    assert len(updates) == 2
    phases = pipeline.cfg.policy.type.startswith("ppg")
    assert ("learn/aux_updates" in pipeline.progress.metrics) is phases
    assert all(6 <= count <= 8 for count in updates)
    result = json.loads((pipeline.folder / "result.json").read_text())
    assert (result["status"], result["iterations"]) == ("finished", 2)
    assert 48 <= result["env_step"] <= 64
    assert math.isfinite(result["eval_value"])
    policy = load_policy(pipeline.folder)
    assert policy.act(policy.obs_space.sample()) in policy.action_space


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_config_repeats_no_default(name):
    written, whole = read_config(CONFIGS[name]), load_config(name)
    assert (whole.values.exp_name, whole.notes) == (name, ())
    for path, _ in leaves(written):
        *sections, key = path.split(".")
        fewer = copy.deepcopy(written)
        del functools.reduce(dict.__getitem__, sections, fewer)[key]
        with contextlib.suppress(ConfigError):  # another key of the config needs it
            assert differences(whole.values, compile_config(fewer, name=name).values), path


@pytest.mark.slow
def test_configs_and_templates_are_found_in_an_installed_package(tmp_path):
    """Built as pip builds it, and run from elsewhere."""
    site = tmp_path / "site"
    build = ["build", "--build-base", str(tmp_path / "base"), "--build-lib", str(site)]
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=ROOT, check=True, capture_output=True)
    folders = site / "ding_lite" / "_configs", ROOT / "configs"
    installed, shipped = ({file.relative_to(folder) for file in folder.rglob("*.py")} for folder in folders)
    assert installed == shipped
    environment = {**os.environ, "PYTHONPATH": str(site)}
    new = [sys.executable, "-m", "ding_lite", "new", "env", "thing"]
    subprocess.run(new, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "thing.py").is_file()
    limits = ["--max-env-step", "64", "policy.collect.n_sample=64", "env.max_eval_steps=15"]
    command = [sys.executable, "-m", "ding_lite", "train", "-c", "cartpole_pole_ppo", *limits]
    command += ["policy.learn.batch_size=32", "env.n_evaluator_episode=2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "cartpole_pole_ppo" / "result.json").is_file()
    kept = [*command[:3], "config", "--env", "FrozenLake-v1", "-o", "kept.py"]
    done = subprocess.run(kept, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "settings: for grids" in done.stderr
    where = "from ding_lite.config.compile import find_config; print(find_config('cartpole_pole_ppo'))"
    command = [sys.executable, "-c", where]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(site / "ding_lite" / "_configs" / "cartpole_pole_ppo.py")
