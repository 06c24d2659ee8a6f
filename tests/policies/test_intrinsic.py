"""Intrinsic rewards: RND, its scales, its returns over the ends of episodes, and its part of a policy."""

import copy
import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import SeededEnv
from torch import nn
from worlds import digest, trainee, vector_of

from ding_lite import (
    INTRINSIC_REGISTRY,
    IntrinsicReward,
    Key,
    PPOPolicy,
    SerialPipeline,
    check_policy,
    compile_config,
    load_policy,
)
from ding_lite.cli import main
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.collector import Collector
from ding_lite.data.rollout import as_rollout
from ding_lite.errors import CheckpointError, ConfigError, ContractError, NumericsError
from ding_lite.models.intrinsic import RND, Steps
from ding_lite.rl.returns import continuing_gae, explained_variance, following_rows, gae
from ding_lite.rl.scales import RewardScale
from ding_lite.trees import map_tree, to_dict

KINDS = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")
SMALL = dict(type="rnd", feature_size=8, encoder_hidden_size_list=[8])


def curious(kind="ppo", intrinsic=None, **options):
    """Returns a small policy with RND, which has seen random observations, and its collector."""
    policy, collector = trainee(kind, intrinsic=SMALL | (intrinsic or {}), **options)
    shape = (256, *policy.obs_space.shape)
    policy.warm_up(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    return policy, collector


def test_returns_that_end_with_episodes_are_others():
    reward, value = torch.rand(2, 6, 1, dtype=torch.float64)
    done = torch.tensor([0, 0, 1, 0, 0, 0]).bool()[:, None]
    following = torch.cat([value[1:], torch.ones(1, 1)])
    ends = gae(reward, value, following, done, torch.zeros_like(done), gamma=0.9, gae_lambda=0.8)[0]
    all_valid = torch.ones_like(done)
    continues = continuing_gae(reward, value, torch.ones(1), all_valid, gamma=0.9, gae_lambda=0.8)[0]
    assert torch.allclose(ends[3:], continues[3:])
    assert not torch.isclose(ends[:3], continues[:3]).any()


def test_the_next_valid_row_of_each_row():
    valid = torch.tensor([[1, 1, 0, 0, 1, 0], [1, 0, 1, 1, 1, 1]]).bool().T
    assert following_rows(valid).T.tolist() == [[1, 4, 4, 4, 6, 6], [2, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize("kind", KINDS)
def test_without_weight_the_policy_learns_as_without_the_part(kind):
    """Bit for bit; a weight of 1 is the control."""
    digests = []
    for intrinsic in (None, dict(extrinsic_weight=1.0, weight=0.0), dict(extrinsic_weight=1.0, weight=1.0)):
        if intrinsic is None:
            policy, collector = trainee(kind)
        else:
            policy, collector = curious(kind, intrinsic)
        for _ in range(3):
            metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))
            policy_metrics = {name: x for name, x in metrics.items() if not name.startswith("intrinsic")}
        digests.append(digest([policy.model.state_dict(), policy_metrics]))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("kind", ["ppo", "ppg"])
def test_poisoned_rows_that_are_not_valid_change_nothing(kind):
    states = []
    for poison in (False, True):
        policy, collector = curious(kind, autoreset="next_step")
        rollout = collector.collect()
        rollout = as_rollout(map_tree(torch.clone, to_dict(rollout)))
        rows = ~rollout.valid
        assert rows.any()
        if poison:
            rollout.obs[rows] = torch.nan
            rollout.reward[rows] = torch.nan
        policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
        states.append(digest([policy.model.state_dict(), policy.intrinsic.state_dict()]))
    assert states[0] == states[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_intrinsic_advantage_is_computed_once_for_all_passes_and_is_the_same(kind):
    class Again(POLICY_REGISTRY.get(kind)):
        def credit(self, rollout, weight=None, value=None):
            self.intrinsic._last_credit = None
            return super().credit(rollout, weight, value)

    digests, counts = [], []
    epochs = dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3) if "ppg" in kind else {}
    for cls in (None, Again):
        policy, collector = curious(kind, cls=cls, recompute_adv=True, learn=epochs)
        calls = []
        policy.intrinsic.critic.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        for _ in range(2):
            policy.learn_mode.forward(collector.collect())
        digests.append(digest(policy.model.state_dict()))
        counts.append(len(calls))
    assert digests[0] == digests[1]
    assert counts[0] < counts[1]


def test_what_was_seen_is_less_new():
    policy, collector = curious(
        intrinsic=dict(learning_rate=1e-2, epoch_per_collect=20, update_proportion=1.0)
    )
    rollout = collector.collect()
    sample = policy.collect_mode.get_train_sample(rollout)
    before = float(rollout.intrinsic_reward[rollout.valid].mean())
    policy.learn_mode.forward(sample)
    elsewhere = torch.full_like(rollout.obs[0], 3.0)
    new = Steps(*[None] * 2, next_obs=policy.intrinsic.obs_norm(elsewhere), done=None)
    policy._prepare_rollout(rollout)
    after = float(rollout.intrinsic_reward[rollout.valid].mean())
    assert after < 0.2 * before
    assert float(policy.intrinsic.reward.reward(new).mean().detach()) > 5 * after


def test_the_random_network_stays_as_it_is():
    policy, collector = curious()
    target = copy.deepcopy(policy.intrinsic.reward.target.state_dict())
    policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))
    assert digest(target) == digest(policy.intrinsic.reward.target.state_dict())


