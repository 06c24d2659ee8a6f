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
CONFIGS = ["hybrid_actions", "masked_actions"]
EVALUATION = re.compile(r"^ *(\d+) steps  return (-?\d+\.\d)$", re.MULTILINE)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs an example once, and returns its output and its run's folder."""
    known = {}

    def run(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            train = ["-m", "ding_lite", "train", "-q", "-c"] if name in CONFIGS else []
            done = subprocess.run(
                [sys.executable, *train, str(FOLDER / f"{name}.py")],
                cwd=folder,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                },  # waiting threads would take the other test's core
                capture_output=True,
                text=True,
                timeout=240,
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert [path.name for path in folder.iterdir()] == ["runs"]
            known[name] = done.stdout, next((folder / "runs").iterdir())
        return known[name]

    return run


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("name", slow_but(["masked_actions"], [*PROGRAMS, *CONFIGS]))
def test_example_runs_to_its_end_and_leaves_one_complete_run(ran, name):
    _, folder = ran(name)
    assert result_of(folder)["status"] == "solved"
    assert (folder / "ckpt" / "best.safetensors").is_file()


def test_example_says_how_to_run_it():
    files = sorted(FOLDER.glob("*.py"))
    assert [file.stem for file in files] == sorted([*PROGRAMS, *CONFIGS, "procgen_paper_ppg"])
    for file in files:
        program = "python" if file.stem in PROGRAMS else "ding-lite train -c"
        assert f"{program} examples/{file.name}\n" in file.read_text()


@pytest.mark.parametrize(
    "goal",
    slow_but([("custom_env", -12)], [("custom_env", -12), ("custom_model", 475), ("embed_pipeline", 475)]),
)
def test_example_shows_evaluations_up_to_its_goal(ran, goal):
    name, goal = goal
    output, _ = ran(name)
    evaluations = [(int(step), float(value)) for step, value in EVALUATION.findall(output)]
    assert len(evaluations) >= 2
    assert [step for step, _ in evaluations] == sorted(step for step, _ in evaluations)
    assert evaluations[-1][1] >= goal


@pytest.mark.slow
def test_custom_policy_passes_its_check_and_solves_its_task(ran):
    output, folder = ran("custom_policy")
    assert "policy ppo_kl_penalty on " in output
    assert "solved after" in output
    assert result_of(folder)["policy"] == "ppo_kl_penalty"


@pytest.mark.slow
def test_custom_env_is_named_in_the_result(ran):
    _, folder = ran("custom_env")
    assert result_of(folder)["env_id"] == "thermostat"


@pytest.mark.slow
def test_embedded_pipeline_plays_an_episode_with_the_policy_that_it_loads(ran):
    output, folder = ran("embed_pipeline")
    assert float(re.search(r"^one episode: (\d+)$", output, re.MULTILINE).group(1)) >= 300
    assert result_of(folder)["seed"] == 3
