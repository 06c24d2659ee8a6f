"""Policies with memory: what they compute along sequences is what they compute step by step."""

import copy
import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from torch import nn
from worlds import digest, gradient_of, merged, small_config, trainee, vector_of

from ding_lite import PPGPolicy, PPOPolicy, SerialPipeline, check_policy, compile_config, load_policy
from ding_lite.cli import main
from ding_lite.data.collector import Collector
from ding_lite.data.hidden import begin_episodes
from ding_lite.data.rollout import as_rollout
from ding_lite.errors import ConfigError, ContractError
from ding_lite.policies.optimizer import GradientSteps
from ding_lite.run.report import description
from ding_lite.trees import map_tree, to_dict, tree_leaves

KINDS = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")


def with_memory(kind="ppo", world=SeededEnv, rnn="lstm", autoreset="same_step", **policy):
    """Returns a policy with memory whose weights are large enough for its memory to matter."""
    options = dict(model=dict(rnn=rnn, rnn_hidden_size=6), learn=dict(sequence_length=7))
    if kind.startswith("ppg"):
        options["learn"] |= dict(aux_freq=2, aux_train_epoch=2)
    options = merged(options, policy)
    policy, collector = trainee(kind, world, 80, 4, autoreset=autoreset, **options)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".rnn." in name or "head" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy, collector


def episodes_of(rollout):
    """Yields (rows, column, whether its first row begins an episode), for each piece of an episode."""
    done = rollout.terminated | rollout.truncated
    for column in range(rollout.valid.shape[1]):
        rows = []
        begins = False
        for t in range(len(rollout.valid)):
            if not rollout.valid[t, column]:
                continue
            if t and (done[t - 1, column] or not rollout.valid[t - 1, column]):
                if rows:
                    yield rows, column, begins
                rows, begins = [], True
            rows.append(t)
        if rows:
            yield rows, column, begins


def step_by_step(model, rollout, fresh=lambda rows, begins: begins):
    """Returns logits and values (T, B, ...), one episode and one step at a time with torch's cells."""
    logits, values = {}, {}
    encoders = {"actor": model.actor_encoder, "critic": model.critic_encoder or model.actor_encoder}
    for rows, column, begins in episodes_of(rollout):
        stored = map_tree(lambda leaf, column=column: leaf[0, column], rollout.memory)
        for who, encoder in encoders.items():
            rnn = encoder.layer.rnn
            lstm = isinstance(rnn, nn.LSTM)
            cell = (nn.LSTMCell if lstm else nn.GRUCell)(rnn.input_size, rnn.hidden_size).to(rnn.weight_hh_l0)
            weights = {n.removesuffix("_l0"): p for n, p in rnn.named_parameters()}
            state = map_tree(lambda leaf: leaf[0][None], stored[encoder.name])
            if fresh(rows, begins):
                state = map_tree(torch.zeros_like, state)
            hidden = (state["h"], state["c"]) if lstm else state["h"]
            for t in rows:
                features = encoder.encoder(rollout.obs[t, column][None])
                hidden = torch.func.functional_call(cell, weights, (features, hidden))
                output = hidden[0] if lstm else hidden
                if who == "actor":
                    logits[t, column] = model.actor_head(output)[0]
                else:
                    values[t, column] = model.critic_head(output)[0, 0]
    return logits, values


def close(found, expected, tolerance=1e-5):
    return all(torch.allclose(found[place], value, atol=tolerance) for place, value in expected.items())


