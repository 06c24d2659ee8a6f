"""PPG's auxiliary phase: its KL by hand, all of it against a naive one in float64, and what it remembers."""

from __future__ import annotations

import math

import pytest
import torch
from anything import Anything
from small_worlds import LengthEnv, SeededBox, SeededEnv
from worlds import MatchBox, digest, trainee

from ding_lite import NumericsError, SerialPipeline
from ding_lite.rl.seeding import torch_generator
from ding_lite.trees import map_tree, to_dict

# ------------------------------------------------------------------ the KL


def terms_of(policy, index, old_logit):
    """Returns L_aux, the KL and L_V of some samples of the memory."""
    return policy.auxiliary_loss(policy.auxiliary.batch(index, old_logit))[1].values()


def one_distribution(world, **parameters):
    """Returns the auxiliary phase of a policy that acts alike everywhere, with some samples in memory."""
    policy, collector = trainee("ppg", world)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if name.startswith("actor_head"):
                parameter.zero_()
        for name, value in parameters.items():
            policy.model.get_parameter(f"actor_head.out.{name.replace('__', '.')}").copy_(torch.tensor(value))
    policy.auxiliary.remember(collector.collect(), 0)
    return policy


def test_kl_of_two_actions_is_that_of_old_to_new_over_both_and_pulls_the_new_one_alone():
    policy = one_distribution(LengthEnv, layer__bias=[0.0, 0.0])  # now 1/2, 1/2
    old = torch.tensor([[0.75, 0.25]]).log().expand(64, -1).clone().requires_grad_()  # was 3/4, 1/4
    _, kl, _ = terms_of(policy, torch.arange(10), old.detach())
    assert float(kl.detach()) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-6)
    assert float(kl.detach()) != pytest.approx(0.5 * math.log(2 / 3) + 0.5 * math.log(2), abs=1e-3)
    kl.backward()
    # d KL(old || new) / d logit of the new one = new - old
    bias = policy.model.actor_head.out.layer.bias
    assert torch.allclose(bias.grad, torch.tensor([0.5 - 0.75, 0.5 - 0.25]), atol=1e-6)


def test_kl_of_gaussians_is_that_of_old_to_new():
    policy = one_distribution(MatchBox, layer__bias=[0.5, 0.0], log_sigma=[math.log(2), 0.0])
    logit = {"mu": torch.zeros(64, 2), "sigma": torch.ones(64, 2)}
    _, kl, _ = terms_of(policy, torch.arange(10), logit)
    by_hand = math.log(2) + (1 + 0.5**2) / (2 * 2**2) - 0.5
    assert float(kl.detach()) == pytest.approx(by_hand, abs=1e-6)
    assert by_hand != pytest.approx(-math.log(2) + (4 + 0.5**2) / 2 - 0.5, abs=0.1)  # new to old
    kl.backward()
    assert torch.allclose(
        policy.model.actor_head.out.layer.bias.grad, torch.tensor([0.5 / 4, 0.0]), atol=1e-6
    )
    assert torch.allclose(
        policy.model.actor_head.out.log_sigma.grad, torch.tensor([1 - 1.25 / 4, 0.0]), atol=1e-6
    )


@pytest.mark.parametrize("world", [SeededEnv, SeededBox])
def test_old_parameters_are_computed_once_before_the_first_step_and_carry_no_gradient(world, monkeypatch):
    policy, collector = trainee("ppg", world, learn=dict(learning_rate=0.05))
    auxiliary, seen, computed = policy.auxiliary, [], []
    auxiliary.remember(collector.collect(), 0)
    batch, logits = auxiliary.batch, policy.logits
    monkeypatch.setattr(auxiliary, "batch", lambda i, old: seen.append(old) or batch(i, old))
    monkeypatch.setattr(policy, "logits", lambda *args: computed.append(1) or logits(*args))
    before = digest(to_dict(logits(auxiliary.stored.all()["obs"])))
    obs = map_tree(torch.clone, auxiliary.stored.all()["obs"])
    auxiliary.run()
    assert len(computed) == 1
    assert len(seen) == 6 * 4
    assert all(digest(old) == before for old in seen)
    needs: list[bool] = []
    map_tree(lambda leaf: needs.append(leaf.requires_grad), seen[0])
    assert needs
    assert not any(needs)
    assert digest(logits(obs)) != before, "the policy did not move: the test would not see it"


# ------------------------------------------------------------------ gradient accumulation


def after_a_phase(**learn):
    learn = dict(aux_freq=1, aux_batch_size=20, aux_learning_rate=3e-3, aux_train_epoch=2) | learn
    policy, collector = trainee("ppg", learn=learn)
    told = policy.learn_mode.forward(collector.collect())
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()]), told


