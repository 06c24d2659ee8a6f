"""The lowest versions that setup.py allows train, evaluate and resume; torch is that of constraints.txt."""

import json
import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lowest_versions():
    """Returns the requirements of setup.py, each as its lowest version."""
    (listed,) = re.findall(r"install_requires=\[(.*?)\]", (ROOT / "setup.py").read_text(), re.DOTALL)
    lowest = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', listed))
    assert len(lowest) == listed.count('"') // 2
    (lowest["torch"],) = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return [f"{name}=={version}" for name, version in lowest.items()]


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_lowest_versions_train_evaluate_and_resume(tmp_path):
    venv.create(tmp_path / "lowest", with_pip=True)
    python = str(tmp_path / "lowest" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", *lowest_versions()]
    installed = subprocess.run(install, capture_output=True, text=True)
    if re.search("connection|timed out|name resolution", installed.stderr, re.IGNORECASE):
        pytest.skip(f"the package index cannot be reached: {installed.stderr[-200:]}")
    assert installed.returncode == 0, installed.stderr
    command = [python, "-m", "ding_lite"]
    run(tmp_path, *command, "train", "-c", "cartpole_ppo", "--exp-name", "low", "--max-env-step", "2000")
    played = json.loads(run(tmp_path, *command, "eval", "low", "-n", "2", "--json"))
    assert len(played["returns"]) == 2
    run(tmp_path, *command, "train", "--resume", "low", "--max-env-step", "4000")
    result = json.loads((tmp_path / "low" / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["env_step"] >= 4000