def test_the_share_of_steps_that_train_the_predictor():
    policy, collector = curious(intrinsic=dict(update_proportion=0.3, epoch_per_collect=25))
    seen, loss = [], policy.intrinsic_loss
    policy.intrinsic_loss = lambda batch: (seen.append(batch.reward_weight > 0), loss(batch))[1]
    policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))
    assert float(torch.cat(seen).float().mean()) == pytest.approx(0.3, abs=0.05)


@pytest.mark.daily(1)
@pytest.mark.parametrize("rnn", [None, "gru"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_bit_equal(kind, rnn, tmp_path):
    aux = {"aux_freq": 2, "aux_train_epoch": 2} if kind.startswith("ppg") else {}
    config = dict(
        num_threads=1,
        max_env_step=512,
        env=dict(type=SeededEnv, collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=2),
        policy=dict(
            type=kind,
            intrinsic=SMALL,
            model=dict(rnn=rnn, encoder_hidden_size_list=[8]),
            collect=dict(n_sample=64),
            learn=dict(batch_size=16, sequence_length=8) | aux,
            eval=dict(eval_freq=0),
        ),
    )

    def trained(folder, *limits):
        pipeline = SerialPipeline(config, folder=tmp_path / folder, max_env_step=limits[0])
        for _ in pipeline:
            pass
        for limit in limits[1:]:
            pipeline = SerialPipeline.resume(tmp_path / folder, max_env_step=limit, trust=["small_worlds"])
            for _ in pipeline:
                pass
        return pipeline

    straight, resumed = trained("straight", 512), trained("resumed", 192, 512)
    assert "intrinsic" in straight.state_dict()["policy"]
    for part in ("policy", "collector", "learner"):
        assert digest(straight.state_dict()[part]) == digest(resumed.state_dict()[part])
    result = json.loads((tmp_path / "straight" / "result.json").read_text())
    assert result["status"] == "finished"
    names = (tmp_path / "straight" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {f"learn/intrinsic_{name}" for name in ("reward", "loss", "explained_variance")} <= set(names)
    load_policy(tmp_path / "straight").act(np.zeros(straight.policy.obs_space.shape, np.float32))


class Frames(gym.Env):
    """Images of noise; only the last column of pixels depends on the action."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.integers(0, 50, (12, 12, 3), dtype=np.uint8), {}

    def step(self, action):
        self.t += 1
        frame = self.np_random.integers(0, 50, (12, 12, 3), dtype=np.uint8)
        frame[:, -1] = 200 * action
        return frame, float(action), self.t == 7, False, {}


def test_images_are_scaled_by_their_own_statistics():
    policy, collector = trainee("ppo", Frames, intrinsic=dict(type="rnd"))
    seen = []
    reward = policy.intrinsic.reward
    policy.warm_up(
        torch.from_numpy(np.random.default_rng(0).integers(0, 50, (200, 12, 12, 3), dtype=np.uint8))
    )
    forward = reward.loss
    reward.loss = lambda steps: (seen.append(steps.next_obs), forward(steps))[1]
    policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))
    frames = torch.cat(seen)
    assert frames.dtype == torch.float32
    assert float(frames[:, :, :-1].std()) == pytest.approx(1.0, abs=0.15)
    assert float(frames.abs().max()) == 5.0, "obs_clip"
    assert all(part.scale == 1.0 for part in policy.intrinsic.networks.modules() if hasattr(part, "scale"))


class ForwardError(IntrinsicReward):
    """The reward of a user: the error of a model of the next observation."""

    config = dict(width=Key(16, low=1))

    def __init__(self, obs_space, action_space, width=16):
        super().__init__(obs_space, action_space)
        size = obs_space.shape[0]
        self.model = nn.Sequential(
            nn.Linear(size + int(action_space.n), width), nn.ReLU(), nn.Linear(width, size)
        )

    def reward(self, steps):
        return self.loss(steps)

    def loss(self, steps):
        action = nn.functional.one_hot(steps.action, int(self.action_space.n))
        error = (self.model(torch.cat([steps.obs, action], -1)) - steps.next_obs).square().mean(-1)
        return error.masked_fill(steps.done, 0.0)


def test_a_reward_of_ones_own(monkeypatch):
    monkeypatch.setattr(INTRINSIC_REGISTRY, "_entries", dict(INTRINSIC_REGISTRY._entries))
    INTRINSIC_REGISTRY.register("forward_error")(ForwardError)
    policy, collector = trainee("ppg", intrinsic=dict(type="forward_error", width=4))
    policy.warm_up(torch.randn(64, *policy.obs_space.shape))
    rollout = collector.collect()
    metrics = policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
    assert metrics["intrinsic_reward"] > 0
    assert not rollout.intrinsic_reward[rollout.terminated | rollout.truncated].any()
    with pytest.raises(ConfigError, match="policy.intrinsic: .*widht.*width"):
        trainee("ppo", intrinsic=dict(type="forward_error", widht=4))


class Broken(ForwardError):
    def reward(self, steps):
        return super().loss(steps)

    def loss(self, steps):
        return steps.obs + "text"


class OwnLoss(PPOPolicy):
    def intrinsic_loss(self, batch):
        return super().intrinsic_loss(batch) + "text"


def test_a_type_error_is_told_of_the_code_that_raised_it():
    for options, error, words in (
        (dict(intrinsic=dict(type=Broken)), ContractError, "Broken.loss raised TypeError"),
        (dict(cls=OwnLoss, intrinsic=dict(type="rnd")), TypeError, "can only concatenate tuple"),
    ):
        policy, collector = trainee("ppo", **options)
        with pytest.raises(error, match=words):
            policy.learn_mode.forward(policy.collect_mode.get_train_sample(collector.collect()))


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (lambda n: torch.zeros(n, 1), ContractError),
        (lambda n: torch.zeros(n, dtype=torch.complex64), ContractError),
        (lambda n: torch.full((n,), torch.nan), NumericsError),
    ],
)
def test_rewards_that_are_no_finite_number_per_step_are_refused(result, error):
    policy, collector = curious()
    policy.intrinsic.reward.reward = lambda steps: result(len(steps.done))
    with pytest.raises(error):
        policy.collect_mode.get_train_sample(collector.collect())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float16, torch.float64])
def test_rewards_may_be_real_numbers_of_any_dtype(dtype):
    policy, collector = curious()
    policy.intrinsic.reward.reward = lambda steps: steps.done.to(dtype)
    rollout = policy.collect_mode.get_train_sample(collector.collect())
    done = rollout.terminated | rollout.truncated
    assert done.any()
    assert rollout.intrinsic_reward.dtype == torch.float32
    assert torch.equal(rollout.intrinsic_reward, done.float())


class Mean(ForwardError):
    """Returns one loss for all steps."""

    def reward(self, steps):
        return super().loss(steps)

    def loss(self, steps):
        return super().loss(steps).mean()


class Unused(ForwardError):
    """Has a layer that its loss does not reach."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.spare = nn.Linear(2, 2)


class Forgetful(IntrinsicReward):
    """Counts how often an action was taken, in a tensor that is not in its state."""

    def __init__(self, obs_space, action_space):
        super().__init__(obs_space, action_space)
        self.counts = torch.zeros(8)

    def reward(self, steps):
        return (self.counts[steps.action] + 1).rsqrt()

    def loss(self, steps):
        self.counts += 1
        return torch.zeros(len(steps.done), requires_grad=True)


class WithModes(ForwardError):
    """Has layers whose outputs depend on the mode."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.model.append(nn.Sequential(nn.BatchNorm1d(self.obs_space.shape[0]), nn.Dropout(0.5)))
        self.modes = []

    def reward(self, steps):
        self.modes.append(("reward", self.training))
        return super().loss(steps)

    def loss(self, steps):
        self.modes.append(("loss", self.training))
        return super().loss(steps)


def test_networks_are_in_training_mode_in_gradient_steps_only():
    policy, collector = trainee("ppo", intrinsic=dict(type=WithModes))
    policy.warm_up(torch.randn(64, *policy.obs_space.shape, generator=torch.Generator().manual_seed(0)))
    reward = policy.intrinsic.reward
    for _ in range(2):
        before = digest(reward.state_dict())
        rollout = collector.collect()
        assert digest(reward.state_dict()) == before, "rewards move no statistics"
        policy.learn_mode.forward(rollout)
    assert set(reward.modes) == {("reward", False), ("loss", True)}
    assert not any(module.training for module in policy.intrinsic.networks.modules())


class Numbered(gym.Env):
    """Episodes of a fixed length that show the number of the environment, the step, and steps so far."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number, length):
        self.number, self.length, self.total = number, length, 0

    def obs(self):
        return np.array([self.number, self.t, self.total], np.float32)

    def reset(self, *, seed=None, options=None):
        self.t = self.total = 0
        return self.obs(), {}

    def step(self, action):
        self.t, self.total = self.t + 1, self.total + 1
        return self.obs(), 0.0, self.t == self.length, False, {}


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("unroll_len", [1, 4])
def test_with_whole_episodes_no_environment_sees_how_long_the_others_play(unroll_len, autoreset):
    found = []
    for length in (5, 12, 14):
        collect = dict(n_episode=2, unroll_len=unroll_len)
        policy, _ = trainee("ppo", envs=2, intrinsic=SMALL, collect=collect)
        policy.warm_up(torch.randn(64, 3, generator=torch.Generator().manual_seed(0)))
        envs = vector_of(lambda i, length=length: Numbered(i, (5, length)[i]), 2, autoreset=autoreset)
        policy.intrinsic.scale.update_from = lambda *_: None  # which is that of all environments
        rollout = Collector(envs, policy.collect_mode, 64, 2).collect()
        assert rollout.valid.sum(0).tolist() == [5, length]
        first = policy.intrinsic.obs_norm(rollout.obs[0])
        steps = Steps(obs=None, action=None, next_obs=first, done=torch.ones(2, dtype=torch.bool))
        expected = policy.intrinsic.reward_of_steps(steps)[0]
        torch.testing.assert_close(rollout.intrinsic_reward[4, 0], expected, msg="a reset follows")
        found.append(torch.stack([rollout[name][:5, 0] for name in ("intrinsic_reward", "advantage")]))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["ppo", "ppg_offpolicy"])
def test_check_policy_passes_with_rnd(kind):
    check_policy(kind, dict(intrinsic=SMALL), learns=False)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (Mean, r"Mean.loss must return a tensor \(N,\) of real numbers, here \(48,\); got \(\)"),
        (Unused, "Unused.loss has a gradient for every parameter, got none for spare.weight, spare.bias"),
        (Forgetful, "the same intrinsic rewards, got others: keep what Forgetful remembers in parameters"),
    ],
)
def test_check_policy_names_what_is_wrong_with_a_reward(reward, words, monkeypatch):
    monkeypatch.setattr("ding_lite.testing.ACTION_SPACES", {"Discrete": gym.spaces.Discrete(3)})
    with pytest.raises(ContractError, match=words):
        check_policy("ppo", dict(intrinsic=dict(type=reward)), learns=False)


