"""A penalty for leaving a frozen policy: kl_beta, kl_type and pretrained_model_path."""

import pytest
import torch
from small_worlds import CountingEnv, SeededBox, SeededEnv, SeededTree
from worlds import digest, trainee

from ding_lite import PPGPolicy, PPOPolicy, SerialPipeline
from ding_lite.config.compile import load_config
from ding_lite.errors import CheckpointError, ConfigError, ContractError
from ding_lite.rl.losses import reference_kl

PENALTY = dict(kl_beta=0.5, pretrained_model_path="a run")


def with_reference(kind="ppo", world=SeededEnv, kl_type="exact", seed=0, cls=None, **learn):
    learn = {**PENALTY, "kl_type": kl_type, **learn}
    policy, collector = trainee(kind, world, seed=seed, cls=cls, learn=learn)
    reference, _ = trainee("ppo", world, seed=seed + 1)
    with torch.no_grad():
        for parameter in reference.model.actor_head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    policy.use_reference(reference)
    return policy, collector, reference


class OwnLoss(PPOPolicy):
    def policy_loss(self, batch):
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        return -(log_ratio * batch.advantage).mean(), {}


class OwnPhasicLoss(OwnLoss, PPGPolicy):
    pass


@pytest.mark.parametrize(
    ("kind", "cls", "loss", "epochs"),
    [
        ("ppo", OwnLoss, "loss", {}),
        ("ppg", OwnPhasicLoss, "loss", {}),
        ("ppg", OwnPhasicLoss, "actor_loss", dict(critic_epoch_per_collect=2)),
    ],
)
def test_the_penalty_is_added_to_a_policy_loss_of_ones_own(kind, cls, loss, epochs):
    policy, collector, _ = with_reference(kind, cls=cls, **epochs)
    plain, _ = trainee(kind, cls=cls, learn=epochs)
    batch = next(policy.minibatches(collector.collect()))
    total, metrics = getattr(policy, loss)(batch)
    without, _ = getattr(plain, loss)(batch)
    assert metrics["reference_kl"] > 0.05
    torch.testing.assert_close(total - without, 0.5 * metrics["reference_kl"])


@pytest.mark.parametrize(("kind", "bias"), [("k1", 0.0), ("k2", 0.3), ("k3", 0.0)])
def test_estimates_have_the_mean_and_the_gradient_of_the_kl(kind, bias):
    """The actions are of mu, from which pi has moved away."""
    logit = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, -0.3, 0.8], dtype=torch.float64).log_softmax(-1)
    log_mu = torch.tensor([0.1, 0.4, 0.2], dtype=torch.float64).log_softmax(-1)
    log_pi = logit.log_softmax(-1)
    kl = (log_pi.exp() * (log_pi - reference)).sum()
    mean = (log_mu.exp() * reference_kl(log_pi, reference, log_mu, kind)).sum()
    torch.testing.assert_close(mean, kl, atol=0, rtol=max(bias, 1e-9))
    expected, found = (torch.autograd.grad(x, logit, retain_graph=True)[0] for x in (kl, mean))
    assert float((found - expected).norm()) <= max(bias, 1e-9) * float(expected.norm())


@pytest.mark.daily(1)
@pytest.mark.parametrize("kl_type", ["exact", "k1", "k2", "k3"])
def test_a_large_weight_moves_the_policy_to_the_reference(kl_type):
    policy, collector, _ = with_reference(
        kl_type=kl_type, kl_beta=20.0, learning_rate=3e-3, entropy_weight=0.0
    )
    before = policy.learn_mode.forward(collector.collect())["reference_kl"]
    for _ in range(15):
        after = policy.learn_mode.forward(collector.collect())["reference_kl"]
    assert abs(after) < 0.3 * before


def trained(folder, steps=128, rnn=None, **learn):
    config = dict(
        max_env_step=steps,
        env=dict(type=SeededEnv, collector_env_num=4, evaluator_env_num=1, n_evaluator_episode=1),
        policy=dict(collect=dict(n_sample=64), model=dict(rnn=rnn), learn=dict(batch_size=32, **learn)),
    )
    pipeline = SerialPipeline(config, folder=folder)
    for _ in pipeline:
        pass
    return pipeline


