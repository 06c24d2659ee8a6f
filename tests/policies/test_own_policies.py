"""Policies and models of the user: what they may override, mistakes that are named, and modes."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import digest, small_config, trainee, until

from ding_lite import PPGPolicy, PPOPolicy, SerialPipeline, check_policy, load_policy
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.episodes import Evaluator
from ding_lite.data.rollout import flat
from ding_lite.errors import CheckpointError, ContractError
from ding_lite.models import VAC
from ding_lite.policies.base import Policy
from ding_lite.rl.distributions import Normal
from ding_lite.rl.losses import weighted_mean
from ding_lite.rl.scales import RAW
from ding_lite.testing import MatchEnv

KINDS = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")

# ------------------------------------------------------------------ losses


def wrong(method, result):
    """Returns a policy whose loss returns ``result(loss, metrics)`` of the library's."""

    def own(self, batch):
        return result(*getattr(PPGPolicy, method)(self, batch))

    return type("Wrong", (PPGPolicy,), {method: own})


@pytest.mark.parametrize("method", ["policy_loss", "value_loss", "auxiliary_loss"])
@pytest.mark.parametrize(
    ("result", "what"),
    [
        (lambda loss, metrics: loss, r"Wrong\.{} must return \(loss, dict of metrics\), got a Tensor"),
        (lambda loss, metrics: (loss.expand(3), metrics), r"Wrong\.{} must return 0-d tensors, .* as 'loss'"),
        (lambda loss, metrics: (loss, {"wide": torch.ones(2)}), r"Wrong\.{} .* as 'wide': take the mean"),
        (lambda loss, metrics: (loss, {"number": 1.5}), r"Wrong\.{} .* as 'number': use torch.tensor"),
        (lambda loss, metrics: (loss.detach(), metrics), "loss has no gradient, so a step"),
    ],
)
def test_a_loss_that_returns_something_else_is_refused(method, result, what):
    learn = dict(aux_freq=1, critic_epoch_per_collect=2)  # a loop for each loss
    policy, collector = trainee("ppg", cls=wrong(method, result), learn=learn)
    with pytest.raises(ContractError, match=what.format(method)):
        policy.learn_mode.forward(collector.collect())


class HeardError(Exception):
    """Raised by a method that stands for one of the library."""


def heard(*arguments):
    raise HeardError


REPLACED = {
    "class": lambda base, method: type("Own", (base,), {method: heard}),
    "wraps": lambda base, method: type(
        "Own", (base,), {method: functools.wraps(getattr(base, method))(heard)}
    ),
    "mixin": lambda base, method: type("Own", (type("Mixin", (), {method: heard}), base), {}),
    "instance": lambda base, method: base,
}
# What acts, and what computes gradients: NumPy with the library's slopes, NumPy below the loss, or torch.
WAYS = {
    "NumPy, slopes": (SeededEnv, {}),
    "NumPy, autograd": (SeededBox, {"bound_type": "tanh"}),
    "torch": (SeededEnv, {"activation": "gelu"}),
    "recurrent": (SeededEnv, {"rnn": "gru"}),
}
ACTS = ("_forward_collect", "_forward_eval", "_process_transition", "_to_env", "scaled", "distribution")
LEARNS = ("_get_train_sample", "_prepare_rollout", "_forward_learn", "credit", "improve", "with_outputs")
LOSSES = ("policy_loss", "value_loss", "loss")
PHASES = ("policy_phase", "auxiliary_loss", "auxiliary_phase")


def collected_learned_evaluated(method, policy, collector):
    if method:
        setattr(policy, method, heard)
    policy.learn_mode.forward(collector.collect())
    Evaluator(collector.envs, policy, 1, 100).evaluate(0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", [*ACTS, *LEARNS, *LOSSES, *PHASES])
def test_a_method_that_is_replaced_is_called_in_every_way(method, way):
    world, model = WAYS[way]
    kind, learn = "ppg", {"aux_freq": 1, "critic_epoch_per_collect": 2}
    for how, replace in REPLACED.items():
        if how in ("class", "mixin") and way != "NumPy, slopes":
            continue
        base = POLICY_REGISTRY.get(kind)
        with pytest.raises(HeardError):
            collected_learned_evaluated(
                method if how == "instance" else "",
                *trainee(kind, world, cls=replace(base, method), model=model, learn=learn),
            )


def test_a_method_that_is_replaced_in_the_library_itself_is_called(monkeypatch):
    policy, collector = trainee("ppo")
    monkeypatch.setattr(PPOPolicy, "value_loss", heard)
    with pytest.raises(HeardError):
        policy.learn_mode.forward(collector.collect())


@pytest.mark.parametrize("method", ["loss", "with_outputs", "distribution", "_process_transition"])
def test_a_replaced_method_changes_nothing_if_it_is_the_same(method):
    own = type("Own", (PPOPolicy,), {method: lambda self, *given: getattr(PPOPolicy, method)(self, *given)})
    found = []
    for cls in (PPOPolicy, own):
        policy, collector = trainee("ppo", cls=cls)
        found.append(policy.learn_mode.forward(collector.collect()))
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)