@pytest.mark.daily(2)
@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize("rnn", ["lstm", "gru"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("kind", ["ppo", "ppg"])
def test_rollouts_have_what_a_step_by_step_network_computes(kind, rnn, autoreset, burn_in):
    policy, collector = with_memory(kind, rnn=rnn, autoreset=autoreset, learn=dict(burn_in=burn_in))
    for number in range(3):
        rollout = collector.collect()
        assert (rollout.terminated | rollout.truncated).any()
        with torch.no_grad():
            logits, values = step_by_step(policy.model, rollout)
        raw = {place: policy.denormalized_values(value) for place, value in values.items()}
        assert close(rollout.value, raw), "values while acting"
        assert close(policy.rollout_values(rollout), raw), "values along sequences"
        assert close(policy.rollout_logits(rollout), logits)
        rows = rollout.valid.flatten().nonzero().squeeze(-1)
        log_prob = policy.rollout_log_probs(rollout, rows)
        assert torch.allclose(log_prob, rollout.log_prob.flatten()[rows], atol=1e-5)
        forgetful, _ = step_by_step(policy.model, rollout, fresh=lambda rows, begins: True)
        remembering, _ = step_by_step(policy.model, rollout, fresh=lambda rows, begins: False)
        if number:  # the first rollout has no memory from before
            assert not close(logits, forgetful, 1e-3), "the rollout before does not matter here"
            assert not close(logits, remembering, 1e-3), "episode starts do not matter here"


@pytest.mark.daily(2)
@pytest.mark.parametrize("arch", ["dual", "shared", "detach"])
@pytest.mark.parametrize("rnn", ["lstm", "gru"])
def test_the_gradient_along_sequences_is_that_of_the_episodes_one_by_one(rnn, arch):
    """One sequence an episode, in float64, by torch's cells; a memory that is not reset would be noticed."""
    learn = dict(sequence_length=64, value_norm=False, allow_raw_values=True)
    policy, collector = with_memory("ppg", rnn=rnn, model=dict(arch=arch), learn=learn)
    collector.collect()
    rollout = to_dict(collector.collect())
    policy.model.double()
    for encoder in filter(None, (policy.model.actor_encoder, policy.model.critic_encoder)):
        encoder.encoder.leaves[0] = nn.Identity()  # in place of a conversion to float32
    rollout = as_rollout(map_tree(lambda x: x.double() if x.is_floating_point() else x, rollout))
    assert len(list(episodes_of(rollout))) > 8
    weight = torch.randn(rollout.valid.shape, generator=torch.Generator().manual_seed(0)).double()
    parameters = [p for name, p in policy.model.named_parameters() if "auxiliary" not in name]
    of_values = 0.0 if arch == "detach" else 1.0  # there the gradient of the value stops at its head

    def gradient(loss):
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([each.flatten() for each in found])

    def of_episodes(fresh):
        logits, values = step_by_step(policy.model, rollout, fresh)
        terms = [weight[place] * logit.square().sum() for place, logit in logits.items()]
        terms += [of_values * weight[place] * value for place, value in values.items()]
        return gradient(torch.stack(terms).sum())

    training_set = policy.sources["policy"].training_set(rollout)
    packed = training_set.table.packed(training_set.sequences)
    batch, rows = training_set._batch(packed, None), packed.rows
    logit, value = policy.model.compute_actor_critic(batch.obs)
    mine = gradient((weight.flatten()[rows] * (logit.square().sum(-1) + of_values * value)).sum())
    expected = of_episodes(lambda rows, begins: begins)
    assert float((mine - expected).norm() / expected.norm()) < 1e-6
    without_reset = of_episodes(lambda rows, begins: False)
    assert float((mine - without_reset).norm() / expected.norm()) > 1e-2


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [SeededEnv, SeededBox])
def test_the_ratio_of_the_first_minibatch_is_one(kind, world):
    policy, collector = with_memory(kind, world, autoreset="next_step")
    for _ in range(3):
        rollout = collector.collect()
        batch = next(policy.minibatches(rollout))
        dist = policy.distribution(batch.obs, policy.model.compute_actor(batch.obs))
        ratio = (dist.log_prob(batch.action) - batch.log_prob).exp()
        assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-4)
        assert len(ratio) > 1
        policy.learn_mode.forward(rollout)


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", KINDS)
def test_poisoned_fillers_leave_the_whole_state_bit_equal(kind):
    policy, collector = with_memory(kind, autoreset="next_step", learn=dict(burn_in=2))
    policy.learn_mode.forward(collector.collect())
    collector.mode = collector.mode._replace(get_train_sample=lambda rollout: rollout)
    rollout = to_dict(collector.collect())
    poisoned = map_tree(torch.clone, rollout)
    assert not rollout["valid"].all()
    for name in ("obs", "reward", "log_prob", "acting_value"):
        poisoned[name][~rollout["valid"]] = float("nan")
    learned = []
    for fields in (rollout, poisoned):
        other = copy.deepcopy(policy)
        sample = other.collect_mode.get_train_sample(as_rollout(map_tree(torch.clone, fields)))
        other.learn_mode.forward(sample)
        other.learn_mode.forward(
            other.collect_mode.get_train_sample(as_rollout(map_tree(torch.clone, rollout)))
        )
        # Buffers keep the poison, and must not learn from it in the next iteration either.
        state = {name: part for name, part in other.state_dict().items() if "buffer" not in name}
        state.get("auxiliary", {}).pop("memory", None)
        learned.append(digest(state))
    assert learned[0] == learned[1]


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [dict(n_episode=8), {}], ids=["whole episodes", "steps"])
def test_every_policy_learns_and_a_resumed_run_ends_bit_equal(kind, options, tmp_path):
    aux = {"aux_freq": 2, "aux_train_epoch": 2} if kind.startswith("ppg") else {}
    config = dict(
        num_threads=1,
        max_env_step=10_000,
        env=dict(type=SeededEnv, collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=2),
        policy=dict(
            type=kind,
            model=dict(rnn="lstm", rnn_hidden_size=8, encoder_hidden_size_list=[8]),
            collect=dict(n_sample=64, **options),
            learn=dict(batch_size=16, sequence_length=6, burn_in=2) | aux,
            normalize=dict(obs=True, reward=True),
            eval=dict(eval_freq=100),
        ),
    )

    def trained(folder, *limits):
        pipeline = SerialPipeline(config, folder=tmp_path / folder, max_train_iter=limits[0])
        for _ in pipeline:
            pass
        for limit in limits[1:]:
            pipeline = SerialPipeline.resume(tmp_path / folder, max_train_iter=limit, trust=["small_worlds"])
            for _ in pipeline:
                pass
        return pipeline

    straight, resumed = trained("straight", 60), trained("resumed", 25, 60)
    for part in ("policy", "collector", "learner"):
        assert digest(straight.state_dict()[part]) == digest(resumed.state_dict()[part])
    assert "memories" in straight.state_dict()["collector"]


