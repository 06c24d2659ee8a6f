"""Simulators of other libraries: each with its real package, but for what is installed nowhere."""

import re
import sys
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from worlds import finished

from ding_lite import SerialPipeline
from ding_lite.envs.adapters import BraxEnv, RslRlEnv
from ding_lite.envs.tensor import TensorVectorEnv

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from torch_envs import Pendulum

SMALL = {
    "max_env_step": 300,
    "env": {"manager": {"type": "vector"}, "collector_env_num": 8, "evaluator_env_num": 0},
    "policy": {"collect": {"n_step": 10}, "learn": {"batch_size": 40}},
}


def trained(folder, groups=None, **env):
    policy = {**SMALL["policy"], "model": {"obs_groups": groups}}
    return finished(
        SerialPipeline({**SMALL, "env": {**SMALL["env"], **env}, "policy": policy}, folder=folder)
    )


class VecEnv:
    """The Pendulum as an rsl_rl ``VecEnv``; ``old``: as Genesis' examples, with groups in extras."""

    num_actions = 1

    def __init__(self, num_envs, old=False, is_finite_horizon=False):
        self.inner, self.num_envs, self.old = Pendulum(num_envs, max_episode_steps=7), num_envs, old
        self.is_finite_horizon = is_finite_horizon
        self.episode_length_buf, self.max_episode_length = self.inner.episode_length_buf, 7
        self.obs, _ = self.inner.reset(seed=0)

    def get_observations(self):
        extras = {"observations": {"critic": self.obs * 2}}
        return (self.obs, extras) if self.old else {"policy": self.obs}

    def step(self, action):
        self.obs, reward, terminated, truncated, _ = self.inner.step(action)
        extras = {} if self.is_finite_horizon else {"time_outs": truncated.float()}
        extras |= {"observations": {"critic": self.obs * 2}} if self.old else {}
        obs = self.obs if self.old else {"policy": self.obs}
        return obs, reward, (terminated | truncated).long(), {**extras, "episode": {"rew_up": reward.mean()}}


@pytest.mark.parametrize("old", [False, True])
def test_an_environment_of_rsl_rl_is_trained_with_approximate_truncation(old, tmp_path):
    def make(num_envs):
        return RslRlEnv(VecEnv(num_envs, old))

    groups = {"actor": ["policy"], "critic": ["policy", "critic"]} if old else None
    pipeline = trained(tmp_path / "run", groups, type=make, init_at_random_ep_len=True)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "WARNING: truncated episodes have no last observation" in log
    metrics = pipeline.progress.metrics
    assert metrics["collect/approximate_truncations"] > 0
    assert metrics["collect/rew_up"] == pytest.approx(metrics["collect/step_reward"], rel=1e-5)


def test_an_end_without_time_outs_is_one_of_the_task():
    envs = TensorVectorEnv(RslRlEnv(VecEnv(4, is_finite_horizon=True)))
    envs.reset("collect")
    steps = [envs.step_tensors(torch.zeros(4, 1)) for _ in range(7)]
    assert steps[-1].terminated.all()
    assert not steps[-1].truncated.any()


def test_brax_gives_its_own_last_observations_and_begins_anew(tmp_path):
    envs = pytest.importorskip("brax.envs", reason="brax is not installed")
    env = BraxEnv(envs.get_environment("fast"), 3, episode_length=4)
    first, _ = env.reset(5)
    assert torch.equal(env.reset(5)[0], first)
    for t in range(1, 10):
        obs, reward, terminated, truncated, info = env.step(torch.full((3, 1), 0.5))
        assert truncated.bool().all() == (t % 4 == 0)
        assert not terminated.any()
        assert torch.equal(obs, first if t % 4 == 0 else info["final_obs"])
        assert not torch.equal(info["final_obs"], first)
    assert reward.shape == (3,)
    found = trained(tmp_path / "run", type="brax", kwargs={"env_id": "fast", "episode_length": 6})
    assert found.progress.metrics["collect/episode_length"] == 6


# -- Isaac Lab and ManiSkill run on no machine here: stand-ins of their documented interfaces