def transitions(self, data: list[dict]):
    """As DI-engine declares it."""


@pytest.mark.parametrize(
    ("method", "function", "told"),
    [
        ("_monitor_vars_learn", lambda self: ["my_loss"], "every metric that _forward_learn returns"),
        ("_reset_eval", lambda self, data_id=None: None, "initial_hidden"),
        ("_state_dict_learn", lambda self: {}, r"self\.keep\(name, part\)"),
        ("_forward_learn", transitions, "data is declared as list.* a whole rollout"),
        ("_get_train_sample", transitions, "data is declared as list.* a whole rollout"),
        ("default_model", lambda self: ("vac", ["ding.model"]), "classmethod .* name of a model only"),
        ("default_model", classmethod(lambda cls: ("vac", ["ding.model"])), "classmethod .* name .* only"),
    ],
)
def test_a_method_as_di_engine_calls_it_is_refused_with_what_takes_its_place(method, function, told):
    with pytest.raises(ContractError, match=rf"Ported\.{method}: .*{told}"):
        trainee("ppo", cls=type("Ported", (PPOPolicy,), {method: function}))


def test_an_optimizer_as_in_di_engine_is_said_to_be_unused():
    class Ported(PPOPolicy):
        def _init_learn(self):
            super()._init_learn()
            self._optimizer = torch.optim.RMSprop(self.model.parameters())

    (line,) = [line for line in trainee("ppo", cls=Ported)[0].lines if "_optimizer" in line]
    assert line.startswith("WARNING")


class Unclipped(PPOPolicy):
    """A plain policy gradient, by the ratio; stale samples have weights."""

    def policy_loss(self, batch):
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        loss = -weighted_mean(log_ratio.exp() * batch.advantage, batch.policy_weight)
        return loss, {"policy_loss": loss}


class Awr(PPOPolicy):
    """Advantage-weighted regression: its collecting gives no log-prob."""

    def _forward_collect(self, obs, hidden=None):
        return {"action": super()._forward_collect(obs)["action"]}

    def policy_loss(self, batch):
        gain = batch.advantage.clamp(-2, 2).exp()
        return -(batch.dist.log_prob(batch.action) * gain).mean(), {}


class Huber(PPOPolicy):
    def value_loss(self, batch):
        loss = torch.nn.functional.huber_loss(batch.new_value, batch.value_target)
        return loss, {"value_loss": loss}


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("cls", [Unclipped, Huber])
def test_overridden_losses_pass_the_check_on_fresh_and_on_old_data(cls, on_policy):
    check_policy(cls, {"on_policy": on_policy}, learns=False, action_spaces=["MultiDiscrete", "Dict"])


def test_a_loss_without_log_prob_learns_from_fresh_rollouts():
    policy, collector = trainee("ppo", cls=Awr)
    before = digest(policy.model.state_dict())
    assert policy.learn_mode.forward(collector.collect())["updates"] > 0
    assert digest(policy.model.state_dict()) != before


