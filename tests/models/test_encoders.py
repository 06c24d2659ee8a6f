"""Encoders: their outputs, how they read images, and their errors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ding_lite.config.registry import ENCODER_REGISTRY
from ding_lite.errors import ConfigError
from ding_lite.models.checks import check_encoder
from ding_lite.models.encoders import (
    ACTIVATIONS,
    Encoder,
    ImageEncoder,
    ImpalaCNN,
    IndexEncoder,
    MinAtarCNN,
    NatureCNN,
    VectorEncoder,
    _Residual,
    default_encoder,
    mlp,
)
from ding_lite.trees import space_leaves

spaces = gym.spaces


def image_space(*shape, dtype=np.uint8):
    return spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)


def vector_space(size):
    return spaces.Box(-1, 1, (size,))


def batch(space, count=3):
    """Returns ``count`` random observations, stacked as they are stored."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return {str(name): batch(child, count) for name, child in items}
    space.seed(0)
    return torch.as_tensor(np.stack([space.sample() for _ in range(count)]))


# ------------------------------------------------------------------ sizes


IMAGES = [image_space(3, 64, 64), image_space(64, 64, 3)]
SPACES_OF = {  # a registered encoder takes them all; a new one is added here
    "mlp": [vector_space(5), spaces.MultiBinary(3)],
    "embedding": [spaces.Discrete(4), spaces.MultiDiscrete([2, 3])],
    **dict.fromkeys(("nature_cnn", "impala_cnn", "small_cnn", "minatar_cnn"), IMAGES),
}


@pytest.mark.parametrize("name", ENCODER_REGISTRY.names())
def test_every_encoder_keeps_its_contract(name):
    for space in SPACES_OF[name]:
        check_encoder(ENCODER_REGISTRY.get(name)(space), space, name, torch.float32)


@pytest.mark.parametrize(
    ("cls", "space", "options", "size"),
    [
        (VectorEncoder, vector_space(4), {}, 4),
        (VectorEncoder, spaces.Box(-1, 1, (2, 3)), {}, 6),
        (VectorEncoder, spaces.Box(-1, 1, ()), {}, 1),
        (VectorEncoder, spaces.MultiBinary(5), {}, 5),
        (VectorEncoder, spaces.MultiBinary((2, 3)), {}, 6),
        (VectorEncoder, vector_space(4), {"hidden_size_list": [8, 16]}, 16),
        (IndexEncoder, spaces.Discrete(7), {}, 32),
        (IndexEncoder, spaces.Discrete(7), {"embedding_size": 5}, 5),
        (IndexEncoder, spaces.MultiDiscrete([3, 4]), {"embedding_size": 5}, 10),
        (IndexEncoder, spaces.MultiDiscrete([[3, 4], [5, 6]]), {"embedding_size": 5}, 20),
        (NatureCNN, image_space(84, 84, 4), {}, 64 * 7 * 7),
        (NatureCNN, image_space(4, 84, 84), {}, 64 * 7 * 7),
        (NatureCNN, image_space(36, 36, 1), {}, 64),
        (NatureCNN, image_space(36, 52, 1), {}, 64 * 3),
        (MinAtarCNN, image_space(10, 10, 4), {}, 16 * 8 * 8),
        (MinAtarCNN, image_space(3, 3), {}, 16),
        (ImpalaCNN, image_space(64, 64, 3), {}, 32 * 8 * 8),
        (ImpalaCNN, image_space(3, 64, 64), {"widths": (4, 8)}, 8 * 16 * 16),
        (ImpalaCNN, image_space(10, 10, 4), {}, 32 * 2 * 2),
    ],
)
def test_output_has_the_size_that_was_announced(cls, space, options, size):
    encoder = cls(space, **options)
    assert encoder.out_features == size
    out = encoder(batch(space))
    assert out.shape == (3, size)
    assert out.dtype == torch.float32


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (vector_space(4), 64),
        (spaces.Discrete(5), 64),
        (spaces.MultiBinary(5), 64),
        (image_space(84, 84, 4), 512),
        (image_space(10, 10, 4), 128),
        (spaces.Dict(camera=image_space(10, 10, 4), speed=vector_space(2)), 128),
    ],
)
def test_trunk_is_chosen_by_the_space(space, size):
    encoder = Encoder(space, None, None, "relu")
    assert encoder.out_features == size
    assert encoder(batch(space)).shape == (3, size)