class IsaacLab(gymnasium.Env):
    """One simulation in a process; groups of observations; the same buffers at each step."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    is_vector_env, count = True, 0

    def __init__(self, cfg):
        IsaacLab.count += 1
        assert IsaacLab.count == 1, "only one simulation in a process"
        self.inner, self.num_envs, self.cfg = Pendulum(cfg.num_envs, max_episode_steps=7), cfg.num_envs, cfg
        self.episode_length_buf, self.max_episode_length = self.inner.episode_length_buf, 7
        box = self.inner.single_observation_space
        self.single_observation_space = spaces.Dict(policy=box, critic=box)
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,))
        self.terminated, self.truncated = (torch.zeros(self.num_envs, dtype=torch.bool) for _ in range(2))
        self.final = None  # as it was at the last end of an episode

    def groups(self, obs):
        return {"policy": obs, "critic": obs * 2}

    def reset(self, seed=None, options=None):
        if seed is not None:
            torch.manual_seed(seed)
        return self.groups(self.inner.reset(seed)[0]), {}

    def step(self, action):
        obs, reward, _, truncated, info = self.inner.step(action)
        self.truncated.copy_(truncated)
        self.terminated.copy_(truncated).logical_and_(self.inner.state[:, 0] > 0)
        if self.cfg.compute_final_obs and truncated.any():
            self.final = self.groups(info["final_obs"])
        log = {"Episode_Reward/upright": reward.mean()}
        return (
            self.groups(obs),
            reward,
            self.terminated,
            self.truncated,
            {"final_obs": self.final, "log": log},
        )


class ManiSkillVectorEnv:
    """A VectorEnv whose info is that after the reset, with the last observations of all environments."""

    def __init__(self, env, ignore_terminations):
        assert ignore_terminations
        self.inner, self.num_envs, self.device = env, env.num_envs, env.device
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.metadata = {}

    def reset(self, seed=None, options=None):
        return self.inner.reset(seed)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.inner.step(action.clamp(-1, 1))
        last, ended = info["final_obs"], truncated
        info = {
            "final_observation": last.masked_fill(~ended[:, None], torch.nan),
            "_final_observation": ended,
        }
        return obs, reward, terminated, truncated, info if ended.any() else {}


@pytest.mark.parametrize("name", ["make", "make_maniskill"])
def test_the_recipes_of_the_guide_train_exactly(name, tmp_path, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs" / "tensors.md").read_text()
    (recipes,) = [
        block for block in re.findall(r"```python no-run\n(.*?)```", guide, re.S) if "def make" in block
    ]
    modules = {
        "isaaclab_tasks.utils": {"parse_env_cfg": lambda task, num_envs: SimpleNamespace(num_envs=num_envs)},
        "mani_skill.envs": {},
        "mani_skill.vector.wrappers.gymnasium": {"ManiSkillVectorEnv": ManiSkillVectorEnv},
    }
    for path, names in modules.items():
        for parent in accumulate(path.split("."), "{}.{}".format):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        vars(sys.modules[path]).update(names)
    task = IsaacLab if name == "make" else Pendulum
    monkeypatch.setattr(IsaacLab, "count", 0)
    monkeypatch.setattr(gymnasium, "make", lambda task_id, **options: task(**options))
    (tmp_path / "recipes.py").write_text(recipes)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recipes", raising=False)
    groups = {"actor": ["policy"], "critic": ["policy", "critic"]} if name == "make" else None
    shared = {"greedy_env_num": 2} if name == "make" else {}
    found = trained(tmp_path / "run", groups, type=f"recipes:{name}", **shared)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert (found.status, "no last observation" in log) == ("finished", False)
    metrics = found.progress.metrics
    assert ("collect/Episode_Reward/upright" in metrics) == (name == "make")
    assert ("eval/episode_return_mean" in metrics) == (name == "make")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize(
    ("module", "kind", "env_id", "groups"),
    [
        ("mujoco_playground", "playground", "CartpoleBalance", None),
        ("mjlab", "mjlab", "Mjlab-Cartpole-Balance", {"actor": ["actor"], "critic": ["critic"]}),
    ],
)
def test_a_simulator_of_mujoco_is_trained(module, kind, env_id, groups, tmp_path):
    pytest.importorskip(module, reason=f"{module} is not installed")
    found = trained(tmp_path / "run", groups, type=kind, kwargs={"env_id": env_id})
    assert found.status == "finished"
    assert "no last observation" not in (tmp_path / "run" / "log.txt").read_text()
