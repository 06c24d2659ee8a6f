"""Encoders: their outputs, how they read images, their dtype, and their errors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ding_lite.config.registry import ENCODER_REGISTRY
from ding_lite.errors import ConfigError
from ding_lite.models.encoders import (
    Encoder,
    ImageEncoder,
    ImpalaCNN,
    IndexEncoder,
    MinAtarCNN,
    NatureCNN,
    SmallCNN,
    VectorEncoder,
    _Residual,
    default_encoder,
)
from ding_lite.trees import example_observations, map_tree

spaces = gym.spaces
CNNS = [NatureCNN, SmallCNN, MinAtarCNN, ImpalaCNN]


def image_space(*shape, dtype=np.uint8):
    return spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)


def vector_space(size):
    return spaces.Box(-1, 1, (size,))


def batch(space, count=3):
    return map_tree(torch.as_tensor, example_observations(space, count))


NESTED = spaces.Dict(
    camera=image_space(10, 10, 3),
    arm=spaces.Tuple((vector_space(2), spaces.Discrete(3, start=1))),
    deep=spaces.Dict(bits=spaces.MultiBinary(4)),
    action_mask=spaces.MultiBinary(2),
)

# ------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("cls", "space", "options", "size"),
    [
        (VectorEncoder, spaces.Box(-1, 1, (2, 3)), {}, 6),
        (VectorEncoder, spaces.Box(-1, 1, ()), {}, 1),
        (VectorEncoder, spaces.MultiBinary((2, 3)), {}, 6),
        (VectorEncoder, vector_space(4), {"hidden_size_list": [8, 16]}, 16),
        (IndexEncoder, spaces.Discrete(7), {}, 32),
        (IndexEncoder, spaces.MultiDiscrete([3, 4]), {"embedding_size": 5}, 10),
        (IndexEncoder, spaces.MultiDiscrete([[3, 4], [5, 6]]), {"embedding_size": 5}, 20),
        (NatureCNN, image_space(84, 84, 4), {}, 64 * 7 * 7),
        (NatureCNN, image_space(4, 84, 84), {"widths": [8, 16, 24]}, 24 * 7 * 7),
        (NatureCNN, image_space(36, 52, 1), {}, 64 * 3),
        (SmallCNN, image_space(16, 35, 3), {}, 32 * 1 * 5),
        (MinAtarCNN, image_space(10, 10, 4), {}, 16 * 8 * 8),
        (MinAtarCNN, image_space(3, 3), {}, 16),
        (ImpalaCNN, image_space(64, 64, 3), {}, 32 * 8 * 8),
        (ImpalaCNN, image_space(3, 64, 64), {"widths": (4, 8)}, 8 * 16 * 16),
    ],
)
def test_output_has_the_size_that_was_announced(cls, space, options, size):
    encoder = cls(space, **options)
    assert encoder.out_features == size
    for count in (3, 0):
        out = encoder(batch(space)[:count])
        assert out.shape == (count, size)
        assert out.dtype == torch.float32


@pytest.mark.parametrize(
    ("space", "name", "features"),
    [
        (vector_space(4), "mlp", 64),
        (spaces.Box(-1, 1, (8, 8)), "mlp", 64),
        (spaces.MultiBinary(3), "mlp", 64),
        (spaces.Discrete(3), "embedding", 64),
        (spaces.MultiDiscrete([3, 3]), "embedding", 64),
        (image_space(3, 84, 84), "nature_cnn", 512),
        (image_space(84, 84), "nature_cnn", 512),
        (image_space(36, 36, 3), "nature_cnn", 512),
        (image_space(35, 84, 3), "small_cnn", 256),
        (image_space(16, 16), "small_cnn", 256),
        (image_space(15, 84, 3), "minatar_cnn", 128),
        (image_space(10, 10, 4, dtype=bool), "minatar_cnn", 128),
    ],
)
def test_encoder_and_trunk_are_chosen_by_the_space(space, name, features):
    assert default_encoder(space) == name
    encoder = Encoder(space, None, None, "relu")
    assert type(encoder.leaves[0]) is ENCODER_REGISTRY.get(name)
    assert encoder(batch(space)).shape == (3, encoder.out_features) == (3, features)


def test_hidden_size_list_replaces_the_trunk_and_an_empty_one_leaves_the_features_as_they_are():
    assert Encoder(vector_space(4), None, [8, 5], "tanh").out_features == 5
    encoder = Encoder(vector_space(4), None, [], "tanh")
    x = torch.randn(3, 4)
    assert torch.equal(encoder(x), x)


# ------------------------------------------------------------------ vectors and indices


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_vector_is_flattened_in_order_cast_and_not_scaled(dtype):
    x = torch.arange(240, 252).to(dtype).reshape(2, 2, 3)
    out = VectorEncoder(spaces.Box(0, 255, (2, 3)))(x)
    assert out.dtype == torch.float32
    assert out.tolist() == [list(range(240, 246)), list(range(246, 252))]


@pytest.mark.parametrize(
    ("space", "obs", "rows"),
    [
        (spaces.Discrete(4), [2, 0], [[2], [0]]),
        (spaces.Discrete(4, start=-2), [-2, 1], [[0], [3]]),
        (spaces.MultiDiscrete([2, 3], start=[0, 5]), [[1, 5], [0, 7]], [[1, 2], [0, 4]]),
        (
            spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[1, 0], [0, -1]]),
            [[[1, 0], [0, -1]], [[2, 2], [0, 0]]],
            [[0, 2, 5, 6], [1, 4, 5, 7]],
        ),
    ],
)
def test_every_index_has_rows_of_its_own_in_the_table(space, obs, rows):
    encoder = IndexEncoder(space, embedding_size=3)
    assert torch.equal(encoder(torch.tensor(obs)), encoder.table.weight[torch.tensor(rows)].flatten(1))


# ------------------------------------------------------------------ images


@pytest.mark.parametrize("cls", CNNS)
def test_bytes_are_divided_by_255_and_channels_may_be_first_or_last(cls):
    pixels = batch(image_space(40, 44, 3))
    encoder = cls(image_space(40, 44, 3))
    for space, given in (
        (image_space(40, 44, 3, dtype=np.float32), pixels.float() / 255),
        (image_space(3, 40, 44), pixels.movedim(-1, 1)),
    ):
        other = cls(space)
        other.load_state_dict(encoder.state_dict())
        assert torch.allclose(encoder(pixels), other(given), atol=1e-5)


def test_a_residual_block_adds_what_two_convolutions_make_of_relu():
    torch.manual_seed(0)
    block, x = _Residual(4, normed_scale=0.639), torch.randn(2, 4, 5, 5)
    first, second = block.layers[1], block.layers[3]
    y = F.conv2d(F.relu(x), first.weight, first.bias, padding=1)
    expected = x + F.conv2d(F.relu(y), second.weight, second.bias, padding=1)
    before = x.clone()
    assert torch.allclose(block(x), expected, atol=1e-6)
    assert torch.equal(x, before), "its input is the skip's, and the caller's"


@pytest.mark.parametrize(
    ("shape", "channels", "in_shape"),
    [
        ((84, 60, 3), None, (3, 84, 60)),
        ((3, 84, 60), None, (3, 84, 60)),
        ((40, 60, 40), "first", (40, 60, 40)),
        ((40, 60, 40), "last", (40, 40, 60)),
        ((10, 12, 16), "last", (16, 10, 12)),
    ],
)
def test_channels_are_at_the_smaller_end_unless_the_config_says(shape, channels, in_shape):
    assert ImageEncoder(image_space(*shape), channels).in_shape == in_shape


class Wide(torch.nn.Module):
    def __init__(self, space, width=2):
        super().__init__()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NatureCNN(image_space(40, 60, 40)), r"\(40, 60, 40\).*policy\.model\.encoder\.channels"),
        (lambda: NatureCNN(image_space(3, 20, 24)), "NatureCNN.*20 x 24.*3 channels"),
        (lambda: Encoder(spaces.Text(5), None, None, "tanh"), "Text.*Box"),
        (lambda: Encoder(NESTED, {"camrea": {"type": "impala_cnn"}}, None, "relu"), "camrea"),
        (  # the arguments of an import path are not in the check of the config
            lambda: Encoder(image_space(8, 8, 3), {"type": f"{__name__}:Wide", "widht": 3}, None, "relu"),
            "encoder: unknown key 'widht'; did you mean 'width'?",
        ),
    ],
)
def test_what_an_encoder_cannot_do_is_refused_by_its_key(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


# ------------------------------------------------------------------ trees


def test_features_of_a_tree_are_those_of_its_leaves_side_by_side_without_the_mask():
    encoder = Encoder(NESTED, None, [], "relu")
    obs = batch(NESTED)
    del obs["action_mask"]
    arm, index, camera, bits = encoder.leaves
    expected = torch.cat(
        [arm(obs["arm"]["0"]), index(obs["arm"]["1"]), camera(obs["camera"]), bits(obs["deep"]["bits"])], -1
    )
    assert encoder.paths == [("arm", "0"), ("arm", "1"), ("camera",), ("deep", "bits")]
    assert encoder.out_features == 2 + 32 + 16 * 8 * 8 + 4
    assert torch.equal(encoder(obs), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"type": "impala_cnn", "widths": [4]},  # of the images
        {"camera": {"type": "impala_cnn", "widths": [4]}},
        {"type": "ding_lite.models.encoders:ImpalaCNN", "widths": [4]},
    ],
)
def test_encoder_is_chosen_for_the_images_or_leaf_by_leaf(options):
    encoder = Encoder(NESTED, options, None, "relu")
    assert [type(leaf) for leaf in encoder.leaves] == [VectorEncoder, IndexEncoder, ImpalaCNN, VectorEncoder]
    assert encoder.leaves[2].out_features == 4 * 5 * 5
    assert encoder.out_features == 256


# ------------------------------------------------------------------ bfloat16


UNIT = 2.0**-8  # the relative rounding of bfloat16, which keeps 8 bits


@pytest.mark.parametrize("space", [image_space(36, 36, 4), vector_space(6)])
def test_features_and_gradients_in_bfloat16_are_float32_and_rounded(space):
    obs = batch(space, 16)
    exact, rounded = (Encoder(space, None, None, "relu", dtype) for dtype in ("float32", "bfloat16"))
    rounded.load_state_dict(exact.state_dict())
    features = [encoder(obs) for encoder in (exact, rounded)]
    weight = torch.randn(features[0].shape, generator=torch.Generator().manual_seed(1))
    assert features[1].dtype == torch.float32
    difference = ((features[1] - features[0]).norm() / features[0].norm()).detach()
    assert UNIT / 20 < float(difference) < 4 * UNIT, "rounded, and no more than that"
    gradients = [
        torch.autograd.grad((out * weight).sum(), list(encoder.parameters()))
        for out, encoder in zip(features, (exact, rounded), strict=True)
    ]
    for one, other in zip(*gradients, strict=True):
        assert other.dtype == torch.float32
        assert float(F.cosine_similarity(one.flatten(), other.flatten(), dim=0)) > 0.98
    with torch.no_grad():  # converted weights are not cached between calls
        for p in rounded.parameters():
            p.mul_(2)
        assert not torch.allclose(rounded(obs), features[1])
