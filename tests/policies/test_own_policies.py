"""Policies of one's own: mistakes in their methods are named, and the bare base class suffices."""

import numpy as np
import pytest
import torch
from worlds import digest, small_config, trainee

from ding_lite import PPGPolicy, PPOPolicy, SerialPipeline, check_policy, load_policy
from ding_lite.data.rollout import flat
from ding_lite.errors import CheckpointError, ConfigError, ContractError, NumericsError
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.policies.base import Policy
from ding_lite.policies.base import TAKEN_METRICS, TAKEN_PREFIXES


class NoLogProb(PPOPolicy):
    def _forward_collect(self, obs, state=None, first=None):
        return {"action": super()._forward_collect(obs)["action"]}


class OnlyTheAction(PPOPolicy):
    def _forward_collect(self, obs, state=None, first=None):
        return super()._forward_collect(obs)["action"]


class EmptyEvaluation(PPOPolicy):
    def _forward_eval(self, obs, state=None, first=None):
        return {"actions": 0}


class NothingReturned(PPOPolicy):
    def _get_train_sample(self, rollout):
        super()._get_train_sample(rollout)


class NoSuper(PPOPolicy):
    def _init_learn(self):
        self.own = 1


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (NoLogProb, r"no log_prob: NoLogProb\._forward_collect must return"),
        (OnlyTheAction, "_forward_collect must return a dict with the key 'action', got a Tensor"),
        (EmptyEvaluation, r"_forward_eval must return a dict .* got the keys \['actions'\]"),
        (NothingReturned, "_get_train_sample: expected a rollout.*got a NoneType"),
        (NoSuper, r"NoSuper\._init_learn must call super\(\)\._init_learn\(\)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_method_that_returns_something_else_is_named(policy, told, tmp_path):
    config = small_config(policy={"type": policy, "eval": {"eval_freq": 1}})
    with pytest.raises(ContractError, match=told):
        list(SerialPipeline(config, folder=tmp_path / "run"))


@pytest.mark.parametrize(
    ("base", "method", "critic_epochs", "is_called"),
    [
        (PPGPolicy, "actor_loss", 1, False),
        (PPGPolicy, "actor_loss", 2, True),
        (PPGPolicy, "critic_loss", 1, False),
        (PPGPolicy, "critic_loss", 2, True),
        (PPGPolicy, "loss", 1, True),
        (PPGPolicy, "loss", 2, False),
        (PPOPolicy, "loss", None, True),
        (PPOPolicy, "critic_loss", None, False),
    ],
)
def test_a_loss_that_no_loop_minimises_is_refused(base, method, critic_epochs, is_called):
    calls = []

    def own(self, batch):
        calls.append(method)
        return getattr(base, method)(self, batch)

    cls = type("Own", (base,), {method: own})
    learn = {} if critic_epochs is None else {"critic_epoch_per_collect": critic_epochs}
    kind = "ppg" if base is PPGPolicy else "ppo"
    if is_called:
        policy, collector = trainee(kind, cls=cls, learn=learn)
        policy.learn_mode.forward(collector.collect())
        assert calls
        return
    with pytest.raises(ContractError, match=rf"Own\.{method} would not be called: this config minimises"):
        trainee(kind, cls=cls, learn=learn)


def test_a_value_loss_after_target_kl_may_be_overridden():
    cls = type("Own", (PPOPolicy,), {"critic_loss": lambda self, batch: PPOPolicy.critic_loss(self, batch)})
    trainee("ppo", cls=cls, learn={"target_kl": 0.01})


class Reinforce(Policy):
    """The policy gradient with returns to go, on the base class alone."""

    def _init_learn(self):
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def _dist(self, obs):
        return self.distribution(obs, self.model.compute_actor(obs))

    def _forward_collect(self, obs, state=None, first=None):
        dist = self._dist(self.on_device(obs))
        return {"action": dist.sample(self.generator)}

    def _forward_eval(self, obs, state=None, first=None):
        with torch.no_grad():
            return {"action": self._dist(self.on_device(obs)).mode()}

    def _get_train_sample(self, rollout):
        to_go, rows = torch.zeros(rollout.reward.shape[1]), []
        ends = rollout.terminated | rollout.truncated
        for reward, end in zip(rollout.reward.flip(0), ends.flip(0), strict=True):
            to_go = reward + torch.where(end, 0.0, to_go)
            rows.append(to_go)
        rollout.gain = torch.stack(rows[::-1])
        return rollout

    def _forward_learn(self, rollout):
        log_prob = self._dist(rollout.obs.flatten(0, 1)).log_prob(rollout.action.flatten(0, 1))
        gain = rollout.gain.flatten()
        loss = -(log_prob * (gain - gain.mean()) / gain.std()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "updates": 1.0}

    def _monitor_vars_learn(self):
        return ["loss", "updates"]

    def _state(self):
        parts = super()._state()
        return {**parts, "optimizer": self.optimizer} if "learn" in self.fields else parts


def test_a_policy_on_the_base_class_is_trained_resumed_and_loaded(tmp_path):
    limit = 30_000
    config = small_config(policy={"type": Reinforce, "collect": {"n_sample": 1_000}}, max_env_step=limit)
    policy = config["policy"]
    del policy["learn"], policy["model"]
    straight = SerialPipeline(config, folder=tmp_path / "straight")
    returns = [progress.metrics["collect/episode_return"] for progress in straight]
    assert returns[-1] > 2 * returns[0]
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        for progress in pipeline:
            if progress.iteration == 3:
                break
    again = SerialPipeline.resume(tmp_path / "run", trust=[__name__])
    list(again)
    weights, others = (pipeline.policy.model.state_dict() for pipeline in (straight, again))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    loaded = load_policy(tmp_path / "run", checkpoint="last", trust=[__name__])
    assert loaded.act(loaded.obs_space.sample()) in (0, 1)


class A2C(PPOPolicy):
    """One step down the loss of the whole rollout."""

    def _init_learn(self):
        super()._init_learn()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def _forward_learn(self, rollout):
        rollout, metrics = self.begin_learning(rollout)
        obs, valid = self.inputs(flat(rollout.obs)), rollout.valid.flatten()
        logit, value = self.model.compute_actor_critic(obs)
        log_prob = self.distribution(obs, logit).log_prob(flat(rollout.action))
        gain = rollout.advantage.flatten()
        error = value - self.normalized_values(rollout.value_target.flatten())
        loss = (error.square() - gain / gain.std() * log_prob)[valid].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {**metrics, "loss": loss.item(), "updates": 1.0, **self.end_learning(rollout)}

    def _monitor_vars_learn(self):
        return [*super()._monitor_vars_learn(), "loss", "updates"]

    def _state(self):
        parts = super()._state()
        return {**parts, "optimizer": self.optimizer} if "learn" in self.fields else parts


SCALES = {
    "learn": {"value_norm": True},
    "normalize": {"obs": True, "reward": True},
    "intrinsic": {"type": "rnd"},
}


def test_the_parts_of_a_policy_on_the_actor_critic_alone_learn():
    policy, collector = trainee("ppo", cls=A2C, **SCALES)
    (stats,) = policy.obs_norm.stats.values()
    networks = digest(policy.intrinsic.networks.state_dict())
    rollout = collector.collect()
    metrics = policy.learn_mode.forward(rollout)
    assert (
        policy.value_norm.count == policy.reward_scale.count == policy.progress.env_step == stats.count == 64
    )
    assert float(policy.value_norm.mean) == pytest.approx(float(rollout.value_target.mean()), rel=1e-5)
    assert digest(policy.intrinsic.networks.state_dict()) != networks
    assert set(metrics) == set(policy.learn_mode.monitor_vars())
    assert policy._get_batch_size() == 16
    rollout.advantage[0, 0] = np.nan
    before = digest(policy.state_dict())
    with pytest.raises(NumericsError, match="nothing was learned from it"):
        policy.learn_mode.forward(rollout)
    assert digest(policy.state_dict()) == before


def test_a_policy_on_the_actor_critic_alone_is_trained_and_resumed(tmp_path):
    config = small_config(policy={"type": A2C, **SCALES}, max_env_step=2_000)
    config["policy"]["learn"] = {}
    config["policy"].pop("model", None)
    straight = SerialPipeline(config, folder=tmp_path / "straight")
    list(straight)
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        next(iter(pipeline))
    again = SerialPipeline.resume(tmp_path / "run", trust=[__name__])
    list(again)
    assert straight.policy.progress.env_step >= 2_000
    assert digest(again.policy.state_dict()) == digest(straight.policy.state_dict())


class Forgetful(A2C):
    def begin_learning(self, rollout):
        return rollout, {}

    def end_learning(self, rollout):
        return {}


def test_check_policy_finds_parts_that_do_not_learn():
    check_policy(A2C, {"learn": {"batch_size": 8}}, learns=False)
    with pytest.raises(ContractError, match="begin_learning"):
        check_policy(Forgetful, learns=False)


OBS = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda p: p.collect_mode.forward({0: OBS, 1: OBS}), "numbers of environments must be stacked"),
        (lambda p: p.eval_mode.forward({0: OBS}), "numbers of environments must be stacked"),
        (lambda p: p.learn_mode.forward([{"obs": OBS}]), r"learn_mode\.forward: expected a rollout.*a list"),
        (lambda p: p.collect_mode.get_train_sample({"obs": OBS}), "get_train_sample: expected a rollout"),
    ],
    ids=["collect", "eval", "learn", "credit"],
)
def test_arguments_in_the_manner_of_di_engine_are_explained(call, told):
    with pytest.raises(ContractError, match=told):
        call(trainee("ppo")[0])