@pytest.mark.parametrize(
    ("intrinsic", "words"),
    [
        (dict(type="rdn"), "rnd"),
        (dict(type="rnd", weigth=2.0), "weight"),
        (dict(type="rnd", discount_factor=1.0), "discount_factor"),
        (dict(weight=2.0), "policy.intrinsic"),
        (dict(type="rnd", encoder={"type": "nature"}), "nature_cnn"),
    ],
)
def test_faults_of_the_section_are_named(intrinsic, words):
    with pytest.raises(ConfigError, match=words):
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"intrinsic": intrinsic}})


def test_a_type_of_none_turns_it_off_whatever_the_other_keys_say():
    user = {"env": {"env_id": "CartPole-v1"}, "policy": {"intrinsic": SMALL | {"weight": 2.0}}}
    values = compile_config(user, {"policy.intrinsic.type": None}).values
    assert values.policy.intrinsic.type is None
    assert compile_config(values).values == values


def test_the_command_line_trains_with_it_and_lists_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["train", "--env", "CartPole-v1", "--exp-name", "run", "--max-env-step", "256", "--quiet"]
    argv += ["policy.intrinsic.type=rnd", "policy.intrinsic.weight=0.5", "policy.collect.n_sample=128"]
    assert main([a for a in argv if a != "--quiet"]) == 0
    assert main(["list", "intrinsic"]) == 0
    assert "rnd " in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["policy"]["intrinsic"]["weight"] == 0.5


