"""Every kind of action is learned in seconds, on environments whose best policy is known."""

from __future__ import annotations

import pytest
from cases import slow_but
from worlds import finished

from ding_lite import SerialPipeline
from ding_lite.testing import ACTION_SPACES, MatchEnv


def match(title):
    return MatchEnv(ACTION_SPACES[title])


PPO = dict(epoch_per_collect=8, batch_size=128)
PPG = dict(actor_epoch_per_collect=8, critic_epoch_per_collect=8, batch_size=128, aux_train_epoch=3)


def share_of_the_best(env, tmp_path, steps=8_000, kind="ppo", learn=PPO, **kwargs):
    config = dict(
        max_env_step=steps,
        env=dict(type=env, kwargs=kwargs),
        policy=dict(
            type=kind,
            recompute_adv=False,
            learn=dict(learning_rate=5e-3, lr_schedule="linear", **learn),
            collect=dict(n_sample=512, discount_factor=0.5),
            eval=dict(eval_freq=0),
        ),
        logger=dict(trackers=[]),
    )
    return finished(SerialPipeline(config, folder=tmp_path / "run")).progress.eval_value / MatchEnv.length


@pytest.mark.parametrize("title", slow_but(["Discrete"], ["Discrete", "Box"]))
def test_the_action_that_the_observation_shows_is_learned(title, tmp_path):
    steps = 20_000 if title == "Box" else 8_000  # it has numbers to find
    assert share_of_the_best(match, tmp_path, steps, title=title) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("title", ["MultiDiscrete", "MultiBinary", "Dict"])  # of a Discrete and a Box
def test_it_is_learned_through_the_phases_of_ppg(title, tmp_path):
    assert share_of_the_best(match, tmp_path, 6_000, "ppg", PPG, title=title) > 0.9
