"""Every kind of action with every kind of observation, in this process and in workers: acts, learns, returns.

The environment shows random observations and accepts only what its action space contains, so that a
wrong conversion on the way fails where it happens.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from anything import ACTIONS, OBSERVATIONS, VARIANTS, Anything
from gymnasium import spaces

from ding_lite import SerialPipeline, load_policy
from ding_lite.rollout import batch_of

# Draws from both of its rollouts: half of the transitions of the first are old then.
OFF_POLICY = dict(
    type="ppo_offpolicy",
    learn=dict(update_per_collect=3, batch_size=16),
    other=dict(replay_buffer=dict(max_use=9)),
)


def config(observation, action, manager, model=None, policy=None, **env):
    policy = policy or dict(learn=dict(epoch_per_collect=1, batch_size=16))
    return dict(
        max_env_step=80,
        num_threads=1,
        env=dict(
            type=Anything,
            kwargs=dict(observation=observation, action=action, **env.pop("kwargs", {})),
            collector_env_num=4,
            evaluator_env_num=2,
            n_evaluator_episode=2,
            manager=dict(type=manager, worker_num=2),
            **env,
        ),
        policy=dict(
            **policy,
            model=model or {},
            collect=dict(n_sample=40),
            eval=dict(eval_freq=0),
        ),
        logger=dict(tensorboard=False),
    )


def check_run(cfg, folder):
    """Two turns: acts, learns with ratio 1 at first, saves, loads, and acts alike."""
    pipeline = SerialPipeline(cfg, folder=folder)
    policy = pipeline.policy
    rollout = pipeline.collector.collect()
    flat = policy._training_set(rollout, rollout)
    batch = batch_of(flat, torch.arange(16))
    with torch.no_grad():
        policy.loss(batch)
        ratio = (batch.dist.log_prob(batch.action) - batch.log_prob).exp()
        assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-4)
        assert torch.isfinite(batch.dist.entropy()).all()
        assert torch.allclose(batch.dist.kl(batch.dist), torch.zeros(16), atol=1e-6)
    before = [p.detach().clone() for p in policy.model.parameters()]
    for _ in pipeline:
        pass
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    assert pipeline.progress.env_step >= 80
    loaded = load_policy(folder, checkpoint="last")
    for _ in range(3):
        obs = policy.obs_space.sample()
        action = loaded.act(obs)
        assert policy.action_space.contains(
            np.int64(action) if isinstance(policy.action_space, spaces.Discrete) else action
        )
        same = policy.act(obs)
        assert str(action) == str(same)
    return pipeline.progress.metrics


@pytest.mark.parametrize("manager", ["base", "subprocess"])
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_with_every_observation(action, observation, manager, tmp_path):
    check_run(config(observation, action, manager), tmp_path / "run")


@pytest.mark.parametrize("manager", ["base", "subprocess"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_box(variant, manager, tmp_path):
    check_run(config("box", variant, manager, model=VARIANTS[variant][1]), tmp_path / "run")


@pytest.mark.parametrize(
    ("action", "observation"),
    # Every action with a few observations, and every observation with one action.
    [
        *itertools.product(ACTIONS, ["box", "nested"]),
        *(("tree", o) for o in OBSERVATIONS if o not in ("box", "nested")),
    ],
)
def test_every_action_and_every_observation_off_policy(action, observation, tmp_path):
    metrics = check_run(config(observation, action, "base", policy=OFF_POLICY), tmp_path / "run")
    assert metrics["learn/buffer_age"] > 0
    assert metrics["learn/buffer_outside_clip_age_0"] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_box_off_policy(variant, tmp_path):
    cfg = config("box", variant, "base", model=VARIANTS[variant][1], policy=OFF_POLICY)
    assert check_run(cfg, tmp_path / "run")["learn/buffer_age"] > 0


@pytest.mark.parametrize(
    ("manager", "policy"),
    [("base", None), ("subprocess", None), ("base", OFF_POLICY)],
    ids=["base", "subprocess", "base-off_policy"],
)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_masked_actions_are_never_taken_while_learning_or_evaluating(manager, autoreset, policy, tmp_path):
    cfg = config("box", "discrete", manager, policy=policy, kwargs=dict(mask=True), action_mask="info")
    cfg["env"]["manager"]["autoreset"] = autoreset
    cfg["max_env_step"] = 400
    pipeline = SerialPipeline(cfg, folder=tmp_path / "run")
    for _ in pipeline:  # the environment refuses an illegal action
        pass
    assert pipeline.progress.env_step >= 400