@pytest.mark.parametrize("kind", ["ppo", "ppg", "ppo_offpolicy"])
@pytest.mark.parametrize("rnn", [None, "gru"])
def test_what_a_subclass_gives_its_model_is_the_same_in_acting_and_learning(kind, rnn):
    library = POLICY_REGISTRY.get(kind)
    own = type("Own", (library,), {"scaled": lambda self, obs: 3 * library.scaled(self, obs)})
    policy, collector = trainee(kind, cls=own, model=dict(rnn=rnn), normalize=dict(obs=True))
    policy.warm_up(torch.randn(64, 3))
    policy.value_norm.load_state_dict(RAW)
    batch = next(policy.minibatches(collector.collect()).batches)
    with torch.no_grad():
        log_prob, value = policy.log_prob(batch.obs, batch.action), policy.model.compute_critic(batch.obs)
    torch.testing.assert_close(log_prob, batch.log_prob, atol=1e-5, rtol=0)
    torch.testing.assert_close(value, batch.value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rnn", [None, "gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_added_field_stays_with_its_row(kind, rnn):
    library, seen = POLICY_REGISTRY.get(kind), []

    class Own(library):
        def _process_transition(self, obs, output, transition):
            fields = super()._process_transition(obs, output, transition)
            return {**fields, "shown": np.array(obs[:, 0], np.float32)}

        def policy_loss(self, batch):
            obs = batch.obs if rnn is None else batch.obs.obs
            seen.append(torch.equal(batch.shown, obs[:, 0]))
            return super().policy_loss(batch)

    policy, collector = trainee(kind, cls=Own, model=dict(rnn=rnn), autoreset="next_step")
    for _ in range(2):
        policy.learn_mode.forward(collector.collect())
    assert seen
    assert all(seen)


# ------------------------------------------------------------------ whole policies


class Reinforce(Policy):
    """The policy gradient with returns to go, on the base class alone, with an optimiser of its own."""

    def _init_learn(self):
        self.optimizer = self.keep("optimizer", torch.optim.Adam(self.model.parameters(), lr=1e-2))

    def _get_train_sample(self, rollout):
        to_go, rows = torch.zeros(rollout.reward.shape[1]), []
        ends = rollout.terminated | rollout.truncated
        for reward, end in zip(rollout.reward.flip(0), ends.flip(0), strict=True):
            to_go = reward + torch.where(end, 0.0, to_go)
            rows.append(to_go)
        rollout.gain = torch.stack(rows[::-1])
        return rollout

    def _forward_learn(self, rollout):
        log_prob = self.log_prob(self.scaled(flat(rollout.obs)), flat(rollout.action))
        gain = rollout.gain.flatten()
        loss = -(log_prob * (gain - gain.mean()) / gain.std()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.obs_norm.update(rollout.obs, rollout.valid)
        return {"loss": loss.item(), "updates": 1.0}


class A2C(PPOPolicy):
    """One step down the loss of the whole rollout, with an optimiser of its own."""

    def _init_learn(self):
        super()._init_learn()
        self.adam = self.keep("adam", torch.optim.Adam(self.model.parameters(), lr=1e-2))

    def improve(self, rollout):
        obs, valid = self.scaled(flat(rollout.obs)), rollout.valid.flatten()
        logit, value = self.model.compute_actor_critic(obs)
        log_prob = self.distribution(obs, logit).log_prob(flat(rollout.action))
        gain = rollout.advantage.flatten()
        error = value - self.value_norm.normalize(rollout.value_target.flatten())
        loss = (error.square() - gain / gain.std() * log_prob)[valid].mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return {"loss": loss.item(), "updates": 1.0}


SCALES = {
    "learn": {"value_norm": True},
    "normalize": {"obs": True, "reward": True},
    "intrinsic": {"type": "rnd"},
}


@pytest.mark.parametrize(("cls", "policy"), [(Reinforce, {"normalize": {"obs": True}}), (A2C, SCALES)])
def test_a_policy_with_an_optimiser_of_its_own_is_trained_resumed_and_loaded(cls, policy, tmp_path):
    config = small_config(policy={"type": cls, **policy}, max_env_step=800)
    config["policy"].pop("model")
    config["policy"]["learn"] = policy.get("learn", {})
    config["policy"]["collect"] = {"n_sample": 160}
    with SerialPipeline(config, folder=tmp_path / "straight") as straight:
        before = digest(straight.policy.model.state_dict())
        list(straight)
    assert digest(straight.policy.model.state_dict()) != before
    until(SerialPipeline(config, folder=tmp_path / "run"), 2)
    with SerialPipeline.resume(tmp_path / "run", trust=[__name__]) as again:
        list(again)
    assert digest(again.policy.model.state_dict()) == digest(straight.policy.model.state_dict())
    loaded = load_policy(tmp_path / "run", checkpoint="last", trust=[__name__])
    assert loaded.act(loaded.obs_space.sample()) in (0, 1)


def test_all_parts_of_ppo_learn_around_an_overridden_improve():
    policy, collector = trainee("ppo", cls=A2C, **SCALES)
    (stats,) = policy.obs_norm.stats.values()
    networks = digest(policy.intrinsic.networks.state_dict())
    rollout = collector.collect()
    policy.learn_mode.forward(rollout)
    assert policy.reward_scale.count == policy.schedules.env_step == stats.count == 64
    assert float(policy.value_norm.mean) == pytest.approx(float(rollout.value_target.mean()), rel=1e-5)
    assert digest(policy.intrinsic.networks.state_dict()) != networks


# ------------------------------------------------------------------ models


class Dropping(torch.nn.Module):
    """Notes whether it is in training mode, and drops half of its features there."""

    seen: list[bool] = []  # noqa: RUF012 - of the whole class

    def __init__(self, space):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(*space.shape, 8), torch.nn.Dropout(0.5))
        self.out_features = 8

    def forward(self, obs):
        self.seen.append(self.training)
        return self.layers(obs)


@pytest.mark.parametrize("kind", ["ppo", "ppg", "ppo_offpolicy"])
def test_layers_such_as_dropout_are_in_training_mode_in_gradient_steps_alone(kind):
    learn = {"aux_freq": 1} if kind == "ppg" else {}
    policy, collector = trainee(kind, model={"encoder": {"type": Dropping}}, learn=learn)
    Dropping.seen.clear()
    rollout = collector.collect()
    assert not any(Dropping.seen)
    policy.learn_mode.forward(rollout)
    assert any(Dropping.seen)
    assert not policy.model.training


def test_layers_that_are_frozen_later_stay_and_learn_again():
    policy, collector = trainee("ppo")
    for frozen in (True, False):
        policy.model.actor_encoder.requires_grad_(not frozen)
        before = digest(policy.model.actor_encoder.state_dict())
        policy.learn_mode.forward(collector.collect())
        assert (digest(policy.model.actor_encoder.state_dict()) == before) == frozen


def test_a_model_whose_layers_are_all_frozen_is_refused():
    class AllFrozen(VAC):
        def __init__(self, *spaces, **options):
            super().__init__(*spaces, **options)
            self.requires_grad_(False)

    with pytest.raises(ContractError, match="no parameter: all layers of the model are frozen"):
        trainee("ppo", model={"type": AllFrozen})


class MeanKl(Normal):
    def kl(self, other):
        return super().kl(other).mean()


class FlatMode(Normal):
    def mode(self):
        return self.mu[..., 0]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("distribution", "what"),
    [(MeanKl, r"MeanKl.kl must .*got \(\)"), (FlatMode, r"FlatMode.mode must .*got \(\d+,\)")],
)
def test_shapes_that_would_broadcast_are_refused_when_the_policy_is_built(distribution, what, nested):
    """An action of one dimension hides them: (N, 1) and (N,) give (N, N), whose mean is a number."""
    box = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    space = gym.spaces.Dict(one=gym.spaces.Discrete(2), two=box) if nested else box
    with pytest.raises(ContractError, match=what):
        trainee("ppo", lambda: MatchEnv(space), model=dict(box_distribution=distribution))


