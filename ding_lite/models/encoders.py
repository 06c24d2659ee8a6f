"""From observations to features: one encoder a leaf of the observation space, then a trunk.

An encoder is ``Encoder(space, activation=..., **kwargs)`` with an ``out_features``; it takes the leaf
as it was stored (uint8 images, integer indices) and casts it itself.

Shapes: N samples, C channels, H, W pixels, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.errors import ConfigError
from ding_lite.models.layout import channels_side_by_side
from ding_lite.registry import ENCODER_REGISTRY
from ding_lite.schema import Key
from ding_lite.types import MASK_KEY

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
}
ACTIVATION = Key("relu", choices=tuple(ACTIVATIONS))


def mlp(sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Returns linear layers of ``sizes``, each followed by ``activation``."""
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def observation_leaves(space: gym.Space) -> Iterator[tuple[tuple[str, ...], gym.Space]]:
    """Yields ``(path, leaf space)`` in a stable order; a Tuple's items are called "0", "1", ..."""
    if isinstance(space, gym.spaces.Dict):
        items: Any = sorted(space.spaces.items())
    elif isinstance(space, gym.spaces.Tuple):
        items = [(str(i), child) for i, child in enumerate(space.spaces)]
    else:
        yield (), space
        return
    for name, child in items:
        for path, leaf in observation_leaves(child):
            yield (name, *path), leaf


def is_image(space: gym.Space) -> bool:
    """An image is a Box of three dimensions, or a uint8 one of two."""
    return isinstance(space, gym.spaces.Box) and (
        len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8)
    )


@ENCODER_REGISTRY.register("mlp")
class VectorEncoder(nn.Module):
    """Flattens and casts numbers to float32; with ``hidden_size_list`` layers of its own follow.

    Shapes:
        (N, ...) of any dtype -> (N, F)
    """

    config = dict(activation=ACTIVATION, hidden_size_list=Key([], low=1))

    def __init__(
        self, space: gym.Space, activation: str = "tanh", hidden_size_list: Sequence[int] = ()
    ) -> None:
        super().__init__()
        size = int(np.prod(space.shape or (1,)))
        self.layers = mlp([size, *hidden_size_list], activation)
        self.out_features = [size, *hidden_size_list][-1]

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            x = x.to(torch.float32)
        return self.layers(x.unsqueeze(-1) if x.dim() == 1 else x.flatten(1))


@ENCODER_REGISTRY.register("embedding")
class IndexEncoder(nn.Module):
    """Looks up a learned vector for each index of a Discrete or MultiDiscrete observation.

    Shapes:
        (N,) or (N, K) whole numbers -> (N, F) or (N, K F)
    """

    config = dict(embedding_size=Key(32, low=1))

    def __init__(self, space: gym.Space, activation: str = "tanh", embedding_size: int = 32) -> None:
        super().__init__()
        whole: Any = space
        sizes = [int(whole.n)] if isinstance(space, gym.spaces.Discrete) else whole.nvec.flatten().tolist()
        start = np.atleast_1d(whole.start).flatten()
        offset = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - start
        self.offset: Tensor
        self.register_buffer("offset", torch.as_tensor(offset), persistent=False)
        self.table = nn.Embedding(int(sum(sizes)), embedding_size)
        nn.init.normal_(self.table.weight, std=1.0)
        self.out_features = embedding_size * len(sizes)

    def forward(self, x: Tensor) -> Tensor:
        index = x.unsqueeze(-1) if x.dim() == 1 else x.flatten(1)
        return self.table(index.long() + self.offset).flatten(1)


def _activation(name: str) -> nn.Module:
    """Returns an activation for what a convolution puts out, which nobody else needs: relu in its place."""
    return nn.ReLU(inplace=True) if name == "relu" else ACTIVATIONS[name]()