def test_hidden_size_list_replaces_the_trunk():
    assert Encoder(vector_space(4), None, [8, 5], "tanh").out_features == 5


def test_no_trunk_leaves_the_features_as_they_are():
    encoder = Encoder(vector_space(4), None, [], "tanh")
    x = torch.randn(3, 4)
    assert encoder.out_features == 4
    assert torch.equal(encoder(x), x)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mlp_puts_its_activation_after_every_layer(name):
    layers = mlp([4, 8, 2], name)
    assert [type(layer) for layer in layers] == [torch.nn.Linear, ACTIVATIONS[name]] * 2


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (vector_space(4), "mlp"),
        (spaces.Box(-1, 1, (8, 8)), "mlp"),
        (spaces.MultiBinary(3), "mlp"),
        (spaces.Discrete(3), "embedding"),
        (spaces.MultiDiscrete([3, 3]), "embedding"),
        (image_space(84, 84, 3), "nature_cnn"),
        (image_space(3, 84, 84), "nature_cnn"),
        (image_space(84, 84), "nature_cnn"),
        (image_space(36, 36, 3), "nature_cnn"),
        (image_space(64, 64, 3), "nature_cnn"),
        (image_space(35, 84, 3), "small_cnn"),
        (image_space(32, 32, 3), "small_cnn"),
        (image_space(16, 16), "small_cnn"),
        (image_space(15, 84, 3), "minatar_cnn"),
        (image_space(10, 10, 4), "minatar_cnn"),
        (image_space(10, 10, 4, dtype=bool), "minatar_cnn"),
    ],
)
def test_default_encoder_is_chosen_by_the_space(space, name):
    assert default_encoder(space, "small_cnn") == name


@pytest.mark.parametrize("side", [16, 24, 32, 35])
def test_the_default_encoder_fits_small_images(side):
    """The encoder of tiny images has no steps: at 32 x 32 its next layer alone had 1.8 million weights."""
    size, before = (
        sum(
            p.numel()
            for p in Encoder(image_space(side, side, 3), None, None, "relu", small_image=name).parameters()
        )
        for name in ("small_cnn", "minatar_cnn")
    )
    assert size < 350_000
    assert side < 32 or before > 1_800_000


def test_unsupported_observation_space_is_refused_by_name():
    with pytest.raises(ConfigError, match="Text.*Box"):
        Encoder(spaces.Text(5), None, None, "tanh")


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        ("nature_cnn", spaces.Box(-1, 1, (4,))),
        ("impala_cnn", spaces.Discrete(3)),
        ("embedding", spaces.Box(-1, 1, (4,))),
    ],
)
def test_encoder_of_another_kind_of_observation_is_refused_by_its_key(kind, space):
    with pytest.raises(ConfigError, match=r"^policy\.model\.encoder: .* is for .* a (Box|Discrete) of shape"):
        Encoder(space, {"type": kind}, None, "tanh")


# ------------------------------------------------------------------ vectors and indices


def test_vector_is_flattened_in_order_and_cast_to_float32():
    x = torch.arange(12, dtype=torch.float64).reshape(2, 2, 3)
    out = VectorEncoder(spaces.Box(-1, 1, (2, 3), np.float64))(x)
    assert out.dtype == torch.float32
    assert out.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_vector_of_uint8_is_cast_and_not_scaled():
    x = torch.tensor([[0, 255]], dtype=torch.uint8)
    assert VectorEncoder(spaces.Box(0, 255, (2,), np.uint8))(x).tolist() == [[0.0, 255.0]]


