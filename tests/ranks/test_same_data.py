"""Ranks take the gradient steps that one process takes on all their data together."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "same_data.py"
GRADIENT = SCALES = 1e-6  # of the first minibatch; of normalisers
CHANGE = 1e-5  # of the parameters over two iterations, whose rounding errors Adam enlarges
FAULTS = ("no averaging", "local advantages", "equal weights", "the scale of another minibatch")


@pytest.fixture(scope="module")
def distances(tmp_path_factory):
    """Returns the distances between K ranks and one process, by case and kind.

    One process trains alone once. One launch of two ranks has the faults too, one after the other.
    """
    file = tmp_path_factory.mktemp("same_data") / "alone"
    subprocess.run([sys.executable, PROGRAM, file], check=True, timeout=300)

    @functools.cache
    def launch(ranks):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        faults = ("", *FAULTS) if ranks == 2 else ("",)
        done = subprocess.run(
            [*command, PROGRAM, file, *faults], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))

    return lambda ranks, fault="": dict(launch(ranks)[fault])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_scales_and_parameters_equal_those_of_one_process(ranks, distances):
    cases = distances(ranks)
    assert max(cases.pop("advantages").values()) < GRADIENT
    weights = cases.pop("reward weights")
    assert weights["of all"] < GRADIENT < 1e-3 < weights["of each"]
    assert len(cases) == 12
    for name, found in cases.items():
        assert found["gradient"] < GRADIENT, name
        for k in (0, 1):
            assert found[f"scales {k}"] < SCALES, name
            assert found[f"updates {k}"] == 0, name
            assert found[f"change {k}"] < CHANGE, name


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no averaging", "local advantages", "equal weights"])
def test_a_planted_fault_shows(fault, distances):
    cases = distances(2, fault)
    cases.pop("reward weights")
    advantages = cases.pop("advantages")
    assert fault != "local advantages" or min(advantages.values()) > 10 * GRADIENT
    for name, found in cases.items():
        # No episode of Pendulum ends here, so ranks have equally many samples.
        if fault != "equal weights" or "CartPole" in name:
            assert found["gradient"] > 10 * GRADIENT, name


@pytest.mark.slow
def test_the_scale_of_another_minibatch_shows(distances):
    assert min(distances(2, FAULTS[-1])["advantages"].values()) > 10 * GRADIENT