@pytest.mark.parametrize("parts", [2, 3, 20])
def test_a_minibatch_in_parts_is_the_step_of_the_whole(parts):
    whole, told = after_a_phase()
    accumulated, told_too = after_a_phase(aux_grad_accum=parts)
    assert torch.allclose(whole, accumulated, atol=2e-5)
    assert told["aux_updates"] == told_too["aux_updates"] == 2 * 4
    for name in ("auxiliary_loss", "behavioral_cloning_loss", "aux_value_loss", "aux_grad_norm"):
        assert told[name] == pytest.approx(told_too[name], rel=1e-3, abs=1e-6)
    smaller, _ = after_a_phase(aux_batch_size=10)
    assert not torch.allclose(whole, smaller, atol=1e-3), "steps are too small: the test would not see them"


# ------------------------------------------------------------------ what is drawn


@pytest.mark.parametrize("parts", [1, 3])
def test_each_sample_serves_each_epoch_exactly_once(parts, monkeypatch):
    learn = dict(aux_freq=2, aux_train_epoch=3, aux_batch_size=24, aux_grad_accum=parts)
    policy, collector = trainee("ppg", n_sample=60, autoreset="next_step", learn=learn)
    drawn, batch = [], policy.auxiliary.batch
    monkeypatch.setattr(policy.auxiliary, "batch", lambda i, *old: drawn.append(i) or batch(i, *old))
    valid = 0
    for _ in range(2):
        rollout = collector.collect()
        valid += int(rollout.valid.sum())
        policy.learn_mode.forward(rollout)
    assert 60 < valid < 120
    indices = torch.cat(drawn)
    assert len(indices) == 3 * valid
    epochs = indices.split(valid)
    assert all(torch.equal(epoch.sort().values, torch.arange(valid)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])


def test_the_phase_draws_from_a_generator_of_its_own():
    policy, collector = trainee("ppg", learn=dict(aux_freq=1, aux_train_epoch=2))
    rollout = collector.collect()
    others = [policy.generator.get_state(), torch.get_rng_state()]
    policy.learn_mode.forward(rollout)
    assert all(map(torch.equal, others, [policy.generator.get_state(), torch.get_rng_state()]))
    expected = torch_generator(0, "policy", "auxiliary")
    unused = expected.get_state()
    for _ in range(2):
        torch.randperm(64, generator=expected)
    assert torch.equal(policy.auxiliary.generator.get_state(), expected.get_state())
    assert not torch.equal(unused, expected.get_state())
    permutation = torch_generator(0, "policy", "minibatch")
    torch.randperm(64, generator=permutation)
    assert torch.equal(policy.minibatch_generator.get_state(), permutation.get_state())


# ------------------------------------------------------------------ the memory


def test_a_policy_that_forgets_what_it_stored_names_it():
    policy, collector = trainee("ppg", learn=dict(aux_freq=2))
    assert policy.forget_stored() == []
    policy.learn_mode.forward(collector.collect())
    assert policy.auxiliary.stored.size
    assert policy.forget_stored() == ["auxiliary memory"]
    assert not policy.auxiliary.stored.size


def test_the_phase_follows_exactly_every_aux_freq_iterations_and_forgets_its_samples():
    policy, collector = trainee("ppg", learn=dict(aux_freq=3))
    sizes, phases = [], []
    for _ in range(7):
        told = policy.learn_mode.forward(collector.collect())
        sizes.append(told["aux_memory"])
        phases.append("aux_updates" in told)
        assert policy.auxiliary.stored.size == (0 if phases[-1] else sizes[-1])
    assert phases == [False, False, True, False, False, True, False]
    assert sizes == [64, 128, 192, 64, 128, 192, 64]


@pytest.mark.parametrize("world", [SeededEnv, SeededBox])
def test_valid_rows_alone_are_remembered_with_the_targets_of_their_collection(world):
    policy, collector = trainee(
        "ppg",
        world,
        n_sample=60,
        autoreset="next_step",
        recompute_adv=True,
        learn=dict(aux_freq=3, actor_epoch_per_collect=4, critic_epoch_per_collect=4, learning_rate=0.02),
    )
    kept = []
    for _ in range(2):
        rollout = collector.collect()
        kept.append((rollout.obs[rollout.valid].clone(), rollout.value_target[rollout.valid].clone()))
        policy.learn_mode.forward(rollout)
    obs, target = (torch.cat(parts) for parts in zip(*kept, strict=True))
    memory = policy.auxiliary.stored.all()
    assert torch.equal(memory["obs"], obs)
    assert torch.equal(memory["value_target"], target)
    renewed = policy.credit(rollout)["value_target"][rollout.valid]
    assert not torch.allclose(renewed, kept[-1][1], atol=1e-2), (
        "the values did not move: nothing to tell apart"
    )


