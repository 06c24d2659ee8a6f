"""Trains on the same rollouts alone and as one of K ranks, and prints how far the results are apart.

python same_data.py ALONE                                  writes the file ALONE
torchrun --nproc-per-node=K same_data.py ALONE [FAULT...]  reads it

One process trains alone on all columns of the rollouts, and saves all; then each rank trains on its own
columns. A minibatch has all samples, so both take the same gradient steps. Rank 0 prints a JSON object: for
each fault ("" is none), for each case the relative distances. A fault is planted to see that the distances
show it.
"""

import contextlib
import json
import sys
from unittest import mock

import numpy as np
import torch

import ding_lite
from ding_lite.config.compile import compile_config
from ding_lite.data import minibatches, sequences
from ding_lite.data.collector import Collector
from ding_lite.data.rollout import OF_COLUMNS, as_rollout
from ding_lite.envs.make import make_vector_env
from ding_lite.fast.gradients import clipped
from ding_lite.policies import optimizer, replay
from ding_lite.ranks import ALONE, joined
from ding_lite.run.shares import share_of
from ding_lite.trees import map_tree, to_dict

COLUMNS = 8
AUXILIARY = {"learn.aux_freq": 2, "learn.aux_train_epoch": 2, "learn.aux_batch_size": 128 * COLUMNS}
# One rollout, so that a minibatch has all samples.
BUFFERS = {f"other.replay_buffer.{name}.replay_buffer_size": 64 * COLUMNS for name in ("policy", "value")}
EXTRA = {
    "ppo": {},
    "ppo_offpolicy": {"learn.reuse": 2.0, "other.replay_buffer.replay_buffer_size": 64 * COLUMNS},
    "ppg": {"learn.actor_epoch_per_collect": 2, **AUXILIARY},
    "ppg_offpolicy": {**AUXILIARY, **BUFFERS},
}
CASES = {
    f"{policy}-{env}": (policy, env, EXTRA[policy])
    for policy in EXTRA
    for env in ("CartPole-v1", "Pendulum-v1")
}
CASES |= {
    "lstm": ("ppo", "CartPole-v1", {"model.rnn": "lstm", "learn.sequence_length": 8}),
    "autograd": ("ppo", "Pendulum-v1", {"learn.kl_penalty": 1.0, "learn.lr_schedule": "adaptive"}),
    "autograd-auxiliary": ("ppg", "CartPole-v1", {**EXTRA["ppg"], "learn.aux_grad_accum": 2}),
    "minibatch": ("ppo", "CartPole-v1", {"learn.adv_norm": "minibatch", "learn.target_kl": 0.01}),
}


def config_of(policy, env, extra):
    overrides = {f"policy.{name}": value for name, value in extra.items()}
    return compile_config(
        {
            "env": {
                "env_id": env,
                "collector_env_num": COLUMNS,
                # With rows that are not valid, ranks have unequal numbers of samples.
                "manager": {"type": "base", "autoreset": "next_step"},
            },
            "policy": {
                "type": policy,
                "learn": {"batch_size": 64 * COLUMNS, "grad_clip_value": 0.5, "learning_rate": 3e-4},
                "collect": {"n_sample": 64 * COLUMNS},
                "normalize": {"obs": "initial" if "model.rnn" in extra else True, "reward": True},
            },
        },
        overrides,
    ).values


def raw_rollouts(cfg, policy):
    """Returns two rollouts without credit, and the observations of random steps."""
    envs = make_vector_env(cfg.env, COLUMNS, cfg.seed)
    mode = policy.collect_mode._replace(get_train_sample=lambda rollout: rollout.clone())
    collector = Collector(envs, mode, cfg.policy.collect.n_sample)
    obs = collector.random_observations(policy.warm_up_steps, 0)
    return [collector.collect() for _ in range(2)], obs


def columns_of(rollout, columns):
    """Returns some columns of a rollout, as the rank that has these environments collects them."""
    fields = to_dict(rollout)
    final = fields.pop("final", None)
    own = {
        name: map_tree(lambda leaf, n=name: leaf[columns] if n in OF_COLUMNS else leaf[:, columns], field)
        for name, field in fields.items()
    }
    if final is not None:
        mine = (final["env"] >= columns.start) & (final["env"] < columns.stop)
        own["final"] = {name: map_tree(lambda leaf: leaf[mine], field) for name, field in final.items()}
        own["final"]["env"] = own["final"]["env"] - columns.start
    return as_rollout(own)


def trained(policy, rollouts, obs):
    """Trains on rollouts; returns the first gradient, and the scales and parameters after each of them."""
    gradients, found = [], []
    apply = policy.optimizer.apply

    def recording(gradient, bad):
        if not gradients:
            gradients.append(torch.cat([v.flatten() for v in gradient.values if v is not None]).clone())
        apply(gradient, bad)

    policy.optimizer.apply = recording
    policy.warm_up(obs)
    start = torch.nn.utils.parameters_to_vector(policy.model.parameters()).detach().clone()
    for rollout in rollouts:
        metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
        scales = [policy.reward_scale, policy.value_norm, *policy.obs_norm.stats.values()]
        numbers = [np.ravel(part) for scale in scales for part in (scale.mean, scale.var, scale.count)]
        found.append(
            {
                "change": torch.nn.utils.parameters_to_vector(policy.model.parameters()).detach() - start,
                "scales": torch.from_numpy(np.concatenate(numbers)),
                "updates": torch.tensor([metrics["updates"], policy.progress.env_step]),
            }
        )
    return gradients[0], found


def distance(a, b):
    """Returns the distance relative to ``b``."""
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm().clamp(min=1e-12))


