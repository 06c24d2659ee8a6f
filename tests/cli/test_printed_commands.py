"""The command at the end of a run, typed as it is printed, with classes of the user's own."""

import json
import shlex
import signal

import pytest

ENVS = """
import gymnasium as gym
import numpy as np

class Line(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), float(action), self.steps == 9, False, {}
"""
POLICIES = """
from ding_lite import POLICY_REGISTRY, PPOPolicy

@POLICY_REGISTRY.register("mine")
class Mine(PPOPolicy):
    pass
"""
SMALL = ("policy.collect.n_sample=64", "policy.learn.batch_size=32", "env.evaluator_env_num=1")
LIMIT = "max_env_step=64"


def lay_out(folder, **files):
    """Writes Python files: ``package__module=text`` is package/module.py."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def beside_each_other(home):
    lay_out(home, envs=ENVS, policies=POLICIES)
    return ["--env", "envs:Line", "--policy", "policies:Mine"]


def registered_by_imports(home):
    """A package registers the id with gymnasium, and a module the policy; both lie in another folder."""
    registers = 'import gymnasium\ngymnasium.register("Third-v0", entry_point="third.envs:Line")\n'
    lay_out(home / "site", third__envs=ENVS, policies=POLICIES)
    (home / "site" / "third" / "__init__.py").write_text(registers)
    imports = ["--import", "site/third", "--import", "site/policies.py"]
    return ["--env", "Third-v0", "--policy", "mine", *imports]


def named_in_a_config_elsewhere(home):
    config = 'config = dict(env=dict(type="pack.envs:Line"), policy=dict(type="pack.policies:Mine"))\n'
    lay_out(home / "my project", pack__envs=ENVS, pack__policies=POLICIES, config=config)
    return ["-c", "my project/config.py"]


DISTRIBUTION = """
from ding_lite.rl.distributions import Normal, register_box_distribution

@register_box_distribution("mine")
class Mine(Normal):
    pass
"""
PENDULUM = 'config = dict(env=dict(env_id="Pendulum-v1"), policy=dict(model=dict(box_distribution="mine")))\n'


def registered_by_a_module_that_the_config_imports(home):
    lay_out(home, dists=DISTRIBUTION, config="import dists\n" + PENDULUM)
    return ["-c", "config.py"]


def registered_in_the_config_itself(home):
    lay_out(home / "my project", config=DISTRIBUTION + PENDULUM)
    return ["-c", "my project/config.py"]


def without_imports(command):
    return command[: min(command.index(option) for option in ("-c", "--import") if option in command)]


def printed_command(job):
    return words_of(job.output.partition("try: ")[2])


def words_of(typed):
    program, *command = shlex.split(typed)
    assert program == "ding-lite"
    return command


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "situation",
    [
        registered_by_a_module_that_the_config_imports,
        named_in_a_config_elsewhere,
        registered_in_the_config_itself,
        beside_each_other,
        registered_by_imports,
    ],
)
def test_the_command_runs_as_it_is_printed(warm, tmp_path, situation):
    options = situation(tmp_path)
    job = warm.run("train", *options, "--exp-name", "the run", *SMALL, LIMIT, cwd=tmp_path)
    assert (job.code, job.errors) == (0, "")
    command = printed_command(job)
    assert command[:2] == ["eval", "the run"]
    command[command.index("100")] = "2"
    assert warm.run(*command, "--json", cwd=tmp_path).code == 0
    assert warm.run(*without_imports(command), cwd=tmp_path).code == 5  # they are all needed


@pytest.mark.slow
def test_the_command_of_an_interrupted_run_continues_it(warm, tmp_path):
    options = registered_by_imports(tmp_path)
    job = warm.start("train", *options, "--exp-name", "stopped", *SMALL, cwd=tmp_path)
    job.until(lambda: "steps/s" in job.output)
    job.send(signal.SIGINT)
    assert job.wait() == 130
    command = printed_command(job)
    assert command[:3] == ["train", "--resume", "stopped"]
    more = warm.run(*command, "--max-env-step", "0", cwd=tmp_path)
    assert "max_env_step: expected a number at least 1" in more.errors  # all else was accepted
    job = warm.start(*command, cwd=tmp_path)
    job.until(lambda: "steps/s" in job.output)
    job.send(signal.SIGINT)
    assert job.wait() == 130
    assert printed_command(job) == command


@pytest.mark.slow
def test_one_error_names_all_modules_that_are_not_trusted(warm, tmp_path):
    options = beside_each_other(tmp_path)
    warm.run("train", *options, "--exp-name", "r", *SMALL, LIMIT, cwd=tmp_path)
    job = warm.run("eval", "r", cwd=tmp_path)
    assert "--import envs --import policies, or -c FILE" in job.errors
    assert "trust=['envs', 'policies']" in job.errors
    one_named = warm.run("eval", "r", "--import", "envs", cwd=tmp_path)
    assert "name it: --import policies, or" in one_named.errors
    assert "--import envs" not in one_named.errors


@pytest.mark.slow
def test_the_video_that_play_advises_is_of_the_changed_environment(warm, tmp_path):
    pytest.importorskip("moviepy", reason="needs the extra video")
    envs = ENVS.replace(
        "    def reset",
        "    metadata = {'render_modes': ['rgb_array'], 'render_fps': 30}\n\n    def reset",
        1,
    )
    envs = (
        envs.replace("self.steps == 9", "self.steps == self.length")
        + """
    def __init__(self, length=9, render_mode=None):
        self.length, self.render_mode = length, render_mode

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)
"""
    )
    lay_out(tmp_path, envs=envs, policies=POLICIES)
    imports = ["--env", "envs:Line", "--policy", "policies:Mine"]
    warm.run("train", *imports, "--exp-name", "the run", *SMALL, LIMIT, cwd=tmp_path)
    trusted = ["--import", "envs", "--import", "policies"]
    play = ["play", "the run", "-n", "2", "env.kwargs.length=4", *trusted]
    job = warm.run(*play, cwd=tmp_path)
    assert job.code in (2, 3)  # no display; where there is one, the environment opens no window on it
    command = words_of(job.errors.partition("For a video instead: ")[2])
    assert command[-2:] == ["--video", "videos"]
    job = warm.run(*command, "--json", cwd=tmp_path)
    assert json.loads(job.output)["lengths"] == [4, 4]
    assert len(list((tmp_path / "videos").glob("*.mp4"))) == 2
    # Negative control: without the change, the episodes are as long as in training.
    command.remove("env.kwargs.length=4")
    assert json.loads(warm.run(*command, "--json", cwd=tmp_path).output)["lengths"] == [9, 9]
