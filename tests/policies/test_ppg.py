"""PPG's policy phase: what it equals bit for bit, who trains what when, what it refuses, how it resumes."""

from __future__ import annotations

import copy
import math
import re
from statistics import fmean

import numpy as np
import pytest
import torch
from anything import OBSERVATIONS, Anything
from small_worlds import SeededBox, SeededEnv, SeededTree
from worlds import digest, merged, small_config, trainee

from ding_lite import ConfigError, PPGPolicy, SerialPipeline, check_policy
from ding_lite.config.compile import compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.errors import ContractError
from ding_lite.models import PPG
from ding_lite.rl.seeding import torch_generator
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.run.learner import Learner
from ding_lite.trees import map_tree


def without_auxiliary(policy):
    """Returns the hash of all parameters but the auxiliary head's, and of the scale of values."""
    state = policy.model.state_dict()
    norm = policy.value_norm and policy.value_norm.state_dict()
    return digest([{k: v for k, v in state.items() if not k.startswith("auxiliary_head")}, norm])


def trained(kind, iterations=4, world=SeededEnv, **policy):
    trainable, collector = trainee(kind, world, **policy)
    for _ in range(iterations):
        trainable.learn_mode.forward(collector.collect())
    return trainable


# ------------------------------------------------------------------ E_aux = 0 is PPO

SCHEDULED = dict(
    learning_rate=3e-3,
    lr_schedule="linear",
    clip_schedule="linear",
    clip_final=0.3,
    entropy_schedule="cosine",
    entropy_weight=0.05,
    schedule_env_step=300,
    value_clip=0.3,
)


def ppo_arm(epochs, **learn):
    learn = dict(learning_rate=3e-3, adv_norm="batch", value_norm=True, epoch_per_collect=epochs) | learn
    return dict(recompute_adv=False, model=dict(share_encoder=False), learn=learn)


def ppg_arm(epochs, **learn):
    learn = dict(
        learning_rate=3e-3,
        aux_train_epoch=0,
        actor_epoch_per_collect=epochs,
        critic_epoch_per_collect=epochs,
        **learn,
    )
    return dict(recompute_adv=False, learn=learn)


@pytest.mark.parametrize("world", [SeededEnv, SeededBox, SeededTree])
@pytest.mark.parametrize("epochs", [1, 4])
def test_without_auxiliary_epochs_it_is_ppo_with_separate_networks(epochs, world):
    one = trained("ppo", world=world, **ppo_arm(epochs))
    other = trained("ppg", world=world, **ppg_arm(epochs))
    assert without_auxiliary(one) == without_auxiliary(other)


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("value_norm", [True, False])
def test_it_is_ppo_under_schedules_and_every_scale_of_values_too(value_norm, epochs):
    options = dict(value_norm=value_norm, grad_clip_type=None, adam_eps=1e-8)
    normalize = dict(obs=True, reward=True)
    ppo, ppg = ppo_arm(epochs, **options), ppg_arm(epochs, **options)
    ppo["learn"] |= SCHEDULED
    ppg["learn"] |= SCHEDULED
    one, other = trained("ppo", normalize=normalize, **ppo), trained("ppg", normalize=normalize, **ppg)
    assert without_auxiliary(one) == without_auxiliary(other)
    assert without_auxiliary(one) != without_auxiliary(trained("ppo", normalize=normalize, **ppo_arm(epochs)))


@pytest.mark.daily(4)
@pytest.mark.parametrize(
    "dropped",
    [
        dict(learn=dict(adv_norm="minibatch")),
        dict(learn=dict(adam_eps=1e-4)),
        dict(learn=dict(grad_clip_value=0.05)),
        dict(learn=dict(value_norm=False)),
        dict(learn=dict(critic_epoch_per_collect=3)),
        dict(learn=dict(target_kl=1e-5)),
        dict(recompute_adv=True),
        dict(model=dict(arch="shared")),
        dict(model=dict(arch="detach")),
        dict(model=dict(init="normed")),
        dict(learn=dict(aux_train_epoch=1, aux_freq=2)),
    ],
    ids=str,
)
def test_it_is_not_ppo_once_a_condition_is_dropped(dropped):
    assert without_auxiliary(trained("ppo", **ppo_arm(4))) != without_auxiliary(
        trained("ppg", **merged(ppg_arm(4), dropped))
    )


def test_without_auxiliary_epochs_nothing_is_stored_told_or_drawn():
    torch_state = torch.get_rng_state()
    policy, collector = trainee("ppg", learn=dict(aux_train_epoch=0, aux_freq=1, value_norm=False))
    head = digest(policy.model.auxiliary_head.state_dict())
    told = policy.learn_mode.forward(collector.collect())
    assert policy.auxiliary is None
    assert "auxiliary" not in policy.state_dict()
    assert [name for name in told if name.startswith("aux")] == []
    assert not any("memory" in line for line in policy.describe())
    assert digest(policy.model.auxiliary_head.state_dict()) == head
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_the_value_network_learns_the_same_beside_a_policy_with_fewer_epochs():
    def critic(actor_epochs, critic_epochs):
        options = ppg_arm(actor_epochs, grad_clip_type=None)
        options["learn"]["critic_epoch_per_collect"] = critic_epochs
        state = trained("ppg", iterations=1, **options).model.state_dict()
        return digest({name: tensor for name, tensor in state.items() if name.startswith("critic")})

    assert critic(2, 3) == critic(3, 3)
    assert critic(2, 3) != critic(2, 2)


