"""Parts that combine: every pair of their kinds runs, has ratio 1 at first, saves, loads, resumes bit-equal.

The combinations are drawn until each pair of kinds of two parts occurs in one of them. Those with worker
processes, which take seconds to start, and those with compiled steps are slow tests.
"""

from __future__ import annotations

import itertools
import os
import random

import numpy as np
import pytest
import torch
from anything import SeededAnything
from gymnasium import spaces
from worlds import digest

from ding_lite import SerialPipeline, load_policy
from ding_lite.run.checkpoint import load_checkpoint

PARTS = {
    "kind": ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"],
    "rnn": [None, "lstm", "gru"],
    "action": ["discrete", "masked", "box", "tree", "multi-binary"],
    "observation": ["box", "bool-grid", "nested", "discrete"],
    "manager": ["base", "subprocess", "two halves"],
    "normalize": [{}, dict(obs="initial"), dict(obs=True, reward=True)],
    "value_norm": [True, False],
    "intrinsic": [None, "rnd"],
}
PHASE = dict(aux_freq=2, aux_train_epoch=1, allow_raw_values=True)


def covering(parts, seed=0):
    """Returns combinations that contain each pair of values of two parts, as a list of dicts."""
    rng = random.Random(seed)
    names = list(parts)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(parts[a]))
        for j in range(len(parts[b]))
    }
    chosen = []
    while missing:
        candidates = []
        for _ in range(50):
            candidate = {name: rng.randrange(len(parts[name])) for name in names}
            a, i, b, j = rng.choice(sorted(missing))
            candidate |= {a: i, b: j}
            pairs = {(a, candidate[a], b, candidate[b]) for a, b in itertools.combinations(names, 2)}
            candidates.append((len(pairs & missing), sorted(candidate.items()), pairs))
        _, best, pairs = max(candidates)
        missing -= pairs
        chosen.append({name: parts[name][k] for name, k in best})
    return chosen


ONE_PROCESS = PARTS | {"manager": ["base"]}
COMBINATIONS = {"one process": covering(ONE_PROCESS), "all": covering(PARTS)}


@pytest.mark.parametrize(("name", "parts"), [("one process", ONE_PROCESS), ("all", PARTS)])
def test_every_pair_is_among_the_combinations(name, parts):
    for a, b in itertools.combinations(parts, 2):
        found = {(repr(c[a]), repr(c[b])) for c in COMBINATIONS[name]}
        assert found == {(repr(x), repr(y)) for x in parts[a] for y in parts[b]}
    assert len(COMBINATIONS[name]) < 40


def config_of(c, compiled=False):
    """Returns the config of a combination."""
    phasic, offpolicy = c["kind"].startswith("ppg"), c["kind"].endswith("offpolicy")
    learn = dict(batch_size=16, value_norm=c["value_norm"], sequence_length=4)
    learn |= PHASE if phasic else dict(update_per_collect=4) if offpolicy else dict(epoch_per_collect=2)
    masked = c["action"] == "masked"
    action = "discrete" if masked else c["action"]
    model = dict(rnn=c["rnn"], rnn_hidden_size=6, encoder_hidden_size_list=[8])
    return dict(
        max_env_step=160,
        num_threads=1,
        env=dict(
            type=SeededAnything,
            kwargs=dict(observation=c["observation"], action=action, mask=masked),
            **(dict(action_mask="info") if masked else {}),
            collector_env_num=4,
            evaluator_env_num=2,
            n_evaluator_episode=2,
            manager=dict(
                type="base" if c["manager"] == "base" else "subprocess",
                worker_num=2,
                double_buffer=c["manager"] == "two halves",
            ),
        ),
        policy=dict(
            type=c["kind"],
            model=model,
            intrinsic=dict(type=c["intrinsic"]) if c["intrinsic"] else {},
            collect=dict(n_sample=40),
            learn=learn | (dict(compile=True) if compiled else {}),
            normalize=c["normalize"] | (dict(obs_samples=40)),
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
    pipeline = SerialPipeline(config, folder=folder, max_env_step=limits[0])
    for _ in pipeline:
        pass
    for limit in limits[1:]:
        pipeline = SerialPipeline.resume(folder, changes={"max_env_step": limit}, trust=["anything"])
        for _ in pipeline:
            pass
    return pipeline


def check(config, tmp_path):
    pipeline = SerialPipeline(config, folder=tmp_path / "ratios")
    ratios = first_ratios(pipeline)
    pipeline.close()
    assert torch.allclose(ratios, torch.ones_like(ratios), atol=1e-4)
    straight = trained(config, tmp_path / "straight", 160)
    resumed = trained(config, tmp_path / "resumed", 80, 160)
    states = [load_checkpoint(each.folder / "ckpt" / "last.safetensors")[0] for each in (straight, resumed)]
    for part in ("policy", "collector"):
        assert digest(states[0][part]) == digest(states[1][part]), part
    policy, loaded = straight.policy, load_policy(tmp_path / "straight", checkpoint="last")
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


def name_of(c):
    return ",".join(str(v) for v in c.values()).replace(" ", "")


@pytest.mark.daily(12)
@pytest.mark.parametrize("combination", COMBINATIONS["one process"], ids=name_of)
def test_parts_combine(combination, tmp_path):
    check(config_of(combination), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("combination", COMBINATIONS["all"], ids=name_of)
def test_parts_combine_with_worker_processes(combination, tmp_path):
    check(config_of(combination), tmp_path)


# A compiled step takes most of a minute to build: two combinations, or all with DING_LITE_COMPILED=1.
WITHOUT_MEMORY = [c for c in COMBINATIONS["one process"] if c["rnn"] is None]


@pytest.mark.slow
@pytest.mark.parametrize(
    "combination", WITHOUT_MEMORY if os.environ.get("DING_LITE_COMPILED") else WITHOUT_MEMORY[:2], ids=name_of
)
def test_parts_combine_compiled(combination, tmp_path):
    check(config_of(combination, compiled=True), tmp_path)