def test_a_checkpoint_does_not_import_a_reward_that_only_it_names(tmp_path):
    policy, _ = curious()
    assert isinstance(policy.intrinsic.reward, RND)
    config = dict(
        max_env_step=64,
        env=dict(type=SeededEnv, collector_env_num=4, evaluator_env_num=1, n_evaluator_episode=1),
        policy=dict(intrinsic=SMALL, collect=dict(n_sample=64), learn=dict(batch_size=16)),
    )
    for _ in SerialPipeline(config, folder=tmp_path / "run"):
        pass
    file = next((tmp_path / "run" / "ckpt").glob("*/config.json"), None)
    if file is None:
        pytest.fail("a checkpoint has a config.json")
    saved = json.loads(file.read_text())
    saved["config"]["policy"]["intrinsic"]["type"] = "antigravity:RND"
    file.write_text(json.dumps(saved))
    with pytest.raises(CheckpointError):
        load_policy(file.parent)


def test_credit_is_computed_again_after_another_state_was_loaded():
    (policy, collector), (other, _) = curious(), curious(seed=1)
    rollout = collector.collect()
    before = policy.intrinsic.credit(rollout)[0]
    policy.intrinsic.load_state_dict(copy.deepcopy(other.intrinsic.state_dict()))
    assert not torch.equal(policy.intrinsic.credit(rollout)[0], before)