def first_advantages_of_the_policy(**options):
    """Returns the advantages in the policy's first pass, as collected, and by the newest value network."""
    policy, collector = trainee("ppg", **options)
    rollout = collector.collect()
    seen, loss = [], policy.actor_loss

    def spy(batch):
        if not seen:
            newest = policy.credit(rollout)["advantage"].flatten()
            seen.extend([batch.advantage.clone(), rollout.advantage.flatten(), newest])
        return loss(batch)

    policy.actor_loss = spy
    policy.learn_mode.forward(rollout)
    return [advantage.sort().values for advantage in seen]


@pytest.mark.parametrize("recompute", [True, False])
def test_the_policy_comes_after_the_value_and_takes_its_newest_advantages_if_asked(recompute):
    options = ppg_arm(1, adv_norm=False, batch_size=64) | {"recompute_adv": recompute}
    options["learn"]["critic_epoch_per_collect"] = 3
    seen, collected, newest = first_advantages_of_the_policy(**options)
    assert (collected - newest).abs().max() > 1e-3
    assert torch.allclose(seen, newest if recompute else collected, atol=1e-6)


# ------------------------------------------------------------------ off-policy on fresh data

EPOCHS = [(1, 1), (1, 2), (4, 2)]


def epochs_of(actor, critic, **others):
    learn = dict(
        actor_epoch_per_collect=actor,
        critic_epoch_per_collect=critic,
        aux_freq=2,
        aux_train_epoch=2,
        **others,
    )
    return dict(learn=dict(learning_rate=3e-3, **learn))


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(("actor", "critic"), EPOCHS)
def test_ppg_offpolicy_on_fresh_data_is_ppg(actor, critic, recompute):
    options = dict(epochs_of(actor, critic), recompute_adv=recompute)
    fresh = dict(policy=dict(max_use=actor), value=dict(max_use=critic))
    one = trained("ppg", **options)
    other = trained("ppg_offpolicy", **options, other=dict(replay_buffer=fresh))
    assert digest(one.model.state_dict()) == digest(other.model.state_dict())
    assert digest(one.auxiliary.state_dict()) == digest(other.auxiliary.state_dict())
    assert (one.value_optimizer is None) == (other.value_optimizer is None) == (actor == critic)


def test_ppg_offpolicy_is_not_ppg_once_older_data_may_be_drawn():
    options = epochs_of(1, 2)
    one = trained("ppg", **options)
    stale = dict(policy=dict(max_use=1), value=dict(max_use=3))
    other = trained("ppg_offpolicy", **options, other=dict(replay_buffer=stale))
    assert digest(one.model.state_dict()) != digest(other.model.state_dict())


# ------------------------------------------------------------------ who trains what, when

HELD = {  # by the optimiser of the policy, of the value
    "dual": ({"actor_encoder", "actor_head"}, {"critic_encoder", "critic_head"}),
    "shared": ({"actor_encoder", "actor_head"}, {"actor_encoder", "critic_head"}),
    "detach": ({"actor_encoder", "actor_head"}, {"critic_head"}),
}


def held(policy, updater):
    """Returns the parts of the model that an optimiser holds, each whole."""
    ids = {id(p) for p in updater.parameters}
    parts = {name.split(".")[0] for name, p in policy.model.named_parameters() if id(p) in ids}
    whole = {id(p) for name, p in policy.model.named_parameters() if name.split(".")[0] in parts}
    assert ids == whole
    return parts


@pytest.mark.parametrize("world", [SeededEnv, SeededTree])
@pytest.mark.parametrize("arch", HELD)
def test_each_optimiser_holds_only_what_its_loss_reaches(arch, world):
    everything = HELD[arch][0] | HELD[arch][1] | {"auxiliary_head"}
    policy, _ = trainee("ppg", world, model=dict(arch=arch), learn=dict(critic_epoch_per_collect=2))
    assert held(policy, policy.optimizer) == HELD[arch][0]
    assert held(policy, policy.value_optimizer) == HELD[arch][1]
    assert held(policy, policy.auxiliary.optimizer) == everything
    policy, _ = trainee("ppg", world, model=dict(arch=arch))
    assert policy.value_optimizer is None
    assert held(policy, policy.optimizer) == everything - {"auxiliary_head"}
    assert held(policy, policy.auxiliary.optimizer) == everything


def spied(policy):
    """Returns the list that the name of each optimiser is put into at each of its steps."""
    log = []
    updaters = {
        "policy": policy.optimizer,
        "value": policy.value_optimizer,
        "auxiliary": policy.auxiliary.optimizer,
    }
    for name, updater in updaters.items():
        if updater is not None:
            apply = updater.apply
            updater.apply = lambda *given, name=name, apply=apply: log.append(name) or apply(*given)
    return log


@pytest.mark.parametrize(("actor", "critic"), [(1, 2), (4, 2)])
def test_unequal_epochs_are_value_first_then_policy_with_an_adam_each(actor, critic):
    policy, collector = trainee("ppg", **epochs_of(actor, critic))
    log = spied(policy)
    for iteration in (1, 2):
        told = policy.learn_mode.forward(collector.collect())
        phase = ["auxiliary"] * 2 * 8 * (iteration == 2)
        assert log == ["value"] * 4 * critic + ["policy"] * 4 * actor + phase
        log.clear()
        assert told["updates"] == 4 * (actor + critic)
    permutation = torch_generator(0, "policy", "minibatch")
    for _ in range(2 * (actor + critic)):
        torch.randperm(64, generator=permutation)
    assert torch.equal(policy.minibatch_generator.get_state(), permutation.get_state())


