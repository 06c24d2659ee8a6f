"""The learner: its count of optimiser steps, and the errors that it explains."""

import pytest
import torch
from worlds import digest, trainee

from ding_lite.errors import ConfigError, ContractError
from ding_lite.run.learner import Learner

ROWS, BATCH, EPOCHS = 64, 16, 2


@pytest.fixture
def setting():
    """Returns a learner of a small policy and the collector of its rollouts."""
    policy, collector = trainee("ppo", n_sample=ROWS, learn={"epoch_per_collect": EPOCHS})
    return Learner(policy.learn_mode), collector


def test_optimiser_steps_are_counted_per_call_and_in_all(setting):
    learner, collector = setting
    assert (learner.train_iter, learner.updates) == (0, 0)
    for iteration in (1, 2, 3):
        metrics = learner.train(collector.collect())
        assert metrics["updates"] == learner.updates == EPOCHS * ROWS // BATCH
        assert learner.train_iter == iteration * learner.updates


def test_steps_of_an_auxiliary_phase_are_not_counted():
    policy, collector = trainee("ppg", n_sample=ROWS, learn={"aux_freq": 1, "aux_train_epoch": 1})
    learner = Learner(policy.learn_mode)
    metrics = learner.train(collector.collect())
    assert metrics["aux_updates"] > 0
    assert learner.train_iter == metrics["updates"]


def test_metrics_are_those_of_the_policy(setting):
    learner, collector = setting
    metrics = learner.train(collector.collect())
    assert set(metrics) >= {"policy_loss", "value_loss", "approx_kl"}
    twin, twin_collector = trainee("ppo", n_sample=ROWS, learn={"epoch_per_collect": EPOCHS})
    assert digest(twin.learn_mode.forward(twin_collector.collect())) == digest(metrics)


def test_count_is_saved_and_restored(setting):
    learner, collector = setting
    learner.train(collector.collect())
    restored = Learner(learner.mode)
    restored.load_state_dict(learner.state_dict())
    assert restored.train_iter == learner.train_iter > 0
    assert learner.state_dict() == {"train_iter": learner.train_iter}


def test_policy_that_does_not_report_its_updates_is_told_what_is_missing(setting):
    learner, collector = setting
    learner.mode = learner.mode._replace(forward=lambda rollout: {"policy_loss": 0.0})
    with pytest.raises(ContractError, match="'updates'.*'policy_loss'.*_forward_learn"):
        learner.train(collector.collect())
    assert learner.train_iter == 0


def test_missing_memory_is_a_config_error_that_names_the_keys_to_lower(setting):
    learner, collector = setting
    learner.mode = learner.mode._replace(forward=lambda rollout: torch.empty(2**60))
    with pytest.raises(ConfigError, match="16 steps of 4 environments.*policy.learn.batch_size") as caught:
        learner.train(collector.collect())
    assert "policy.learn.aux_batch_size" in str(caught.value)


@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        (None, "must return its metrics as a dict, got None"),
        ({"updates": 1, "loss": torch.ones(2)}, "the metric 'loss' must be one number, got tensor"),
        ({"updates": 1, "note": "good"}, "the metric 'note' must be one number, got 'good'"),
    ],
)
def test_metrics_that_are_no_numbers_are_refused(setting, metrics, fault):
    learner, collector = setting
    learner.mode = learner.mode._replace(forward=lambda rollout: metrics)
    with pytest.raises(ContractError, match=fault):
        learner.train(collector.collect())
