"""What is equal to the last bit: PPO and its relatives, runs of one seed, copies, and poisoned rollouts."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from cases import drawn, slow_but
from small_worlds import SeededBox, SeededEnv, SeededTree
from worlds import digest, merged, trainee

from ding_lite.data.rollout import as_rollout
from ding_lite.trees import map_tree, to_dict, tree_leaves

KINDS = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")
PARTS = {
    "plain": {},
    "lstm": dict(model=dict(rnn="lstm", rnn_hidden_size=6), learn=dict(sequence_length=5)),
    "rnd": dict(intrinsic=dict(type="rnd", encoder_hidden_size_list=[8], feature_size=8)),
    "scales": dict(normalize=dict(obs=True, reward=True), learn=dict(value_norm=True)),
    "reference": dict(learn=dict(kl_beta=0.5, pretrained_model_path="a run")),
}
OPTIONS = PARTS | {  # and what reads rows in other ways
    "box": dict(world=SeededBox),
    "old advantages": dict(recompute_adv=False),
    "advantages over the batch": dict(learn=dict(adv_norm="batch", value_norm=False)),
    "value clip and target_kl": dict(learn=dict(value_clip=0.2, target_kl=0.001)),
    "segments": dict(collect=dict(unroll_len=6)),
}
STALE = {"ppo_offpolicy": dict(other=dict(replay_buffer=dict(max_use=9)))}
STALE["ppg_offpolicy"] = STALE["ppo_offpolicy"]


def made(kind, part, seed=0, **options):
    """Returns a policy with a part, which learns from old data if it can, and its collector."""
    options = merged(merged(OPTIONS[part], STALE.get(kind, {})), options)
    options = merged(dict(learn=dict(learning_rate=3e-3)), options)
    if kind.startswith("ppg"):
        options = merged(dict(learn=dict(aux_freq=3, aux_train_epoch=2, critic_epoch_per_collect=2)), options)
    policy, collector = trainee(kind, seed=seed, autoreset="next_step", **options)
    if part == "reference":
        policy.use_reference(trainee("ppo", seed=7, model=dict(rnn="gru"))[0])
    policy.warm_up(torch.randn((64, 3), generator=torch.Generator().manual_seed(0)))
    return policy, collector


def learned(kind, iterations=4, **options):
    """Returns the policy after some iterations."""
    policy, collector = trainee(kind, **merged(dict(learn=dict(learning_rate=3e-3)), options))
    for _ in range(iterations):
        policy.learn_mode.forward(collector.collect())
    return policy


# ------------------------------------------------------------------ the unit of rewards


def in_units(kind, part, unit, **learn):
    """Returns the parameters of a network that has learned from rewards in a unit."""
    world = OPTIONS[part].get("world", SeededEnv)

    class InUnits(world):
        def step(self, action):
            obs, reward, *flags = super().step(action)
            return obs, unit * reward, *flags

    policy, collector = made(kind, part, world=InUnits, learn=learn)
    for _ in range(4):
        policy.learn_mode.forward(collector.collect())
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()])


IN_UNITS = [*itertools.product(KINDS, ["plain", "lstm", "box", "value clip and target_kl"], [1e-3, 1e3])]


@pytest.mark.parametrize("case", slow_but([IN_UNITS[0], IN_UNITS[13], IN_UNITS[22]], IN_UNITS), ids=str)
def test_the_unit_of_rewards_changes_no_network(case):
    kind, part, unit = case
    assert torch.allclose(in_units(kind, part, unit), in_units(kind, part, 1.0), rtol=1e-2, atol=1e-4)


def test_without_value_norm_the_unit_of_rewards_changes_the_network():
    one, other = (in_units("ppo", "plain", unit, value_norm=False) for unit in (1.0, 1e3))
    assert not torch.allclose(one, other, rtol=1e-2, atol=1e-4)


# ------------------------------------------------------------------ off-policy on fresh data is PPO

EQUAL = {
    "plain": {},
    "fillers": dict(autoreset="next_step", normalize=dict(obs=True, reward=True)),
    "raw values": dict(learn=dict(value_norm=False, value_clip=0.3)),
    "batch": dict(learn=dict(adv_norm="batch", dual_clip=3.0)),
    "box": dict(world=SeededBox, autoreset="next_step"),
    "tree": dict(world=SeededTree),
    "nstep": dict(nstep_return=True),
    "target_kl": dict(learn=dict(target_kl=1e-3)),
    "lstm": dict(PARTS["lstm"], autoreset="next_step"),
    "rnd": PARTS["rnd"],
    "behaviour": dict(off=dict(learn=dict(proximal="behaviour"))),
}


@pytest.mark.parametrize(("name", "recompute", "epochs"), drawn(len(EQUAL), EQUAL, [False, True], [1, 4]))
def test_ppo_offpolicy_on_fresh_data_is_ppo(name, recompute, epochs):
    shared = dict(EQUAL[name], recompute_adv=recompute, n_sample=60, envs=3, iterations=2)
    off = merged(
        dict(
            learn=dict(update_per_collect=1000),
            other=dict(replay_buffer=dict(max_use=epochs, max_staleness=0)),
        ),
        shared.pop("off", {}),
    )
    one = learned("ppo", **merged(shared, dict(learn=dict(epoch_per_collect=epochs))))
    other = learned("ppo_offpolicy", **merged(shared, off))
    assert digest(one.state_dict()) == digest(other.state_dict())


DROPPED = {
    "one use more": dict(learn=dict(update_per_collect=20), other=dict(replay_buffer=dict(max_use=5))),
    "older data": dict(other=dict(replay_buffer=dict(max_use=5))),
}


@pytest.mark.parametrize("name", DROPPED)
def test_ppo_offpolicy_differs_from_ppo_if_samples_are_reused_or_old(name):
    one = learned("ppo", learn=dict(epoch_per_collect=4))
    fresh = dict(learn=dict(update_per_collect=16), other=dict(replay_buffer=dict(max_use=4)))
    other = learned("ppo_offpolicy", **merged(fresh, DROPPED[name]))
    assert digest(one.model.state_dict()) != digest(other.model.state_dict())


@pytest.mark.parametrize(
    ("actor", "critic", "recompute"), [(1, 1, True), (1, 2, False), (4, 2, False), (4, 2, True)]
)
def test_ppg_offpolicy_on_fresh_data_is_ppg(actor, critic, recompute):
    learn = dict(
        actor_epoch_per_collect=actor, critic_epoch_per_collect=critic, aux_freq=2, aux_train_epoch=2
    )
    options = dict(learn=learn, recompute_adv=recompute)
    uses = max(actor, critic)
    fresh = dict(max_use=uses, max_staleness=0)
    one = learned("ppg", **options)
    other = learned("ppg_offpolicy", **options, other=dict(replay_buffer=fresh))
    assert digest(one.model.state_dict()) == digest(other.model.state_dict())
    assert one.has_one_loop == (actor == critic)
    other = learned("ppg_offpolicy", **options, other=dict(replay_buffer=dict(max_use=uses + 1)))
    assert digest(one.model.state_dict()) != digest(other.model.state_dict())


# ------------------------------------------------------------------ PPG without a phase is PPO

SCHEDULED = dict(
    lr_schedule="linear",
    clip_schedule="linear",
    entropy_schedule="cosine",
    entropy_weight=0.05,
    schedule_env_step=300,
    value_clip=0.3,
    value_norm=False,
    grad_clip_type=None,
    adam_eps=1e-8,
)


def of_both(policy):
    """Returns the hash of all parameters but the auxiliary head's."""
    state = policy.model.state_dict()
    return digest({name: x for name, x in state.items() if not name.startswith("auxiliary_head")})


