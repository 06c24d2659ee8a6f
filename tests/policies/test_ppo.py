"""PPO against a reference written from the paper, and each of its options."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import CountingEnv, SeededEnv
from torch import nn
from worlds import digest, policy_for, trainee, vector_of

from ding_lite import ActionHead, ActorCritic, ConfigError, NumericsError, PPOPolicy, compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.collector import Collector
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.errors import ContractError

OBS_SIZE = 4


class Wander(gym.Env):
    """Random observations and rewards; episodes terminate or are truncated at random."""

    def __init__(self, action_space: gym.Space | None = None) -> None:
        self.observation_space = gym.spaces.Box(-5, 5, (OBS_SIZE,), np.float32)
        self.action_space = action_space or gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def _obs(self):
        return self.np_random.uniform(-2, 2, OBS_SIZE).astype(np.float32)

    def step(self, action):
        ends = self.np_random.random(2) < 0.08
        return self._obs(), float(self.np_random.normal()), bool(ends[0]), bool(ends[1]), {}


BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def make(space=None, n_sample=64, envs=4, **policy):
    """Returns (policy, collector) on Wander, with the options of the section ``policy``."""
    user = {"env": {"type": Wander}, "policy": {"collect": {"n_sample": n_sample}, **policy}}
    user["policy"].setdefault("learn", {}).setdefault("batch_size", 16)
    cfg = compile_config(user).values.policy
    vector = InProcessVectorEnv(lambda index: EpisodeRecorder(Wander(space)), envs)
    policy = PPOPolicy(cfg, vector.obs_space, vector.action_space)
    return policy, Collector(vector, policy.collect_mode, n_sample)


def parameters(policy):
    return [p.detach().clone() for p in policy.model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("gae_lambda", [0.0, 1.0])
def test_ignore_done_takes_terminations_for_truncations(gae_lambda):
    """They bootstrap, and no trace crosses them."""
    envs = vector_of(lambda index: CountingEnv(((3, "terminated"),)), 1, final_of_terminated=True)
    learn, collect = dict(value_norm=False), dict(discount_factor=0.5, gae_lambda=gae_lambda)
    policy = policy_for(envs, learn=learn, collect=collect)
    rollout = Collector(envs, policy.collect_mode, 6).collect()
    before, after = policy.values(torch.tensor([[0.0, 2.0], [0.0, 3.0]])).tolist()
    assert abs(after) > 1e-3
    for ignored in (False, True):  # the third row ends the first episode, with a reward of 3
        policy.cfg.learn.ignore_done = ignored
        expected = 3 + (0.5 * after if ignored else 0.0) - before
        assert policy.credit(rollout)["advantage"][2, 0].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("space", [None, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_ratio_of_the_first_minibatch_is_one(space, normalize):
    policy, collector = make(space, normalize=dict(obs=normalize, reward=normalize))
    for _ in range(3):
        rollout = collector.collect()
        batch = next(policy.minibatches(rollout))
        _, metrics = policy.loss(batch)
        assert abs(float(metrics["approx_kl"].detach())) < 1e-6
        assert float(metrics["clipfrac"]) == 0
        dist = policy.distribution(batch.obs, policy.model.compute_actor(batch.obs))
        ratio = (dist.log_prob(batch.action) - batch.log_prob).exp()
        assert torch.allclose(ratio, torch.ones_like(ratio), atol=1e-5)
        policy.learn_mode.forward(rollout)


def test_a_short_last_minibatch_is_kept_and_a_single_sample_joins_the_one_before():
    policy, collector = make(n_sample=127, envs=1, learn=dict(batch_size=16, epoch_per_collect=10))
    assert policy.learn_mode.forward(collector.collect())["updates"] == 10 * 8
    policy, collector = make(n_sample=129, envs=1, learn=dict(batch_size=16, epoch_per_collect=1))
    assert policy.learn_mode.forward(collector.collect())["updates"] == 8


def test_a_training_set_too_large_to_be_shuffled_at_once_gives_the_same_minibatches(monkeypatch):
    trained = []
    for size in (2**26, 0):
        monkeypatch.setattr("ding_lite.data.samples.SHUFFLED_BYTES", size)
        policy, collector = make(learn=dict(batch_size=24, epoch_per_collect=2))
        policy.learn_mode.forward(collector.collect())
        trained.append(parameters(policy))
    assert equal(*trained)


@pytest.mark.parametrize("size", [2**26, 0])
def test_a_minibatch_is_made_again_as_it_was(size, monkeypatch):
    monkeypatch.setattr("ding_lite.data.samples.SHUFFLED_BYTES", size)
    policy, collector = make(learn=dict(batch_size=24))
    rollout = collector.collect()
    for batch in policy.minibatches(rollout):
        fields = batch.fields()
        batch.advantage = None
        again = batch.remake().fields()
        assert again.keys() == fields.keys()
        assert all(torch.equal(again[name], fields[name]) for name in fields)


def test_target_kl_stops_the_policy_and_the_value_goes_on():
    learn = dict(epoch_per_collect=6, learning_rate=0.02, target_kl=1e-4, value_norm=False)
    policy, collector = make(learn=learn)
    rollout = collector.collect()
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    metrics = policy.learn_mode.forward(rollout)
    assert metrics["epochs"] == 1
    assert metrics["updates"] == 6 * 4
    one_epoch, other = make(learn={**learn, "epoch_per_collect": 1})
    one_epoch.learn_mode.forward(other.collect())
    after, shorter = policy.model.state_dict(), one_epoch.model.state_dict()
    assert all(torch.equal(after[k], shorter[k]) for k in after if k.startswith("actor"))
    assert not torch.equal(after["critic_head.0.weight"], shorter["critic_head.0.weight"])
    assert not torch.equal(before["actor_head.out.layer.weight"], after["actor_head.out.layer.weight"])


def test_loss_without_approx_kl_is_refused_if_target_kl_needs_it():
    class Silent(PPOPolicy):
        def policy_loss(self, batch):
            return super().policy_loss(batch)[0], {}

    for kl in (None, 0.02):
        policy, collector = trainee("ppo", cls=Silent, learn=dict(target_kl=kl))
        rollout = collector.collect()
        if kl is None:
            policy.learn_mode.forward(rollout)
        else:
            with pytest.raises(ContractError, match=r"target_kl: Silent.policy_loss returns no .*approx_kl"):
                policy.learn_mode.forward(rollout)


@pytest.mark.parametrize("kind", ["ppo", "ppg", "ppo_offpolicy"])
@pytest.mark.parametrize(("method", "rnn"), [("inputs", None), ("scaled", None), ("scaled", "gru")])
def test_what_a_subclass_gives_its_model_is_the_same_in_acting_and_learning(kind, method, rnn):
    library = POLICY_REGISTRY.get(kind)
    own = type("Own", (library,), {method: lambda self, obs: 3 * getattr(library, method)(self, obs)})
    policy, collector = trainee(kind, cls=own, model=dict(rnn=rnn), normalize=dict(obs=True))
    policy.warm_up(collector.random_observations(64, 0))
    rollout = collector.collect()
    batch = next(policy.minibatches(rollout))
    _, metrics = policy.loss(batch)
    assert abs(metrics["approx_kl"].item()) < 1e-6, "the ratio of the first step is 1"
    with torch.no_grad():
        value = policy.denormalized_values(policy.model.compute_critic(batch.obs))
    torch.testing.assert_close(value, policy.denormalized_values(batch.value), atol=1e-5, rtol=1e-5)


def test_without_target_kl_every_epoch_trains_the_policy():
    policy, collector = make(learn=dict(epoch_per_collect=6, learning_rate=0.02))
    assert policy.learn_mode.forward(collector.collect())["epochs"] == 6


def test_the_critic_of_the_course_example_learns_and_its_published_form_has_no_gradient():
    policy, collector = make(
        n_sample=127, envs=1, recompute_adv=True, learn=dict(value_norm=False, epoch_per_collect=10)
    )
    rollout = collector.collect()
    before = float(torch.square(policy.rollout_values(rollout) - rollout.value_target).mean())
    for _ in range(20):
        policy.learn_mode.forward(rollout)
    credit = policy.credit(rollout)
    after = float(torch.square(credit["value"] - credit["value_target"]).mean())
    assert after < 0.9 * before
    # Published: the target is V + advantage with V not detached, so that (V - target) has no V in it.
    value = policy.model.compute_critic(rollout.obs.flatten(0, 1))
    published = torch.square(value - (value + rollout.advantage.flatten())).mean()
    gradient = torch.autograd.grad(published, policy.model.critic_head[0].weight)[0]
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_value_norm_keeps_raw_values_when_its_scale_moves():
    policy, collector = make(learn=dict(value_norm=True))
    rollout = collector.collect()
    before = policy.rollout_values(rollout)
    policy.value_norm.update_heads(1000 + 50 * rollout.reward.flatten().numpy(), policy.model.value_heads)
    assert torch.allclose(policy.rollout_values(rollout), before, atol=1e-3)
    assert float(policy.value_norm.mean) == pytest.approx(1000, abs=20)


def test_a_step_that_is_not_finite_changes_nothing_and_is_reported():
    policy, collector = make(learn=dict(epoch_per_collect=1, value_norm=False))
    rollout = collector.collect()
    rollout.log_prob[:] = math.nan
    before, moments = parameters(policy), digest(policy.optimizer.state_dict())
    with pytest.raises(
        NumericsError, match=r"step 0 of loss in iteration 1.*'log_prob'.*policy_loss.*learning_rate"
    ):
        policy.learn_mode.forward(rollout)
    assert equal(before, parameters(policy))
    assert digest(policy.optimizer.state_dict()) == moments


def ratio_beyond_every_number(policy, rollout):
    rollout.log_prob[:] = -200.0


def weight_that_is_no_number(policy, rollout):
    with torch.no_grad():
        next(policy.model.parameters())[0, 0] = math.nan


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (ratio_beyond_every_number, r"of its results \{'total_loss': -?inf.*'approx_kl': inf"),
        (weight_that_is_no_number, r"of the weights \['actor_encoder.*0.weight'\]"),
    ],
)
def test_what_is_not_finite_in_a_step_is_named(spoil, words):
    policy, collector = make(learn=dict(epoch_per_collect=1, value_norm=False))
    rollout = collector.collect()
    spoil(policy, rollout)
    before = parameters(policy)
    with pytest.raises(NumericsError, match=f"step 0 of loss in iteration 1.*{words}"):
        policy.learn_mode.forward(rollout)
    assert equal(*([p.nan_to_num() for p in some] for some in (before, parameters(policy))))


class Huge(SeededEnv):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return (obs, 1e30 * reward, *rest)


def test_rewards_of_any_size_are_learned_from_in_their_own_scale():
    policy, collector = trainee("ppo", Huge, learn=dict(value_norm=True))
    for _ in range(3):
        assert np.isfinite(list(policy.learn_mode.forward(collector.collect()).values())).all()
    assert all(torch.isfinite(p).all() for p in policy.model.parameters())
    without, collector = trainee("ppo", Huge, learn=dict(value_norm=False))
    with pytest.raises(NumericsError, match=r"'value_loss': inf.*look at the scale of the rewards"):
        without.learn_mode.forward(collector.collect())


@pytest.mark.parametrize("field", ["advantage", "value"])
def test_credit_that_is_not_finite_reaches_no_scale_and_no_step(field):
    policy, collector = make(learn=dict(value_norm=True))
    rollout = collector.collect()
    rollout[field][0, 0] = math.inf
    before, scale = parameters(policy), policy.value_norm.state_dict()
    with pytest.raises(NumericsError, match="not finite; nothing was learned from it"):
        policy.learn_mode.forward(rollout)
    assert equal(before, parameters(policy))
    assert policy.value_norm.state_dict() == scale


def test_schedules_are_functions_of_saved_progress():
    learn = dict(
        learning_rate=1e-2,
        lr_schedule="linear",
        clip_ratio=0.4,
        clip_schedule="cosine",
        entropy_weight=0.1,
        entropy_schedule="linear",
        entropy_final=0.5,
        schedule_env_step=256,
    )
    policy, collector = make(learn=learn)
    assert policy.learn_mode.forward(collector.collect())["cur_lr"] == pytest.approx(1e-2)
    metrics = policy.learn_mode.forward(collector.collect())
    assert metrics["cur_lr"] == pytest.approx(1e-2 * (1 - 64 / 256))
    assert metrics["clip_ratio"] == pytest.approx(0.4 * 0.5 * (1 + math.cos(math.pi / 4)))
    policy._apply_schedules()
    assert float(policy.entropy_weight) == pytest.approx(0.1 * (1 - 0.5 * 128 / 256))
    other, _ = make(learn=learn)
    other.load_state_dict(policy.state_dict())
    assert other.entropy_weight == policy.entropy_weight


def test_entropy_weight_defaults_to_a_bonus_for_discrete_actions_only():
    assert make()[0].entropy_weight == 0.01
    assert make(BOX)[0].entropy_weight == 0.0


def test_every_declared_metric_is_given():
    policy, collector = make(learn=dict(target_kl=0.5))
    given = policy.learn_mode.forward(collector.collect())
    assert set(policy.learn_mode.monitor_vars()) == set(given)


class Headless(ActorCritic):
    """A model that names no value heads."""

    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)
        self.actor_head = ActionHead(action_space, OBS_SIZE)
        self.critic_head = nn.Linear(OBS_SIZE, 1)

    def compute_actor(self, obs):
        return self.actor_head(obs)

    def compute_critic(self, obs):
        return self.critic_head(obs)[:, 0]


def test_value_norm_needs_to_know_the_value_heads():
    with pytest.raises(ConfigError, match=r"value_norm.*Headless.*value_heads"):
        make(model=dict(type=Headless), learn=dict(value_norm=True))
    make(model=dict(type=Headless))


class WithoutBias(Headless):
    """A model whose value head has no bias, which PopArt could not correct."""

    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)
        self.critic_head = nn.Linear(OBS_SIZE, 1, bias=False)
        self.value_heads = (self.critic_head,)


def test_value_norm_needs_a_bias_to_correct():
    with pytest.raises(ConfigError, match=r"value_norm.*WithoutBias.*bias"):
        make(model=dict(type=WithoutBias), learn=dict(value_norm=True))
    make(model=dict(type=WithoutBias))


def test_a_model_passed_in_is_never_initialised_again():
    space = Wander()
    model = Headless(space.observation_space, space.action_space)
    before = [p.clone() for p in model.parameters()]
    cfg = compile_config({"env": {"type": Wander}, "policy": {"learn": {"value_norm": False}}}).values.policy
    policy = PPOPolicy(cfg, space.observation_space, space.action_space, model=model)
    assert policy.model is model
    assert equal(before, list(model.parameters()))
