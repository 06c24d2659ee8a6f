"""The examples, each run as its docstring says, from an empty folder outside the project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import slow_but

FOLDER = Path(__file__).parents[1] / "examples"
PROGRAMS = ["custom_env", "custom_model", "custom_policy", "dict_observation", "embed_pipeline"]
CONFIGS = ["hybrid_actions", "masked_actions", "torch_envs"]
RESULTS = {
    "custom_env": {"env_id": "thermostat"},
    "custom_policy": {"policy": "ppo_kl_penalty"},
    "embed_pipeline": {"seed": 3},
}


@pytest.mark.parametrize("name", slow_but(["masked_actions"], [*PROGRAMS, *CONFIGS]))
def test_example_solves_its_task_and_leaves_one_complete_run(name, tmp_path):
    train = ["-m", "ding_lite", "train", "-q", "-c"] if name in CONFIGS else []
    done = subprocess.run(
        [sys.executable, *train, str(FOLDER / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # waiting threads would take the other test's core
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "ckpt" / "best.safetensors").is_file()
    result = json.loads((run / "result.json").read_text())
    assert result.items() >= {"status": "solved", **RESULTS.get(name, {})}.items()
    if name == "custom_policy":
        assert "policy ppo_kl_penalty on " in done.stdout, "its check"
    if name == "embed_pipeline":
        assert float(re.search(r"^one episode: (\d+)$", done.stdout, re.MULTILINE).group(1)) >= 300