@pytest.mark.parametrize("epochs", [1, 3])
def test_equal_epochs_are_one_loop_with_one_permutation_and_one_adam(epochs):
    policy, collector = trainee("ppg", **epochs_of(epochs, epochs))
    log = spied(policy)
    assert policy.learn_mode.forward(collector.collect())["updates"] == 4 * epochs
    assert log == ["policy"] * 4 * epochs
    permutation = torch_generator(0, "policy", "minibatch")
    for _ in range(epochs):
        torch.randperm(64, generator=permutation)
    assert torch.equal(policy.minibatch_generator.get_state(), permutation.get_state())


@pytest.mark.parametrize("critic", [1, 2])
@pytest.mark.parametrize("arch", HELD)
def test_the_auxiliary_head_takes_no_part_in_the_policy_phase(arch, critic):
    options = merged(
        epochs_of(1, critic, value_norm=False, allow_raw_values=True), dict(model=dict(arch=arch))
    )
    policy, collector = trainee("ppg", **options)
    states = []
    for _ in range(2):
        before = copy.deepcopy(policy.model.state_dict())
        policy.learn_mode.forward(collector.collect())
        states.append((before, copy.deepcopy(policy.model.state_dict())))
    changed = [
        {name.split(".")[0] for name in after if not torch.equal(before[name], after[name])}
        for before, after in states
    ]
    everything = HELD[arch][0] | HELD[arch][1]
    assert changed[0] == everything
    assert changed[1] == everything | {"auxiliary_head"}


def test_the_value_leaves_the_policy_alone_in_the_policy_phase_but_for_arch_shared():
    for arch in HELD:
        learn = dict(critic_epoch_per_collect=2, entropy_weight=0.0)
        policy, collector = trainee("ppg", model=dict(arch=arch), recompute_adv=False, learn=learn)
        rollout = collector.collect()
        rollout.advantage[:] = 0.0  # nothing for the policy to learn: what moves it is the value
        before = copy.deepcopy(policy.model.state_dict())
        policy.learn_mode.forward(rollout)
        after = policy.model.state_dict()
        moved = any(not torch.equal(before[name], after[name]) for name in after if name.startswith("actor"))
        assert moved == (arch == "shared")


# ------------------------------------------------------------------ learning rates


def test_the_schedule_is_over_every_learning_rate():
    learn = dict(
        learning_rate=1e-2,
        aux_learning_rate=4e-3,
        aux_freq=1,
        aux_train_epoch=1,
        lr_schedule="linear",
        lr_final=0.2,
        schedule_env_step=256,
        critic_epoch_per_collect=2,
    )
    policy, collector = trainee("ppg", learn=learn)
    for share in (1.0, 1 - 0.8 * 64 / 256, 1 - 0.8 * 128 / 256):
        told = policy.learn_mode.forward(collector.collect())
        assert told["policy_cur_lr"] == told["value_cur_lr"] == told["cur_lr"] == pytest.approx(1e-2 * share)
        assert told["aux_cur_lr"] == pytest.approx(4e-3 * share)
        used = [policy.optimizer, policy.value_optimizer, policy.auxiliary.optimizer]
        assert [updater.learning_rate for updater in used] == pytest.approx(
            [1e-2 * share] * 2 + [4e-3 * share]
        )


def test_the_auxiliary_learning_rate_is_that_of_the_policy_unless_given():
    policy, collector = trainee("ppg", learn=dict(learning_rate=7e-4, aux_freq=1, aux_train_epoch=1))
    assert policy.learn_mode.forward(collector.collect())["aux_cur_lr"] == pytest.approx(7e-4)
    policy.learning_rate = 1e-5
    assert policy.learn_mode.forward(collector.collect())["aux_cur_lr"] == pytest.approx(1e-5)


# ------------------------------------------------------------------ what is refused, before training


def compiled(kind="ppg", **policy):
    return compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": kind, **policy}})


RAW = dict(value_norm=False)
REFUSED = {
    "no scale of values": (dict(learn=RAW), "value_norm: .*normalize.reward=True.*allow_raw_values=True"),
    "aux_batch_size": (
        dict(collect=dict(n_sample=100), learn=dict(aux_freq=2, aux_batch_size=201)),
        r"aux_batch_size: 201 samples .* n_sample = 200",
    ),
    "batch_size": (
        dict(collect=dict(n_sample=100), learn=dict(aux_freq=2, batch_size=201)),
        "aux_batch_size: 201",
    ),
    "aux_grad_accum": (
        dict(learn=dict(aux_grad_accum=65)),
        "aux_grad_accum: 65 parts are more than the 64 samples",
    ),
    "aux_grad_accum of its own": (
        dict(learn=dict(aux_batch_size=8, aux_grad_accum=9)),
        "9 parts .* 8 samples",
    ),
    "priority": (dict(priority=True), "priority: .*equal probability"),
    "epoch_per_collect": (
        dict(learn=dict(epoch_per_collect=3)),
        "epoch_per_collect: .*actor_epoch_per_collect and critic_epoch_per_collect",
    ),
    "N_pi": (dict(learn=dict(aux_freq=0)), "aux_freq"),
}