# ------------------------------------------------------------------ modes, act, arguments


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["learn", "collect", "eval"])
def test_each_mode_works_alone(kind, field):
    policy, collector = trainee(kind, SeededBox, normalize=dict(obs=True, reward=True))
    rollout = collector.collect()
    alone = type(policy)(policy.cfg, policy.obs_space, policy.action_space, enable_field=[field])
    assert set(alone.state_dict()) <= set(policy.state_dict())
    alone.load_state_dict(policy.state_dict())
    if field == "learn":
        metrics = alone.learn_mode.forward(rollout)
        assert metrics == policy.learn_mode.forward(rollout)
    elif field == "collect":
        forward = [each.collect_mode.forward(rollout.obs[0]) for each in (alone, policy)]
        assert digest(forward[0]) == digest(forward[1])
        sample = alone.collect_mode.get_train_sample(rollout)
        assert torch.isfinite(sample.advantage).all()
    else:
        obs = rollout.obs[0].numpy()
        assert np.array_equal(alone.act(obs), policy.act(obs))


def test_an_actor_keeps_its_own_stream_of_noise():
    (learner, collector), (actor, _) = trainee("ppo"), trainee("ppo")
    obs = collector.collect().obs[0].clone()
    drawn = []
    for _ in range(6):
        actor.collect_mode.load_state_dict(learner.state_dict())
        drawn.append(actor.collect_mode.forward(obs)["action"].tolist())
    assert len(set(map(tuple, drawn))) > 1