def test_arguments_of_a_policy_are_checked():
    policy, _ = trainee("ppo")
    spaces = policy.obs_space, policy.action_space
    with pytest.raises(ConfigError, match=r"compile_config\(config\)\.values\.policy; it lacks model"):
        PPOPolicy({"learn": {"batch_size": 64}}, *spaces)
    with pytest.raises(ConfigError, match="enable_field: expected a list .* got .learn."):
        PPOPolicy(policy.cfg, *spaces, enable_field="learn")
    with pytest.raises(ContractError, match="obs_space: expected a gymnasium space"):
        PPOPolicy(policy.cfg, 3, spaces[1])
    with pytest.raises(CheckpointError, match=r"model\.load_state_dict"):
        policy.load_state_dict(policy.model.state_dict())


def test_a_state_that_lacks_a_part_changes_nothing():
    (policy, _), (other, collector) = trainee("ppo"), trainee("ppo", seed=1)
    other.learn_mode.forward(collector.collect())
    state, before = other.state_dict(), digest(policy.state_dict())
    del state["optimizer"]
    with pytest.raises(CheckpointError, match="the saved policy has no 'optimizer'"):
        policy.load_state_dict(state)
    assert digest(policy.state_dict()) == before


class Awr(NoLogProb):
    """Advantage-weighted regression, whose loss needs no log_prob of the policy that collected."""

    def policy_loss(self, batch):
        gain = batch.advantage.clamp(-2, 2).exp()
        return -(batch.dist.log_prob(batch.action) * gain).mean(), {}