def test_the_memory_is_that_of_each_environment_with_two_halves(tmp_path):
    """Every second environment is stepped while the others wait; the memories stay with theirs."""
    config = dict(
        num_threads=1,
        env=dict(type=SeededEnv, collector_env_num=4, manager=dict(type="subprocess", double_buffer=True)),
        policy=dict(
            model=dict(rnn="gru", rnn_hidden_size=6, encoder_hidden_size_list=[8]),
            collect=dict(n_sample=64),
            learn=dict(sequence_length=5),
        ),
    )
    pipeline = SerialPipeline(config, folder=tmp_path / "run")
    try:
        assert len(pipeline.collector.envs.groups) == 2
        for _ in range(2):
            rollout = pipeline.collector.collect()
            values = pipeline.policy.rollout_values(rollout)
            assert torch.allclose(values[rollout.valid], rollout.value[rollout.valid], atol=1e-5)
    finally:
        pipeline.close()


def test_act_remembers_until_it_is_reset(tmp_path):
    policy, collector = with_memory()
    obs = collector.collect().obs.numpy()
    single = [policy.act(row[0], deterministic=True) for row in obs]
    policy.reset()
    batch = [policy.act(row, deterministic=True) for row in obs]
    assert [actions[0] for actions in batch] == single
    policy.reset()
    assert [policy.act(row[0]) for row in obs] == single
    with pytest.raises(ContractError, match="reset"):
        policy.act(obs[0])
    policy.reset()
    policy.act(obs[0])
    # Of a batch, single episodes begin; the others go on.
    state = copy.deepcopy(policy._state_of_act)
    policy.reset(np.array([False, True, False, False]))
    h = policy._state_of_act["actor"]["h"]
    assert (h[1] == 0).all()
    assert torch.equal(h[[0, 2, 3]], state["actor"]["h"][[0, 2, 3]])


@pytest.mark.parametrize("mode", ["collect_mode", "eval_mode"])
@pytest.mark.parametrize("as_given", [list, torch.tensor], ids=["list", "tensor"])
def test_modes_begin_the_memories_that_first_names(mode, as_given):
    policy, collector = with_memory()
    rows = collector.collect().obs.numpy()
    forward = getattr(policy, mode).forward
    state = forward(rows[0], policy.memory.initial_state(4))["state"]
    initial, first = policy.memory.initial_state(4), [False, True, False, True]
    begun = begin_episodes(state, np.array(first), initial)

    def after(*given):
        return digest(forward(rows[1], *given)["state"])

    assert after(state, as_given(first)) == after(begun) != after(state)
    assert after(None, as_given(first)) == after(initial)


def test_an_observation_that_is_not_finite_does_not_reach_the_memory():
    policy, collector = with_memory()
    obs = collector.collect().obs.numpy()[0]
    first = policy.act(obs)
    state = copy.deepcopy(policy._state_of_act)
    for bad in (np.nan, np.inf):
        with pytest.raises(ContractError, match="not finite"):
            policy.act(np.where(np.arange(obs.size).reshape(obs.shape) == 1, bad, obs).astype(obs.dtype))
    assert digest(policy._state_of_act) == digest(state)
    assert len(first) == len(obs)


