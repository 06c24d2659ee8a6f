"""A penalty for leaving a frozen policy: kl_beta, kl_type and pretrained_model_path."""

import pytest
import torch
from small_worlds import CountingEnv, SeededBox, SeededEnv, SeededTree
from worlds import finished, small_config, trainee

from ding_lite import PPGPolicy, PPOPolicy, SerialPipeline
from ding_lite.errors import CheckpointError, ConfigError, ContractError
from ding_lite.fast.gradients import outputs_of
from ding_lite.rl.losses import reference_kl

PENALTY = dict(kl_beta=0.5, pretrained_model_path="a run")


class OwnLoss(PPOPolicy):
    def policy_loss(self, batch):
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        return -(log_ratio * batch.advantage).mean(), {}


class OwnPhasicLoss(OwnLoss, PPGPolicy):
    pass


def test_a_policy_of_a_script_does_not_learn_without_the_reference_of_its_config():
    policy, collector = trainee("ppo", learn=PENALTY)
    with pytest.raises(ContractError, match="use_reference"):
        policy.learn_mode.forward(collector.collect())


@pytest.mark.parametrize(
    ("kind", "cls", "critic"), [("ppo", OwnLoss, 1), ("ppg", OwnPhasicLoss, 1), ("ppg", OwnPhasicLoss, 2)]
)
def test_the_penalty_is_added_to_an_overridden_policy_loss(kind, cls, critic):
    epochs = {} if kind == "ppo" else dict(critic_epoch_per_collect=critic)
    policy, collector = trainee(kind, cls=cls, learn={**PENALTY, **epochs})
    reference, _ = trainee("ppo", seed=1)
    with torch.no_grad():
        for parameter in reference.model.actor_head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    policy.use_reference(reference)
    objective = policy.objective if critic == 1 else policy.objective._replace(reads=("actor",))
    batch = next(policy.minibatches(collector.collect()).batches)
    batch = policy.with_outputs(batch, outputs_of(policy.model, objective.reads, batch.obs))
    total, metrics = objective.loss(batch)
    without = policy.policy_loss(batch)[0]
    if critic == 1:
        without = without + policy.value_weight * policy.value_loss(batch)[0]
    assert metrics["reference_kl"].detach() > 0.05
    # Of a difference of two such totals.
    rounding = 4 * torch.finfo(torch.float32).eps * float(total.detach().abs())
    torch.testing.assert_close(total - without, 0.5 * metrics["reference_kl"], atol=rounding, rtol=1e-5)


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


@pytest.mark.parametrize(
    ("kind", "rnns"), [("ppo", ("gru", "lstm")), ("ppo_offpolicy", ("lstm", None)), ("ppg", (None, "gru"))]
)
def test_either_policy_may_be_recurrent(kind, rnns):
    mine, other = rnns
    learn = PENALTY | dict(kl_beta=20.0, learning_rate=3e-3)
    policy, collector = trainee(kind, learn=learn, model=dict(rnn=mine))
    reference, _ = trainee("ppo", seed=1, model=dict(rnn=other))
    with torch.no_grad():
        reference.model.actor_head.layers[0].bias.copy_(torch.tensor([1.0, -1.0, 0.0]))
    policy.use_reference(reference)
    found = [policy.learn_mode.forward(collector.collect())["reference_kl"] for _ in range(8)]
    assert found[-1] < 0.5 * found[0]
    if other is not None:
        assert policy.reference.hidden is not None
        policy.forget_open_episodes()
        assert policy.reference.hidden is None


def test_a_run_takes_its_reference_from_another_run(tmp_path):
    def trained(name, **learn):
        config = small_config(SeededEnv, max_env_step=256, policy=dict(learn=learn))
        with SerialPipeline(config, folder=tmp_path / name) as pipeline:
            (*_, last) = [progress.metrics for progress in pipeline]
        return last

    trained("first")
    learn = dict(kl_beta=0.3, pretrained_model_path=str(tmp_path / "first"))
    assert "learn/reference_kl" in trained("second", **learn)
    longer = dict(max_env_step=512, trust=["small_worlds"])
    finished(SerialPipeline.resume(tmp_path / "first", **longer))
    (tmp_path / "first/ckpt/best.safetensors").unlink(missing_ok=True)  # so that the last one counts
    with pytest.raises(CheckpointError, match="'reference' does not fit this policy: its run was trained on"):
        SerialPipeline.resume(tmp_path / "second", **longer)
    with pytest.raises(CheckpointError, match="policy.learn.pretrained_model_path.*nowhere"):
        trained("third", kl_beta=0.3, pretrained_model_path=str(tmp_path / "nowhere"))


def test_faults_are_reported():
    for learn in (dict(kl_beta=0.5), dict(pretrained_model_path="a run")):
        with pytest.raises(ConfigError, match=rf"policy\.learn\.{next(iter(learn))}.*no effect without"):
            trainee("ppo", learn=learn)
    policy = trainee("ppo", learn=PENALTY)[0]
    for world in (SeededBox, CountingEnv, SeededTree):
        with pytest.raises(ConfigError, match="must be a policy for the same observations and actions"):
            policy.use_reference(trainee("ppo", world)[0])