def test_a_loss_without_log_prob_learns_from_fresh_rollouts_alone():
    policy, collector = trainee("ppo", cls=Awr)
    assert policy.learn_mode.forward(collector.collect())["updates"] > 0
    policy, collector = trainee("ppo_offpolicy", cls=Awr)
    with pytest.raises(ContractError, match=r"no log_prob: Awr\._forward_collect must return"):
        policy.learn_mode.forward(collector.collect())


@pytest.mark.parametrize("name", ["size", "fields", "remake", "dist", "old_logit"])
def test_a_field_with_a_name_that_a_minibatch_has_itself_is_refused(name):
    class Own(PPOPolicy):
        def _process_transition(self, obs, output, transition):
            fields = super()._process_transition(obs, output, transition)
            return {**fields, name: np.zeros_like(transition.reward)}

    policy, collector = trainee("ppo", cls=Own)
    with pytest.raises(ContractError, match=f"Own._process_transition: a minibatch has its own {name};"):
        policy.learn_mode.forward(collector.collect())


NEAR_ANOTHER = {"kl_beta": 0.5, "pretrained_model_path": "a run"}
PPGS = ("ppg", "ppg_offpolicy")
OF_LOSSES = {  # metrics that the library's own losses return
    *("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clipfrac", "kl"),
    *("auxiliary_loss", "behavioral_cloning_loss", "aux_value_loss", "total_loss"),
}