@pytest.fixture
def images(tmp_path):
    """A run on masked images, not begun yet."""
    config = dict(
        num_threads=1,
        env=dict(
            type=Anything,
            kwargs=dict(observation="image-hwc", action="discrete", mask=True),
            action_mask="info",
            collector_env_num=2,
        ),
        policy=dict(
            type="ppg",
            learn=dict(batch_size=16, aux_freq=2, aux_train_epoch=1),
            collect=dict(n_sample=20),
            normalize=dict(obs=True),
        ),
        logger=dict(tensorboard=False),
    )
    pipeline = SerialPipeline(config, folder=tmp_path / "run")
    yield pipeline
    pipeline.close()


def test_memory_holds_raw_images_and_masks_at_their_own_dtype_on_the_host_and_nothing_else(images):
    images.step()
    rollout_obs = to_dict(images.collector.storage.rollout().obs)
    memory = images.policy.auxiliary.stored
    assert set(memory.all()) == {"obs", "value_target"}
    stored = memory.all()["obs"]
    assert digest(stored) == digest(map_tree(lambda leaf: leaf.flatten(0, 1), rollout_obs))
    kinds = {name: leaf.dtype for name, leaf in stored.items()}
    assert sorted(map(str, kinds.values())) == ["torch.bool", "torch.uint8"]
    assert all(leaf.device.type == "cpu" for leaf in stored.values())
    assert memory.all()["value_target"].dtype == torch.float32
    images.step()
    assert memory.size == 0


def test_masks_of_the_memory_are_at_work_in_the_kl(images):
    images.step()
    auxiliary, rows = images.policy.auxiliary, torch.arange(20)
    obs = auxiliary.stored.all()["obs"]
    logit, mask = images.policy.logits(obs), obs["action_mask"].bool()
    assert not mask.all()
    noise = 5 * torch.randn(logit.shape, generator=torch.Generator().manual_seed(0))
    kls = [list(terms_of(images.policy, rows, logit + noise * where))[1] for where in (~mask, mask)]
    assert abs(float(kls[0].detach())) < 1e-6, "what stands at an illegal action was heard"
    assert float(kls[1].detach()) > 0.1


# ------------------------------------------------------------------ numbers that are not


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_target_that_is_not_finite_is_reported_and_moves_nothing(bad, parts):
    learn = dict(aux_freq=2, aux_batch_size=64, aux_grad_accum=parts)
    policy, collector = trainee("ppg", learn=learn)
    policy.learn_mode.forward(collector.collect())
    before = digest(policy.model.state_dict())
    policy.auxiliary.stored.write(7, {"value_target": torch.tensor([bad])})
    with pytest.raises(NumericsError, match=r"step 0 of auxiliary_loss .*'value_target'"):
        policy.auxiliary.run()
    assert digest(policy.model.state_dict()) == before
    moments = policy.auxiliary.optimizer.state_dict()["moments"].values()
    assert all(torch.isfinite(leaf).all() for moment in moments for leaf in moment.values())


def test_the_kl_that_is_told_is_that_of_old_to_new():
    learn = dict(aux_freq=1, aux_train_epoch=2, aux_learning_rate=0.1, aux_bc_weight=0.0)
    policy, collector = trainee("ppg", learn=learn, model=dict(init_gain=dict(policy=2.0)))
    run, found = policy.auxiliary.run, {}

    def recorded():
        obs = policy.auxiliary.stored.all()["obs"].clone()
        old = policy.distribution(policy.inputs(obs), policy.logits(obs))
        told = run()
        new = policy.distribution(policy.inputs(obs), policy.logits(obs))
        found.update(
            told=told["aux_kl_epoch_2"], right=float(old.kl(new).mean()), wrong=float(new.kl(old).mean())
        )
        return told

    policy.auxiliary.run = recorded
    policy.learn_mode.forward(collector.collect())
    assert found["told"] == pytest.approx(found["right"], rel=1e-4)
    assert found["told"] != pytest.approx(found["wrong"], rel=1e-2)


def test_what_is_told_of_the_phase_was_measured_before_it_and_after_each_epoch(monkeypatch):
    policy, collector = trainee("ppg", learn=dict(aux_freq=1, aux_train_epoch=2))
    measured = iter(torch.arange(9.0).view(3, 3))  # each time the KL, then both explained variances
    monkeypatch.setattr(policy.auxiliary, "_measure", lambda *_: next(measured))
    told = policy.learn_mode.forward(collector.collect())
    assert [told[f"aux_kl_epoch_{epoch}"] for epoch in range(3)] == [0, 3, 6]
    assert told["aux_explained_variance_before"] == 1
    assert told["aux_explained_variance"] == 7
    assert told["value_explained_variance"] == 8


def test_the_phase_is_measured_on_samples_from_all_of_the_memory(monkeypatch):
    monkeypatch.setattr("ding_lite.policies.auxiliary.MEASURED", 10)
    policy, collector = trainee("ppg")
    policy.auxiliary.remember(collector.collect(), 0)
    measured = policy.auxiliary._measured()
    assert len(measured) <= 10
    assert measured.diff().unique().tolist() == [7]
    assert measured[-1] >= 64 - 7
