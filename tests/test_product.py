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
from ding_lite.rollout import batch_of


def config(observation, action, manager, model=None, kind="ppo", **env):
    phases = dict(epoch_per_collect=1) if kind == "ppo" else dict(aux_freq=1, aux_train_epoch=1)
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
            type=kind,
            model=model or {},
            learn=dict(batch_size=16, **phases),
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
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    for _ in pipeline:
        pass
    moved = {
        name.split(".")[0] for name, p in policy.model.named_parameters() if not torch.equal(before[name], p)
    }
    assert moved >= {"actor_head", "critic_head"}
    assert ("auxiliary_head" in moved) == (cfg["policy"]["type"] != "ppo")
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


@pytest.mark.parametrize("manager", ["base", "subprocess"])
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_with_every_observation(action, observation, manager, tmp_path):
    check_run(config(observation, action, manager), tmp_path / "run")


# Both phases of PPG: all of the product on fresh rollouts; off-policy, each kind of either side once.
PHASIC = [
    *(("ppg", action, observation) for action in ACTIONS for observation in OBSERVATIONS),
    *(("ppg", variant, "nested") for variant in VARIANTS),
    *(("ppg_offpolicy", action, "nested") for action in [*ACTIONS, *VARIANTS]),
    *(("ppg_offpolicy", "tree", observation) for observation in OBSERVATIONS if observation != "nested"),
]


@pytest.mark.parametrize(("kind", "action", "observation"), PHASIC)
def test_both_phases_of_ppg_with_every_action_and_observation(kind, action, observation, tmp_path):
    model = VARIANTS[action][1] if action in VARIANTS else None
    check_run(config(observation, action, "base", model, kind), tmp_path / "run")


@pytest.mark.parametrize("manager", ["base", "subprocess"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_box(variant, manager, tmp_path):
    check_run(config("box", variant, manager, model=VARIANTS[variant][1]), tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "manager"),
    [("ppo", "base"), ("ppo", "subprocess"), ("ppg", "base"), ("ppg_offpolicy", "base")],
)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_masked_actions_are_never_taken_while_learning_or_evaluating(kind, manager, autoreset, tmp_path):
    cfg = config("box", "discrete", manager, kind=kind, kwargs=dict(mask=True), action_mask="info")
    cfg["env"]["manager"]["autoreset"] = autoreset
    cfg["max_env_step"] = 400
    pipeline = SerialPipeline(cfg, folder=tmp_path / "run")
    for _ in pipeline:  # the environment refuses an illegal action
        pass
    assert pipeline.progress.env_step >= 400