@pytest.mark.parametrize(
    ("length", "collect", "said"),
    [
        (7, {}, "7 steps"),
        (20, {}, "20 steps"),
        (64, {}, "20 steps"),  # of each environment in a rollout
        (64, dict(n_sample=4), "1 step"),
        (64, dict(n_episode=4), "64 steps"),
    ],
)
def test_the_first_lines_of_a_run_name_the_length_of_sequences(length, collect, said):
    model = dict(rnn="gru", rnn_hidden_size=6, encoder_hidden_size_list=[8])
    learn = dict(sequence_length=length, batch_size=4)
    policy = dict(model=model, collect=dict(n_sample=80) | collect, learn=learn)
    cfg = compile_config(small_config(SeededEnv, policy=policy)).values
    envs = vector_of(lambda index: SeededEnv(), cfg.env.collector_env_num)
    policy = PPOPolicy(cfg.policy, envs.obs_space, envs.action_space)
    collector = Collector(
        envs, policy.collect_mode, cfg.policy.collect.n_sample, cfg.policy.collect.n_episode
    )
    assert f"memory: learned from in sequences of {said}" in description(cfg, policy, collector)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (dict(learn=dict(burn_in=7)), "policy.learn.burn_in"),
        (dict(collect=dict(unroll_len=4)), "policy.collect.unroll_len"),
        (dict(learn=dict(compile=True)), "policy.learn.compile"),
    ],
)
def test_keys_that_do_not_go_with_a_memory_are_refused(options, key):
    with pytest.raises(ConfigError, match=key):
        with_memory(**options)


def repeat_first(kind, rnn, folder, steps=100_000):
    """Returns the mean return on RepeatFirst after training."""
    learn = dict(batch_size=512, learning_rate=1e-3)
    epochs = (
        ("epoch_per_collect",) if kind == "ppo" else ("actor_epoch_per_collect", "critic_epoch_per_collect")
    )
    learn |= dict.fromkeys(epochs, 4)
    config = dict(
        num_threads=1,
        max_env_step=steps,
        env=dict(
            type="memory_env:RepeatFirst",
            collector_env_num=16,
            evaluator_env_num=10,
            n_evaluator_episode=50,
            stop_value=0.955,
        ),
        policy=dict(
            type=kind,
            model=dict(rnn=rnn, rnn_hidden_size=64, encoder_hidden_size_list=[64]),
            collect=dict(n_sample=2048),
            learn=learn,
            eval=dict(eval_freq=8192),
        ),
    )
    pipeline = SerialPipeline(config, folder=folder)
    for _ in pipeline:
        pass
    return pipeline.scores.last.mean


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rnn"), [("ppo", "lstm"), ("ppg", "gru")])
def test_the_first_observation_is_remembered_and_not_without_memory(kind, rnn, tmp_path):
    assert repeat_first(kind, rnn, tmp_path / "with") > 0.95
    assert repeat_first(kind, None, tmp_path / "without", steps=40_000) < 0.5


def grown(kind, grid, folder):
    """Trains a run with sequences of ``grid``."""
    length, burn_in = grid
    learn = dict(batch_size=16, sequence_length=length, burn_in=burn_in)
    learn |= dict(aux_freq=3, aux_train_epoch=1) if kind.startswith("ppg") else {}
    config = dict(
        num_threads=1,
        max_env_step=128,
        env=dict(type=SeededEnv, collector_env_num=4, evaluator_env_num=1, n_evaluator_episode=1),
        policy=dict(
            type=kind,
            model=dict(rnn="gru", rnn_hidden_size=6, encoder_hidden_size_list=[8]),
            collect=dict(n_sample=64),
            learn=learn,
            eval=dict(eval_freq=0),
        ),
    )
    for _ in SerialPipeline(config, folder=folder):
        pass


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["ppo_offpolicy", "ppg"])
@pytest.mark.parametrize("change", [{"sequence_length": 14}, {"sequence_length": 5}, {"burn_in": 3}])
def test_sequences_of_another_length_do_not_continue_stored_memories(kind, change, tmp_path):
    grown(kind, (7, 0), tmp_path / "run")
    changes = {f"policy.learn.{name}": value for name, value in change.items()}
    resume = dict(changes={**changes, "max_env_step": 256}, trust=["small_worlds"])
    with pytest.raises(ConfigError, match=next(iter(changes))):
        SerialPipeline.resume(tmp_path / "run", **resume)
    pipeline = SerialPipeline.resume(tmp_path / "run", override=True, **resume)
    policy = pipeline.policy
    if kind == "ppg":
        assert policy.auxiliary.stored.size == 0
    else:
        assert policy.sources["policy"].buffer.data is None
    for progress in pipeline:
        assert progress.metrics["learn/updates"] > 0


