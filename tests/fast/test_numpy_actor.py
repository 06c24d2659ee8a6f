"""Acting in NumPy: actions, log-probs and draws are the model's, and what it cannot do it leaves alone."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from broken_worlds import Masked, Sound
from small_worlds import SeededBox, SeededEnv, SeededMulti
from torch import nn
from worlds import log_probs, rollout_log_probs, trainee

from ding_lite import ActionHead, ActorCritic, PPOPolicy, compile_config
from ding_lite.data.rollout import PREPARED_BY
from ding_lite.errors import ContractError
from ding_lite.fast.acting import TorchActing
from ding_lite.fast.numpy_actor import NumpyActor
from ding_lite.fast.numpy_model import find_numpy_model
from ding_lite.models import VAC
from ding_lite.models.heads import DiscreteHead
from ding_lite.policies.ppg import PPGPolicy
from ding_lite.rl.scales import ObservationNorm
from ding_lite.trees import to_dict

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
SCALAR = spaces.Box(-1, 1, (), np.float32)
BYTES = spaces.Box(0, 255, (5,), np.uint8)
DISCRETE = spaces.Discrete(3, start=2)
BOX = spaces.Box(-1, 1, (2, 3), np.float32)
MULTI = spaces.MultiDiscrete([[2], [3]], start=[[1], [0]])
MASKED = spaces.Dict(observation=VECTOR, action_mask=spaces.Box(0, 1, (3,), np.bool_))
MULTI_MASKED = spaces.Dict(observation=VECTOR, action_mask=spaces.Box(0, 1, (5,), np.bool_))
MASK_OF_PARTS = spaces.Dict(observation=VECTOR, action_mask=spaces.Tuple(map(spaces.MultiBinary, (2, 3))))
IMAGE = spaces.Box(0, 255, (10, 10, 3), np.uint8)
INDEX = spaces.Discrete(5, start=-2)
INDICES = spaces.MultiDiscrete([[2], [3]], start=[[1], [-1]], dtype=np.int8)
MIXED = spaces.Dict(
    a=VECTOR, b=INDICES, c=INDEX, d=spaces.MultiBinary(3), action_mask=spaces.Box(0, 1, (3,), np.bool_)
)
ROWS = 8


def policy_for(obs_space=VECTOR, action_space=DISCRETE, kind=PPOPolicy, noise=3, **options):
    """Returns a policy whose logits are far from uniform."""
    name = {PPOPolicy: "ppo", PPGPolicy: "ppg"}[kind]
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": name, **options}})
    policy = kind(cfg.values.policy, obs_space, action_space)
    draw = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=draw))
    if policy.obs_norm is not None:
        policy.warm_up(observations(obs_space, 64, seed=7))
    return policy


def observations(space, count=ROWS, seed=0):
    space = copy.deepcopy(space)
    space.seed(seed)
    rows = [space.sample() for _ in range(count)]
    if not isinstance(space, spaces.Dict):
        return np.stack(rows)
    obs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    if "action_mask" in obs:
        obs["action_mask"][:, 1::2] = True  # one action of each component
    return obs


def by_model(policy, function, obs):
    """Returns what the model itself answers, and leaves the generator where it was."""
    state = policy.generator.get_state()
    policy.fast.use_numpy = False
    try:
        return function(obs)
    finally:
        policy.fast.use_numpy = True
        policy.generator.set_state(state)


CASES = {
    "discrete": dict(),
    "ppg": dict(kind=PPGPolicy),
    "relu, deeper": dict(
        model=dict(activation="relu", encoder_hidden_size_list=[32, 16, 8], actor_head_hidden_size_list=[8])
    ),
    "no hidden layer": dict(model=dict(encoder_hidden_size_list=[])),
    "masked": dict(obs_space=MASKED),
    "scalar": dict(obs_space=SCALAR),
    "bytes": dict(obs_space=BYTES, normalize=dict(obs=False)),
    "scaled": dict(normalize=dict(obs=True, obs_clip=1.0)),
    "scaled, masked": dict(obs_space=MASKED, normalize=dict(obs="initial")),
    "index": dict(obs_space=INDEX),
    "index, no hidden layer": dict(obs_space=INDEX, model=dict(encoder_hidden_size_list=[])),
    "indices, ppg": dict(obs_space=INDICES, kind=PPGPolicy),
    "vectors": dict(obs_space=spaces.Dict(a=VECTOR, b=SCALAR), normalize=dict(obs=True)),
    "vectors and indices, scaled, masked": dict(obs_space=MIXED, normalize=dict(obs=True)),
    "multi-discrete": dict(action_space=MULTI),
    "multi-discrete, ppg": dict(action_space=MULTI, kind=PPGPolicy),
    "multi-discrete, masked": dict(obs_space=MULTI_MASKED, action_space=MULTI),
    "normal": dict(action_space=BOX),
    "normal, fixed": dict(action_space=BOX, model=dict(sigma_type="fixed", fixed_sigma_value=0.2)),
    "normal, tanh": dict(action_space=BOX, model=dict(bound_type="tanh")),
    "normal, soft": dict(action_space=BOX, model=dict(bound_type="soft"), normalize=dict(obs=True)),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


# ------------------------------------------------------------------ the same as the model


@every_case
@pytest.mark.parametrize("rows", [1, ROWS, 100])
def test_draws_are_those_of_the_model(case, rows):
    """One generator, one state: the same noise gives the same actions."""
    policy = policy_for(**case)
    obs = observations(policy.obs_space, rows)
    assert policy.fast.acting().name == "NumPy"
    for _ in range(5):
        expected = by_model(policy, policy._forward_collect, obs)
        found = policy._forward_collect(obs)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)


@every_case
def test_greedy_actions_are_those_of_the_model(case):
    policy = policy_for(**case)
    obs = observations(policy.obs_space, 50)
    expected = by_model(policy, policy._forward_eval, obs)["action"]
    found = policy._forward_eval(obs)["action"]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@every_case
def test_log_prob_is_what_the_learner_computes(case):
    policy = policy_for(**case)
    obs = observations(policy.obs_space, 200)
    found = policy._forward_collect(obs)
    learned = log_probs(policy, policy.on_device(obs), found["action"])
    # A Normal multiplies the rounding of its mean by |z| / sigma.
    sigma = case.get("model", {}).get("fixed_sigma_value", 1.0)
    assert torch.exp(learned - found["log_prob"]).sub(1).abs().max() < 1e-5 / sigma


@every_case
def test_generator_goes_on_as_it_would_have(case):
    policy = policy_for(**case)
    obs = observations(policy.obs_space)
    policy._forward_collect(obs)
    after = policy.generator.get_state()
    policy.generator.manual_seed(0)
    other = policy_for(**case)
    other.fast.use_numpy = False
    other._forward_collect(obs)
    assert torch.equal(after, other.generator.get_state())


def test_illegal_actions_are_never_taken():
    policy = policy_for(MASKED)
    obs = observations(MASKED, 500)
    for found in (policy._forward_collect(obs), policy._forward_eval(obs)):
        assert obs["action_mask"][np.arange(500), found["action"].numpy()].all()


def test_illegal_actions_of_a_component_are_never_taken():
    policy = policy_for(MULTI_MASKED, MULTI)
    obs = observations(MULTI_MASKED, 500)
    for found in (policy._forward_collect(obs), policy._forward_eval(obs)):
        places = found["action"].numpy() + [0, 2]
        assert np.take_along_axis(obs["action_mask"], places, 1).all()


def test_actions_are_drawn_with_their_probabilities():
    policy = policy_for()
    obs = np.repeat(observations(VECTOR, 1), 20_000, 0)
    with torch.no_grad():
        probs = torch.softmax(policy.model.compute_actor(torch.as_tensor(obs[:1])), -1)[0].numpy()
    counts = np.bincount(policy._forward_collect(obs)["action"].numpy(), minlength=3)
    expected = probs * len(obs)
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # 0.1 % of chi-square with 2 degrees


def test_normal_actions_have_the_mean_and_the_std():
    policy = policy_for(action_space=BOX)
    obs = np.repeat(observations(VECTOR, 1), 20_000, 0)
    with torch.no_grad():
        logit = policy.model.compute_actor(torch.as_tensor(obs[:1]))
    action = policy._forward_collect(obs)["action"]
    assert (action.mean(0) - logit["mu"][0]).abs().div(logit["sigma"][0]).max() < 0.03
    torch.testing.assert_close(action.std(0), logit["sigma"][0], rtol=0.03, atol=0)


def test_numbers_that_are_not_finite_are_passed_on_without_a_word(recwarn):
    policy = policy_for()
    policy.model.actor_encoder.trunk[0].weight.data.fill_(np.nan)
    assert policy._forward_collect(observations(VECTOR))["log_prob"].isnan().all()
    assert not recwarn.list


# ------------------------------------------------------------------ what changes is noticed


def gradient_step(policy):
    for p in policy.model.parameters():
        p.data.add_(0.1)


def loaded(policy):
    policy.load_state_dict(policy_for(noise=4).state_dict())


def other_memory(policy):
    for p in policy.model.parameters():
        p.data = p.data * 2


def other_layer(policy):
    policy.model.actor_encoder.trunk[2] = nn.Linear(64, 64)


def other_parameter(policy):
    policy.model.actor_head.layers[0].bias = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))


def other_activation(policy):
    policy.model.actor_encoder.trunk[1] = nn.GELU()


def other_model(policy):
    policy.model = VAC(VECTOR, DISCRETE, init="torch")


def other_method(policy):
    policy.model.compute_actor = lambda obs: torch.ones(len(obs), 3) * torch.arange(3.0)


def listener(policy):
    policy.model.actor_encoder.trunk.register_forward_hook(lambda module, inputs, output: output * 2)


def other_precision(policy):
    policy.model.double()
    policy.model.actor_encoder.leaves[0].forward = lambda x: x.double()


CHANGES = [
    gradient_step,
    loaded,
    other_memory,
    other_layer,
    other_parameter,
    other_activation,
    other_model,
    other_method,
    listener,
    other_precision,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_model_acts_as_it_is_now(change):
    policy, obs = policy_for(), observations(VECTOR, 50)
    before = policy._forward_collect(obs)
    change(policy)
    expected = by_model(policy, policy._forward_collect, obs)
    found = policy._forward_collect(obs)
    assert not torch.equal(found["log_prob"], before["log_prob"])
    torch.testing.assert_close(found["action"], expected["action"])
    torch.testing.assert_close(found["log_prob"], expected["log_prob"], rtol=1e-5, atol=1e-5)


def test_new_scale_of_observations_is_used():
    policy, obs = policy_for(normalize=dict(obs=True)), observations(VECTOR, 50)
    policy.obs_norm.update(torch.as_tensor(obs * 3 + 1), torch.ones(50, dtype=torch.bool))
    expected = by_model(policy, policy._forward_collect, obs)
    torch.testing.assert_close(policy._forward_collect(obs)["log_prob"], expected["log_prob"])


class HalfNorm(ObservationNorm):
    def __call__(self, obs, path=()):
        return super().__call__(obs, path) / 2


def test_a_scale_of_observations_of_ones_own_is_used():
    policy, obs = policy_for(normalize=dict(obs=True)), observations(VECTOR, 50)
    before = policy._forward_collect(obs)["log_prob"]
    policy.obs_norm.__class__ = HalfNorm
    found = policy._forward_collect(obs)
    torch.testing.assert_close(found["log_prob"], log_probs(policy, torch.as_tensor(obs), found["action"]))
    assert not torch.allclose(found["log_prob"].exp(), before.exp(), atol=0.1)


def test_copy_of_a_policy_acts_with_its_own_parameters():
    policy, obs = policy_for(), observations(VECTOR, 50)
    policy._forward_eval(obs)
    model = copy.deepcopy(policy.model)
    with torch.no_grad():
        policy.model.actor_head.layers[0].bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    assert (policy._forward_eval(obs)["action"] == 0).all()
    policy.model = model
    assert (policy._forward_eval(obs)["action"] != 0).any()


# ------------------------------------------------------------------ what it leaves to the model


class OtherActor(VAC):
    def compute_actor(self, obs):
        return -super().compute_actor(obs)


class OtherDistribution(VAC):
    def distribution(self, logit, mask=None):
        return super().distribution(-logit, mask)


class OtherHead(VAC):
    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)

        class Head(ActionHead):
            def forward(self, features):
                return -super().forward(features)

        self.actor_head = Head(action_space, self.actor_encoder.out_features)


class OtherLeaf(VAC):
    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)

        class Head(DiscreteHead):
            def distribution(self, logit, mask=None):
                return super().distribution(2 * logit, mask)

        self.actor_head.out = Head(action_space)


class Own(ActorCritic):
    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)
        self.actor_head = ActionHead(action_space, 4)


@pytest.mark.parametrize("kind", [OtherActor, OtherDistribution, OtherHead, OtherLeaf, Own])
def test_models_of_ones_own_are_not_taken_over(kind):
    policy = policy_for()
    policy.model = kind(VECTOR, DISCRETE)
    assert policy.fast.acting().name == "torch"


@pytest.mark.parametrize(
    ("obs_space", "action_space", "options"),
    [
        (MASK_OF_PARTS, MULTI, {}),
        (VECTOR, spaces.MultiBinary(3), {}),
        (VECTOR, spaces.Dict(a=DISCRETE, b=BOX), {}),
        (VECTOR, BOX, dict(box_distribution="beta")),
        (VECTOR, BOX, dict(box_distribution="tanh_normal")),
        (VECTOR, BOX, dict(sigma_type="conditioned")),
        (spaces.Dict(a=VECTOR, b=VECTOR), DISCRETE, dict(encoder=dict(type="mlp", hidden_size_list=[8]))),
        (spaces.Dict(a=INDEX, b=IMAGE), DISCRETE, {}),
        (spaces.MultiDiscrete([3] * 9), DISCRETE, {}),  # more indices than are looked up faster
        (IMAGE, DISCRETE, {}),
        (VECTOR, DISCRETE, dict(activation="gelu")),
    ],
)
def test_other_spaces_and_networks_are_left_to_the_model(obs_space, action_space, options):
    assert find_numpy_model(VAC(obs_space, action_space, **options)).actor is None


@pytest.mark.parametrize(("width", "faster"), [(128, True), (256, False)])
def test_large_layers_are_left_to_the_model(width, faster):
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}}).values.policy
    cfg.model.encoder_hidden_size_list = [width, width]
    assert (PPOPolicy(cfg, VECTOR, DISCRETE).fast.acting().name == "NumPy") == faster


def test_parametrized_layers_are_left_to_the_model():
    model = VAC(VECTOR, DISCRETE)
    nn.utils.parametrizations.weight_norm(model.actor_encoder.trunk[0])
    assert find_numpy_model(model).actor is None


def test_other_precision_is_left_to_the_model():
    assert find_numpy_model(VAC(VECTOR, DISCRETE).double()).actor is None


@pytest.mark.parametrize("method", ["inputs", "scaled", "distribution", "on_device"])
def test_policies_that_change_what_the_model_sees_act_by_it(method):
    own = type("Mine", (PPOPolicy,), {method: lambda self, *args: getattr(PPOPolicy, method)(self, *args)})
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}}).values.policy
    assert own(cfg, VECTOR, DISCRETE).fast.acting().name == "torch"
    assert type("Plain", (PPOPolicy,), {})(cfg, VECTOR, DISCRETE).fast.acting().name == "NumPy"


@pytest.mark.parametrize("obs", [torch.zeros(3, 4), np.zeros((0, 4), np.float32)])
def test_tensors_and_empty_batches_go_to_the_model(obs, monkeypatch):
    policy, asked, sample = policy_for(), [], TorchActing.sample
    monkeypatch.setattr(TorchActing, "sample", lambda self, obs: asked.append(1) or sample(self, obs))
    assert policy.fast.acting().name == "NumPy"
    assert policy._forward_collect(obs)["action"].shape == (len(obs),)
    assert asked == [1]


@pytest.mark.parametrize("index", [-3, 3])
def test_an_index_outside_of_its_space_is_never_looked_up(index):
    """The last row of a table must not answer for an index of -1, as it does in NumPy."""
    policy = policy_for(obs_space=INDEX)
    assert policy._forward_collect(np.array([-2, 2]))["action"].shape == (2,)
    with pytest.raises(IndexError, match="index out of range"):
        policy._forward_collect(np.array([0, index]))


def own_table(policy):
    policy.model.actor_encoder.leaves[0].table = nn.Embedding(5, 32)


def own_vectors(policy):
    policy.model.actor_encoder.leaves[0].table.weight = nn.Parameter(torch.randn(5, 32))


def bounded_table(policy):
    policy.model.actor_encoder.leaves[0].table = nn.Embedding(5, 32, max_norm=1e-3)


def listened_table(policy):
    policy.model.actor_encoder.leaves[0].table.register_forward_hook(lambda module, inputs, output: -output)


@pytest.mark.parametrize(
    ("change", "name"),
    [(own_table, "NumPy"), (own_vectors, "NumPy"), (bounded_table, "torch"), (listened_table, "torch")],
)
def test_a_table_that_is_changed_is_looked_up_as_it_is_now(change, name):
    policy, obs = policy_for(obs_space=INDEX), observations(INDEX, 50)
    before = policy._forward_eval(obs)["action"]
    change(policy)
    assert policy.fast.acting().name == name
    found = policy._forward_eval(obs)["action"]
    assert torch.equal(found, by_model(policy, policy._forward_eval, obs)["action"])
    assert not torch.equal(found, before)


def test_wrong_shapes_are_told():
    with pytest.raises(ContractError, match=r"of the shape \(B, 4\); got \(3, 5\)"):
        policy_for()._forward_collect(np.zeros((3, 5), np.float32))


# ------------------------------------------------------------------ within a rollout


def test_who_acts_is_looked_up_once_a_rollout(monkeypatch):
    policy, collector = trainee("ppo", n_sample=64, envs=4)
    looks, acting = [], policy.fast.acting
    monkeypatch.setattr(policy.fast, "acting", lambda: looks.append(1) or acting())
    mode = policy.collect_mode.for_rollout()
    for _ in range(5):
        mode.forward(collector.obs[0])
    assert len(looks) == 1
    policy.collect_mode.forward(collector.obs[0])
    assert len(looks) == 2, "outside of a rollout anybody may change the policy"
    looks.clear()
    collector.collect()
    assert len(looks) == 1, "16 rows"


def test_who_was_replaced_between_two_rollouts_acts_no_more():
    policy, collector = trainee("ppo", n_sample=64, envs=4)
    collector.collect()
    layer = policy.model.actor_head.layers[0]
    policy.model.actor_head.layers[0] = nn.Linear(layer.in_features, layer.out_features)
    with torch.no_grad():
        policy.model.actor_head.layers[0].weight.zero_()
        policy.model.actor_head.layers[0].bias.copy_(torch.tensor([0.0, 99.0, 0.0]))
    assert collector.collect().action.unique().tolist() == [1]
    heard = []
    policy.model.actor_head.layers[0].register_forward_hook(lambda *_: heard.append(1))
    collector.collect()
    assert len(heard) >= 16


ROLLOUTS = {
    "discrete": dict(kind="ppo", world=SeededEnv),
    "multi-discrete": dict(kind="ppo", world=SeededMulti),
    "normal": dict(kind="ppo", world=SeededBox),
    "normal, tanh": dict(kind="ppo", world=SeededBox, model=dict(bound_type="tanh")),
    "ppg": dict(kind="ppg", world=SeededEnv),
    "off-policy": dict(kind="ppo_offpolicy", world=SeededEnv, normalize=dict(obs=True)),
}


def counted_log_probs(monkeypatch):
    """Notes the shapes of the actions whose log-probs are asked for at once."""
    shapes, log_prob = [], NumpyActor.log_prob

    def counted(self, output, obs, action):
        shapes.append(action.shape)
        return log_prob(self, output, obs, action)

    monkeypatch.setattr(NumpyActor, "log_prob", counted)
    return shapes


def with_a_say(mode):
    """Returns the mode with somebody who looks at each row, and changes nothing."""

    def process(obs, output, transition):
        assert output.keys() == {"action", "log_prob"}
        return mode.process_transition(obs, output, transition)

    return mode._replace(process_transition=process)


@pytest.mark.parametrize("case", ROLLOUTS.values(), ids=ROLLOUTS)
def test_log_probs_of_a_rollout_are_those_of_its_steps(case, monkeypatch):
    policy, collector = trainee(n_sample=96, **case)
    other, others = trainee(n_sample=96, **case)
    others.mode = with_a_say(others.mode)
    for _ in range(3):
        shapes = counted_log_probs(monkeypatch)
        rollout, expected = collector.collect(), others.collect()
        lead = [shape[: len(shape) - rollout.action.dim() + 2] for shape in shapes]
        assert lead == [(24, 4)] + 24 * [(4,)]
        one, each = to_dict(rollout), to_dict(expected)
        assert one.keys() == each.keys()
        for name in one.keys() - {PREPARED_BY}:  # each policy has its own mark
            torch.testing.assert_close(one[name], each[name], rtol=1e-5, atol=1e-5)
        assert rollout.log_prob.std() > 1e-3, "so that one row's would not do for another's"
        learned = rollout_log_probs(policy, rollout)
        torch.testing.assert_close(rollout.log_prob, learned, rtol=1e-5, atol=1e-5)
        for trained, data in ((policy, rollout), (other, expected)):
            trained.learn_mode.forward(data)
        monkeypatch.undo()


class OneForbidden(Masked):
    def obs(self):
        self.mask = np.ones(3, np.int8)
        self.mask[self.np_random.integers(3)] = 0
        return {"action_mask": self.mask.copy(), "pose": Sound.obs(self)}


def test_log_probs_of_masked_actions_are_had_at_once(monkeypatch):
    policy, collector = trainee("ppo", OneForbidden, n_sample=96)
    shapes = counted_log_probs(monkeypatch)
    rollout = collector.collect()
    assert shapes == [(24, 4)]
    learned = rollout_log_probs(policy, rollout)
    torch.testing.assert_close(rollout.log_prob, learned, rtol=1e-5, atol=1e-5)
    rollout.obs.action_mask = torch.ones_like(rollout.obs.action_mask)
    free = rollout_log_probs(policy, rollout)
    assert not torch.allclose(rollout.log_prob, free, atol=1e-2), "the mask counts"


def test_outside_of_a_rollout_every_step_has_its_log_probs():
    policy, collector = trainee("ppo", n_sample=64, envs=4)
    assert "log_prob" not in policy.collect_mode.for_rollout().forward(collector.obs[0])
    assert "log_prob" in policy._forward_collect(collector.obs[0])


def test_log_probs_of_somebody_elses_own_are_kept():
    """A forward that draws half of the actions at random says how likely they were."""
    policy, collector = trainee("ppo", n_sample=64, envs=4)
    forward = collector.mode.forward

    def mixed(obs):
        return {**forward(obs), "log_prob": torch.full((4,), -0.25)}

    collector.mode = collector.mode._replace(forward=mixed)
    assert (collector.collect().log_prob == -0.25).all()


def test_a_rollout_that_is_completed_later_has_the_log_probs_of_then():
    policy, collector = trainee("ppo", SeededBox, n_sample=64, envs=4)
    collector.mode = collector.mode._replace(get_train_sample=lambda rollout: rollout)
    rollout = collector.collect()
    learned = rollout_log_probs(policy, rollout)
    with torch.no_grad():
        policy.model.actor_head.out.log_sigma.fill_(2.0)
    log_prob = policy._get_train_sample(rollout).log_prob
    torch.testing.assert_close(log_prob, learned, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "method", ["_forward_collect", "_to_env", "_process_transition", "_get_train_sample"]
)
def test_a_policy_with_its_own_words_gets_log_probs_at_every_step(method, monkeypatch):
    own = type("Own", (PPOPolicy,), {method: lambda self, *args: getattr(PPOPolicy, method)(self, *args)})
    _, collector = trainee("ppo", n_sample=64, envs=4, cls=own)
    shapes = counted_log_probs(monkeypatch)
    collector.collect()
    assert shapes == 16 * [(4,)]
