"""A gradient step that is not finite: kept, taken again, or survived."""

from __future__ import annotations

import json
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from worlds import trainee

from ding_lite import POLICY_REGISTRY, NumericsError, PPOPolicy, SerialPipeline, load_policy
from ding_lite.data.samples import Batch
from ding_lite.errors import CheckpointError
from ding_lite.policies.optimizer import GradientSteps
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.testing import replay_step

STEPS = 256


@POLICY_REGISTRY.register("falls_off_a_log")
class FallsOff(PPOPolicy):
    """PPO with a term that is the logarithm of a negative number for carts far to the right."""

    config = dict(learn=dict(far=0.4))

    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return loss + 1e-6 * torch.log(self.cfg.learn.far - batch.obs[:, 0]).mean(), metrics


def run(folder, kind="falls_off_a_log", **learn):
    config = dict(
        max_env_step=20 * STEPS,
        env=dict(env_id="CartPole-v1", n_evaluator_episode=1, evaluator_env_num=1, max_eval_steps=10),
        policy=dict(
            type=kind,
            learn=dict(batch_size=16, epoch_per_collect=2, value_norm=True) | learn,
            collect=dict(n_sample=STEPS),
            eval=dict(eval_freq=0),
        ),
        checkpoint=dict(freq=STEPS),
        logger=dict(tensorboard=False),
    )
    pipeline = SerialPipeline(config, folder=folder)
    for _ in pipeline:
        pass
    return pipeline


def test_step_is_kept_and_can_be_taken_again(tmp_path):
    with pytest.raises(
        NumericsError, match=r"gradient step \d+ of loss in iteration \d+ .*(policy_loss|total_loss)"
    ) as caught:
        run(tmp_path / "run")
    message = str(caught.value)
    assert str(tmp_path / "run" / "dump") in message
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
    state, _ = load_checkpoint(tmp_path / "run" / "dump")
    assert (state["batch"]["obs"][:, 0] > 0.4).any(), "this very minibatch"
    assert len(state["batch"]["obs"]) <= 17
    told = replay_step(tmp_path / "run" / "dump")
    assert math.isnan(told["metrics"]["total_loss"])
    assert told["inputs"] == []
    assert told["gradients"] == [], "d log x / dx is a number where log x is none"
    step = int(message.split("gradient step ")[1].split()[0])
    assert step > 0, "parameters had moved before it: the dump has those of the step, not of the iteration"


@POLICY_REGISTRY.register("root_of_nothing")
class Root(PPOPolicy):
    """PPO with a term whose value is 0 and whose slope is not finite, from the third iteration on."""

    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        if self.buffers["policy"].iteration < 2:
            return loss, metrics
        return loss + (0 * self.model.actor_head.layers[0].bias.sum()).sqrt(), metrics


def test_a_gradient_alone_that_is_not_finite_is_told_by_its_parameter_and_iteration(tmp_path):
    with pytest.raises(NumericsError) as caught:
        run(tmp_path / "run", kind="root_of_nothing")
    message = str(caught.value)
    assert "gradient step 0 of loss in iteration 3 was not finite" in message
    assert "of the gradients ['actor_head.layers.0.bias']" in message
    assert "of its inputs" not in message


@pytest.mark.slow
def test_what_was_saved_before_is_whole(tmp_path):
    with pytest.raises(NumericsError):
        run(tmp_path / "run", far=0.4)
    policy = load_policy(tmp_path / "run", checkpoint="last")
    assert all(torch.isfinite(p).all() for p in policy.model.parameters())
    assert policy.act(policy.obs_space.sample()) in policy.action_space


@pytest.mark.slow
def test_a_budget_of_bad_steps_is_survived_and_counted(tmp_path):
    pipeline = run(tmp_path / "run", far=0.4, skip_bad_steps=10_000)
    assert pipeline.status == "finished"
    assert pipeline.progress.metrics["learn/skipped_steps"] > 0
    assert all(torch.isfinite(p).all() for p in pipeline.policy.model.parameters())
    assert not (tmp_path / "run" / "dump").exists()
    assert pipeline.state_dict()["policy"]["bad_steps"]["count"] > 0, "a resumed run goes on counting"


def test_a_budget_that_is_used_up_ends_the_run(tmp_path):
    with pytest.raises(NumericsError) as caught:
        run(tmp_path / "run", far=0.4, skip_bad_steps=1)
    step = int(str(caught.value).split("gradient step ")[1].split()[0])
    assert step > 0
    assert math.isnan(replay_step(tmp_path / "run" / "dump")["metrics"]["total_loss"])


def test_all_optimisers_of_a_run_share_one_budget():
    policy, _ = trainee("ppg", learn=dict(critic_epoch_per_collect=2, skip_bad_steps=2))
    updaters = [policy.optimizer, policy.value_optimizer, policy.auxiliary.optimizer]
    found = []
    for updater in updaters:
        total = sum(p.sum() for p in updater.parameters) * math.nan
        steps = GradientSteps(updater, NumericsError)
        steps.take(lambda _, total=total: (total, {}), Batch(), remake=Batch)
        found.append(steps.settle())
    assert found == [None, None, 0]
    assert policy.state_dict()["bad_steps"] == {"count": 3}


class Spoils(PPOPolicy):
    """PPO in which every third step of an iteration is not finite."""

    def policy_loss(self, batch):
        self.steps = getattr(self, "steps", 0) + 1
        loss, metrics = super().policy_loss(batch)
        if self.steps % 3:
            return loss, metrics
        return loss * math.nan, {name: number * math.nan for name, number in metrics.items()}