def advantage_distance(ranks, *, gathered_one_by_one):
    """Returns how far normalised advantages are from those of all ranks' samples together.

    Each rank has another number of samples; a pass has several minibatches.
    """
    n = 90 - 13 * ranks.rank
    generator = torch.Generator().manual_seed(ranks.rank)
    raw = torch.randn(n, generator=generator) * (1 + ranks.rank) + torch.arange(n) / 10
    fields = {"advantage": raw, "raw": raw, "value_target": raw}
    limit, minibatches.SHUFFLED_BYTES = minibatches.SHUFFLED_BYTES, 0 if gathered_one_by_one else 2**22
    training_set = minibatches.TrainingSet(fields, 16, normalizes=True, ranks=ranks)
    _, batches = training_set.draw(training_set.count, generator)
    found, expected = [], []
    for batch in batches:
        whole = torch.cat(ranks.from_all(batch.raw))
        found.append(batch.advantage)
        expected.append((batch.raw - whole.mean()) / (whole.std(correction=0) + 1e-8))
        assert torch.equal(batch.remake().advantage, batch.advantage)
    minibatches.SHUFFLED_BYTES = limit
    assert len(found) == min(ranks.from_all(len(minibatches.minibatch_sizes(n, 16))))
    return max(ranks.from_all(distance(torch.cat(found), torch.cat(expected))))


def reward_weight_distance(ranks, weighing_ranks):
    """Returns how far weighted means of the intrinsic loss are from those of the drawn steps of all ranks.

    Each rank has other numbers of samples; ``weighing_ranks`` choose the weights.
    """
    cfg = config_of("ppo", "CartPole-v1", {"intrinsic.type": "rnd"})
    intrinsic = policy_of(cfg, share_of(cfg, ranks)).intrinsic
    intrinsic.policy.ranks = weighing_ranks
    intrinsic.generator.manual_seed(ranks.rank)
    sizes = [40 - 7 * ranks.rank, 20 + 3 * ranks.rank]
    found, expected = [], []
    for weight in intrinsic._reward_weights(sizes):
        x = torch.rand(len(weight), generator=intrinsic.generator)
        whole, weights = torch.cat(ranks.from_all(x)), torch.cat(ranks.from_all(weight))
        found.append((whole * weights).mean())
        expected.append(whole[weights > 0].mean())
    return distance(torch.stack(found), torch.stack(expected))


@contextlib.contextmanager
def planted(fault):
    """Plants a fault inside of the block in what the ranks do together."""
    with contextlib.ExitStack() as stack:

        def replace(module, name, value):
            stack.enter_context(mock.patch.object(module, name, value))

        if fault == "no averaging":

            def own_gradient(own, parameters, samples, clip, ranks):
                values, norm = clipped(own.values, clip)
                return own._replace(values=values, norm=norm)

            replace(optimizer, "averaged", own_gradient)
        elif fault == "local advantages":
            for module in (minibatches, sequences, replay):
                replace(module, "scales_over_ranks", lambda parts, ranks: [None] * len(parts))
        elif fault == "the scale of another minibatch":
            scales = minibatches.scales_over_ranks
            replace(minibatches, "scales_over_ranks", lambda parts, ranks: scales(parts, ranks)[::-1])
        elif fault == "equal weights":
            real = optimizer.averaged
            replace(
                optimizer, "averaged", lambda own, parameters, samples, *rest: real(own, parameters, 1, *rest)
            )
        elif fault:
            raise SystemExit(f"no fault {fault!r}")
        yield


def policy_of(cfg, share):
    """Returns a new policy of a config, or of a rank's share of it."""
    envs = make_vector_env(cfg.env, 1, 0)
    make = ding_lite.POLICY_REGISTRY.get(cfg.policy.type)
    return make(share.policy, envs.obs_space, envs.action_space, seed=cfg.seed)


def trained_alone(case):
    """Returns initial parameters, rollouts, observations and what one process makes of them."""
    cfg = config_of(*case)
    policy = policy_of(cfg, cfg)
    rollouts, obs = raw_rollouts(cfg, policy)
    initial = {k: v.clone() for k, v in policy.model.state_dict().items()}
    return initial, rollouts, obs, trained(policy, [rollout.clone() for rollout in rollouts], obs)


def distances_of(case, alone, ranks):
    """Returns the distances between this rank and one process."""
    initial, rollouts, obs, (gradient, states) = alone
    cfg = config_of(*case)
    policy = policy_of(cfg, share_of(cfg, ranks))
    policy.model.load_state_dict(initial)
    columns = ranks.slice_of(COLUMNS)
    mine = [columns_of(rollout, columns) for rollout in rollouts]
    own_gradient, own_states = trained(policy, mine, obs[ranks.slice_of(len(obs))])
    return {
        "gradient": distance(own_gradient, gradient),
        **{
            f"{key} {k}": distance(mine[key], theirs[key])
            for k, (mine, theirs) in enumerate(zip(own_states, states, strict=True))
            for key in theirs
        },
    }


def main(file, *faults):
    torch.set_num_threads(1)
    if not faults:
        torch.save({name: trained_alone(case) for name, case in CASES.items()}, file)
        return
    alone = torch.load(file, weights_only=False)
    found = {}
    with joined() as ranks:
        assert ranks is not ALONE
        for fault in faults:
            with planted(fault):
                found[fault] = {name: distances_of(case, alone[name], ranks) for name, case in CASES.items()}
                found[fault]["advantages"] = {
                    str(one_by_one): advantage_distance(ranks, gathered_one_by_one=one_by_one)
                    for one_by_one in (False, True)
                }
                found[fault]["reward weights"] = {
                    "of all": reward_weight_distance(ranks, ranks),
                    "of each": reward_weight_distance(ranks, ALONE),
                }
        if ranks.is_first:
            print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