def values_of(policy, rollout):
    """Returns the intrinsic values (T + 1, B) of a rollout, the last observation's among them."""
    critic, norm = policy.intrinsic.critic, policy.intrinsic.obs_norm
    obs = torch.cat([rollout.obs, rollout.last_obs[None]])
    with torch.no_grad():
        return critic(norm(obs.flatten(0, 1))).view(obs.shape[:2]).double()


def test_each_step_trains_the_networks_with_its_own_observation_and_target_and_the_loss_by_hand():
    policy, collector = curious(intrinsic=dict(update_proportion=0.4, epoch_per_collect=1))
    rollout = collector.collect()
    obs = policy.intrinsic.obs_norm(rollout.obs).flatten(0, 1)  # scaled as when the rewards were computed
    following = policy.intrinsic.obs_norm(torch.cat([rollout.obs[1:], rollout.last_obs[None]])).flatten(0, 1)
    target = policy.intrinsic.credit(rollout)[1].flatten()
    value = values_of(policy, rollout)[:-1].flatten()
    plain, places, shares = policy.intrinsic_loss, [], []

    def by_hand(batch):
        same = (batch.obs[:, None] == obs).all(-1)
        assert (same.sum(1) == 1).all()
        place = same.int().argmax(1)
        assert torch.equal(batch.next_obs, following[place])
        torch.testing.assert_close(batch.value_target, target[place])
        rnd, critic = policy.intrinsic.reward, policy.intrinsic.critic
        error = (rnd.predictor(following[place]) - rnd.target(following[place])).square().mean(-1)
        trained = batch.reward_weight > 0
        reward_loss = error[trained].mean()
        value_loss = 0.5 * (critic(obs[place]) - target[place]).square().mean()
        total, metrics = plain(batch)
        torch.testing.assert_close(metrics["loss"], reward_loss)
        torch.testing.assert_close(metrics["value_loss"], value_loss)
        torch.testing.assert_close(total, reward_loss + value_loss)
        places.append(place)
        shares.append(float(trained.float().mean()))
        return total, metrics

    policy.intrinsic_loss = by_hand
    told = policy.learn_mode.forward(rollout)
    assert torch.cat(places).sort().values.tolist() == list(range(len(obs)))
    assert min(shares) > 0
    assert max(shares) < 1
    explained = float(explained_variance(value.float(), target))
    assert told["intrinsic_explained_variance"] == pytest.approx(explained, abs=1e-4)