def test_act_takes_one_observation_or_a_batch_and_refuses_the_rest():
    policy, _ = trainee("ppo", SeededBox)
    batch = np.random.default_rng(0).normal(size=(4, 3))
    actions = policy.act(batch)
    assert isinstance(actions, np.ndarray)
    assert actions.shape == (4, 2)
    for one, action in zip(batch, actions, strict=True):
        np.testing.assert_allclose(policy.act(one), action, rtol=1e-6)
        assert policy.action_space.contains(policy.act(one))
    drawn = [policy.act(batch[0], deterministic=False) for _ in range(2)]
    assert not np.array_equal(*drawn)
    for wrong_obs, told in (
        (np.zeros(4), r"expected an observation of Box.* or a batch of such, got .*\(4,\)"),
        ((np.zeros(3), {}), r"of the pair that reset\(\) returns, the first"),
        (np.array([0.0, np.inf, 0.0]), "not finite"),
    ):
        with pytest.raises(ContractError, match=told):
            policy.act(wrong_obs)


def test_act_refuses_what_training_refuses():
    space = gym.spaces.Discrete(4, start=2)
    policy = PPOPolicy(trainee("ppo")[0].cfg, space, gym.spaces.Discrete(2))
    assert policy.act(np.array([2, 5])).shape == (2,)
    for index in (1, 6):  # NumPy's table would be read from its end
        with pytest.raises(ContractError, match=f"{index}, which is not in Discrete"):
            policy.act(index)
    mask = gym.spaces.Box(0, 1, (2,), np.int8)
    space = gym.spaces.Dict(observation=gym.spaces.Box(0, 255, (3,), np.uint8), action_mask=mask)
    policy = PPOPolicy(trainee("ppo")[0].cfg, space, gym.spaces.Discrete(2))
    numbers, masks = np.zeros((4, 3), np.uint8), np.eye(2)[[0, 0, 1, 1]]
    assert policy.act({"observation": numbers, "action_mask": masks}).tolist() == [0, 0, 1, 1]
    for wrong, told in (
        ({"observation": numbers / 255, "action_mask": masks}, "floats in place of uint8"),
        ({"observation": numbers, "action_mask": masks[:3]}, r"got .*\(3, 2\)"),
        ({"observation": numbers, "action_mask": 0 * masks}, "action_mask leaves no legal action"),
    ):
        with pytest.raises(ContractError, match=told):
            policy.act(wrong)


def test_a_cut_without_its_last_observation_is_refused():
    policy, collector = trainee("ppo")
    policy._complete_rollout = lambda rollout: rollout  # without credit
    rollout = collector.collect()
    del policy._complete_rollout
    assert rollout.truncated[:-1].any()
    rollout.final = rollout.final[1:]
    with pytest.raises(ContractError, match="truncated rows?, and 'final' has [1-9]"):
        policy.collect_mode.get_train_sample(rollout)
    del rollout.final
    with pytest.raises(ContractError, match="truncated rows?, and 'final' has 0"):
        policy.collect_mode.get_train_sample(rollout)


def test_rollouts_of_another_kind_are_refused():
    policy, _ = trainee("ppo")
    for call in (policy.learn_mode.forward, policy.collect_mode.get_train_sample):
        with pytest.raises(ContractError, match="expected a rollout, a tree of tensors .* got a list"):
            call([{"obs": np.zeros(3)}])


def test_a_state_that_lacks_a_part_changes_nothing():
    (policy, _), (other, collector) = trainee("ppo"), trainee("ppo", seed=1)
    other.learn_mode.forward(collector.collect())
    state, before = other.state_dict(), digest(policy.state_dict())
    del state["optimizer"]
    with pytest.raises(CheckpointError, match="the saved policy has no 'optimizer'"):
        policy.load_state_dict(state)
    assert digest(policy.state_dict()) == before
