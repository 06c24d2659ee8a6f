"""Encoders: from observations to features.

:class:`Encoder` has one leaf encoder for each leaf of the observation space, concatenates their features,
and applies linear layers, the trunk.

A leaf encoder is a module with an attribute ``out_features``. Its ``forward`` maps a leaf to (N, F) and
receives it as it is stored (uint8 images, integer indices), so it converts the dtype itself. Its arguments
are the leaf's space and the keys in the config; the default of an ``activation`` is the model's activation.
A class attribute ``trunk``, such as ``(512,)``, sets the widths of the trunk where the config sets none.

**To add a leaf encoder**, see docs/own_parts.md#an-encoder.

:func:`default_encoder` chooses an encoder where the config names none.

Shapes: N samples, C channels, H x W pixels, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.config.registry import ENCODER_REGISTRY
from ding_lite.config.schema import Key, arguments_of, refuse
from ding_lite.errors import ConfigError
from ding_lite.models.layout import to_channels_last
from ding_lite.trees import MASK_KEY, has_channels_last, is_image, path_text, space_leaves, value_at

WIDEST = 2**16  # bounds of more than 16 bits, such as infinite ones, say nothing about pixels
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
}
ACTIVATION = Key("relu", Literal[tuple(ACTIVATIONS)])


def mlp(sizes: Sequence[int], activation: str) -> nn.Sequential:
    """Returns linear layers, each followed by an activation: (N, sizes[0]) -> (N, sizes[-1])."""
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


def has_image(space: gym.Space) -> bool:
    """Returns whether ``space`` is an image or contains one."""
    return any(is_image(leaf) for _, leaf in space_leaves(space))


@ENCODER_REGISTRY.register("mlp")
class VectorEncoder(nn.Module):
    """Flattens numbers and converts them to float32; applies linear layers if ``hidden_size_list`` has any.

    Shapes:
        (N, ...) of any dtype -> (N, F)
    """

    config = dict(activation=ACTIVATION, hidden_size_list=Key([], list[int], low=1))

    def __init__(
        self, space: gym.Space, activation: str = "tanh", hidden_size_list: Sequence[int] = ()
    ) -> None:
        super().__init__()
        size = int(np.prod(space.shape or (1,)))
        self.layers = mlp([size, *hidden_size_list], activation)
        self.in_features, self.out_features = size, [size, *hidden_size_list][-1]

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            x = x.to(torch.float32)
        return self.layers(x.unsqueeze(-1) if x.dim() == 1 else x.flatten(1))


@ENCODER_REGISTRY.register("embedding")
class IndexEncoder(nn.Module):
    """Returns a learned vector for each index of a Discrete or MultiDiscrete observation.

    Shapes:
        (N,) or (N, K) integers -> (N, F) or (N, K F), where F is ``embedding_size``
    """

    config = dict(embedding_size=Key(32, low=1))

    def __init__(
        self, space: gym.spaces.Discrete | gym.spaces.MultiDiscrete, embedding_size: int = 32
    ) -> None:
        super().__init__()
        sizes = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else space.nvec.flatten().tolist()
        start = np.atleast_1d(space.start).flatten()
        # All indices share one table; the rows of an index follow the rows of the previous index.
        offset = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - start
        self.offset: Tensor
        self.register_buffer("offset", torch.as_tensor(offset), persistent=False)
        self.table = nn.Embedding(int(sum(sizes)), embedding_size)
        nn.init.normal_(self.table.weight, std=1.0)
        self.out_features = embedding_size * len(sizes)

    def forward(self, x: Tensor) -> Tensor:
        index = x.unsqueeze(-1) if x.dim() == 1 else x.flatten(1)
        return self.table(index.long() + self.offset).flatten(1)


class ImageEncoder(nn.Module):
    """The base of image encoders: finds the channels, scales pixels, and computes the output size.

    A subclass sets ``layers``, from images (N, C, H, W) to features of any shape, and ``out_features``.

    Pixels of any dtype are divided by the largest absolute value of their bounds, such as 255, if it lies
    between 1 and ``WIDEST``. ``channels`` ("first" or "last") is required where the first and the last
    dimension are equal; elsewhere None lets :func:`~ding_lite.trees.has_channels_last` decide.

    Shapes:
        (N, H, W, C) or (N, C, H, W) or (N, H, W) -> (N, F)
    """

    config = dict(activation=ACTIVATION, channels=Key(None, Literal["first", "last"] | None))
    layers: nn.Module

    def __init__(self, space: gym.Space, channels: str | None = None) -> None:
        super().__init__()
        if not isinstance(space, gym.spaces.Box) or len(space.shape) not in (2, 3):
            raise ConfigError(
                f"policy.model.encoder: {type(self).__name__} is for images, Boxes of two or three "
                f"dimensions, and the observation is a {type(space).__name__} of shape {space.shape}; for "
                "vectors: mlp"
            )
        top = float(np.abs([space.low, space.high], dtype=np.float64).max())
        self.scale = 1 / top if 1 < top <= WIDEST else 1.0
        shape = tuple(space.shape or ())
        self.two_dimensional = len(shape) == 2
        shape = (*shape, 1) if self.two_dimensional else shape
        if not channels and shape[0] == shape[2] and not self.two_dimensional:
            raise ConfigError(
                f"policy.model.encoder: the channels of an image of shape {shape} are ambiguous, because its "
                'first and last dimension are equal; set policy.model.encoder.channels to "first" or "last"'
            )
        is_last = channels == "last" if channels else has_channels_last(shape)
        self.channels_last = self.two_dimensional or is_last
        self.in_shape = (shape[2], *shape[:2]) if self.channels_last else shape

    def images(self, x: Tensor) -> Tensor:
        """Returns scaled float32 images (N, C, H, W) whose channels are adjacent in memory."""
        if self.two_dimensional:
            x = x.unsqueeze(-1)
        if self.channels_last:
            x = x.movedim(-1, 1)
        x = to_channels_last(x)  # before the conversion: bytes are a quarter of the memory of floats
        if x.dtype == torch.float32:
            return x if self.scale == 1.0 else x * self.scale
        x = x.to(torch.float32)  # a new tensor, scaled in place; multiplying bytes by a float is slower
        return x if self.scale == 1.0 else x.mul_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.images(x)).flatten(1)

    def features_of(self, convolutions: nn.Module) -> int:
        """Returns F, the flattened output size of the convolutions."""
        try:
            with torch.no_grad():
                return convolutions(torch.zeros(1, *self.in_shape)).numel()
        except RuntimeError as error:
            c, h, w = self.in_shape
            raise ConfigError(
                f"policy.model.encoder: {type(self).__name__} cannot take images of {h} x {w} pixels "
                f"with {c} channels: {error}. 'minatar_cnn' takes images from 3 x 3 pixels on."
            ) from error


class Convolutions(ImageEncoder):
    """Convolutions in sequence, each followed by an activation.

    A subclass sets ``table``: (channels, kernel, stride) of each. ``widths`` replaces the channels.
    """

    table: tuple[tuple[int, int, int], ...]
    config = dict(widths=Key(None, list[int] | None, low=1))

    def __init__(
        self,
        space: gym.Space,
        activation: str = "relu",
        channels: str | None = None,
        widths: Sequence[int] | None = None,
    ) -> None:
        super().__init__(space, channels)
        widths = [width for width, _, _ in self.table] if widths is None else widths
        layers: list[nn.Module] = []
        before = self.in_shape[0]
        for width, (_, kernel, stride) in zip(widths, self.table, strict=True):
            # The gradient of a convolution does not need its output, so relu may overwrite it.
            after = nn.ReLU(inplace=True) if activation == "relu" else ACTIVATIONS[activation]()
            layers += [nn.Conv2d(before, width, kernel, stride), after]
            before = width
        self.layers = nn.Sequential(*layers)
        self.out_features = self.features_of(self.layers)


@ENCODER_REGISTRY.register("nature_cnn")
class NatureCNN(Convolutions):
    """The convolutions of Mnih et al., Nature 2015, for at least 36 x 36 pixels."""

    table = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    trunk = (512,)


@ENCODER_REGISTRY.register("small_cnn")
class SmallCNN(Convolutions):
    """Smaller convolutions for images of 16 to 35 pixels, where ``minatar_cnn`` has too many features."""

    table = ((16, 4, 2), (32, 3, 2), (32, 3, 1))
    trunk = (256,)


@ENCODER_REGISTRY.register("minatar_cnn")
class MinAtarCNN(Convolutions):
    """One convolution (arXiv:1903.03176), for images from 3 x 3 pixels on."""

    table = ((16, 3, 1),)
    trunk = (128,)


class _Residual(nn.Module):
    """A residual block: x plus two convolutions of x; ``init="normed"`` reads ``normed_scale``."""

    def __init__(self, width: int, normed_scale: float) -> None:
        super().__init__()
        self.normed_scale = normed_scale
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).add_(x)


@ENCODER_REGISTRY.register("impala_cnn")
class ImpalaCNN(ImageEncoder):
    """Residual stages, three with 16, 32 and 32 channels by default (arXiv:1802.01561, figure 3, right)."""

    trunk = (256,)
    config = dict(widths=Key([16, 32, 32], list[int], low=1))

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
        # stage. Each of the two convolutions of a block gets the square root of the result: 0.639 if S = 3.
        scale = (2 * len(widths)) ** -0.25
        before = self.in_shape[0]
        for width in widths:
            stages += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            stages += [_Residual(width, scale), _Residual(width, scale)]
            before = width
        self.layers = nn.Sequential(*stages, nn.ReLU(inplace=True))
        self.out_features = self.features_of(self.layers)


OF_LIBRARY = (VectorEncoder, IndexEncoder, NatureCNN, SmallCNN, MinAtarCNN, ImpalaCNN)


def default_encoder(space: gym.Space) -> str:
    """Returns the name of a leaf's encoder, where the config names none."""
    if is_image(space):
        pixels = sorted(space.shape or ())[-2]
        return "nature_cnn" if pixels >= 36 else "small_cnn" if pixels >= 16 else "minatar_cnn"
    if isinstance(space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
        return "embedding"
    if isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary)):
        return "mlp"
    raise ConfigError(
        f"observations of {type(space).__name__} are not supported; supported are Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    )


class Encoder(nn.Module):
    """Encodes all leaves of an observation, concatenates their features, and applies the trunk.

    Args:
        space: the observation space, a leaf or a tree.
        encoder: None chooses an encoder for each leaf. ``{"type": name, ...}`` is for all images, or for
            all leaves where there are no images. ``{"leaf.path": {"type": name, ...}}`` is for single leaves.
        hidden_size_list: widths of the trunk; None is the ``trunk`` of the first leaf encoder that has one,
            or 64-64.
        activation: a key of ``ACTIVATIONS``.
        dtype: what linear layers and convolutions compute in, "float32" or "bfloat16". Parameters, gradients
            and the returned features are float32 in both cases.

    Attributes:
        paths: the paths of the leaves without the action mask, in the order of ``leaves``.
        out_features: F.

    Shapes:
        (N, ...), or a dict of (N, ...) -> (N, F)
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
        observed = [(path, leaf) for path, leaf in space_leaves(space) if path[:1] != (MASK_KEY,)]
        self.paths = [path for path, _ in observed]
        leaves: list[Any] = []
        choices = _arguments_by_leaf(observed, encoder or {})
        for (path, leaf), arguments in zip(observed, choices, strict=True):
            encoder_class = ENCODER_REGISTRY.get(arguments.pop("type", None) or default_encoder(leaf))
            choice = {"type": encoder_class, **arguments}  # the config does not check those of an import path
            refuse("the config", ENCODER_REGISTRY.faults(choice, f"encoder{path_text(path)}"))
            accepted = arguments_of(encoder_class)
            if accepted is None or "activation" in accepted:
                arguments = {"activation": activation, **arguments}
            leaves.append(encoder_class(leaf, **arguments))
            leaves[-1].keeps_weights = type(leaves[-1]) not in OF_LIBRARY
        self.leaves = nn.ModuleList(leaves)
        if hidden_size_list is None:
            trunks = [leaf.trunk for leaf in leaves if hasattr(leaf, "trunk")]
            hidden_size_list = trunks[0] if trunks else (64, 64)
        sizes = [sum(leaf.out_features for leaf in leaves), *hidden_size_list]
        self.trunk = mlp(sizes, activation)
        self.out_features = sizes[-1]

    def forward(self, obs: Any) -> Tensor:
        if self.dtype == torch.float32:
            return self._encoded(obs)
        # Each weight is converted once per call, so autocast needs no cache of converted weights.
        device = value_at(obs, self.paths[0]).device.type
        with torch.autocast(device, self.dtype, cache_enabled=False):
            return self._encoded(obs).float()

    def _encoded(self, obs: Any) -> Tensor:
        features = [leaf(value_at(obs, path)) for path, leaf in zip(self.paths, self.leaves, strict=True)]
        return self.trunk(features[0] if len(features) == 1 else torch.cat(features, -1))


def encoder_faults(encoder: Mapping[str, Any] | None, path: str) -> list[str]:
    """Returns the faults of ``policy.model.encoder`` that do not depend on the observation space."""
    if encoder and _is_by_leaf(encoder):
        return [fault for name, leaf in encoder.items() for fault in encoder_faults(leaf, f"{path}.{name}")]
    return ENCODER_REGISTRY.faults(encoder or {}, path)


def for_groups(encoder: Mapping[str, Any] | None, groups: Sequence[str]) -> Mapping[str, Any] | None:
    """Returns ``policy.model.encoder`` without the entries for leaves outside of ``groups``."""
    if not encoder or not _is_by_leaf(encoder):
        return encoder
    return {path: leaf for path, leaf in encoder.items() if path.split(".")[0] in groups}


def _is_by_leaf(encoder: Mapping[str, Any]) -> bool:
    """Returns whether ``encoder`` is ``{"leaf.path": {...}}`` and not ``{"type": name, ...}``."""
    return all(isinstance(value, Mapping) for value in encoder.values())


def _arguments_by_leaf(
    leaves: Sequence[tuple[tuple[str, ...], gym.Space]], encoder: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns ``{"type": name, **arguments}`` of each leaf, or ``{}`` where the config has no entry."""
    names = [".".join(path) for path, _ in leaves]
    if encoder and _is_by_leaf(encoder):
        unknown = sorted(set(encoder) - set(names))
        if unknown:
            raise ConfigError(
                f"policy.model.encoder: unknown observation {unknown[0]!r}; the observations are "
                f"{', '.join(names)}"
            )
        return [dict(encoder.get(name, {})) for name in names]
    has_images = any(is_image(leaf) for _, leaf in leaves)
    return [dict(encoder) if is_image(leaf) or not has_images else {} for _, leaf in leaves]