class ImageEncoder(nn.Module):
    """What image encoders share: finding the channels, scaling uint8, and the size of the output.

    uint8 pixels are divided by 255; floats and bools are taken as they are. Height x width x channels
    is told from channels x height x width by the smaller end; ``channels`` ("first" or "last") says it
    where both ends are equal.

    Shapes:
        (N, H, W, C) or (N, C, H, W) or (N, H, W) -> (N, F)
    """

    config = dict(activation=ACTIVATION, channels=Key(None, choices=("first", "last"), optional=True))

    def __init__(self, space: gym.Space, channels: str | None = None) -> None:
        super().__init__()
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        shape = tuple(space.shape or ())
        self.two_dimensional = len(shape) == 2
        shape = (*shape, 1) if self.two_dimensional else shape
        self.channels_last = self.two_dimensional or self._channels_last(shape, channels)
        self.in_shape = (shape[2], *shape[:2]) if self.channels_last else shape

    @staticmethod
    def _channels_last(shape: tuple[int, ...], channels: str | None) -> bool:
        if channels is not None:
            return channels == "last"
        if shape[0] == shape[2]:
            raise ConfigError(
                f"policy.model.encoder: an image of shape {shape} does not tell where its channels "
                'are; set policy.model.encoder.channels to "first" or "last"'
            )
        return shape[2] < shape[0]

    def images(self, x: Tensor) -> Tensor:
        """Shapes: as stored -> (N, C, H, W) float32, the channels of a pixel side by side."""
        if self.two_dimensional:
            x = x.unsqueeze(-1)
        if self.channels_last:
            x = x.movedim(-1, 1)
        x = channels_side_by_side(x)  # while it is small
        if x.dtype == torch.float32:
            return x if self.scale == 1.0 else x * self.scale
        x = x.to(torch.float32)  # a copy of our own; a product of bytes with a float takes longer
        return x if self.scale == 1.0 else x.mul_(self.scale)

    def features_of(self, convolutions: nn.Module) -> int:
        """Returns the flattened output size, or says which input was too small."""
        try:
            with torch.no_grad():
                return convolutions(torch.zeros(1, *self.in_shape)).numel()
        except RuntimeError as error:
            c, h, w = self.in_shape
            raise ConfigError(
                f"policy.model.encoder: {type(self).__name__} cannot take images of {h} x {w} pixels "
                f"with {c} channels: {error}. Smaller images suit 'minatar_cnn'."
            ) from error


@ENCODER_REGISTRY.register("nature_cnn")
class NatureCNN(ImageEncoder):
    """Three convolutions, 32-64-64 (Mnih et al., Nature 2015); at least 36 x 36 pixels."""

    trunk = (512,)

    def __init__(self, space: gym.Space, activation: str = "relu", channels: str | None = None) -> None:
        super().__init__(space, channels)
        self.layers = nn.Sequential(
            nn.Conv2d(self.in_shape[0], 32, 8, 4), _activation(activation),
            nn.Conv2d(32, 64, 4, 2), _activation(activation),
            nn.Conv2d(64, 64, 3, 1), _activation(activation),
        )  # fmt: skip
        self.out_features = self.features_of(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.images(x)).flatten(1)


@ENCODER_REGISTRY.register("minatar_cnn")
class MinAtarCNN(ImageEncoder):
    """One convolution of 16 3 x 3 filters (arXiv:1903.03176), for grids as small as 3 x 3."""

    trunk = (128,)

    def __init__(self, space: gym.Space, activation: str = "relu", channels: str | None = None) -> None:
        super().__init__(space, channels)
        self.layers = nn.Sequential(nn.Conv2d(self.in_shape[0], 16, 3), _activation(activation))
        self.out_features = self.features_of(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.images(x)).flatten(1)


class _Residual(nn.Module):
    """x + two convolutions of x.

    Args:
        width: channels.
        normed_scale: norm of each row of the convolutions with ``init="normed"``.
    """

    def __init__(self, width: int, normed_scale: float) -> None:
        super().__init__()
        self.normed_scale = normed_scale
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y.add_(x)


@ENCODER_REGISTRY.register("impala_cnn")
class ImpalaCNN(ImageEncoder):
    """Three residual stages, 16-32-32 (arXiv:1802.01561, figure 3, deep)."""

    trunk = (256,)
    config = dict(widths=Key([16, 32, 32], low=1))

    def __init__(
        self,
        space: gym.Space,
        activation: str = "relu",
        channels: str | None = None,
        widths: Sequence[int] = (16, 32, 32),
    ) -> None:
        super().__init__(space, channels)
        stages: list[nn.Module] = []
        # The PPG authors divide a scale of 1 by sqrt(S) for S stages and by sqrt(2) for the two blocks of a
        # stage. Each of the two convolutions of a block has the square root: 0.639 for three stages.
        scale = (2 * len(widths)) ** -0.25
        before = self.in_shape[0]
        for width in widths:
            stages += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            stages += [_Residual(width, scale), _Residual(width, scale)]
            before = width
        self.layers = nn.Sequential(*stages, nn.ReLU(inplace=True))
        self.out_features = self.features_of(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.images(x)).flatten(1)


