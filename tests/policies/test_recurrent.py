"""Policies with memory: what they compute along sequences is what they compute step by step."""

import copy
import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import digest, merged, small_config, trainee, vector_of

from ding_lite import PPOPolicy, SerialPipeline, check_policy, compile_config, load_policy
from ding_lite.cli import main
from ding_lite.data.collector import Collector
from ding_lite.data.hidden import begin_episodes
from ding_lite.data.rollout import as_rollout
from ding_lite.errors import ConfigError, ContractError
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
