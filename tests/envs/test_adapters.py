"""Simulators of other libraries: each with its real package, but for what is installed nowhere."""

import sys
from pathlib import Path

import pytest
import torch

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
    pipeline = SerialPipeline({**SMALL, "env": {**SMALL["env"], **env}, "policy": policy}, folder=folder)
    for _ in pipeline:
        pass
    return pipeline


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
