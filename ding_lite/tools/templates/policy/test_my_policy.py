"""Tests of my_policy.py: run them with pytest."""

import torch
from my_policy import MyPolicy, config, penalized_surrogate

from ding_lite import SerialPipeline, check_policy


def test_policy_acts_takes_a_gradient_step_saves_and_loads():
    check_policy(MyPolicy, learns=False)  # True: it also learns a small task, which takes longer


def test_objective_is_highest_at_the_edge_of_the_trust_region():
    ratio = torch.tensor([1.2, 0.8], requires_grad=True)
    advantage = torch.tensor([3.0, -2.0])
    objective = penalized_surrogate(ratio, advantage, epsilon=0.2)
    torch.testing.assert_close(objective.detach(), torch.tensor([3.3, -1.8]))
    (gradient,) = torch.autograd.grad(objective.sum(), ratio)
    torch.testing.assert_close(gradient, torch.zeros(2), atol=1e-5, rtol=0)


def test_config_trains(tmp_path):
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        assert next(iter(pipeline)).train_iter > 0  # after one iteration
