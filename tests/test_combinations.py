"""Parts that combine, and every kind of space: ratio 1 at first, saved, loaded, resumed bit-equal.

Each pair of kinds of two parts occurs in one of the combinations; a few of them
have their environments in worker processes, which take seconds to start.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from anything import ACTIONS, OBSERVATIONS, VARIANTS, Anything
from cases import slow_but
from gymnasium import spaces
from worlds import digest, finished

from ding_lite import SerialPipeline, load_policy
from ding_lite.run.checkpoint import load_checkpoint

KINDS = ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"]
PARTS = {
    "kind": KINDS,
    "rnn": [None, "lstm", "gru"],
    "action": ["discrete", "masked", "box", "tree", "multi-binary"],
    "observation": ["box", "bool-grid", "nested", "discrete"],
    "normalize": [{}, dict(obs="initial"), dict(obs=True, reward=True)],
    "value_norm": [True, False],
    "intrinsic": [None, "rnd"],
}
PHASE = dict(aux_freq=2, aux_train_epoch=1)


def covering(parts):
    """Returns combinations that contain each pair of values of two parts, as a list of dicts."""
    every = list(itertools.product(*(range(len(values)) for values in parts.values())))
    every = random.Random(0).sample(every, 300)  # which have all pairs
    pairs = {combination: set(itertools.combinations(enumerate(combination), 2)) for combination in every}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        best = max(every, key=lambda combination: len(pairs[combination] & missing))
        missing -= pairs[best]
        chosen.append({name: values[k] for (name, values), k in zip(parts.items(), best, strict=True)})
    return chosen


def config_of(kind, rnn, action, observation, normalize, value_norm, intrinsic, manager="base"):
    """Returns the config of a combination; the manager is "base" or "two halves"."""
    learn = dict(batch_size=16, value_norm=value_norm, sequence_length=4)
    if kind.startswith("ppg"):
        learn |= PHASE
    else:
        learn |= dict(update_per_collect=4) if kind == "ppo_offpolicy" else dict(epoch_per_collect=2)
    masked = action == "masked"
    model = dict(rnn=rnn, rnn_hidden_size=6, encoder_hidden_size_list=[8])
    if action in VARIANTS:
        model |= VARIANTS[action][1]
    return dict(
        max_env_step=160,
        num_threads=1,
        env=dict(
            type=Anything,
            kwargs=dict(observation=observation, action="discrete" if masked else action, mask=masked),
            **(dict(action_mask="info") if masked else {}),
            collector_env_num=4,
            evaluator_env_num=2,
            n_evaluator_episode=2,
            manager=dict(
                type="base" if manager == "base" else "subprocess",
                worker_num=2,
                double_buffer=manager == "two halves",
            ),
        ),
        policy=dict(
            type=kind,
            model=model,
            intrinsic=dict(type=intrinsic) if intrinsic else {},
            collect=dict(n_sample=40),
            learn=learn,
            normalize=normalize | dict(obs_samples=40),
            eval=dict(eval_freq=0),
        ),
        logger=dict(trackers=[]),
    )


def first_ratios(pipeline):
    """Returns pi / pi_old of all samples of a first rollout, drawn as minibatches."""
    policy = pipeline.policy
    rollout = pipeline.collector.collect()
    ratios = []
    for batch in policy.minibatches(rollout).batches:
        with torch.no_grad():
            dist = policy.distribution(batch.obs, policy.model.compute_actor(batch.obs))
            ratios.append((dist.log_prob(batch.action) - batch.log_prob).exp())
    ratios = torch.cat(ratios)
    assert len(ratios) == int(rollout.valid.sum())
    return ratios


def trained(config, folder, *limits):
    pipeline = finished(SerialPipeline(config, folder=folder, max_env_step=limits[0]))
    for limit in limits[1:]:
        changes = {"max_env_step": limit}
        pipeline = finished(SerialPipeline.resume(folder, changes=changes, trust=["anything"]))
    return pipeline


def check(config, tmp_path):
    """Checks the first ratios, what a straight run learned, and that a loaded policy acts alike."""
    pipeline = SerialPipeline(config, folder=tmp_path / "ratios")
    ratios = first_ratios(pipeline)
    before = digest(pipeline.policy.model.state_dict())
    pipeline.close()
    assert torch.allclose(ratios, torch.ones_like(ratios), atol=1e-4)
    straight = trained(config, tmp_path / "straight", 160)
    policy, loaded = straight.policy, load_policy(tmp_path / "straight", checkpoint="last")
    assert digest(policy.model.state_dict()) != before
    policy.reset()
    for _ in range(3):
        obs = policy.obs_space.sample()
        if config["env"]["kwargs"]["mask"]:
            obs["action_mask"][:] = True
        action = loaded.act(obs)
        assert policy.action_space.contains(
            np.int64(action) if isinstance(policy.action_space, spaces.Discrete) else action
        )
        assert str(action) == str(policy.act(obs))
    names = (tmp_path / "straight" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert ("learn/intrinsic_reward" in names) == bool(config["policy"]["intrinsic"])
    assert ("learn/aux_updates" in names) == config["policy"]["type"].startswith("ppg")
    assert ("learn/buffer_age" in names) == config["policy"]["type"].endswith("offpolicy")


COMBINATIONS = covering(PARTS)
IN_WORKERS = [{**combination, "manager": "two halves"} for combination in COMBINATIONS[:3]]


@pytest.mark.parametrize("combination", slow_but(COMBINATIONS[::3], COMBINATIONS + IN_WORKERS))
def test_parts_combine_and_resume_bit_equal(combination, tmp_path):
    config = config_of(**combination)
    check(config, tmp_path)
    trained(config, tmp_path / "resumed", 80, 160)
    straight, resumed = (
        load_checkpoint(tmp_path / name / "ckpt" / "last.safetensors")[0] for name in ("straight", "resumed")
    )
    for part in ("policy", "collector"):
        assert digest(straight[part]) == digest(resumed[part]), part


PLAIN = dict(rnn=None, normalize={}, value_norm=True, intrinsic=None)
SPACES = [
    *((action, "nested") for action in [*ACTIONS, *VARIANTS]),
    *(("tree", observation) for observation in OBSERVATIONS if observation != "nested"),
]


@pytest.mark.parametrize(
    ("kind", "action", "observation"),
    [(KINDS[number % len(KINDS)], *each) for number, each in enumerate(SPACES)],
)
def test_every_kind_of_action_and_of_observation_is_learned_from(kind, action, observation, tmp_path):
    check(config_of(kind=kind, action=action, observation=observation, **PLAIN), tmp_path)