# Not by the norm: where zeros of the auxiliary head lie among the numbers of a sum, it rounds otherwise.
CLIPPED = dict(learning_rate=3e-3, grad_clip_type="clip_value", grad_clip_value=0.05)


def ppo_arm(epochs, **learn):
    learn = CLIPPED | dict(adv_norm="batch", value_norm=True, epoch_per_collect=epochs) | learn
    return dict(recompute_adv=False, model=dict(share_encoder=False), learn=learn)


def ppg_arm(epochs, **learn):
    learn = CLIPPED | dict(aux_train_epoch=0) | learn
    learn |= dict(actor_epoch_per_collect=epochs, critic_epoch_per_collect=epochs)
    return dict(recompute_adv=False, learn=learn)


@pytest.mark.parametrize(
    ("epochs", "world", "learn"),
    [(1, SeededEnv, {}), (4, SeededBox, {}), (4, SeededTree, {}), (4, SeededEnv, SCHEDULED)],
)
def test_ppg_without_a_phase_is_ppo_with_separate_networks(epochs, world, learn):
    normalize = dict(obs=True, reward=True)
    one = learned("ppo", world=world, normalize=normalize, **ppo_arm(epochs, **learn))
    other = learned("ppg", world=world, normalize=normalize, **ppg_arm(epochs, **learn))
    assert of_both(one) == of_both(other)