def default_encoder(space: gym.Space) -> str:
    """Returns the name of the encoder that a leaf gets when the config names none."""
    if is_image(space):
        smaller_side = sorted(space.shape or ())[-2]
        return "nature_cnn" if smaller_side >= 36 else "minatar_cnn"
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return "embedding"
    if isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary)):
        return "mlp"
    raise ConfigError(
        f"observations of {type(space).__name__} are not supported; supported are Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    )


class Encoder(nn.Module):
    """The encoders of all leaves, their features side by side, and a trunk on top.

    Args:
        space: the observation space, a leaf or a tree.
        encoder: ``None`` chooses by the space; else ``{"type": name, ...}`` for the images (or, where
            there are none, for every leaf), or ``{"leaf.path": {"type": ...}}`` a leaf.
        hidden_size_list: widths of the trunk; ``None`` is the encoder's own, 64-64 for vectors.
        activation: its name.
        dtype: "float32", or "bfloat16" for the products and convolutions; parameters, their gradients and
            the features that come out are float32 in any case.

    Shapes:
        observations (N, ...), or a dict of them -> (N, out_features)
    """

    def __init__(
        self,
        space: gym.Space,
        encoder: Mapping[str, Any] | None,
        hidden_size_list: Sequence[int] | None,
        activation: str,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.dtype: torch.dtype = getattr(torch, dtype)
        found = [(path, leaf) for path, leaf in observation_leaves(space) if path[:1] != (MASK_KEY,)]
        self.paths = [path for path, _ in found]
        leaves: list[Any] = []
        for (_, leaf), chosen in zip(found, _options_by_leaf(found, encoder or {}), strict=True):
            kind = ENCODER_REGISTRY.get(chosen.pop("type", None) or default_encoder(leaf))
            options = {"activation": activation, **chosen}
            if faults := ENCODER_REGISTRY.choice_faults({"type": kind, **options}, "policy.model.encoder"):
                raise ConfigError("\n  ".join(faults))
            leaves.append(kind(leaf, **options))
        self.leaves = nn.ModuleList(leaves)
        if hidden_size_list is None:
            trunks = [leaf.trunk for leaf in leaves if hasattr(leaf, "trunk")]
            hidden_size_list = trunks[0] if trunks else (64, 64)
        sizes = [sum(leaf.out_features for leaf in leaves), *hidden_size_list]
        self.trunk = mlp(sizes, activation)
        self.out_features = sizes[-1]

    def forward(self, obs: Any) -> Tensor:
        if self.dtype == torch.float32:
            return self._features(obs)
        device = _at(obs, self.paths[0]).device.type
        with torch.autocast(device, self.dtype, cache_enabled=False):  # each weight is cast once in a call
            return self._features(obs).float()

    def _features(self, obs: Any) -> Tensor:
        features = [leaf(_at(obs, path)) for path, leaf in zip(self.paths, self.leaves, strict=True)]
        return self.trunk(features[0] if len(features) == 1 else torch.cat(features, -1))


def encoder_faults(encoder: Mapping[str, Any] | None, path: str) -> list[str]:
    """Returns what is wrong with ``policy.model.encoder`` whatever is observed, a line each."""
    if encoder and all(isinstance(value, Mapping) for value in encoder.values()):
        return [fault for name, one in encoder.items() for fault in encoder_faults(one, f"{path}.{name}")]
    return ENCODER_REGISTRY.choice_faults(encoder or {}, path)


def _options_by_leaf(
    found: Sequence[tuple[tuple[str, ...], gym.Space]], encoder: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns each leaf's own share of ``policy.model.encoder``."""
    names = [".".join(path) for path, _ in found]
    if encoder and all(isinstance(value, Mapping) for value in encoder.values()):
        unknown = sorted(set(encoder) - set(names))
        if unknown:
            raise ConfigError(
                f"policy.model.encoder: there is no observation {unknown[0]!r}; there are {', '.join(names)}"
            )
        return [dict(encoder.get(name, {})) for name in names]
    has_images = any(is_image(leaf) for _, leaf in found)
    return [dict(encoder) if is_image(leaf) or not has_images else {} for _, leaf in found]


def _at(tree: Any, path: tuple[str, ...]) -> Tensor:
    for name in path:
        tree = tree[name]
    return tree
