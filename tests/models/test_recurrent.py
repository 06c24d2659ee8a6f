"""Recurrent layers: packed sequences against torch's own loop and against steps, and their first biases."""

import gymnasium as gym
import pytest
import torch

from ding_lite.models import PPG, init
from ding_lite.models.recurrent import RecurrentLayer, Sequences, single_steps
from ding_lite.trees import map_tree

LENGTHS = [4, 3, 1]
SIZES = torch.tensor([3, 2, 2, 1])


def packed(episodes):
    return torch.cat([torch.stack([e[t] for e in episodes if len(e) > t]) for t in range(len(episodes[0]))])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_sequences_are_those_that_torch_runs_one_by_one(kind, layers):
    torch.manual_seed(0)
    layer = RecurrentLayer(kind, features=3, hidden_size=5, layers=layers)
    episodes = [torch.randn(n, 3) for n in LENGTHS]
    hidden = {name: torch.randn(3, layers, 5) for name in layer.initial_hidden(1)}
    output, after = layer(packed(episodes), dict(reversed(hidden.items())), SIZES)
    expected = []
    for s, episode in enumerate(episodes):
        before = tuple(hidden[name][s].unsqueeze(1) for name in ("h", "c") if name in hidden)
        of_torch, last = layer.rnn(episode.unsqueeze(1), before if len(before) > 1 else before[0])
        expected.append(of_torch[:, 0])
        for name, tensor in zip(("h", "c"), last if isinstance(last, tuple) else (last,), strict=False):
            torch.testing.assert_close(after[name][s], tensor[:, 0])
    torch.testing.assert_close(output, packed(expected))


def test_padded_sequences_have_the_outputs_and_gradients_of_packed_ones(monkeypatch):
    torch.manual_seed(0)
    layer = RecurrentLayer("lstm", features=3, hidden_size=5, layers=2)
    features = torch.randn(int(SIZES.sum()), 3, requires_grad=True)
    hidden = {name: torch.randn(3, 2, 5) for name in ("h", "c")}
    padded = []
    layer.rnn.register_forward_pre_hook(lambda _, args: padded.append(isinstance(args[0], torch.Tensor)))
    leaves, weight = [features, *layer.parameters()], torch.randn(int(SIZES.sum()), 5)
    found = []
    for most_padded in (5, 0):
        monkeypatch.setattr("ding_lite.models.recurrent.MOST_PADDED", most_padded)
        output = layer.outputs(features, hidden, SIZES)
        found.append((output, torch.autograd.grad((weight * output).sum(), leaves)))
    assert padded == [True, False]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arch", ["dual", "shared", "detach"])
@pytest.mark.parametrize("rnn", ["lstm", "gru"])
def test_a_model_along_sequences_is_the_model_step_by_step(rnn, arch):
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (3,))
    model = PPG(space, gym.spaces.Discrete(2), arch=arch, rnn=rnn, rnn_hidden_size=5, init="torch")
    episodes = [torch.randn(n, 3) for n in LENGTHS]
    hidden = map_tree(lambda x: torch.randn(x.shape), model.initial_hidden(3))
    along = Sequences(packed(episodes), hidden, SIZES)
    logits, values = [], []
    for t, count in enumerate(SIZES.tolist()):
        obs = torch.stack([e[t] for e in episodes[:count]])
        logit, value, hidden = model.step(single_steps(obs, map_tree(lambda x, n=count: x[:n], hidden)))
        logits.append(logit)
        values.append(value)
    logit, _, value = model.compute_auxiliary(along)
    torch.testing.assert_close(logit, torch.cat(logits))
    torch.testing.assert_close(value, torch.cat(values))
    torch.testing.assert_close((logit, value), model.compute_actor_critic(along))
    torch.testing.assert_close((logit, value), (model.compute_actor(along), model.compute_critic(along)))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_units_remember_one_to_timescale_steps(kind):
    """A unit whose gate keeps the share s of its content at a step remembers 1 / (1 - s) steps."""
    layer = RecurrentLayer(kind, features=2, hidden_size=8, layers=2)
    init.orthogonal(layer, 1.0)
    init.chrono(layer, 30)
    spans = []
    for k in range(2):
        bias = getattr(layer.rnn, f"bias_ih_l{k}").detach()
        spans += (1 / (1 - torch.sigmoid(bias[8:16]))).tolist()
        assert not bias[16:].any()
        torch.testing.assert_close(bias[:8], -bias[8:16] if kind == "lstm" else torch.zeros(8))
        assert not getattr(layer.rnn, f"bias_hh_l{k}").any()
        weight = getattr(layer.rnn, f"weight_hh_l{k}").detach()
        torch.testing.assert_close(weight.T @ weight, torch.eye(8))
    assert 2 <= min(spans) < 12
    assert 18 < max(spans) <= 30
    init.chrono(layer, 2)
    assert not layer.rnn.bias_ih_l0.any()
