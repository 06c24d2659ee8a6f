"""What an encoder and a model return is checked when they are made: the message names what is wrong."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from broken_worlds import Masked
from small_worlds import SeededBox, SeededEnv
from torch import nn
from worlds import digest, trainee

from ding_lite import ActorCritic, PPOPolicy
from ding_lite.errors import ConfigError, ContractError
from ding_lite.models import VAC
from ding_lite.models.checks import check_encoder, undisturbed
from ding_lite.models.encoders import Encoder
from ding_lite.models.heads import ActionHead
from ding_lite.trees import example_observations, map_tree, space_leaves

SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)


class Linear(nn.Module):
    """A correct encoder, without the argument ``activation``."""

    out_features = 8

    def __init__(self, space):
        super().__init__()
        self.layer = nn.Linear(int(np.prod(space.shape)), 8)

    def forward(self, x):
        return self.changed(self.layer(x))

    def changed(self, features):
        return features


def encoder_that(change):
    return type("Wrong", (Linear,), {"changed": lambda self, features: change(features)})


def of_encoder(kind, space=SPACE, **options):
    return Encoder(space, {"type": kind}, None, "tanh", **options)


WRONG = [
    (lambda x: x.unsqueeze(1), r"forward returned \(5, 1, 8\), expected \(5, out_features\) = \(5, 8\)"),
    (lambda x: x[:, 0], r"forward returned \(5,\), expected \(5, out_features\) = \(5, 8\)"),
    (lambda x: x[:1], r"forward returned \(1, 8\), expected"),
    (lambda x: x[:, :4], r"forward returned \(5, 4\), expected"),
    (lambda x: x.double(), "forward returned torch.float64, expected torch.float32"),
    (lambda x: (x, x), "forward returned a tuple of 2, expected"),
    (lambda x: x.detach().numpy(), "forward returned a ndarray, expected"),
    (lambda x: x / 0, "forward returned numbers that are not finite"),
    (
        lambda x: x @ x,
        r"forward of a leaf \(5, 3\), torch.float32, raised RuntimeError: .*\(at test_contract.py",
    ),
]


@pytest.mark.parametrize(("change", "fault"), WRONG)
def test_wrong_output_of_an_encoder_is_named_with_its_key(change, fault):
    with pytest.raises(
        ContractError, match=rf"policy.model.encoder \(test_contract:Wrong\): {fault}"
    ) as caught:
        of_encoder(encoder_that(change))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("width", [None, "8", 8.0, 0, True])
def test_out_features_is_a_whole_number(width):
    wrong = type("Wrong", (Linear,), {"out_features": width})
    with pytest.raises(ContractError, match=f"out_features is {width!r}, expected the number F"):
        of_encoder(wrong)


def test_an_encoder_is_a_module():
    with pytest.raises(ContractError, match=r"made a dict, expected a torch.nn.Module"):
        check_encoder({}, SPACE, "policy.model.encoder", torch.float32)


def test_the_observation_of_a_wrong_encoder_is_named():
    wrong = encoder_that(lambda x: x[:1])
    space = gym.spaces.Dict(body=SPACE, arm=gym.spaces.Dict(hand=SPACE))
    with pytest.raises(
        ContractError, match=r"encoder \(test_contract:Wrong, observation arm.hand\): forward"
    ):
        Encoder(space, {"arm.hand": {"type": wrong}}, None, "tanh")


def test_the_model_s_activation_is_given_to_encoders_that_take_it():
    class Takes(Linear):
        def __init__(self, space, activation):
            super().__init__(space)
            self.activation = activation

    class TakesAny(Linear):
        def __init__(self, space, **options):
            super().__init__(space)
            self.activation = options["activation"]

    assert [of_encoder(kind).leaves[0].activation for kind in (Takes, TakesAny)] == ["tanh", "tanh"]
    assert of_encoder(Linear)(torch.zeros(5, 3)).shape == (5, 64)
    with pytest.raises(ConfigError, match=r"unknown key 'activation'; known here: no keys"):
        Encoder(SPACE, {"type": Linear, "activation": "relu"}, None, "tanh")


# ------------------------------------------------------------------ models


class Small(ActorCritic):
    """A correct model."""

    config = dict(encoder_hidden_size_list=[])  # a key of ``small_config``

    def __init__(self, obs_space, action_space, encoder_hidden_size_list=()):
        super().__init__(obs_space, action_space)
        self.body = nn.Linear(obs_space.shape[0], 4)
        self.actor_head = ActionHead(action_space, 4)
        self.critic_head = nn.Linear(4, 1)
        self.value_heads = (self.critic_head,)

    def compute_actor(self, obs):
        return self.actor_head(self.body(obs))

    def compute_critic(self, obs):
        return self.critic_head(self.body(obs)).squeeze(-1)


def wrong_model(method, change):
    original = getattr(Small, method)
    return type("Wrong", (Small,), {method: lambda self, obs: change(original(self, obs))})


def box(change):
    return lambda logit: {name: change(x) for name, x in logit.items()}


@pytest.mark.parametrize(
    ("method", "change", "fault"),
    [
        ("compute_critic", lambda x: x.unsqueeze(-1), r"compute_critic returned \(5, 1\) for 5 obs"),
        ("compute_critic", lambda x: x.mean(), r"compute_critic returned \(\) for"),
        ("compute_critic", lambda x: (x, x), "compute_critic returned a tuple of 2 for"),
        ("compute_critic", lambda x: x.no_such, "compute_critic raised AttributeError"),
        ("compute_actor", lambda x: x.unsqueeze(1), r"compute_actor returned the logit \(5, 1, 3\) for"),
        ("compute_actor", lambda x: x[:1], r"compute_actor returned the logit \(1, 3\) for"),
        ("compute_actor", lambda x: (x, x), "the logit a tuple of 2 that compute_actor returned raised"),
        ("compute_actor", lambda x: x.no_such, "compute_actor raised AttributeError"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [False, True])
def test_wrong_output_of_a_model_is_named(method, change, fault, given):
    wrong = wrong_model(method, change)
    world = SeededEnv

    def build():
        if given:
            return policy_with(wrong(world.observation_space, world.action_space))
        return trainee("ppo", world, model={"type": wrong})

    with pytest.raises(ContractError, match=rf"policy.model \(test_contract:Wrong\): .*{fault}"):
        build()


def test_model_without_an_action_head_is_told_to_make_one():
    class Headless(ActorCritic):
        def __init__(self, obs_space, action_space):
            super().__init__(obs_space, action_space)
            self.layer, self.value = nn.Linear(3, 3), nn.Linear(3, 1)

        def compute_actor(self, obs):
            return self.layer(obs)

        def compute_critic(self, obs):
            return self.value(obs).squeeze(-1)

    spaces = SeededEnv.observation_space, SeededEnv.action_space
    cfg = trainee("ppo", SeededEnv, learn={"value_norm": False})[0].cfg
    with pytest.raises(ContractError, match=r"Headless\) has no actor_head.*ActionHead\(action_space"):
        PPOPolicy(cfg, *spaces, model=Headless(*spaces))


def policy_with(model, kind=PPOPolicy):
    cfg = trainee("ppo", SeededEnv)[0].cfg
    return kind(cfg, model.obs_space, model.action_space, model=model)


def test_wrong_logit_of_a_box_is_named():
    wrong = wrong_model("compute_actor", box(lambda x: x.unsqueeze(1)))
    with pytest.raises(ContractError, match=r"returned the logit {'mu': '\(5, 1, "):
        trainee("ppo", SeededBox, model={"type": wrong})


def test_a_policy_that_only_acts_needs_no_value():
    model = wrong_model("compute_critic", lambda x: x.unsqueeze(-1))(SPACE, gym.spaces.Discrete(3))
    cfg = trainee("ppo", SeededEnv)[0].cfg
    PPOPolicy(cfg, SPACE, model.action_space, model=model, enable_field=("eval",)).act(np.zeros(3))


def test_a_policy_may_say_itself_what_the_model_is_given_and_what_its_output_means():
    class Own(PPOPolicy):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.factor = 2.0

        def inputs(self, obs):
            return self.scaled(obs) * self.factor

        def distribution(self, obs, logit):
            return self.model.distribution(logit[:, 0])

    model = wrong_model("compute_actor", lambda x: x.unsqueeze(1))(SPACE, gym.spaces.Discrete(3))
    assert policy_with(model, Own).act(np.zeros((4, 3))).shape == (4,)


def test_what_the_model_is_given_may_be_known_later_and_the_model_is_checked_then():
    class Late(PPOPolicy):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.factor = 2.0

        def inputs(self, obs):
            return self.scaled(obs) * self.factor

    right = VAC(SPACE, gym.spaces.Discrete(3))
    assert policy_with(right, Late).collect_mode.forward(np.zeros((4, 3)))["action"].shape == (4,)
    wrong = policy_with(
        wrong_model("compute_critic", lambda x: x.unsqueeze(-1))(SPACE, right.action_space), Late
    )
    with pytest.raises(ContractError, match="compute_critic"):
        _ = wrong.collect_mode


@pytest.mark.parametrize("rnn", [None, "lstm", "gru"])
@pytest.mark.parametrize("world", [SeededEnv, SeededBox, Masked])
def test_correct_models_pass(world, rnn):
    for kind in ("ppo", "ppg"):
        trainee(kind, world, model={"rnn": rnn})


# ------------------------------------------------------------------ step, of models with memory


def stepping(change, name="Wrong"):
    """Returns a kind of VAC whose ``step`` returns ``change(logit, value, state)``."""
    return type(name, (VAC,), {"step": lambda self, inputs: change(*VAC.step(self, inputs))})


def built(kind, rnn="gru", **options):
    return trainee("ppo", SeededEnv, model={"type": kind, "rnn": rnn, **options})


def forgetting(logit, value, state):
    return logit, value, map_tree(torch.zeros_like, state)


class KnowsLength(VAC):
    """Values a sequence by its length, which single steps do not know."""

    def compute_critic(self, obs):
        return super().compute_critic(obs) + len(obs.sizes) - 1

    def step(self, inputs):
        return super().step(inputs)


OF_ONE, OF_TWO = "in the first step of sequences of one", "in the second step of sequences of two"


@pytest.mark.parametrize("rnn", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (
            stepping(lambda x, v, s: (x + torch.eye(3)[0], v, s)),
            f"another output than compute_actor {OF_ONE}",
        ),
        (stepping(lambda x, v, s: (x, v + 0.1, s)), f"another output than compute_critic {OF_ONE}"),
        (stepping(lambda x, v, s: (x, v[:, None], s)), f"another output than compute_critic {OF_ONE}"),
        (stepping(lambda x, v, s: (v, x, s)), f"another output than compute_actor {OF_ONE}"),
        (stepping(forgetting), f"another output than compute_actor {OF_TWO}"),
        (KnowsLength, "another output than compute_critic in the first step of sequences of two"),
    ],
)
def test_a_step_that_does_not_act_as_training_assumes_is_refused(kind, fault, rnn):
    with pytest.raises(ContractError, match=rf"{kind.__name__}.step returns {fault}"):
        built(kind, rnn)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda x, v, s: (x, v), r"must return \(logit, value, state\); got a tuple of 2"),
        (lambda x, v, s: x, r"must return \(logit, value, state\); got \(5, 3\)"),
        (lambda x, v, s: (x, None, s), r"must return \(logit, value, state\); got \(5, 3\), a NoneType, "),
        (lambda x, v, s: (x, v, s["actor"]), r"a state as initial_state.*{'actor': .*; got {'h': "),
        (
            lambda x, v, s: (x, v, map_tree(lambda leaf: leaf.transpose(0, 1), s)),
            r"'h': '\(5, 1, 128\)'.* for 5 sequences; got .*'h': '\(1, 5, 128\)'",
        ),
        (lambda x, v, s: x.no_such, "raised AttributeError"),
    ],
)
def test_what_a_step_returns_is_named(change, fault):
    with pytest.raises(ContractError, match=rf"Wrong.step .*{fault}"):
        built(stepping(change))


def test_steps_that_draw_random_numbers_are_not_refused():
    built(stepping(lambda x, v, s: (x + torch.randn_like(x), v, s)))
    built(VAC, encoder={"type": encoder_that(lambda x: x + torch.randn_like(x))})


def test_steps_may_be_rounded_in_another_way():
    built(VAC, encoder_dtype="bfloat16")
    built(stepping(lambda x, v, s: (x * 1.001, v * 1.001, s)))


# ------------------------------------------------------------------ nothing changes


class Restless(Linear):
    """An encoder with all that a call may change."""

    def __init__(self, space):
        super().__init__(space)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.frozen = nn.Linear(8, 8).eval()

    def forward(self, x):
        self.calls += 1
        noise = torch.randn(len(x), 8)
        return self.frozen(self.dropout(self.norm(self.layer(x)))) + noise


def test_a_check_changes_no_module_and_draws_no_random_number():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = Restless(SPACE)
        next_number = torch.rand(())
        torch.manual_seed(0)
        checked = Restless(SPACE)
        check_encoder(checked, SPACE, "encoder", torch.float32)
        assert torch.rand(()) == next_number
    assert digest(checked.state_dict()) == digest(expected.state_dict())
    assert [part.training for part in checked.modules()] == [part.training for part in expected.modules()]
    checked(torch.zeros(2, 3))  # the negative control
    assert digest(checked.state_dict()) != digest(expected.state_dict())


def test_modes_and_buffers_are_restored_after_an_error():
    module = Restless(SPACE)
    modes = []

    def failing():
        with undisturbed(module):
            module.calls += 1
            modes.append(module.training)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert modes == [False]
    assert module.training
    assert module.calls == 0


def test_a_model_without_numbers_is_not_computed():
    with torch.device("meta"):
        model = VAC(SPACE, gym.spaces.Discrete(3), encoder={"type": encoder_that(lambda x: x / 0)})
    assert next(model.parameters()).is_meta


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_encoders_may_compute_in_bfloat16(dtype):
    of_encoder(encoder_that(lambda x: x.to(getattr(torch, dtype))), dtype=dtype)


# ------------------------------------------------------------------ observations for a check


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
        gym.spaces.Box(np.float32(-3.4e38), np.float32(3.4e38), (3,), np.float32),
        gym.spaces.Box(100, 200, (2, 2), np.float32),
        gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        gym.spaces.Discrete(3, start=5),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.MultiBinary(4),
        gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Dict(a=SPACE)]),
    ],
    ids=str,
)
def test_examples_are_observations_of_the_space_and_always_the_same(space):
    batch = example_observations(space, 2)
    assert digest(batch) == digest(example_observations(space, 2))
    for path, leaf in space_leaves(space):
        values = batch
        for name in path:
            values = values[name]
        assert all(leaf.contains(leaf.dtype.type(x) if x.ndim == 0 else x.astype(leaf.dtype)) for x in values)
        assert np.abs(values.astype(float)).max() <= 255


def test_all_actions_are_legal_in_examples():
    space = gym.spaces.Dict(obs=SPACE, action_mask=gym.spaces.MultiBinary(5))
    assert example_observations(space, 2)["action_mask"].all()