@pytest.mark.parametrize("nstep", [False, True])
def test_renewed_priorities_are_those_of_the_combined_advantages(nstep):
    policy, collector = curious(
        "ppo_offpolicy",
        dict(extrinsic_weight=0.5, weight=3.0),
        priority=True,
        nstep_return=nstep,
        learn=dict(value_norm=False, learning_rate=1e-9, batch_size=16),
    )
    rollout = policy.collect_mode.get_train_sample(collector.collect())
    source = policy.sources["policy"]
    source.push(rollout)
    before = source.buffer.priority.clone()
    minibatches = next(source.passes(policy.clip_ratio))
    with torch.no_grad():  # the value rises by 2, so each extrinsic advantage falls by 2
        policy.model.critic_head[-1].bias += 2.0
    next(minibatches)
    next(minibatches)
    used = source.buffer.uses.flatten() > 0
    alpha = policy.cfg.other.replay_buffer.alpha
    renewed = source.buffer.priority.flatten() != before.flatten()
    assert renewed.any()
    assert not renewed[~used].any()
    expected = ((rollout.advantage.flatten() - 0.5 * 2.0).abs() + 1e-6) ** alpha
    torch.testing.assert_close(
        source.buffer.priority.flatten()[renewed], expected[renewed], rtol=1e-3, atol=1e-4
    )


def test_passes_of_the_intrinsic_networks():
    policy, collector = curious(intrinsic=dict(epoch_per_collect=3))
    seen, loss = [], policy.intrinsic_loss
    policy.intrinsic_loss = lambda batch: (seen.append(batch.obs), loss(batch))[1]
    rollout = collector.collect()
    std = float(policy.intrinsic.scale.std)
    assert std != 1.0
    policy.learn_mode.forward(rollout)
    passes = torch.cat(seen).split(64)
    assert len(passes) == 3
    assert not torch.equal(passes[0], passes[1])
    assert all(torch.equal(one.sort(0).values, passes[0].sort(0).values) for one in passes)


def test_the_scales_of_the_intrinsic_reward_take_in_each_rollout_once():
    policy, collector = curious(autoreset="next_step")
    stats, seen, rewards = policy.intrinsic.obs_norm.stats[()], 256, 0
    for _ in range(3):
        rollout = collector.collect()
        rewards += int(rollout.valid.sum())
        assert policy.intrinsic.scale.count == rewards, "before the advantages"
        assert stats.count == seen, "after the last gradient step"
        mean, obs = stats.mean.copy(), rollout.obs[rollout.valid].double().clone()
        policy.learn_mode.forward(rollout)
        expected = (mean * seen + obs.sum(0).numpy()) / (seen + len(obs))
        seen += len(obs)
        assert stats.count == seen
        np.testing.assert_allclose(stats.mean, expected, rtol=1e-6)


def test_the_scale_of_intrinsic_rewards_runs_on_over_the_ends_of_episodes():
    policy, collector = curious()
    rollout = collector.collect()
    assert (rollout.terminated | rollout.truncated).any()
    expected = RewardScale(policy.cfg.intrinsic.discount_factor)
    reward, valid = rollout.intrinsic_reward.numpy(), rollout.valid.numpy()
    expected.update_from(reward, np.zeros_like(valid), valid)
    assert float(policy.intrinsic.scale.std) == pytest.approx(float(expected.std), rel=1e-9)


def test_a_resumed_run_has_the_learning_rate_of_its_config():
    saved, _ = curious(intrinsic={"learning_rate": 1e-4})
    resumed, _ = curious(intrinsic={"learning_rate": 1e-2})
    resumed.load_state_dict(saved.state_dict())
    assert resumed.intrinsic.optimizer.learning_rate == 1e-2