@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_every_metric_of_the_library_is_kept_from_losses_of_ones_own(kind):
    learn = {"kl_penalty": 1.0}
    learn |= {} if kind.startswith("ppo") else {"critic_epoch_per_collect": 2}
    policy, _ = trainee(kind, learn=learn, intrinsic={"type": "rnd"}, normalize={"obs": True})
    names = set(policy.learn_mode.monitor_vars()) - OF_LOSSES
    free = {name for name in names if name not in TAKEN_METRICS and not name.startswith(TAKEN_PREFIXES)}
    assert not free


KL_LOSSES = [{}, {"kl_penalty": 1.0}, NEAR_ANOTHER]
KINDS = [
    *(("ppo", {}), ("ppo_offpolicy", {})),
    *((kind, {"aux_freq": 2, "critic_epoch_per_collect": n}) for n in (1, 2) for kind in PPGS),
]


@pytest.mark.parametrize("penalty", KL_LOSSES)
@pytest.mark.parametrize(("kind", "learn"), KINDS)
def test_the_metrics_of_a_training_are_those_that_are_declared(kind, learn, penalty):
    options = dict(intrinsic={"type": "rnd"}, normalize={"obs": True})
    policy, collector = trainee(kind, learn={**learn, **penalty}, **options)
    if penalty is NEAR_ANOTHER:
        policy.use_reference(trainee(kind)[0])
    declared, given = policy.learn_mode.monitor_vars(), set()
    for _ in range(2):
        given |= policy.learn_mode.forward(collector.collect()).keys()
    assert len(set(declared)) == len(declared)
    assert given <= set(declared)
    # No sample of these buffers is so old.
    assert all("outside_clip_age" in name for name in set(declared) - given)


@pytest.mark.parametrize(("recompute", "is_told"), [(True, True), (False, False)])
def test_credit_of_ones_own_that_later_passes_replace_is_told(recompute, is_told):
    class Own(PPOPolicy):
        def _get_train_sample(self, rollout):
            rollout = super()._get_train_sample(rollout)
            rollout.advantage = torch.full_like(rollout.advantage, 7.0)
            return rollout

    policy, _ = trainee("ppo", cls=Own, recompute_adv=recompute)
    lines = [line for line in policy.describe() if "override credit()" in line]
    assert bool(lines) is is_told


def test_another_default_dtype_is_refused():
    policy, _ = trainee("ppo")
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match="default dtype is torch.float64"):
            PPOPolicy(policy.cfg, policy.obs_space, policy.action_space)
    finally:
        torch.set_default_dtype(torch.float32)


def test_values_of_numpy_observations():
    policy, _ = trainee("ppo")
    obs = np.zeros((5, *policy.obs_space.shape), np.float32)
    assert torch.equal(policy.values(obs), policy.values(torch.from_numpy(obs)))