@pytest.mark.parametrize(
    "dropped",
    [
        dict(learn=dict(critic_epoch_per_collect=3)),
        dict(learn=dict(target_kl=1e-5)),
        dict(recompute_adv=True),
        dict(model=dict(arch="shared")),
        dict(learn=dict(aux_train_epoch=1, aux_freq=2)),
    ],
    ids=str,
)
def test_it_is_not_ppo_once_a_condition_is_dropped(dropped):
    assert of_both(learned("ppo", **ppo_arm(4))) != of_both(learned("ppg", **merged(ppg_arm(4), dropped)))


# ------------------------------------------------------------------ seeds, copies


def clone(rollout):
    return as_rollout(map_tree(torch.clone, to_dict(rollout)))


@pytest.mark.parametrize(("kind", "part"), drawn(8, KINDS, PARTS))
def test_a_seed_gives_one_result_and_a_loaded_copy_goes_on_as_the_policy_does(kind, part):
    (policy, collector), (twin, of_twin) = made(kind, part), made(kind, part)
    for _ in range(4):
        state, rollout = copy.deepcopy(policy.state_dict()), clone(collector.collect())
        loaded, _ = made(kind, part, seed=5)
        assert digest(loaded.model.state_dict()) != digest(state["model"])
        loaded.load_state_dict(state)
        assert digest(loaded.state_dict()) == digest(state)
        # The rollout was collected after the state was taken: only acting and preparing moved on.
        for name in ("generator of action", "obs_norm", "reward_scale", "intrinsic", "reference"):
            if name in loaded.parts:
                loaded.parts[name].load_state_dict(copy.deepcopy(policy.state_dict()[name]))
        policy.learn_mode.forward(clone(rollout))
        loaded.learn_mode.forward(clone(rollout))
        assert digest(loaded.state_dict()) == digest(policy.state_dict())
        twin.learn_mode.forward(of_twin.collect())
    assert digest(twin.state_dict()) == digest(policy.state_dict())


# ------------------------------------------------------------------ rows that are not valid


def poison(policy, rollout, number):
    """Writes a number into what no valid transition uses."""
    invalid, ended = ~rollout.valid, rollout.terminated[-1] | rollout.truncated[-1]
    assert invalid.any()
    for name in {"obs", "action", "reward", "log_prob", "value"} & set(rollout.keys()):
        rollout[name][invalid] = number if rollout[name].is_floating_point() else 0
    if policy.intrinsic is None:  # else it is what an episode ended with
        rollout.last_obs = torch.where(ended[:, None], number, rollout.last_obs)
    for leaf in tree_leaves(to_dict(rollout).get("hidden", {})):
        leaf[invalid[::5]] = number


@pytest.mark.parametrize(
    ("kind", "part", "number"), drawn(12, KINDS, OPTIONS, [math.nan, math.inf, 1e30, -1e30])
)
def test_poison_in_rows_that_are_not_valid_changes_nothing(kind, part, number):
    states = []
    for is_poisoned in (False, True):
        policy, collector = made(kind, part)
        complete = policy._complete_rollout

        def completed(rollout, policy=policy, complete=complete, is_poisoned=is_poisoned):
            if is_poisoned:
                poison(policy, rollout, number)
            return complete(rollout)

        policy._complete_rollout = completed
        for _ in range(4):
            policy.learn_mode.forward(collector.collect())
        # A buffer keeps the poison, and nothing is learned from it.
        state = {name: x for name, x in policy.state_dict().items() if "replay" not in name}
        states.append(digest(state))
    assert states[0] == states[1]


# ------------------------------------------------------------------ the first ratio


@pytest.mark.parametrize(
    ("kind", "part", "world"),
    drawn(12, KINDS, ["plain", "lstm", "scales"], [SeededEnv, SeededBox, SeededTree]),
)
def test_the_ratio_of_the_first_minibatch_is_one(kind, part, world):
    """Also where most samples are of older policies: the clip is around the newest."""
    options = merged(merged(PARTS[part], STALE.get(kind, {})), dict(learn=dict(learning_rate=0.02)))
    policy, collector = trainee(kind, world, autoreset="next_step", **options)
    for _ in range(3):
        rollout = collector.collect()
        assert rollout.log_prob[rollout.valid].std() > 0
        policy.replay.push(clone(rollout))
        policy.set_proximal(policy.replay)
        batch = next(policy.minibatches(policy.samples(policy.replay)).batches)
        policy.replay.rollouts.pop()
        dist = policy.distribution(batch.obs, policy.model.compute_actor(batch.obs))
        ratio = (dist.log_prob(batch.action) - batch.log_prob).exp()
        assert len(ratio) > 4
        torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=2e-5, rtol=0)
        policy.learn_mode.forward(rollout)