@pytest.mark.parametrize(("shown", "first"), [(4, [True]), (1, [True, False]), (4, [True, False])])
def test_a_reset_of_another_number_of_episodes_is_refused(shown, first):
    policy, collector = with_memory()
    policy.act(np.zeros((shown, *policy.obs_space.shape), np.float32))
    with pytest.raises(ContractError, match=rf"\({shown},\)"):
        policy.reset(np.array(first))


def test_a_rollout_without_memories_is_refused():
    policy, _ = with_memory()
    _, collector = trainee("ppo")
    with pytest.raises(ContractError, match="last_memory"):
        policy.collect_mode.get_train_sample(collector.collect())


def test_network_calls_over_a_rollout_are_bounded_in_bytes(monkeypatch):
    policy, collector = with_memory()
    rollout = policy.collect_mode.get_train_sample(collector.collect())
    whole, sizes = policy.rollout_values(rollout), []
    critic = policy.model.compute_critic
    policy.model.compute_critic = lambda inputs: (sizes.append(len(inputs.obs)), critic(inputs))[1]
    monkeypatch.setattr("ding_lite.policies.memory.CHUNK_BYTES", 10 * 4 * 3)  # of 10 samples
    torch.testing.assert_close(policy.rollout_values(rollout), whole)
    assert len(sizes) > 3
    assert max(sizes) < 20


def test_an_interrupted_step_begins_the_memory_of_an_episode_that_it_ended(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    policy, collector = with_memory()
    collector.collect()
    begun = 0
    for _ in range(10):
        with monkeypatch.context() as patch:
            patch.setattr(collector, "_finish_row", interrupt)
            with pytest.raises(KeyboardInterrupt):
                collector.collect()
        assert collector._pending[0] is not None, "sent, and not received"
        collector._begin_rollout()
        begins = collector.obs[0][:, 0] == 0  # SeededEnv counts its steps
        (memory,) = tree_leaves(collector.memories.of_groups[0])[:1]
        assert (memory.flatten(1) == 0).all(1).tolist() == begins.tolist()
        begun += int(begins.sum())
    assert begun > 0


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ppo", dict(learn=dict(sequence_length=5))),
        ("ppg", dict(model=dict(arch="detach"), learn=dict(aux_freq=1))),
        ("ppg", dict(model=dict(arch="shared"), learn=dict(sequence_length=4, burn_in=3))),
    ],
)
def test_check_policy_passes_with_every_length_and_arch(kind, options):
    check_policy(kind, merged(dict(model=dict(rnn="gru", rnn_hidden_size=6)), options), learns=False)


def test_a_loaded_policy_remembers(tmp_path):
    config = dict(
        max_env_step=128,
        env=dict(type=SeededEnv, collector_env_num=4, evaluator_env_num=1, n_evaluator_episode=1),
        policy=dict(model=dict(rnn="gru", rnn_hidden_size=8), collect=dict(n_sample=64)),
    )
    pipeline = SerialPipeline(config, folder=tmp_path / "run")
    for _ in pipeline:
        pass
    loaded = load_policy(tmp_path / "run")
    obs = gym.spaces.Box(-1, 1, pipeline.policy.obs_space.shape, np.float32)
    for _ in range(5):
        seen = obs.sample()
        loaded.act(seen)
        pipeline.policy.act(seen)
    mine, theirs = (digest(p._state_of_act) for p in (loaded, pipeline.policy))
    assert mine == theirs


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "command", [["eval", "run", "-n", "2", "--json"], ["eval", "run", "-n", "2", "--json", "--stochastic"]]
)
def test_a_trained_memory_is_evaluated_by_the_command_line(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["policy.collect.n_sample=128", "env.n_evaluator_episode=1", "policy.model.rnn_hidden_size=8"]
    train = ["train", "--env", "CartPole-v1", "--exp-name", "run", "--max-env-step", "256", "-q"]
    assert main([*train, "policy.model.rnn=gru", *small]) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("rnn", ["lstm", "gru"])
def test_the_value_after_a_cut_is_that_with_the_memory_of_its_episode(rnn, autoreset):
    """With lambda 0 and gamma 1 the target of a row is its reward and the value that follows it."""
    collect = dict(gae_lambda=0.0, discount_factor=1.0)
    policy, collector = with_memory(
        rnn=rnn, autoreset=autoreset, learn=dict(value_norm=False), collect=collect
    )
    collector.collect()
    rollout = collector.collect()
    final = rollout.final
    cut = {(t, b): k for k, (t, b) in enumerate(zip(final.t.tolist(), final.env.tolist(), strict=True))}
    begin, value_of = policy.memory.initial_state(4), lambda obs, state: policy.memory._step(obs, state)[1][1]
    state, expected, forgetful = map_tree(lambda leaf: leaf[0], rollout.memory), {}, {}
    steps = len(rollout.valid)
    with torch.no_grad():
        for t in range(steps):
            _, (_, _, after) = policy.memory._step(rollout.obs[t], state)
            done = rollout.terminated[t] | rollout.truncated[t]
            for b in range(4):
                mine = map_tree(lambda leaf, b=b: leaf[b : b + 1], after)
                if rollout.truncated[t, b] and rollout.valid[t, b]:
                    obs = final.obs[cut[t, b]][None]
                elif t == steps - 1 and rollout.valid[t, b] and not done[b]:
                    obs = rollout.last_obs[b][None]
                else:
                    continue
                if rollout.terminated[t, b]:
                    continue
                expected[t, b] = rollout.reward[t, b] + value_of(obs, mine)[0]
                forgetful[t, b] = rollout.reward[t, b] + value_of(obs, None)[0]
            state = begin_episodes(after, (done | ~rollout.valid[t]).numpy(), begin)
    assert {t == steps - 1 for t, _ in expected} == {True, False}
    found, right, wrong = (
        torch.stack([each[place] for place in expected])
        for each in (rollout.value_target, expected, forgetful)
    )
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)
    assert (right - wrong).abs().min() > 1e-4, "memories do not matter here"