@pytest.mark.parametrize("kind", ["ppg", "ppg_offpolicy"])
@pytest.mark.parametrize(("policy", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused_saying_why(policy, why, kind):
    with pytest.raises(ConfigError, match=why):
        compiled(kind, **policy)


@pytest.mark.parametrize(
    "policy",
    [
        dict(learn=dict(RAW, allow_raw_values=True)),
        dict(learn=RAW, normalize=dict(reward=True)),
        dict(learn=dict(RAW, aux_train_epoch=0)),
        dict(collect=dict(n_sample=100), learn=dict(aux_freq=2, aux_batch_size=200, aux_grad_accum=200)),
        dict(collect=dict(n_sample=100), learn=dict(aux_freq=2, aux_batch_size=201, aux_train_epoch=0)),
    ],
    ids=str,
)
def test_what_can_work_is_not_refused(policy):
    compiled(**policy)


@pytest.mark.parametrize("key", ["replay_buffer_size", "max_use", "max_staleness"])
def test_one_buffer_for_both_networks_is_refused_with_the_keys_of_the_two(key):
    with pytest.raises(
        ConfigError, match=rf"{key}: .*two buffers.*replay_buffer\.policy\.{key} and .*\.value\.{key}"
    ):
        compiled("ppg_offpolicy", other=dict(replay_buffer={key: 4096}))
    for name in ("policy", "value"):
        compiled("ppg_offpolicy", other=dict(replay_buffer={name: {key: 4096}}))


@pytest.mark.parametrize(
    ("kind", "policy", "key"),
    [
        (
            "ppg",
            dict(other=dict(replay_buffer=dict(value=dict(max_use=2)))),
            r"other\.replay_buffer\.value\.max_use",
        ),
        ("ppg", dict(learn=dict(update_per_collect=3)), r"learn\.update_per_collect"),
        ("ppg", dict(learn=dict(proximal="behaviour")), r"learn\.proximal"),
        ("ppg_offpolicy", dict(learn=dict(reuse=2.0)), r"learn\.reuse"),
        (
            "ppg_offpolicy",
            dict(learn=dict(update_per_collect=3, critic_epoch_per_collect=2)),
            r"learn\.update_per_collect: .*\(1, 2\)",
        ),
    ],
)
def test_a_key_that_would_change_nothing_is_refused(kind, policy, key):
    with pytest.raises(ConfigError, match=rf"policy\.{key}"):
        compiled(kind, **policy)


@pytest.mark.parametrize("name", ["policy", "value"])
def test_a_buffer_smaller_than_a_rollout_is_refused(name):
    with pytest.raises(ConfigError, match=rf"{name}\.replay_buffer_size: 63 .* has 64"):
        compile_config(
            {
                "env": {"env_id": "CartPole-v1", "collector_env_num": 4},
                "policy": {
                    "type": "ppg_offpolicy",
                    "collect": {"n_sample": 64},
                    "other": {"replay_buffer": {name: {"replay_buffer_size": 63}}},
                },
            }
        )


def test_a_model_without_an_auxiliary_head_is_refused_naming_what_it_lacks():
    with pytest.raises(
        ContractError, match=r"VAC has no auxiliary value head.*compute_auxiliary\(obs\).*'ppg'"
    ):
        trainee("ppg", model=dict(type="vac"))


def test_a_memory_that_cannot_fit_is_refused_before_training(monkeypatch):
    def free(size):
        monkeypatch.setattr("ding_lite.policies.auxiliary.host_memory", lambda: size)

    policy, _ = trainee("ppg")
    needed = policy._store_bytes()
    free(needed)
    trainee("ppg")
    free(needed - 1)
    with pytest.raises(ConfigError, match=r"aux_freq: .*8 iterations of 64 samples.*GiB.*lower aux_freq or"):
        trainee("ppg")
    trainee("ppg", learn=dict(aux_freq=7))
    trainee("ppg", learn=dict(aux_train_epoch=0))
    free(None)  # nobody says
    trainee("ppg")


# ------------------------------------------------------------------ the size of the memory


def bytes_of(tree):
    sizes = []
    map_tree(lambda leaf: sizes.append(leaf.numel() * leaf.element_size()), tree)
    return sum(sizes)


@pytest.mark.daily(4)
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_the_size_that_is_told_is_that_of_the_arrays(observation, mask, tmp_path):
    config = dict(
        num_threads=1,
        env=dict(
            type=Anything,
            kwargs=dict(observation=observation, action="discrete", mask=mask),
            **(dict(action_mask="info") if mask else {}),
            collector_env_num=3,
        ),
        policy=dict(type="ppg", learn=dict(aux_freq=2, batch_size=16), collect=dict(n_sample=40)),
        logger=dict(tensorboard=False),
    )
    pipeline = SerialPipeline(config, folder=tmp_path / "run")
    (line,) = [line for line in pipeline.policy.describe() if line.startswith("auxiliary phase")]
    assert line.startswith("auxiliary phase: every 2 iterations; its memory of 80 samples takes ")
    size = pipeline.policy._store_bytes()
    assert size < 2**20
    assert line.endswith(f" {size / 2**10:,.1f} KiB when full")
    assert line in (tmp_path / "run" / "log.txt").read_text()
    pipeline.step()
    memory = pipeline.policy.auxiliary.stored
    logit = pipeline.policy.logits(memory.all()["obs"])
    real = bytes_of(memory._fields) + bytes_of(logit) * memory.capacity / memory.size
    assert pipeline.policy._store_bytes() == pytest.approx(real, rel=0.2)
    assert pipeline.policy._store_bytes() != pytest.approx(bytes_of(logit), rel=0.2)
    pipeline.close()


# ------------------------------------------------------------------ metrics

DI_ENGINE = {
    *("policy_cur_lr", "value_cur_lr", "policy_loss", "value_loss", "entropy_loss", "policy_adv_abs_max"),
    *("approx_kl", "clipfrac", "aux_value_loss", "auxiliary_loss", "behavioral_cloning_loss"),
}


@pytest.mark.parametrize("critic", [1, 2])
@pytest.mark.parametrize("kind", ["ppg", "ppg_offpolicy"])
def test_every_declared_metric_is_given_and_every_given_one_declared(kind, critic):
    policy, collector = trainee(kind, learn=dict(aux_freq=2, critic_epoch_per_collect=critic))
    declared, given = policy.learn_mode.monitor_vars(), set()
    assert len(set(declared)) == len(declared)
    for iteration in range(6):
        told = policy.learn_mode.forward(collector.collect())
        assert ("auxiliary_loss" in told) == (iteration % 2 == 1)
        given |= set(told)
        assert all(math.isfinite(value) for value in told.values())
    reachable = {name for name in declared if not name.endswith(("clip_age_3", "clip_age_4"))}
    assert reachable <= given <= set(declared)
    assert given >= DI_ENGINE


def test_a_metric_is_of_one_loop_and_updates_are_those_of_both():
    policy, collector = trainee("ppg", **epochs_of(2, 3))
    found, train = [], policy._train
    policy._train = lambda *args, **kwargs: found.append(train(*args, **kwargs)) or found[-1]
    metrics = policy.learn_mode.forward(collector.collect())
    (of_value, value_steps), (of_policy, policy_steps) = found
    assert not of_value.keys() & of_policy.keys()
    assert (metrics["epochs"], metrics["updates"]) == (2, value_steps + policy_steps)


def test_the_metrics_say_what_they_are():
    policy, collector = trainee("ppg", **epochs_of(1, 2, aux_batch_size=32))
    norms = {"policy": [], "value": []}
    for name, updater in (("policy", policy.optimizer), ("value", policy.value_optimizer)):
        apply = updater.apply
        updater.apply = lambda gradient, bad, n=name, apply=apply: (
            norms[n].append(gradient.norm) or apply(gradient, bad)
        )
    rollout = collector.collect()
    largest = float(rollout.advantage.abs().max())
    told = policy.learn_mode.forward(rollout)
    assert told["policy_adv_abs_max"] == pytest.approx(largest)
    assert told["grad_norm"] == pytest.approx(fmean(norms["policy"]))
    assert told["value_grad_norm"] == pytest.approx(fmean(norms["value"]))
    told = policy.learn_mode.forward(collector.collect())
    assert told["aux_kl_epoch_0"] == pytest.approx(0, abs=1e-7)
    assert told["aux_kl_epoch_2"] > 1e-6
    assert told["aux_explained_variance"] > told["aux_explained_variance_before"]


def test_auxiliary_updates_are_counted_apart():
    policy, collector = trainee("ppg", **epochs_of(1, 2, aux_batch_size=32))
    learner = Learner(policy.learn_mode)
    learner.train(collector.collect())
    told = learner.train(collector.collect())
    assert told["updates"] == 12
    assert told["aux_updates"] == 2 * 4
    assert learner.train_iter == 24


# ------------------------------------------------------------------ exact resume

ITERATIONS = 7
RESUMED = {
    "ppg": dict(type="ppg"),
    "ppg, separate epochs": dict(type="ppg", learn=dict(critic_epoch_per_collect=2)),
    "ppg_offpolicy": dict(type="ppg_offpolicy", learn=dict(critic_epoch_per_collect=2)),
}


def resumed_config(policy):
    learn = dict(
        epoch_per_collect=10,  # its default, which says nothing
        aux_freq=3,
        aux_train_epoch=2,
        aux_batch_size=50,
        lr_schedule="linear",
        learning_rate=3e-3,
    )
    policy = merged(dict(learn=learn, collect=dict(n_sample=64), normalize=dict(obs=True)), policy)
    manager = dict(type="base", autoreset="next_step")
    return small_config(SeededEnv, policy=policy, env=dict(manager=manager), num_threads=1)


def run_until(pipeline, iterations):
    """Trains until an iteration and returns the whole state, without the clock, as it was saved."""
    for progress in pipeline:
        if progress.iteration == iterations:
            break
    pipeline.close()
    state, _ = load_checkpoint(pipeline.folder / "ckpt" / "last")
    del state["clock"]
    return state


@pytest.mark.daily(1)
@pytest.mark.parametrize("policy", RESUMED.values(), ids=RESUMED)
def test_every_cut_of_a_phase_resumes_exactly(policy, tmp_path):
    config = resumed_config(policy)
    straight = digest(run_until(SerialPipeline(config, folder=tmp_path / "straight"), ITERATIONS))
    for cut in range(2, 6):  # before, at and after the phases at the ends of iterations 3 and 6
        run_until(SerialPipeline(config, folder=tmp_path / f"{cut}"), cut)
        assert (
            digest(run_until(SerialPipeline.resume(tmp_path / f"{cut}", trust=["small_worlds"]), ITERATIONS))
            == straight
        ), cut


def forget_samples(auxiliary):
    auxiliary["memory"] |= {"iterations": [], "starts": [], "fields": None}


def forget_moments(auxiliary):
    for moments in auxiliary["optimizer"]["moments"].values():
        moments["mean"] *= 0


def forget_order(auxiliary):
    auxiliary["order"]["state"] = torch_generator(1, "policy", "auxiliary").get_state().numpy()


def nothing(auxiliary):
    pass


@pytest.mark.daily(2)
@pytest.mark.parametrize("forget", [nothing, forget_samples, forget_moments, forget_order])
def test_what_a_checkpoint_forgets_of_the_phase_is_missed(forget, tmp_path):
    config = resumed_config(RESUMED["ppg"])
    straight = run_until(SerialPipeline(config, folder=tmp_path / "straight"), ITERATIONS)
    run_until(SerialPipeline(config, folder=tmp_path / "run"), 4)
    state, saved = load_checkpoint(tmp_path / "run" / "ckpt" / "last")
    forget(state["policy"]["auxiliary"])
    save_checkpoint(tmp_path / "run" / "ckpt" / "last", state, saved)
    ended = run_until(SerialPipeline.resume(tmp_path / "run", trust=["small_worlds"]), ITERATIONS)
    same = digest(ended["policy"]["model"]) == digest(straight["policy"]["model"])
    assert same == (forget is nothing)


# ------------------------------------------------------------------ check_policy


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_check_policy_passes_on_every_action_space(kind):
    check_policy(kind, learns=False)


@pytest.mark.daily(1)
@pytest.mark.parametrize("arch", HELD)
def test_check_policy_knows_every_arch_and_separate_epochs(arch):
    check_policy("ppg", dict(model=dict(arch=arch), learn=dict(critic_epoch_per_collect=2)), learns=False)
    check_policy("ppg", dict(model=dict(arch=arch), learn=dict(aux_train_epoch=0)), learns=False)


class Leaky(PPG):
    """Says that its value has an encoder of its own, and reads the policy's."""

    def _value(self, obs, actor_features):
        return actor_features.sum(-1) + super()._value(obs, actor_features)

    def compute_critic(self, obs):
        return self._value(obs, self.actor_encoder(obs))


class Deaf(PPG):
    """Its auxiliary head hears nothing."""

    def compute_auxiliary(self, obs):
        logit, value = self.compute_actor_critic(obs)
        return logit, value, value


class Wide(PPG):
    """Its auxiliary value has a dimension too many, which broadcasts."""

    def compute_auxiliary(self, obs):
        logit, auxiliary, value = super().compute_auxiliary(obs)
        return logit, auxiliary.unsqueeze(-1), value


def test_auxiliary_value_that_would_broadcast_is_refused():
    with pytest.raises(ContractError, match=r"both values of shape \(N,\); .*\[\(1, 1\), \(1,\)\]"):
        trainee("ppg", model=dict(type=Wide))


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_resumed_run_may_be_given_longer_rollouts(kind, tmp_path):
    use = dict(other=dict(replay_buffer=dict(max_use=6))) if kind == "ppo_offpolicy" else {}
    config = small_config(policy=dict(type=kind, **use))
    del config["policy"]["learn"]["epoch_per_collect"]
    run_until(SerialPipeline(config, folder=tmp_path / "run"), 2)
    changes = {"policy.collect.n_sample": 400, "max_env_step": 20_000}
    pipeline = SerialPipeline.resume(tmp_path / "run", changes=changes)
    run_until(pipeline, 12)  # through an auxiliary phase
    assert pipeline.progress.iteration == 12


def test_names_of_the_paper_lead_to_the_keys():
    for name, key in {"n_pi": "aux_freq", "e_aux": "aux_train_epoch", "beta_clone": "aux_bc_weight"}.items():
        with pytest.raises(ConfigError, match=f"{name}.*policy.learn.{key}"):
            compile_config({"env": {"env_id": "x"}, "policy": {"type": "ppg", "learn": {name: 1}}})


def test_a_run_says_that_it_draws_nothing_old():
    policy, _ = trainee("ppo_offpolicy")
    assert "with a larger policy.other.replay_buffer.max_use some are" in policy.describe()[-1]
    policy, _ = trainee("ppo_offpolicy", other=dict(replay_buffer=dict(max_use=6)))
    assert not any("none is left" in line for line in policy.describe())
    sections = [f"policy.other.replay_buffer.{name}.max_use" for name in ("policy", "value")]
    for critic, advised in ((3, [" and ".join(sections)]), (2, sections[:1])):
        learn = dict(actor_epoch_per_collect=3, critic_epoch_per_collect=critic)
        lines = trainee("ppg_offpolicy", learn=learn)[0].describe()
        told = [line for line in lines if "none is left for the next" in line]
        assert [line.split("a larger ")[1].removesuffix(" some are") for line in told] == advised


@pytest.mark.parametrize(
    ("model", "what"),
    [(Leaky, r"value loss .*actor_encoder"), (Deaf, r"no gradient of the auxiliary value")],
)
def test_check_policy_finds_a_model_whose_gradients_go_astray(model, what):
    learn = dict(value_norm=False, allow_raw_values=True)  # PopArt refuses Leaky before
    with pytest.raises(ContractError, match=what):
        check_policy("ppg", dict(model=dict(type=model), learn=learn), learns=False)


class TwoHeads(PPG):
    """Has a second auxiliary head, which only a custom loss reads."""

    def __init__(self, *spaces, **options):
        super().__init__(*spaces, **options)
        self.sign_head = torch.nn.Linear(self.actor_encoder.out_features, 1)

    def compute_sign(self, obs):
        return self.sign_head(self.actor_encoder(obs)).squeeze(-1)


class SignPPG(PPGPolicy):
    def auxiliary_loss(self, batch):
        loss, metrics = super().auxiliary_loss(batch)
        target = (batch.value_target > 0).float()
        sign = torch.nn.functional.binary_cross_entropy_with_logits(
            self.model.compute_sign(batch.obs), target
        )
        return loss + sign, {**metrics, "sign_loss": sign}


@pytest.mark.parametrize("critic", [1, 2])
def test_a_head_that_only_a_custom_auxiliary_loss_reads_is_trained(critic):
    check_policy(SignPPG, dict(model=dict(type=TwoHeads)), learns=False)
    learn = dict(aux_freq=1, critic_epoch_per_collect=critic)
    policy, collector = trainee("ppg", cls=SignPPG, model=dict(type=TwoHeads), learn=learn)
    before = policy.model.sign_head.weight.detach().clone()
    policy.learn_mode.forward(collector.collect())
    assert not torch.equal(policy.model.sign_head.weight, before)


def test_a_term_of_ones_own_does_not_depend_on_the_parts_of_a_minibatch():
    found = []
    for parts in (1, 3):
        learn = dict(aux_freq=1, aux_grad_accum=parts, aux_train_epoch=2)
        policy, collector = trainee("ppg", cls=SignPPG, model=dict(type=TwoHeads), learn=learn)
        metrics = policy.learn_mode.forward(collector.collect())
        found.append((metrics["sign_loss"], policy.model.sign_head.weight.detach().clone()))
    (whole, weight), (in_parts, weight_of_parts) = found
    assert in_parts == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(weight_of_parts, weight, rtol=1e-4, atol=1e-6)


class ReadsRollout(PPGPolicy):
    auxiliary_fields = ("value", "advantage", "reward")

    def auxiliary_loss(self, batch):
        self.read = batch
        return super().auxiliary_loss(batch)


@pytest.mark.parametrize("rnn", [None, "gru"])
@pytest.mark.parametrize("parts", [1, 2])
def test_an_auxiliary_loss_reads_the_fields_that_it_asks_for(rnn, parts):
    learn = dict(aux_freq=2, aux_grad_accum=parts, value_norm=False, allow_raw_values=True)
    policy, collector = trainee("ppg", cls=ReadsRollout, model=dict(rnn=rnn), learn=learn)
    for _ in range(2):
        policy.learn_mode.forward(collector.collect())
    batch = policy.read
    assert batch.reward.shape == batch.value_target.shape
    torch.testing.assert_close(batch.value + batch.advantage, batch.value_target)
    shifted = batch.value.roll(1) + batch.advantage  # the control: rows that do not belong together
    assert not torch.allclose(shifted, batch.value_target)


class ReadsWide(PPGPolicy):
    auxiliary_fields = ("reward", "wide")

    def _process_transition(self, obs, output, transition):
        row = super()._process_transition(obs, output, transition)
        return {**row, "wide": np.zeros((len(transition.reward), 1000), np.float32)}


@pytest.mark.parametrize("rnn", [None, "gru"])
def test_the_size_of_the_memory_has_the_fields_that_a_loss_reads(rnn, monkeypatch):
    model = dict(rnn=rnn)
    plain, read = (
        trainee("ppg", cls=cls, model=model)[0]._store_bytes() for cls in (PPGPolicy, ReadsRollout)
    )
    samples = 8 * 64
    assert read - plain == 3 * 4 * samples
    policy, collector = trainee("ppg", cls=ReadsWide, model=model)
    monkeypatch.setattr("ding_lite.policies.auxiliary.host_memory", lambda: 4000 * samples)
    with pytest.raises(ConfigError, match="the auxiliary memory of 8 iterations"):
        policy.learn_mode.forward(collector.collect())


@pytest.mark.parametrize("rnn", [None, "gru"])
def test_fields_of_the_auxiliary_memory_resume_exactly(rnn):
    def made():
        return trainee("ppg", cls=ReadsRollout, model=dict(rnn=rnn), learn=dict(aux_freq=2))

    policy, collector = made()
    policy.learn_mode.forward(collector.collect())
    rollout = collector.collect()
    other, _ = made()
    other.load_state_dict(policy.state_dict())
    for each in (policy, other):
        each.learn_mode.forward(rollout)
    assert digest(policy.state_dict()) == digest(other.state_dict())
    assert torch.equal(policy.read.reward, other.read.reward)


def test_a_field_that_a_rollout_lacks_is_named():
    class Misspelt(PPGPolicy):
        auxiliary_fields = ("rewards",)

    policy, collector = trainee("ppg", cls=Misspelt)
    with pytest.raises(ContractError, match=r"Misspelt.auxiliary_fields.*no 'rewards'.* reward,"):
        policy.learn_mode.forward(collector.collect())


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (torch.ones(()), "must return (loss, dict of metrics), got a tensor alone"),
        ((torch.ones(3), {}), "0-d tensor as its loss, got (3,)"),
        ((torch.ones(()), {"text": "big"}), "0-d tensor as its metric 'text', got a str"),
        ((torch.ones(()), {"wide": torch.ones(2)}), "metric 'wide', got (2,): take"),
        ((torch.ones(()), {"number": 1.5}), "metric 'number', got a float: use torch.tensor"),
        ((torch.ones(()), {3: torch.ones(())}), "returns the metric 3: a name is a text"),
        ((torch.ones(()), {"grad_norm": torch.ones(())}), "'grad_norm': the library has one of this name"),
        ((torch.ones(()), {"total_loss": torch.ones(())}), "'total_loss': the library has one of this name"),
        ((torch.ones(()), {"adv_mean": torch.ones(())}), "'adv_mean': the library has one of this name"),
        ((torch.ones(()), {"aux_kl_epoch_2": torch.ones(())}), "'aux_kl_epoch_2': the library has one"),
    ],
)
def test_an_auxiliary_loss_that_returns_something_else_is_refused(returned, what):
    class Wrong(PPGPolicy):
        def auxiliary_loss(self, batch):
            return returned

    policy, collector = trainee("ppg", cls=Wrong, learn=dict(aux_freq=1))
    with pytest.raises(ContractError, match=re.escape(what)) as caught:
        policy.learn_mode.forward(collector.collect())
    assert "Wrong.auxiliary_loss" in str(caught.value)