@pytest.mark.parametrize(
    ("encoder", "obs"),
    [
        (VectorEncoder(spaces.Box(-1, 1, (2, 3))), torch.zeros(0, 2, 3)),
        (IndexEncoder(spaces.Discrete(3)), torch.zeros(0, dtype=torch.int64)),
        (MinAtarCNN(image_space(10, 10, 4)), torch.zeros(0, 10, 10, 4, dtype=torch.uint8)),
    ],
)
def test_empty_batch_gives_empty_features(encoder, obs):
    assert encoder(obs).shape == (0, encoder.out_features)


def test_index_looks_up_its_row_of_the_table():
    encoder = IndexEncoder(spaces.Discrete(4), embedding_size=3)
    out = encoder(torch.tensor([2, 0]))
    assert torch.equal(out, encoder.table.weight[[2, 0]])


def test_start_of_a_discrete_is_taken_off():
    encoder = IndexEncoder(spaces.Discrete(4, start=-2), embedding_size=3)
    out = encoder(torch.tensor([-2, 1]))
    assert torch.equal(out, encoder.table.weight[[0, 3]])


def test_every_column_of_a_multi_discrete_has_rows_of_its_own():
    encoder = IndexEncoder(spaces.MultiDiscrete([2, 3], start=[0, 5]), embedding_size=2)
    assert encoder.table.num_embeddings == 5
    out = encoder(torch.tensor([[1, 5], [0, 7]]))
    rows = torch.tensor([[1, 2], [0, 4]])
    assert torch.equal(out, encoder.table.weight[rows].flatten(1))


def test_two_dimensional_multi_discrete_uses_every_row_once():
    encoder = IndexEncoder(spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[1, 0], [0, -1]]), embedding_size=1)
    low = torch.tensor([[[1, 0], [0, -1]]])
    high = torch.tensor([[[2, 2], [0, 0]]])
    with torch.no_grad():
        encoder.table.weight.copy_(torch.arange(8.0).unsqueeze(-1))
    assert encoder(low).tolist() == [[0, 2, 5, 6]]
    assert encoder(high).tolist() == [[1, 4, 5, 7]]


# ------------------------------------------------------------------ images


@pytest.mark.parametrize("cls", [NatureCNN, MinAtarCNN, ImpalaCNN])
def test_uint8_is_divided_by_255_exactly_once(cls):
    """The features of uint8 pixels equal those of the same pixels / 255 in a float space."""
    bytes_space, float_space = image_space(40, 40, 3), image_space(40, 40, 3, dtype=np.float32)
    from_bytes, from_floats = cls(bytes_space), cls(float_space)
    from_floats.load_state_dict(from_bytes.state_dict())
    pixels = batch(bytes_space)
    assert torch.allclose(from_bytes(pixels), from_floats(pixels.float() / 255), atol=1e-5)


