"""The recurrent layer: packed sequences against torch's own loop, and its first biases."""

import pytest
import torch

from ding_lite.models import init
from ding_lite.models.recurrent import RecurrentLayer


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_sequences_are_those_that_torch_runs_one_by_one(kind, layers):
    torch.manual_seed(0)
    memory = RecurrentLayer(kind, features=3, hidden_size=5, layers=layers)
    lengths = [4, 3, 1]
    episodes = [torch.randn(n, 3) for n in lengths]
    state = {name: torch.randn(3, layers, 5) for name in memory.initial_state(1)}
    sizes = torch.tensor([sum(n > t for n in lengths) for t in range(4)])
    features = torch.cat([torch.stack([e[t] for e in episodes if len(e) > t]) for t in range(4)])
    output, after = memory(features, state, sizes)
    begins = sizes.cumsum(0) - sizes
    for s, episode in enumerate(episodes):
        hidden = [state[name][s].unsqueeze(1) for name in ("h", "c") if name in state]
        expected, last = memory.rnn(episode.unsqueeze(1), tuple(hidden) if len(hidden) > 1 else hidden[0])
        found = torch.stack([output[begins[t] + s] for t in range(len(episode))])
        torch.testing.assert_close(found, expected[:, 0])
        last = last if isinstance(last, tuple) else (last,)
        for name, tensor in zip(("h", "c"), last, strict=False):
            torch.testing.assert_close(after[name][s], tensor[:, 0])


def test_padded_sequences_have_the_outputs_and_gradients_of_packed_ones(monkeypatch):
    torch.manual_seed(0)
    memory = RecurrentLayer("lstm", features=3, hidden_size=5, layers=2)
    sizes = torch.tensor([4, 4, 3, 1])
    features = torch.randn(int(sizes.sum()), 3, requires_grad=True)
    state = {name: torch.randn(4, 2, 5) for name in ("h", "c")}
    padded = []
    memory.rnn.register_forward_pre_hook(lambda _, args: padded.append(isinstance(args[0], torch.Tensor)))
    leaves = [features, *memory.parameters()]
    weight = torch.randn(int(sizes.sum()), 5)
    found = []
    for most_padded in (5, 0):
        monkeypatch.setattr("ding_lite.models.memory.MOST_PADDED", most_padded)
        output = memory.outputs(features, state, sizes)
        found.append((output, torch.autograd.grad((weight * output).sum(), leaves)))
    assert padded == [True, False]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_the_state_is_read_by_name():
    torch.manual_seed(0)
    memory = RecurrentLayer("lstm", features=2, hidden_size=3, layers=1)
    state = {name: torch.randn(2, 1, 3) for name in ("h", "c")}
    other_order = {name: state[name] for name in ("c", "h")}
    features, sizes = torch.randn(2, 2), torch.tensor([2])
    assert torch.equal(memory(features, state, sizes)[0], memory(features, other_order, sizes)[0])


@pytest.mark.parametrize(("kind", "keep"), [("lstm", slice(8, 16)), ("gru", slice(8, 16))])
def test_units_remember_one_to_timescale_steps(kind, keep):
    """A unit whose gate keeps the share s of its content at a step remembers 1 / (1 - s) steps."""
    memory = RecurrentLayer(kind, features=2, hidden_size=8, layers=2)
    init.orthogonal(memory)
    init.chrono(memory, 30)
    spans = []
    for layer in range(2):
        bias = getattr(memory.rnn, f"bias_ih_l{layer}").detach()
        spans += (1 / (1 - torch.sigmoid(bias[keep]))).tolist()
        others = [*range(8), *range(16, len(bias))] if kind == "gru" else list(range(16, 32))
        assert not bias[others].any()
        if kind == "lstm":
            torch.testing.assert_close(bias[:8], -bias[8:16])
        assert not getattr(memory.rnn, f"bias_hh_l{layer}").any()
    assert 2 <= min(spans) < 12
    assert 18 < max(spans) <= 30


def test_a_timescale_of_two_has_biases_of_zero():
    memory = RecurrentLayer("lstm", features=2, hidden_size=8, layers=1)
    init.orthogonal(memory)
    init.chrono(memory, 2)
    assert not memory.rnn.bias_ih_l0.any()