@pytest.mark.parametrize("mode", ["minibatch", "batch", False])
def test_advantages_of_sequences_are_normalised_where_the_mode_says(mode):
    policy, collector = with_memory(learn=dict(adv_norm=mode))
    rollout = collector.collect()
    advantages = [batch.advantage for batch in policy.minibatches(rollout)]
    assert len(advantages) > 2
    for some, told in ((advantages, "minibatch"), ([torch.cat(advantages)], "batch")):
        normal = all(
            abs(float(a.mean())) < 1e-5 and float(a.std(correction=0)) == pytest.approx(1, abs=1e-4)
            for a in some
        )
        assert normal == (mode == told or (mode == "minibatch" and told == "batch"))


def marked(kind, **options):
    policy, collector = with_memory(kind, **options)
    count = iter(range(100))

    def collect():
        rollout = collector.collect()
        size = rollout.valid.numel()
        rollout.mark = 1000 * next(count) + torch.arange(size).view(rollout.valid.shape)
        return rollout

    return policy, collect


def test_a_pass_has_each_sample_once_and_an_order_of_its_own():
    policy, collect = marked("ppo", autoreset="next_step", learn=dict(epoch_per_collect=3))
    rollout = collect()
    seen, plain = [], policy.loss
    policy.loss = lambda batch: (seen.append(batch.mark), plain(batch))[1]
    told = policy.learn_mode.forward(rollout)
    passes = torch.cat(seen).split(int(rollout.valid.sum()))
    assert told["epochs"] == len(passes) == 3
    for one in passes:
        assert one.sort().values.tolist() == rollout.mark[rollout.valid].tolist()
    assert not torch.equal(passes[0], passes[1])


