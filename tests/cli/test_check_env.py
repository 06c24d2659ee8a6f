"""``ding-lite check-env`` as a user meets it: exit codes, a table, and JSON."""

from __future__ import annotations

import json

import pytest

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


@pytest.fixture
def here(ding_lite, tmp_path):
    """Runs the command beside environments and a config; returns its exit code, stdout and stderr."""
    (tmp_path / "my_world.py").write_text(WORLD)
    (tmp_path / "my_config.py").write_text(CONFIG)
    return lambda *words: ding_lite("check-env", *words)


def test_sound_environment_has_a_line_for_each_check_and_exit_code_0(here):
    code, out, _ = here("my_sound", "--import", "my_world", "--steps", "12", "-s", "4")
    *lines, last = out.splitlines()
    assert (code, last) == (0, "my_sound: 10 checks, 0 failed, 0 warned (12 steps, seed 4)")
    assert sum(line.split()[0] == "OK" for line in lines if line.strip()) == 10


def test_environment_of_a_config_is_checked_with_its_seed_and_json_is_alone_on_stdout(here):
    code, out, err = here("-c", "my_config.py", "--steps", "40", "--json")
    report = json.loads(out)
    assert (code, report["env"], report["seed"], report["failed"]) == (3, "my_world:Cut", 3, 1)
    [bad] = [row for row in report["findings"] if row["verdict"] == "FAIL"]
    assert bad["check"] == "contract"
    assert "reward = inf" in bad["text"]
    assert "a word of the environment's own" in err


@pytest.mark.slow
@pytest.mark.parametrize("command", [("check-env",), ("train", "--plain", "--max-env-step", "64", "--env")])
def test_minigrid_names_the_wrappers_that_take_its_mission_away(command, ding_lite):
    pytest.importorskip("minigrid", reason="the extra minigrid")
    done = ding_lite(*command, "MiniGrid-Empty-5x5-v0")
    said = " ".join((done.out + done.err).split())
    assert done.code == 3
    assert "env.wrappers=['minigrid_image']" in said
    assert "'minigrid_flat'" in said
