"""One seed, one run: the same to the last bit, whatever is watched, saved or evaluated beside it."""

import random

import numpy as np
import pytest
import torch
from cases import slow_but
from small_worlds import SeededBox, SeededEnv
from worlds import digest, finished, merged, small_config, timeless_rows

from ding_lite import PPOPolicy, SerialPipeline
from ding_lite.models import VAC

WORLDS = {
    "native": small_config(max_env_step=1024),
    "base": small_config(SeededEnv, max_env_step=1024),
    "two halves": small_config(
        SeededBox, max_env_step=1024, env={"manager": {"type": "subprocess", "double_buffer": True}}
    ),
}


def run(config, folder, seed=0, **options):
    """Returns the rows of metrics.csv without the clock, and a hash of the policy's whole state."""
    pipeline = finished(SerialPipeline(config, seed=seed, folder=folder, **options))
    return timeless_rows(folder), digest(pipeline.policy.state_dict())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The rows and the state of the native run of seed 0."""
    return run(WORLDS["native"], tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize("world", slow_but(["base"], WORLDS))
def test_two_runs_with_one_seed_are_equal_to_the_last_bit(world, tmp_path):
    config = WORLDS[world]
    first, second = run(config, tmp_path / "a"), run(config, tmp_path / "b")
    assert len(first[0]) >= 4
    assert first == second
    episodes = [(tmp_path / name / "episodes.csv").read_bytes() for name in ("a", "b")]
    assert episodes[0] == episodes[1]


def test_runs_in_between_change_nothing_and_another_seed_gives_another_run(alone, tmp_path):
    """Nothing that a run leaves in the process reaches the next one."""
    run(WORLDS["base"], tmp_path / "between", seed=9)
    other = run(WORLDS["native"], tmp_path / "other", seed=1)
    assert other[1] != alone[1]
    assert other[0][0]["learn/total_loss"] != alone[0][0]["learn/total_loss"]
    assert run(WORLDS["native"], tmp_path / "b") == alone


def test_seed_of_the_config_and_of_the_argument_are_the_same_thing(tmp_path):
    config = WORLDS["native"]
    assert run(merged(config, {"seed": 3}), tmp_path / "a", seed=None) == run(config, tmp_path / "b", seed=3)


@pytest.mark.parametrize(
    "change",
    [
        {"logger": {"trackers": ["tensorboard"], "freq": 1}},
        {"logger": {"trackers": ["tensorboard"], "freq": 10**6}},
        {"checkpoint": {"freq": 1, "keep_freq": 1, "keep": 2}},
        {"env": {"evaluator_env_num": 5, "n_evaluator_episode": 7}, "policy": {"eval": {"eval_freq": 1}}},
    ],
    ids=str,
)
def test_what_is_only_watched_or_written_down_changes_no_parameter(change, alone, tmp_path):
    rows, state = run(merged(WORLDS["native"], change), tmp_path / "b")
    assert state == alone[1]
    assert [row["learn/total_loss"] for row in rows] == [row["learn/total_loss"] for row in alone[0]]
    assert all(row["eval/episode_return_mean"] for row in rows) == ("policy" in change)


class MeddlingEnv(SeededEnv):
    """Seeds everything that is global at every step, as careless environments do."""

    def step(self, action):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return super().step(action)


def test_environment_that_seeds_the_global_generators_changes_nothing(tmp_path):
    alone, disturbed = (
        run(small_config(kind, max_env_step=1024), tmp_path / name)
        for kind, name in ((SeededEnv, "alone"), (MeddlingEnv, "disturbed"))
    )
    assert alone == disturbed


class Dropping(VAC):
    """Drops half of the policy's features in gradient steps."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        self.dropout = torch.nn.Dropout(0.5)

    def compute_actor(self, obs):
        return self.actor_head(self.dropout(self.actor_encoder(obs)))

    def compute_actor_critic(self, obs):
        return self.compute_actor(obs), self.compute_critic(obs)


class Noisy(PPOPolicy):
    """Draws from torch's global generator, and from one of its own, in its loss."""

    def _init_learn(self):
        super()._init_learn()
        self.noise = self.own_generator("noise")

    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        own = torch.randn((), generator=self.noise)
        return loss * (1 + 0.1 * torch.randn(()) + 0.1 * own), metrics


@pytest.mark.parametrize("change", [{"model": {"type": Dropping}}, {"type": Noisy}])
def test_random_layers_and_losses_have_streams_of_the_run(change, tmp_path):
    def trained(name, until=None):
        config = small_config(policy=change)
        with SerialPipeline(config, folder=tmp_path / name) as pipeline:
            for progress in pipeline:
                torch.rand(3)  # of the script
                if progress.iteration == until:
                    break
        return pipeline

    torch.manual_seed(1)
    straight = trained("straight")
    torch.manual_seed(2)
    before = torch.get_rng_state()
    other = trained("other", until=3)
    torch.set_rng_state(before)
    torch.rand(3), torch.rand(3), torch.rand(3)
    expected = torch.get_rng_state()
    torch.set_rng_state(before)
    trained("once more", until=3)
    assert torch.equal(torch.get_rng_state(), expected), "the training draws nothing from the script's stream"
    with SerialPipeline.resume(other.folder, trust=[__name__]) as resumed:
        list(resumed)
    assert digest(resumed.policy.state_dict()) == digest(straight.policy.state_dict())