@pytest.mark.daily(1)
@pytest.mark.parametrize("rnn", [None, "lstm"])
def test_a_run_takes_its_reference_from_another_run_and_resumes_exactly(rnn, tmp_path):
    trained(tmp_path / "first", rnn=rnn)
    learn = dict(kl_beta=0.3, pretrained_model_path=str(tmp_path / "first"))
    straight = trained(tmp_path / "straight", steps=256, **learn)
    assert "learn/reference_kl" in (tmp_path / "straight" / "metrics.csv").read_text().splitlines()[0]
    trained(tmp_path / "resumed", **learn)
    resumed = SerialPipeline.resume(tmp_path / "resumed", max_env_step=256, trust=["small_worlds"])
    for _ in resumed:
        pass
    assert digest(straight.state_dict()["policy"]) == digest(resumed.state_dict()["policy"])
    plain = trained(tmp_path / "plain", steps=256)
    assert digest(plain.state_dict()["policy"]) != digest(straight.state_dict()["policy"])


def test_faults_are_reported(tmp_path):
    with pytest.raises(ConfigError, match="policy.learn.kl_beta"):
        trainee("ppo", learn=dict(kl_beta=0.1))
    with pytest.raises(CheckpointError):
        trained(tmp_path / "run", **{**PENALTY, "pretrained_model_path": str(tmp_path / "none")})
    policy, collector = trainee("ppo", learn=PENALTY)
    with pytest.raises(ContractError, match="use_reference"):
        policy.learn_mode.forward(collector.collect())
    with pytest.raises(ConfigError, match="pretrained_model_path"):
        policy.use_reference(trainee("ppo", SeededBox)[0])
    with pytest.raises(ConfigError, match="observations of the reference"):
        policy.use_reference(trainee("ppo", CountingEnv)[0])


def test_a_reference_with_another_distribution_in_a_branch_is_refused():
    policy = trainee("ppo", SeededTree, learn=PENALTY)[0]
    policy.use_reference(trainee("ppo", SeededTree)[0])
    other = trainee("ppo", SeededTree, model=dict(box_distribution="tanh_normal"))[0]
    with pytest.raises(ConfigError, match=r"TanhNormal.* and this policy's is Joint\(.*: Normal"):
        policy.use_reference(other)


def test_a_reference_forgets_open_episodes_with_the_policy():
    policy, collector = trainee("ppo", learn=PENALTY)
    reference, _ = trainee("ppo", model=dict(rnn="lstm"))
    policy.use_reference(reference)
    collector.collect()
    assert policy.reference.state is not None
    policy.forget_open_episodes()
    assert policy.reference.state is None


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
@pytest.mark.parametrize("rnns", [("lstm", None), (None, "gru"), ("gru", "lstm")])
def test_either_policy_may_have_a_memory(kind, rnns):
    mine, other = rnns
    fast = dict(learning_rate=3e-3)
    policy, collector = trainee(kind, learn={**PENALTY, **fast, "kl_beta": 20.0}, model=dict(rnn=mine))
    free, free_collector = trainee(kind, learn=fast, model=dict(rnn=mine))
    reference, _ = trainee("ppo", seed=1, model=dict(rnn=other))
    with torch.no_grad():
        reference.model.actor_head.out.layer.bias.copy_(torch.tensor([1.0, -1.0, 0.0]))
    for each in (policy, free):
        each.use_reference(reference)
    for _ in range(6):
        metrics = policy.learn_mode.forward(collector.collect())
        free.learn_mode.forward(free_collector.collect())
    assert metrics["reference_kl"] < 0.5 * distance(free, free_collector.collect())


def distance(policy, rollout):
    """Returns the mean KL of a policy to its reference on a rollout."""
    logits = policy.rollout_logits(rollout), rollout.reference_logit
    mine, reference = (policy.model.distribution(logit) for logit in logits)
    return float(mine.kl(reference)[rollout.valid].mean())


def test_the_penalty_has_no_closed_form():
    policy, _, _ = with_reference()
    plain, _ = trainee("ppo")
    names = [each.optimizer.gradients.name_of(each.loss) for each in (policy, plain)]
    assert names == ["autograd", "closed form"]


def test_a_relative_reference_may_lie_beside_the_config_file_and_is_saved_absolute(tmp_path, monkeypatch):
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        (folder / "teacher").mkdir(parents=True)
    learn = dict(kl_beta=0.3, pretrained_model_path="teacher")
    config = dict(env=dict(env_id="CartPole-v1"), policy=dict(learn=learn))
    (beside / "c.py").write_text(f"config = {config!r}\n")

    def path_from(folder):
        monkeypatch.chdir(folder)
        return load_config(beside / "c.py").values.policy.learn.pretrained_model_path

    assert path_from(tmp_path) == str(beside / "teacher")
    assert path_from(here) == str(here / "teacher")  # the working directory first, as before
    (beside / "teacher").rmdir()
    assert path_from(tmp_path) == "teacher"  # an error names it as it is written
