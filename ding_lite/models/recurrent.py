"""A recurrent layer behind an encoder, and the sequences that it reads.

The samples of several sequences are in packed order: the first samples of all sequences, longest sequence
first, then their second samples, and so on. So there is no padding, and all layers but the recurrent one
treat them as a batch.

Shapes: S sequences, N samples of them, H hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ding_lite.trees import Tree, leading_size, map_tree

MOST_PADDED = 5  # padding may multiply the number of samples by at most this
RECURRENT_LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Sequences(NamedTuple):
    """The input of a recurrent model, in place of observations.

    Attributes:
        obs: (N, ...), observations in packed order.
        hidden: (S, ...), the hidden state before the first sample of each sequence, longest sequence first.
        sizes: (L,), on the host: how many sequences have a first sample, a second one, and so on.
    """

    obs: Any
    hidden: Tree
    sizes: Tensor


def chosen_hidden(first: Tensor, initial: Tree, hidden: Tree) -> Tree:
    """Returns the hidden states (S, ...) of ``initial`` where ``first`` (S,) is True, else of ``hidden``."""

    def chosen(initial: Tensor, leaf: Tensor) -> Tensor:
        return torch.where(first.to(leaf.device).view(-1, *[1] * (leaf.dim() - 1)), initial, leaf)

    return map_tree(chosen, initial, hidden)


def single_steps(obs: Any, hidden: Tree) -> Sequences:
    """Returns observations (S, ...) as sequences of one step each, from ``hidden`` (S, ...)."""
    return Sequences(obs, hidden, torch.tensor([leading_size(obs)]))


class RecurrentLayer(nn.Module):
    """torch's LSTM or GRU over sequences.

    Args:
        kind: a key of ``RECURRENT_LAYERS``.
        features: F, of its input.
        hidden_size: H.
        layers: number of recurrent layers.

    Shapes:
        features (N, F), hidden {name: (S, layers, H)} -> output (N, H), hidden {name: (S, layers, H)}
    """

    def __init__(self, kind: str, features: int, hidden_size: int, layers: int) -> None:
        super().__init__()
        self.rnn = RECURRENT_LAYERS[kind](features, hidden_size, layers)
        self._names = ("h", "c") if kind == "lstm" else ("h",)  # in torch's order

    def initial_hidden(self, n: int) -> dict[str, Tensor]:
        """Returns the hidden state before the first step of ``n`` episodes: zeros (n, layers, H)."""
        weight = next(self.rnn.parameters())
        shape = (n, self.rnn.num_layers, self.rnn.hidden_size)
        return {name: weight.new_zeros(shape) for name in self._names}

    def forward(
        self, features: Tensor, hidden: Mapping[str, Tensor], sizes: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        is_exporting, has_single_steps = torch.compiler.is_exporting(), len(sizes) == 1
        if has_single_steps and features.is_cpu and not is_exporting:
            return self._step(features, hidden)
        # Graphs of torch.export cannot have packed sequences; sequences of one step need none.
        is_plain = is_exporting and has_single_steps
        samples = features.unsqueeze(0) if is_plain else PackedSequence(features, sizes)
        output, after = self.rnn(samples, self._of_torch(hidden))
        after = after if isinstance(after, tuple) else (after,)
        hidden = {name: h.transpose(0, 1) for name, h in zip(self._names, after, strict=True)}
        return output.squeeze(0) if is_plain else output.data, hidden

    def _of_torch(self, hidden: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
        """Returns a hidden state in torch's form: (layers, S, H), or for an LSTM a pair of such tensors."""
        states = tuple(hidden[name].transpose(0, 1).contiguous() for name in self._names)
        return states if len(states) > 1 else states[0]

    def _step(self, features: Tensor, hidden: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Computes :meth:`forward` for one step of each sequence, on the CPU, in a third of the time."""
        after: dict[str, list[Tensor]] = {name: [] for name in self._names}
        for layer, weights in enumerate(self.rnn.all_weights):
            before = [hidden[name][:, layer] for name in self._names]
            states: tuple[Tensor, ...]
            if isinstance(self.rnn, nn.LSTM):
                states = torch.lstm_cell(features, before, *weights)
            else:
                states = (torch.gru_cell(features, before[0], *weights),)
            features = states[0]
            for name, h in zip(self._names, states, strict=True):
                after[name].append(h)
        return features, {name: torch.stack(layers, 1) for name, layers in after.items()}

    def outputs(self, features: Tensor, hidden: Mapping[str, Tensor], sizes: Tensor) -> Tensor:
        """Returns the output (N, H) of :meth:`forward` alone.

        On the CPU torch's oneDNN LSTM kernel is several times as fast, but needs sequences of one length.
        So shorter sequences are padded, unless the padding would add too many samples.
        """
        longest, count = len(sizes), int(sizes[0])
        pads = (
            isinstance(self.rnn, nn.LSTM)
            and features.is_cpu
            and features.dtype == torch.float32
            and int(sizes[-1]) < count
            and longest * count <= MOST_PADDED * len(features)
        )
        if not pads:
            return self(features, hidden, sizes)[0]
        index = (torch.arange(count) < sizes.unsqueeze(-1)).flatten().nonzero().squeeze(-1)
        padded = features.new_zeros((longest * count, features.shape[1])).index_copy(0, index, features)
        output, _ = self.rnn(padded.view(longest, count, -1), self._of_torch(hidden))
        return output.flatten(0, 1).index_select(0, index)


class RecurrentEncoder(nn.Module):
    """An encoder with a recurrent layer behind it.

    Args:
        name: key of its hidden state in ``Sequences.hidden``.
        encoder: encodes single observations, with ``out_features``.
        layer: reads the features of the encoder.

    Shapes:
        Sequences -> (N, H)
    """

    def __init__(self, name: str, encoder: nn.Module, layer: RecurrentLayer) -> None:
        super().__init__()
        self.name, self.encoder, self.layer = name, encoder, layer
        self.out_features = int(layer.rnn.hidden_size)

    def forward(self, inputs: Sequences) -> Tensor:
        return self.layer.outputs(self.encoder(inputs.obs), inputs.hidden[self.name], inputs.sizes)

    def step(self, inputs: Sequences) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the features (N, H), and the hidden state (S, ...) after each sequence."""
        output, hidden = self.layer(self.encoder(inputs.obs), inputs.hidden[self.name], inputs.sizes)
        return output, hidden