@pytest.mark.parametrize("kind", ["ppo", "ppg"])
def test_a_policy_loss_without_a_gradient_is_refused(kind):
    class Old(POLICY_REGISTRY.get(kind)):
        def policy_loss(self, batch):
            return (batch.log_prob * batch.advantage).mean(), {}

    policy, collector = trainee(kind, cls=Old, **(epochs_of(1, 2) if kind == "ppg" else {}))
    with pytest.raises(ContractError, match=r"Old.policy_loss has no gradient.*batch.dist"):
        policy.learn_mode.forward(collector.collect())


def test_names_of_fields_are_a_tuple():
    class Text(PPGPolicy):
        auxiliary_fields = "reward"

    with pytest.raises(ContractError, match=r"Text.auxiliary_fields is the text 'reward'.*\('reward',\)"):
        trainee("ppg", cls=Text)


def test_a_field_that_an_auxiliary_loss_reads_and_does_not_name_is_explained():
    class Unnamed(PPGPolicy):
        def auxiliary_loss(self, batch):
            return batch.reward.mean(), {}

    policy, collector = trainee("ppg", cls=Unnamed, learn=dict(aux_freq=1))
    with pytest.raises(AttributeError, match=r"no 'reward'; a policy's auxiliary_fields"):
        policy.learn_mode.forward(collector.collect())