def test_old_sequences_are_drawn_as_often_as_the_limits_allow():
    max_use = 2
    policy, collect = marked(
        "ppo_offpolicy",
        autoreset="next_step",
        learn=dict(reuse=1.4),
        other=dict(replay_buffer=dict(max_use=max_use, max_staleness=3)),
    )
    seen, plain, uses, ages = [], policy.loss, {}, set()
    policy.loss = lambda batch: (seen.extend(batch.mark.tolist()), plain(batch))[1]
    for iteration in range(6):
        seen.clear()
        rollout = collect()
        uses |= dict.fromkeys(rollout.mark[rollout.valid].tolist(), 0)
        policy.learn_mode.forward(rollout)
        for mark in seen:
            uses[mark] += 1  # a KeyError: a filler was drawn
        ages |= {iteration - mark // 1000 for mark in seen}
        buffer = policy.buffers["policy"]
        marks, counts = buffer.data.mark[buffer.data.valid], buffer.uses[buffer.data.valid]
        assert {m: uses[m] for m in marks.tolist()} == dict(zip(marks.tolist(), counts.tolist(), strict=True))
        assert max(uses.values()) <= max_use
    assert len(ages) > 1
    assert max(uses.values()) == max_use


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_targets_of_stored_sequences_are_those_of_the_latest_recomputation(separate, joined):
    kept = dict(max_use=20, max_staleness=9, replay_buffer_size=10_000)
    policy, collector = with_memory(
        "ppg_offpolicy",
        autoreset="next_step",
        learn=dict(aux_freq=9, critic_epoch_per_collect=1 + separate, learning_rate=0.01),
        other=dict(replay_buffer=dict(policy=kept, value=kept)),
    )
    collected = []
    for _ in range(3):
        rollout = collector.collect()
        collected.append(rollout.value_target.clone())
        policy.learn_mode.forward(rollout)
        if joined:
            policy.auxiliary.stored.table()  # as one wide rollout
    buffer = policy.buffers["value" if separate else "policy"].data
    stored = policy.auxiliary.stored.data
    assert torch.equal(stored.valid, buffer.valid)
    assert torch.equal(stored.obs[stored.valid], buffer.obs[buffer.valid])
    assert torch.equal(stored.value_target[stored.valid], buffer.value_target[buffer.valid])
    difference = (stored.value_target - torch.cat(collected, 1)).abs()
    columns = collected[0].shape[1]
    assert all(part[:, :].max() > 1e-3 for part in difference.split(columns, 1)[:2]), "nothing was renewed"


class Marked(PPGPolicy):
    auxiliary_fields = ("mark",)


@pytest.mark.daily(2)
@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_auxiliary_sequences_serve_each_epoch_once_with_their_own_targets_and_old_policy(
    parts, burn_in, monkeypatch
):
    options = dict(model=dict(rnn="gru", rnn_hidden_size=6))
    learn = dict(
        sequence_length=7,
        burn_in=burn_in,
        aux_freq=2,
        aux_train_epoch=2,
        aux_batch_size=24,
        aux_grad_accum=parts,
    )
    options["normalize"] = dict(obs="initial")
    policy, collector = trainee("ppg", n_sample=80, autoreset="next_step", cls=Marked, learn=learn, **options)
    policy.warm_up(3 + 5 * torch.randn(256, 3, generator=torch.Generator().manual_seed(0)))
    auxiliary, plain, seen, told = policy.auxiliary, policy.auxiliary.loss, [], []

    def spy(batch):
        seen.append(batch)
        loss, terms = plain(batch)
        return loss, {**terms, "one": torch.ones(()), "mark": batch.mark.double().mean()}

    auxiliary.loss, take = spy, GradientSteps.take

    def taken(steps, loss, *batches, remake):
        if loss is spy:  # the parts are the minibatch: each sample of it counts as much as another
            whole, in_parts = (
                gradient_of(auxiliary.optimizer, plain, *minibatch) for minibatch in ([remake()], batches)
            )
            torch.testing.assert_close(in_parts.values, whole.values, rtol=1e-4, atol=1e-6)
            told.append(take(steps, loss, *batches, remake=remake))
            return told[-1]
        return take(steps, loss, *batches, remake=remake)

    monkeypatch.setattr(GradientSteps, "take", taken)
    old_logits, old = auxiliary.old_logits, []
    auxiliary.old_logits = lambda: (old.append(old_logits()), old[0])[1]
    obs, targets, marks, valid = [], [], [], []
    for k in range(2):
        rollout = collector.collect()
        rollout.mark = 1000 * k + torch.arange(rollout.valid.numel()).view(rollout.valid.shape)
        for kept, name in ((obs, "obs"), (targets, "value_target"), (marks, "mark")):
            kept.append(rollout[name].clone())
        valid.append(rollout.valid.clone())
        policy.learn_mode.forward(rollout)
    obs, targets, marks, valid = (torch.cat(x, 1).flatten(0, 1) for x in (obs, targets, marks, valid))
    place_of = {int(mark): place for place, mark in enumerate(marks)}
    assert not valid.all()
    for batch in seen:
        place = torch.tensor([place_of[int(mark)] for mark in batch.mark])
        learned = batch.obs.obs if batch.obs.kept is None else batch.obs.obs[batch.obs.kept]
        assert torch.equal(policy.scaled(obs[place]), learned)
        torch.testing.assert_close(batch.value_target, policy.normalized_values(targets[place]))
        assert torch.equal(batch.old_logit, old[0][place])
    drawn = torch.cat([batch.mark for batch in seen]).split(int(valid.sum()))
    assert len(drawn) == 2
    for one in drawn:
        assert one.sort().values.tolist() == sorted(marks[valid].tolist())
    assert not torch.equal(*drawn)
    assert len(told) == len(seen) / parts
    for k, metrics in enumerate(told):
        minibatch = torch.cat([batch.mark for batch in seen[k * parts : (k + 1) * parts]])
        assert float(metrics["one"]) == pytest.approx(1)
        assert float(metrics["mark"]) == pytest.approx(float(minibatch.double().mean()), rel=1e-6)
    sizes = {len(batch.mark) for batch in seen}
    assert len(sizes) > 1, "with parts of one size a share of another kind would not be seen"


def test_the_first_auxiliary_minibatch_of_sequences_is_of_the_old_policy():
    """Before the first step the KL to the old policy is 0, whatever the order of the samples."""
    policy, collector = with_memory("ppg", learn=dict(aux_freq=1, aux_train_epoch=1))
    plain, kls = policy.auxiliary.loss, []

    def spy(batch):
        total, terms = plain(batch)
        kls.append(float(terms["behavioral_cloning_loss"].detach()))
        return total, terms

    policy.auxiliary.loss = spy
    policy.learn_mode.forward(collector.collect())
    assert kls[0] == pytest.approx(0, abs=1e-6)
    assert kls[-1] > 1e-5


def test_values_and_logits_are_those_of_a_step_by_step_network_in_the_scales_of_the_policy():

    policy, collector = with_memory(normalize=dict(obs=True), learn=dict(learning_rate=1e-4))
    policy.warm_up(3 + 5 * torch.randn(256, 3, generator=torch.Generator().manual_seed(0)))
    for _ in range(2):
        policy.learn_mode.forward(collector.collect())
    assert abs(float(policy.value_norm.std) - 1) > 0.1
    rollout = collector.collect()
    scaled = as_rollout({**to_dict(rollout), "obs": policy.scaled(rollout.obs)})
    with torch.no_grad():
        logits, values = step_by_step(policy.model, scaled)
    raw = {place: policy.denormalized_values(value) for place, value in values.items()}
    assert close(rollout.value, raw, 1e-3), "values while acting"
    assert close(policy.rollout_values(rollout), raw, 1e-3), "values along sequences"
    assert close(policy.rollout_logits(rollout), logits, 1e-4)


def test_greedy_actions_depend_on_what_came_before():
    policy, collector = with_memory()
    obs = collector.collect().obs[:, 0]
    found = [policy.act(row.numpy(), deterministic=True) for row in obs]
    state, expected, forgetful = None, [], []
    start = policy.action_space.start
    for row in obs:
        with torch.no_grad():
            forgetful.append(int(policy.memory._step(row[None], None)[1][0].argmax() + start))
            _, (logit, _, state) = policy.memory._step(row[None], state)
        expected.append(int(logit.argmax() + start))
    assert found == expected != forgetful


@pytest.mark.parametrize("collect", [{}, {"n_episode": 8}], ids=["steps", "whole episodes"])
def test_memories_stay_with_their_columns_in_a_buffer(collect):
    """Nothing is learned, so log-probs along the sequences of old rollouts are those of their collection."""
    kept = dict(max_use=9, max_staleness=9)
    policy, collector = with_memory(
        "ppo_offpolicy", autoreset="next_step", collect=collect, other=dict(replay_buffer=kept)
    )
    source = policy.sources["policy"]
    for _ in range(3):
        source.push(collector.collect())
        source.buffer.end_iteration()
    data = source.buffer.data
    assert len(data.memory.actor.h) > 1
    rows = data.valid.flatten().nonzero().squeeze(-1)
    found = policy.rollout_log_probs(data, rows)
    torch.testing.assert_close(found, data.log_prob.flatten()[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
def test_update_per_collect_is_the_number_of_steps_on_sequences(steps):
    policy, collector = with_memory(
        "ppo_offpolicy", learn=dict(update_per_collect=steps), other=dict(replay_buffer=dict(max_use=50))
    )
    for _ in range(2):
        assert policy.learn_mode.forward(collector.collect())["updates"] == steps


@pytest.mark.daily(1)
@pytest.mark.parametrize("batch_size", [4, 16])
@pytest.mark.parametrize("rnn", [None, "lstm"])
def test_transitions_are_drawn_as_often_as_asked_for_also_in_whole_sequences(rnn, batch_size, monkeypatch):
    learn = dict(sequence_length=16, reuse=2.0, batch_size=batch_size)
    options = dict(learn=learn, other=dict(replay_buffer=dict(max_use=30)), model=dict(rnn=rnn))
    policy, collector = trainee("ppo_offpolicy", SeededBox, n_sample=128, **options)
    buffer, drawn, use = policy.buffers["policy"], [], policy.buffers["policy"].use
    monkeypatch.setattr(buffer, "use", lambda place: drawn.append(len(place)) or use(place))
    collected = 0
    for _ in range(8):
        rollout = collector.collect()
        collected += int(rollout.valid.sum())
        policy.learn_mode.forward(rollout)
    assert sum(drawn) / collected == pytest.approx(2.0, rel=0.25)
