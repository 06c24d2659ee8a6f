"""Every kind of action with every kind of observation, in this process and in workers: acts, learns, returns.

The environment shows random observations and accepts only what its action space contains, so that a
wrong conversion on the way fails where it happens.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from anything import ACTIONS, OBSERVATIONS, VARIANTS, Anything
from gymnasium import spaces

from ding_lite import SerialPipeline, load_policy

PHASE = dict(aux_freq=1, aux_train_epoch=1)
POLICIES = {
    "ppo": dict(learn=dict(epoch_per_collect=1)),
    # Draws from both of its rollouts: half of the transitions of the first are old then.
    "ppo_offpolicy": dict(learn=dict(update_per_collect=3), other=dict(replay_buffer=dict(max_use=9))),
    "ppg": dict(learn=PHASE),
    "ppg_offpolicy": dict(learn=PHASE),
}


def config(observation, action, manager, model=None, kind="ppo", **env):
    policy = POLICIES[kind]
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
            **policy | dict(learn=dict(batch_size=16, **policy["learn"])),
            type=kind,
            model=model or {},
            collect=dict(n_sample=40),
            eval=dict(eval_freq=0),
        ),
        logger=dict(trackers=[]),
    )


def check_run(cfg, folder):
    """Two turns: acts, learns with ratio 1 at first, saves, loads, and acts alike."""
    pipeline = SerialPipeline(cfg, folder=folder)
    policy = pipeline.policy
    rollout = pipeline.collector.collect()
    batch = next(policy.minibatches(rollout).batches)
    with torch.no_grad():
        logit = policy.model.compute_actor(batch.obs)
        batch = batch.plus(dist=policy.distribution(batch.obs, logit))
        ratio = (batch.dist.log_prob(batch.action) - batch.log_prob).exp()
        assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-4)
        assert torch.isfinite(batch.dist.entropy()).all()
        assert torch.allclose(batch.dist.kl(batch.dist), torch.zeros(len(batch)), atol=1e-6)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    for _ in pipeline:
        pass
    moved = {
        name.split(".")[0] for name, p in policy.model.named_parameters() if not torch.equal(before[name], p)
    }
    assert moved >= {"actor_head", "critic_head"}
    assert ("auxiliary_head" in moved) == cfg["policy"]["type"].startswith("ppg")
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


@pytest.mark.daily(4)
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_with_every_observation(action, observation, tmp_path):
    check_run(config(observation, action, "base"), tmp_path / "run")


@pytest.mark.daily(1)
@pytest.mark.parametrize("manager", ["base", "subprocess"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_box(variant, manager, tmp_path):
    check_run(config("box", variant, manager, model=VARIANTS[variant][1]), tmp_path / "run")


# Worker processes and the other policies share heads and environments: each kind of either side once.
SIDES = [
    *((action, "nested") for action in [*ACTIONS, *VARIANTS]),
    *(("tree", observation) for observation in OBSERVATIONS if observation != "nested"),
]


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("action", "observation"), [(action, observation) for action, observation in SIDES if action in ACTIONS]
)
def test_every_action_and_every_observation_in_workers(action, observation, tmp_path):
    check_run(config(observation, action, "subprocess"), tmp_path / "run")


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", ["ppo_offpolicy", "ppg", "ppg_offpolicy"])
@pytest.mark.parametrize(("action", "observation"), SIDES)
def test_every_action_and_every_observation_of_the_other_policies(kind, action, observation, tmp_path):
    model = VARIANTS[action][1] if action in VARIANTS else None
    metrics = check_run(config(observation, action, "base", model, kind), tmp_path / "run")
    assert ("learn/buffer_age" in metrics) == kind.endswith("offpolicy")
    if kind.endswith("offpolicy"):
        assert metrics["learn/buffer_age"] > 0
        assert 0 <= metrics["learn/buffer_outside_clip"] < 1


@pytest.mark.daily(2)
@pytest.mark.parametrize(("kind", "manager"), [("ppo", "subprocess"), *((kind, "base") for kind in POLICIES)])
def test_masked_actions_are_never_taken_while_learning_or_evaluating(kind, manager, tmp_path):
    cfg = config("box", "discrete", manager, kind=kind, kwargs=dict(mask=True), action_mask="info")
    cfg["max_env_step"] = 400
    pipeline = SerialPipeline(cfg, folder=tmp_path / "run")
    for _ in pipeline:  # the environment refuses an illegal action
        pass
    assert pipeline.progress.env_step >= 400