def test_scaled_pixels_go_from_zero_to_one():
    encoder = ImageEncoder(image_space(2, 2, 1))
    x = torch.tensor([0, 51, 102, 255], dtype=torch.uint8).reshape(1, 2, 2, 1)
    assert encoder.images(x).flatten().tolist() == pytest.approx([0, 0.2, 0.4, 1.0], abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pixels_that_are_given_stay_as_they_were(dtype, layout):
    """Scaling writes only into new memory, in any layout of the input."""
    space = image_space(3, 40, 40)
    x = torch.randint(0, 256, (4, 3, 40, 40)).to(dtype).contiguous(memory_format=layout)
    before = x.clone()
    images = ImageEncoder(space).images(x)
    assert torch.equal(x, before)
    torch.testing.assert_close(images, (before.double() / 255).float())


@pytest.mark.parametrize("dtype", [np.float32, bool])
def test_floats_and_bools_are_taken_as_they_are(dtype):
    space = spaces.Box(0, 1, (8, 8, 2), dtype)
    x = batch(space)
    images = ImageEncoder(space).images(x)
    assert images.dtype == torch.float32
    assert torch.equal(images, x.movedim(-1, 1).float())


@pytest.mark.parametrize("cls", [NatureCNN, MinAtarCNN, ImpalaCNN])
def test_channels_first_and_last_give_the_same_features(cls):
    last, first = cls(image_space(40, 44, 3)), cls(image_space(3, 40, 44))
    first.load_state_dict(last.state_dict())
    pixels = batch(image_space(40, 44, 3))
    assert torch.allclose(last(pixels), first(pixels.movedim(-1, 1)), atol=1e-5)


def test_two_dimensional_image_is_one_channel():
    flat, deep = MinAtarCNN(image_space(8, 9)), MinAtarCNN(image_space(8, 9, 1))
    deep.load_state_dict(flat.state_dict())
    pixels = batch(image_space(8, 9))
    assert flat.in_shape == (1, 8, 9)
    assert torch.equal(flat(pixels), deep(pixels.unsqueeze(-1)))


def test_a_residual_block_adds_what_two_convolutions_make_of_relu():
    torch.manual_seed(0)
    block, x = _Residual(4, normed_scale=0.639), torch.randn(2, 4, 5, 5)
    first, second = block.layers[1], block.layers[3]
    y = F.conv2d(F.relu(x), first.weight, first.bias, padding=1)
    expected = x + F.conv2d(F.relu(y), second.weight, second.bias, padding=1)
    before = x.clone()
    assert torch.allclose(block(x), expected, atol=1e-6)
    assert torch.equal(x, before), "its input is the skip's, and the caller's"


def test_channels_are_found_at_the_smaller_end():
    assert ImageEncoder(image_space(84, 60, 3)).in_shape == (3, 84, 60)
    assert ImageEncoder(image_space(3, 84, 60)).in_shape == (3, 84, 60)


def test_image_with_two_equal_ends_is_refused_with_the_key_to_set():
    with pytest.raises(ConfigError, match=r"\(40, 60, 40\).*policy\.model\.encoder\.channels"):
        NatureCNN(image_space(40, 60, 40))


@pytest.mark.parametrize(("channels", "in_shape"), [("first", (40, 60, 40)), ("last", (40, 40, 60))])
def test_channels_option_settles_an_ambiguous_shape(channels, in_shape):
    assert NatureCNN(image_space(40, 60, 40), channels=channels).in_shape == in_shape


def test_advice_for_an_ambiguous_shape_works_without_naming_a_type():
    encoder = Encoder(image_space(40, 60, 40), {"channels": "first"}, None, "relu")
    assert encoder.leaves[0].in_shape == (40, 60, 40)


def test_channels_option_overrules_the_smaller_end():
    assert ImageEncoder(image_space(10, 12, 16), "last").in_shape == (16, 10, 12)


@pytest.mark.parametrize("shape", [(20, 24, 3), (3, 20, 24)])
def test_too_small_image_is_refused_showing_its_size(shape):
    with pytest.raises(ConfigError, match="NatureCNN.*20 x 24.*3 channels"):
        NatureCNN(image_space(*shape))


def test_image_one_pixel_below_the_smallest_is_refused():
    with pytest.raises(ConfigError, match="35 x 36 pixels"):
        NatureCNN(image_space(35, 36, 3))


def test_too_small_grid_is_refused_showing_its_size():
    with pytest.raises(ConfigError, match="MinAtarCNN.*2 x 3.*takes images from 3 x 3 pixels on"):
        MinAtarCNN(image_space(2, 3))


# ------------------------------------------------------------------ trees


NESTED = spaces.Dict(
    camera=image_space(10, 10, 3),
    arm=spaces.Tuple((vector_space(2), spaces.Discrete(3, start=1))),
    deep=spaces.Dict(bits=spaces.MultiBinary(4)),
)


def test_leaves_of_a_tree_come_in_a_stable_order():
    assert [path for path, _ in space_leaves(NESTED)] == [
        ("arm", "0"),
        ("arm", "1"),
        ("camera",),
        ("deep", "bits"),
    ]


def test_features_of_a_tree_are_those_of_its_leaves_side_by_side():
    encoder = Encoder(NESTED, None, [], "relu")
    obs = batch(NESTED)
    arm, index, camera, bits = encoder.leaves
    expected = torch.cat(
        [arm(obs["arm"]["0"]), index(obs["arm"]["1"]), camera(obs["camera"]), bits(obs["deep"]["bits"])], -1
    )
    assert encoder.out_features == 2 + 32 + 16 * 8 * 8 + 4
    assert torch.equal(encoder(obs), expected)


def test_tuple_observation_is_read_by_position():
    space = spaces.Tuple((vector_space(2), vector_space(3)))
    out = Encoder(space, None, [], "tanh")({"0": torch.zeros(1, 2), "1": torch.ones(1, 3)})
    assert out.tolist() == [[0, 0, 1, 1, 1]]


def test_action_mask_is_not_looked_at():
    space = spaces.Dict(board=vector_space(3), action_mask=spaces.MultiBinary(4))
    encoder = Encoder(space, None, [], "tanh")
    assert encoder.out_features == 3
    assert encoder({"board": torch.ones(2, 3)}).tolist() == [[1, 1, 1]] * 2


def test_encoder_type_is_for_the_images_of_a_tree():
    encoder = Encoder(NESTED, {"type": "impala_cnn", "widths": [4]}, None, "relu")
    assert [type(leaf) for leaf in encoder.leaves] == [VectorEncoder, IndexEncoder, ImpalaCNN, VectorEncoder]
    assert encoder.out_features == 256


def test_nature_cnn_may_have_other_widths():
    options = {"type": "nature_cnn", "widths": [8, 16, 24]}
    leaf = Encoder(image_space(84, 84, 3), options, [128], "relu").leaves[0]
    assert [layer.out_channels for layer in leaf.layers if isinstance(layer, torch.nn.Conv2d)] == [8, 16, 24]
    assert leaf.out_features == 24 * 7 * 7


def test_nature_cnn_has_three_convolutions():
    with pytest.raises(ConfigError, match=r"encoder\.widths: nature_cnn has 3 convolutions, got \[8, 16\]"):
        Encoder(image_space(84, 84, 3), {"type": "nature_cnn", "widths": [8, 16]}, None, "relu")


def test_encoder_type_is_for_every_leaf_where_there_is_no_image():
    encoder = Encoder(vector_space(3), {"type": "mlp", "hidden_size_list": [7]}, [], "tanh")
    assert encoder.out_features == 7


def test_encoder_may_be_chosen_leaf_by_leaf():
    options = {"arm.1": {"type": "embedding", "embedding_size": 5}, "camera": {"type": "impala_cnn"}}
    encoder = Encoder(NESTED, options, [], "relu")
    assert [type(leaf) for leaf in encoder.leaves] == [VectorEncoder, IndexEncoder, ImpalaCNN, VectorEncoder]
    assert encoder.leaves[1].out_features == 5


def test_encoder_may_be_given_by_import_path():
    options = {"type": "ding_lite.models.encoders:MinAtarCNN"}
    assert isinstance(Encoder(image_space(40, 40, 3), options, None, "relu").leaves[0], MinAtarCNN)


def test_encoder_may_have_an_activation_of_its_own():
    layers = Encoder(vector_space(3), {"hidden_size_list": [7], "activation": "elu"}, [4], "tanh")
    assert isinstance(layers.leaves[0].layers[1], torch.nn.ELU)
    assert isinstance(layers.trunk[1], torch.nn.Tanh)


def test_option_that_the_encoder_of_this_space_does_not_take_is_refused():
    with pytest.raises(ConfigError, match=r"^policy\.model\.encoder: .*'widths'"):
        Encoder(vector_space(3), {"widths": [7]}, [], "tanh")


def test_option_for_a_leaf_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="camrea"):
        Encoder(NESTED, {"camrea": {"type": "impala_cnn"}}, None, "relu")


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (NESTED, None),
        (image_space(36, 36, 2), {"type": "nature_cnn"}),
        (image_space(10, 10, 2), {"type": "impala_cnn", "widths": [4, 4]}),
    ],
)
def test_gradient_reaches_every_parameter_of_an_encoder(space, options):
    torch.manual_seed(0)
    encoder = Encoder(space, options, None, "tanh")
    encoder(batch(space)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