@pytest.mark.parametrize("method", ["policy_loss", "auxiliary_loss"])
def test_a_loss_without_gradient_is_refused(method):
    def detached(self, batch):
        loss, metrics = getattr(PPGPolicy, method)(self, batch)
        return loss.detach(), metrics

    learn = dict(aux_freq=1, critic_epoch_per_collect=2)
    policy, collector = trainee("ppg", cls=type("Detached", (PPGPolicy,), {method: detached}), learn=learn)
    with pytest.raises(ContractError, match=f"(^|Detached.){method} has no gradient"):
        policy.learn_mode.forward(collector.collect())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "gradients: closed form"),
        (dict(learn=dict(aux_grad_accum=2)), "gradients: closed form; in the auxiliary phase: autograd"),
        (dict(model=dict(activation="gelu")), "gradients: autograd"),
    ],
)
def test_the_first_lines_name_the_gradients_of_both_phases(options, said):
    policy, _ = trainee("ppg", **options)
    assert policy.describe()[0] == f"acting: {policy.fast.acting().name}; {said}"


def test_batch_size_is_told_of_every_buffer():
    assert trainee("ppg")[0]._get_batch_size() == {"policy": 16, "value": 16}
    assert trainee("ppo")[0]._get_batch_size() == 16


def test_the_largest_advantage_is_told_by_its_size():
    policy, collector = trainee("ppg")
    rollout = collector.collect()
    rollout.advantage[3, 1] = -1000.0
    assert policy.learn_mode.forward(rollout)["policy_adv_abs_max"] == 1000.0


def test_logits_of_pi_prox_are_computed_for_the_policy_alone(monkeypatch):
    policy, collector = trainee("ppg", learn=dict(kl_penalty=1.0, critic_epoch_per_collect=2))
    calls, logits = [], policy.rollout_logits
    monkeypatch.setattr(policy, "rollout_logits", lambda rollout: calls.append(1) or logits(rollout))
    policy.learn_mode.forward(collector.collect())
    assert len(calls) == 1


@pytest.mark.parametrize(("max_env_step", "phases"), [(7 * 64, 0), (8 * 64 - 1, 1), (8 * 64, 1)])
def test_a_run_that_ends_before_its_first_auxiliary_phase_says_so(max_env_step, phases, tmp_path):
    config = small_config(SeededEnv, max_env_step=max_env_step)
    config["policy"] = {"type": "ppg", "collect": {"n_sample": 64}, "learn": {"batch_size": 32}}
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        found = [progress.metrics.get("learn/aux_updates") for progress in pipeline]
    assert sum(updates is not None for updates in found) == phases
    said = f"comes every 8 iterations, and this run of {max_env_step:,} env steps has about 7"
    assert (said in (tmp_path / "run" / "log.txt").read_text()) == (phases == 0)
