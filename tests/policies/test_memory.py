"""Recurrent policies: what they compute along runs is what they compute step by step."""

import copy

import numpy as np
import pytest
import torch
from small_worlds import SeededEnv
from worlds import digest, finished, merged, trainee

from ding_lite import SerialPipeline, check_policy
from ding_lite.errors import ContractError


def recurrent(kind="ppo", world=SeededEnv, rnn="lstm", autoreset="same_step", **policy):
    """Returns a policy whose weights are large enough for its hidden state to matter."""
    options = dict(model=dict(rnn=rnn, rnn_hidden_size=6), learn=dict(sequence_length=7))
    policy, collector = trainee(kind, world, 80, 4, autoreset=autoreset, **merged(options, policy))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".rnn." in name or "head" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy, collector


def test_act_remembers_until_it_is_reset():
    policy, collector = recurrent()
    obs = collector.collect().obs.numpy().copy()
    single = [policy.act(row[0], deterministic=True) for row in obs]
    policy.reset()
    batch = [policy.act(row, deterministic=True) for row in obs]
    assert [actions[0] for actions in batch] == single
    policy.reset()
    assert [policy.act(row[0]) for row in obs] == single
    forgetful = []
    for row in obs:
        policy.reset()
        forgetful.append(policy.act(row[0]))
    assert forgetful != single
    policy.reset()
    policy.act(obs[0])
    # Of a batch, single episodes begin; the others go on. What is not finite reaches none.
    hidden = copy.deepcopy(policy._hidden_of_act)
    with pytest.raises(ContractError, match="not finite"):
        policy.act(np.full_like(obs[0], np.nan))
    assert digest(policy._hidden_of_act) == digest(hidden)
    with pytest.raises(ContractError, match=r"got 1 observation, and remembers 4 episodes; reset"):
        policy.act(obs[0, 0])
    policy.reset(np.array([False, True, False, False]))
    h = policy._hidden_of_act["actor"]["h"]
    assert (h[1] == 0).all()
    assert torch.equal(h[[0, 2, 3]], hidden["actor"]["h"][[0, 2, 3]])
    policy.reset(np.array([True]))  # all begin, so their number may change
    assert policy.act(obs[0, 0]) == single[0]


def test_network_calls_over_a_rollout_are_bounded_in_bytes(monkeypatch):
    policy, collector = recurrent()
    rollout = collector.collect()
    del rollout.value  # which the network gave as it acted
    whole, sizes = policy.credit(rollout)["value"], []
    critic = policy.model.compute_critic
    policy.model.compute_critic = lambda inputs: (sizes.append(len(inputs.obs)), critic(inputs))[1]
    monkeypatch.setattr("ding_lite.data.samples.CHUNK_BYTES", 10 * 4 * 3)  # of 10 samples
    torch.testing.assert_close(policy.credit(rollout)["value"], whole)
    assert len(sizes) > 3
    assert max(sizes) < 20


def test_hidden_states_stay_with_their_rows_in_a_buffer():
    """Nothing is learned, so log-probs along the runs of old rollouts are those of their collection."""
    limits = dict(max_use=9, max_staleness=9, replay_buffer_size=10_000)
    policy, collector = recurrent("ppo_offpolicy", autoreset="next_step", other=dict(replay_buffer=limits))
    for _ in range(3):
        policy.begin_replay(collector.collect(), policy.replay)
        policy.replay.end_iteration()
    assert len(policy.replay.rollouts) == 3
    for stored in policy.replay.rollouts:
        rollout, valid = stored.rollout, stored.rollout.valid
        found = policy.over_rollout(policy.log_prob, rollout, "action")
        torch.testing.assert_close(found[valid], rollout.log_prob[valid], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rnn", [None, "lstm"])
def test_transitions_are_drawn_as_often_as_asked_for_also_in_whole_runs(rnn):
    learn = dict(sequence_length=16, reuse=2.0, batch_size=16)
    options = dict(learn=learn, other=dict(replay_buffer=dict(max_use=30)), model=dict(rnn=rnn))
    policy, collector = trainee("ppo_offpolicy", n_sample=128, **options)
    drawn, use, collected = [], policy.replay.use, 0
    policy.replay.use = lambda place: drawn.append(len(place)) or use(place)
    for _ in range(8):
        rollout = collector.collect()
        collected += int(rollout.valid.sum())
        policy.learn_mode.forward(rollout)
    assert sum(drawn) / collected == pytest.approx(2.0, rel=0.25)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ppo", dict(learn=dict(sequence_length=5))),
        ("ppg", dict(model=dict(arch="detach"), learn=dict(aux_freq=1))),
        ("ppg_offpolicy", dict(model=dict(arch="shared"), learn=dict(sequence_length=4))),
    ],
)
def test_check_policy_passes_with_every_length_and_arch(kind, options):
    options = merged(dict(model=dict(rnn="gru", rnn_hidden_size=6)), options)
    check_policy(kind, options, learns=False, action_spaces=["Discrete", "Dict"])


@pytest.mark.slow
def test_the_first_observation_is_remembered_and_not_without_a_recurrent_network(tmp_path):
    def mean_return(rnn, folder, steps):
        worlds = dict(collector_env_num=16, evaluator_env_num=10, n_evaluator_episode=50, stop_value=0.955)
        config = dict(
            num_threads=1,
            max_env_step=steps,
            env=dict(type="memory_env:RepeatFirst", kwargs=dict(length=8), **worlds),
            policy=dict(
                model=dict(rnn=rnn, rnn_hidden_size=64, encoder_hidden_size_list=[64]),
                collect=dict(n_sample=2048),
                learn=dict(batch_size=512, learning_rate=1e-3, epoch_per_collect=4),
                eval=dict(eval_freq=8192),
            ),
        )
        return finished(SerialPipeline(config, folder=folder)).progress.eval_value

    # Six seeds of six need 41,000 to 57,000 steps; with episodes of 20 steps, seed 2 learns nothing in all.
    assert mean_return("lstm", tmp_path / "with", 100_000) > 0.95
    assert mean_return(None, tmp_path / "without", 16_000) < 0.5