@pytest.mark.parametrize("on_host", [True, False])
def test_steps_that_were_skipped_are_in_no_mean_and_leave_target_kl_on(on_host):
    learn = dict(compile=False, skip_bad_steps=100, epoch_per_collect=4, target_kl=1e-9, learning_rate=1e-2)
    policy, collector = trainee("ppo", cls=Spoils, learn=learn)
    policy.optimizer.on_host = on_host
    metrics = policy.learn_mode.forward(collector.collect())
    assert all(map(math.isfinite, metrics.values())), metrics
    assert metrics["skipped_steps"] == 1
    assert metrics["epochs"] == 1, "target_kl ends the passes of the policy"


@pytest.mark.parametrize("on_host", [True, False])
def test_means_are_those_of_the_steps_that_were_taken(on_host):
    policy, _ = trainee("ppo", learn=dict(skip_bad_steps=9))
    policy.optimizer.on_host = on_host
    weight = next(iter(policy.model.parameters()))
    steps = GradientSteps(policy.optimizer, NumericsError)
    for number in (1.0, math.nan, 3.0, math.nan):
        told = {"number": torch.tensor(number)} | ({"own": torch.ones(())} if number != number else {})
        loss = lambda _, number=number, told=told: (weight.sum() * number, told)  # noqa: E731
        steps.take(loss, Batch(value_target=torch.zeros(2)), remake=Batch)
    assert steps.mean_since(0, "number") == 2
    assert steps.mean_since(1, "number") == 3
    assert math.isnan(steps.mean_since(3, "number"))
    assert math.isnan(steps.mean_since(0, "of no step"))
    steps.check()
    means = steps.mean_metrics()
    assert means["number"] == 2
    assert math.isnan(means["own"]), "of skipped steps alone"
    assert math.isfinite(means["grad_norm"])


class Split(gym.Wrapper):
    """CartPole with its position and the rest as two branches."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        box = gym.spaces.Box(-np.inf, np.inf, (1,)), gym.spaces.Box(-np.inf, np.inf, (3,))
        self.observation_space = gym.spaces.Dict(x=box[0], rest=box[1])

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return {"x": obs[:1], "rest": obs[1:]}, info

    def step(self, action):
        obs, *others = self.env.step(action)
        return {"x": obs[:1], "rest": obs[1:]}, *others


class NotANumber(PPOPolicy):
    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return loss * math.nan, metrics


def test_a_step_on_observations_in_a_dict_is_kept_too(tmp_path):
    config = dict(
        max_env_step=STEPS,
        env=dict(type=Split, n_evaluator_episode=1, evaluator_env_num=1, max_eval_steps=10),
        policy=dict(type=NotANumber, collect=dict(n_sample=STEPS), learn=dict(batch_size=16)),
    )
    with pytest.raises(NumericsError, match="replay_step"):
        for _ in SerialPipeline(config, folder=tmp_path / "run"):
            pass
    told = replay_step(tmp_path / "run" / "dump", trust=[__name__])
    assert math.isnan(told["metrics"]["total_loss"])


@POLICY_REGISTRY.register("falls_off_beside_a_reference")
class FallsOffBesideReference(FallsOff):
    """The same with a penalty, and with an intrinsic loss that is no number at its second use."""

    config = dict(learn=dict(spoils=False))

    def intrinsic_loss(self, batch):
        loss, metrics = super().intrinsic_loss(batch)
        return (loss * torch.nan if self.cfg.learn.spoils else loss), metrics


def test_a_step_with_a_penalty_to_a_reference_can_be_taken_again(tmp_path):
    run(tmp_path / "reference", kind="ppo")
    penalty = dict(kl_beta=0.5, pretrained_model_path=str(tmp_path / "reference"))
    with pytest.raises(NumericsError):
        run(tmp_path / "run", kind="falls_off_beside_a_reference", **penalty)
    told = replay_step(tmp_path / "run" / "dump")
    assert math.isnan(told["metrics"]["total_loss"])
    assert told["metrics"]["reference_kl"] > 0


def test_a_step_of_the_intrinsic_networks_can_be_taken_again(tmp_path):
    config = dict(
        max_env_step=20 * STEPS,
        env=dict(env_id="CartPole-v1", n_evaluator_episode=1, max_eval_steps=10),
        policy=dict(
            type="falls_off_beside_a_reference",
            on_policy=False,
            intrinsic=dict(type="rnd"),
            learn=dict(spoils=True, far=99.0),
            collect=dict(n_sample=STEPS),
        ),
    )
    pipeline = SerialPipeline(config, folder=tmp_path / "run")
    with pytest.raises(NumericsError, match="intrinsic"):
        next(iter(pipeline))
    state, _ = load_checkpoint(tmp_path / "run" / "dump")
    assert not [name for name in state["policy"] if name.endswith("_buffer")], "rollouts may be large"
    told = replay_step(tmp_path / "run" / "dump")
    assert told["gradients"]
    assert all(name.startswith(("reward.", "critic.")) for name in told["gradients"])


def test_a_dump_names_no_other_method_than_a_loss(tmp_path):
    with pytest.raises(NumericsError):
        run(tmp_path / "run")
    state, saved = load_checkpoint(tmp_path / "run" / "dump")
    save_checkpoint(tmp_path / "forged", {**state, "loss": "load_state_dict"}, saved)
    with pytest.raises(CheckpointError, match="'load_state_dict' is not a loss; expected one of loss,"):
        replay_step(tmp_path / "forged")
