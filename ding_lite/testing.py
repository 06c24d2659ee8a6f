"""Tools for testing user code.

``check_policy("my_policy")`` checks a policy. ``MatchEnv`` is an environment with a known optimal policy,
which is learned in seconds.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.collector import Collector
from ding_lite.data.rollout import Rollout, as_field, as_rollout
from ding_lite.data.samples import Batch
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.errors import ContractError
from ding_lite.fast.gradients import checked, outputs_of
from ding_lite.models.checks import check_distribution, undisturbed
from ding_lite.models.encoders import Encoder
from ding_lite.models.heads import clamp_to_ranges, parameter_ranges
from ding_lite.models.recurrent import Sequences
from ding_lite.policies.base import Policy
from ding_lite.policies.intrinsic import Intrinsic, StepTable
from ding_lite.policies.ppg import PPGPolicy
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.rl.distributions import Distribution
from ding_lite.rl.scales import RAW
from ding_lite.run.pipeline import SerialPipeline
from ding_lite.trees import map_tree, to_dict, tree_leaves

SAMPLES = 20_000  # number of samples of the Monte-Carlo checks
PARAMETERS = 4  # models with perturbed parameters in these checks
STANDARD_ERRORS = 5.0  # accepted difference in these checks
ROUNDING = 1e-3  # accepted in addition, in nats and relative: float32, and the entropy of TanhNormal
STEPS_OF_CHECK = 12  # of each environment; an episode of MatchEnv has 8
STEPS = 12_000  # env steps of the learning check


class MatchEnv(gym.Env):
    """An environment whose observation shows the action to take.

    An episode has 8 steps. The reward is 1 for the shown action, and 1 minus the mean absolute difference
    of the flattened actions, clipped to [-1, 1], for another one. So the maximum return is 8.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of them; the default is
            Discrete(3).
    """

    length = 8

    def __init__(self, action_space: gym.Space | None = None) -> None:
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        size = spaces.flatdim(self.action_space)
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.t = 0
        return self._next_target(), {}

    def _next_target(self) -> np.ndarray:
        self.target = self.action_space.sample()
        flat = np.asarray(spaces.flatten(self.action_space, self.target), np.float32)
        self.flat_target = np.clip(flat, -1.0, 1.0)
        return self.flat_target

    def step(self, action: Any) -> Any:
        flat = np.asarray(spaces.flatten(self.action_space, action), np.float32)
        reward = 1.0 - float(np.abs(np.clip(flat, -1.0, 1.0) - self.flat_target).mean())
        self.t += 1
        return self._next_target(), reward, self.t >= self.length, False, {}


ACTION_SPACES: dict[str, gym.Space] = {
    "Discrete": spaces.Discrete(3),
    "Discrete(start=-2)": spaces.Discrete(3, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "Dict": spaces.Dict(move=spaces.Discrete(2), force=spaces.Box(-1.0, 1.0, (1,), np.float32)),
}


def check_policy(
    name: str | type,
    config: Mapping[str, Any] | None = None,
    *,
    learns: bool = True,
    action_spaces: Sequence[str] | None = None,
) -> None:
    """Checks that a policy fulfils the contract on which collection, learning and evaluation rely.

    For each kind of action space it checks:

    * the shapes of a rollout, and that actions are in the action space;
    * that the log-probs and the values of a rollout can be recomputed, so that the first ratio is 1; a
      recurrent policy collects in single steps and recomputes over sequences;
    * log-prob, entropy and KL divergence, by sampling from policies with perturbed parameters;
    * that ``compute_actor_critic`` and ``compute_auxiliary`` return what ``compute_actor`` and
      ``compute_critic`` do, and that all values come from ``value_heads``;
    * that a loss changes nothing in its minibatch;
    * that the loss has a gradient for every parameter; in PPG's policy phase, that the value loss has none
      for the parameters of the policy;
    * that an intrinsic reward is a finite number for each step, and that its loss has a gradient for every
      parameter;
    * that a learning step changes the parameters and returns metrics;
    * that a copy loaded from ``state_dict()`` acts the same, and gives the same intrinsic rewards.

    With ``learns`` it also trains on :class:`MatchEnv` and checks the return, which takes half a minute to a
    minute; the other checks take 5 to 10 seconds. It returns nothing: a policy that passes raises no error.

    Args:
        name: a registered name, "package.module:Class", or the class.
        config: the section ``policy`` of a config, without ``type``; missing keys have their defaults.
        learns: whether to check that the policy learns, on Discrete actions.
        action_spaces: names in ``ACTION_SPACES``, for a policy or a model that does not support all of them.

    Raises:
        ContractError: naming the action space, the expected and the actual result.
        Exception: raised by the policy's own code, with a note that names the action space.
    """
    config, checks = dict(config or {}), dict[str, Callable[[], None]]()
    for title in ACTION_SPACES if action_spaces is None else action_spaces:
        checks[f"on {title} actions"] = partial(_check_on, name, config, ACTION_SPACES[title])
    if learns:
        checks[f"on Discrete actions, training for {STEPS:,} steps"] = partial(_check_learns, name, config)
    for where, check in checks.items():
        try:
            check()
        except ContractError as error:
            raise ContractError(f"policy {name!r} {where}: {error}") from error
        except Exception as error:
            error.add_note(f"check_policy: policy {name!r} {where}")
            raise


def _complete(name: str | type, config: Mapping[str, Any]) -> Any:
    """Returns a complete config of a run on MatchEnv with this policy."""
    policy = {"type": name, **copy.deepcopy(dict(config))}
    user = {"env": {"type": MatchEnv}, "policy": policy, "max_env_step": STEPS}
    return compile_config(user, origin="check_policy").values


def _check_on(name: str | type, config: Mapping[str, Any], space: gym.Space) -> None:
    cfg = _complete(name, config).policy
    envs = InProcessVectorEnv(lambda index: EpisodeRecorder(MatchEnv(space)), 4)
    cls = POLICY_REGISTRY.get(name) if isinstance(name, str) else name
    with contextlib.closing(envs):
        policy: Policy = cls(cfg, envs.obs_space, envs.action_space)
        policy.value_norm.load_state_dict(RAW)  # with the initial std of 0 every value would be 0
        rollout = Collector(envs, policy, n_sample=4 * STEPS_OF_CHECK).collect()
        _check_rollout(policy, rollout)
        _check_distribution(policy, rollout.obs[0, :1])
        if isinstance(policy, PPOPolicy):
            _check_model(policy, rollout)
            _check_gradients(policy, rollout)
            if isinstance(policy.intrinsic, Intrinsic):
                _check_intrinsic(policy.intrinsic, rollout)
        _check_learning_step(policy, rollout)
        _check_state(cls, policy, rollout)


def _expect(holds: bool, message: str) -> None:
    """Raises a ContractError with ``message``, "what is expected, got what", unless ``holds``."""
    if not holds:
        raise ContractError(f"expected: {message}")


def _check_rollout(policy: Policy, rollout: Rollout) -> None:
    credit = ("value", "advantage", "value_target") if isinstance(policy, PPOPolicy) else ()
    for field in ("log_prob", "reward", *credit):
        shape = tuple(rollout[field].shape)
        expected = (STEPS_OF_CHECK, 4)
        _expect(shape == expected, f"rollout.{field} is (T, B) = {expected}, got {shape}")
    action = policy.act(rollout.obs[0, 0].cpu().numpy())
    policy.reset()
    scalars = map_tree(lambda leaf: leaf.item() if np.ndim(leaf) == 0 else leaf, action)
    _expect(
        policy.action_space.contains(scalars),  # a Discrete contains no 0-d arrays
        f"act returns an action in {policy.action_space}, got {action!r}",
    )
    encoders = [part for part in policy.model.modules() if isinstance(part, Encoder)]
    tolerance = 1e-5 if all(encoder.dtype == torch.float32 for encoder in encoders) else 5e-3
    recomputed = {"log_prob": policy.over_rollout(policy.log_prob, rollout, "action")}
    if credit:
        scaled = policy.over_rollout(policy.model.compute_critic, rollout)
        recomputed["value"] = policy.value_norm.denormalize(scaled)
    for name, tensor in recomputed.items():
        difference = float((tensor - rollout[name]).abs().max() / rollout[name].abs().max().clamp_min(1.0))
        _expect(
            difference <= tolerance,
            f"{name} recomputed for the stored actions equals the stored one, got a difference of "
            f"{difference:.2g}: the ratio in the first minibatch must be 1",
        )


def _check_model(policy: PPOPolicy, rollout: Rollout) -> None:
    """Compares combined methods with single ones, and checks that PopArt can rescale the values."""
    model: Any = policy.model
    inputs, title = policy._inputs(rollout.obs[0]), type(model).__name__
    joint = [name for name in ("compute_actor_critic", "compute_auxiliary") if hasattr(model, name)]

    def values_of(model: Any) -> torch.Tensor:
        return torch.stack([value for name in joint for value in getattr(model, name)(inputs)[1:]])

    def are_near(actual: Any, expected: Any) -> bool:
        pairs = zip(tree_leaves(actual), tree_leaves(expected), strict=True)
        return all(x.shape == y.shape and torch.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in pairs)

    with undisturbed(model):
        singles = {name: getattr(model, name)(inputs) for name in ("compute_actor", "compute_critic")}
        for method in joint:
            first, *_, last = getattr(model, method)(inputs)
            for (name, output), joint_output in zip(singles.items(), (first, last), strict=True):
                _expect(
                    are_near(joint_output, output),
                    f"{title}.{method} returns the output of {name}, got another one: training uses the "
                    "first method, acting or computing values uses the second",
                )
        rescaled = copy.deepcopy(model)
        for head in rescaled.value_heads:
            head.weight.mul_(2.0)
            head.bias.mul_(2.0).add_(1.0)
        _expect(
            not policy.cfg.learn.value_norm or are_near(values_of(rescaled), 2.0 * values_of(model) + 1.0),
            f"values come from {title}.value_heads, which PopArt rescales, got others: set self.value_heads "
            "to the last linear layer of every value, after creating the layers, or set value_norm=False",
        )


@torch.no_grad()
def _check_distribution(policy: Policy, obs: Any) -> None:
    """Checks distributions of perturbed models by sampling; a new model's may be nearly uniform.

    Args:
        policy: is not changed.
        obs: (1, ...)
    """
    generator, dists = torch.Generator(policy.device).manual_seed(0), list[Distribution]()
    repeated = map_tree(lambda leaf: leaf.expand(SAMPLES, *leaf.shape[1:]), obs)
    for seed in range(PARAMETERS):
        other = _with_other_parameters(policy, seed)
        inputs = other._inputs(repeated)
        dists.append(other.distribution(inputs, other.model.compute_actor(inputs)))
        check_distribution(dists[-1], policy.action_space, policy.device, SAMPLES)
    for p, q in pairwise(dists):
        _compare_with_samples(p, q, generator)


def _with_other_parameters(policy: Policy, seed: int) -> Policy:
    """Returns a copy of a policy in which noise has moved each layer's outputs by about 1."""
    other, generator = copy.copy(policy), torch.Generator().manual_seed(seed)
    other.model = copy.deepcopy(policy.model)
    for parameter in other.model.parameters():
        inputs = parameter[0].numel() if parameter.dim() > 1 else 1
        noise = torch.randn(parameter.shape, generator=generator) / inputs**0.5
        parameter.add_(noise.to(parameter))
    clamp_to_ranges(parameter_ranges(other.model))
    return other


def _compare_with_samples(p: Distribution, q: Distribution, generator: torch.Generator) -> None:
    """Compares the methods of two distributions with means over samples.

        entropy = E_p[-log p],   KL(p || q) = E_p[log p - log q],   E_p[q / (p + q)] = E_q[p / (p + q)]

    The last equation holds only if exp(log_prob) is normalised and the samples are drawn from it.

    Args:
        p, q: of one class, each of N equal rows.
        generator: to draw samples.
    """
    name, actions = type(p).__name__, (p.sample(generator), q.sample(generator))
    (log_p, other), (log_p_of_q, log_q_of_q) = ((p.log_prob(a), q.log_prob(a)) for a in actions)
    kl = log_p - other
    for what, exact, samples in (
        ("log_prob: the mean of q / (p + q) under p", (log_p_of_q - log_q_of_q).sigmoid(), (-kl).sigmoid()),
        ("entropy", p.entropy(), -log_p),
        ("kl", p.kl(q), kl),
    ):
        error = exact.double() - samples.double()
        got, expected = float(exact.double().mean()), float(samples.double().mean())
        tolerance = STANDARD_ERRORS * float(error.std()) / len(error) ** 0.5 + ROUNDING * (1 + abs(expected))
        _expect(
            abs(got - expected) <= tolerance,
            f"{name}.{what} is {expected:.4f} by {SAMPLES} samples, within {tolerance:.4f}; got {got:.4f}",
        )


def _check_gradients(policy: PPOPolicy, rollout: Rollout) -> None:
    model, reads = policy.model, ["actor", "critic"]
    batch = next(policy.minibatches(rollout).batches)
    batch = policy.with_outputs(batch, outputs_of(model, reads, batch.obs))
    losses = [_loss_on(policy, "loss", batch)]
    if isinstance(policy, PPGPolicy):  # only the auxiliary phase trains the auxiliary head
        outputs = outputs_of(model, (*reads, "auxiliary"), batch.obs)
        old_logit = as_field(map_tree(torch.clone, to_dict(outputs["actor"])))
        fields = {name: rollout[name].flatten(0, 1)[: len(batch)] for name in policy.auxiliary_fields}
        batch = policy.with_outputs(batch.plus(old_logit=old_logit, **fields), outputs)
        losses.append(_loss_on(policy, "auxiliary_loss", batch))
        _check_no_value_gradient(policy, batch)
    _expect_gradients("the loss", model, *losses)


def _loss_on(policy: Policy, name: str, batch: Batch) -> torch.Tensor:
    """Returns the loss () of a minibatch; checks what is returned, and that the minibatch stays the same."""
    before = _writes(batch)
    loss, _ = checked(getattr(policy, name)(batch), policy, name)
    changed = [field for field, count in _writes(batch).items() if count != before.get(field, count)]
    _expect(
        not changed,
        f"{name} changes nothing in its minibatch, got other values in batch.{', batch.'.join(changed)}: "
        "a loss computes new tensors and does not write into tensors of the batch (x * 2, not x.mul_(2))",
    )
    return loss


def _writes(batch: Batch) -> dict[str, list[int]]:
    """Returns how often each tensor of a minibatch was written into, by its field."""
    writes = {}
    for name, field in vars(batch).items():
        leaves = tree_leaves(field._asdict() if isinstance(field, Sequences) else field)
        writes[name] = [leaf._version for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return writes


def _check_no_value_gradient(policy: PPGPolicy, batch: Batch) -> None:
    """Checks that the value loss of PPG's policy phase has no gradient for parameters of the policy.

    Models with ``arch="shared"``, or without ``arch``, may share layers, and are exempt.
    """
    model: Any = policy.model
    if getattr(model, "arch", "shared") == "shared":
        return
    logit = sum(leaf.sum() for leaf in tree_leaves(model.compute_actor(batch.obs)))
    value = policy.value_loss(batch.plus(new_value=model.compute_critic(batch.obs)))[0]
    both = ", ".join(sorted(_with_gradient(model, logit) & _with_gradient(model, value)))
    _expect(not both, f"the policy phase's value loss has no gradient for the policy, got one for {both}")


def _expect_gradients(what: str, module: torch.nn.Module, *totals: torch.Tensor) -> None:
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    without = ", ".join(sorted(trained.difference(*(_with_gradient(module, total) for total in totals))))
    _expect(not without, f"{what} has a gradient for every parameter, got none for {without}")


def _with_gradient(module: torch.nn.Module, total: torch.Tensor) -> set[str]:
    """Returns the names of the parameters for which ``total`` () has a gradient."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad and total.requires_grad}
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True) if named else ()
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is not None}


def _check_intrinsic(intrinsic: Intrinsic, rollout: Rollout) -> None:
    """Checks that the loss of an intrinsic reward has a gradient for every parameter that it trains."""
    table = StepTable(rollout, intrinsic.obs_norm, intrinsic.device)
    loss = intrinsic.of_steps("loss", table.at(table.rows)).sum()
    _expect_gradients(f"{type(intrinsic.reward).__name__}.loss", intrinsic.reward, loss)


def _check_state(cls: type, policy: Policy, rollout: Rollout) -> None:
    other: Policy = cls(policy.cfg, policy.obs_space, policy.action_space, seed=1)
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    obs = rollout.obs[0].cpu().numpy()
    outputs: list[list[torch.Tensor]] = []
    for actor in (policy, other):
        outputs.append(tree_leaves(actor.collect_mode.forward(obs)["action"]))
        if isinstance(intrinsic := getattr(actor, "intrinsic", None), Intrinsic):
            copied = as_rollout(to_dict(rollout))
            intrinsic.add_reward(copied)
            outputs[-1].append(copied.intrinsic_reward)
    _expect(
        all(map(torch.equal, *outputs)),
        "a policy loaded from state_dict() acts the same and gives the same intrinsic rewards, got others: "
        "the state is incomplete",
    )


def _check_learning_step(policy: Policy, rollout: Rollout) -> None:
    before = [p.detach().clone() for p in policy.model.parameters()]
    metrics = policy.learn_mode.forward(rollout)
    if isinstance(policy, PPGPolicy) and policy.cfg.learn.aux_train_epoch and policy.store.size:
        metrics |= policy.auxiliary_phase()  # although it may not be due
    changed = not all(map(torch.equal, before, policy.model.parameters()))
    _expect(changed, "learn_mode.forward changes parameters, got the same ones")
    numbers = all(isinstance(value, float) for value in metrics.values())
    _expect(
        numbers and "updates" in metrics, f"learn_mode.forward returns floats and 'updates', got {metrics}"
    )
    if isinstance(policy, PPOPolicy):
        learned, valid = policy.schedules.env_step, int(rollout.valid.sum())
        _expect(
            learned == valid,
            "improve is overridden, not _forward_learn, which also updates scales and schedules; got "
            f"schedules that have counted {learned} of {valid} steps",
        )


def _check_learns(name: str | type, config: Mapping[str, Any]) -> None:
    """Trains on MatchEnv, and checks the mean reward of the last evaluation."""
    defaults: Any = {"collect": {"n_sample": 256}, "learn": {"learning_rate": 3e-3}, "eval": {"eval_freq": 0}}
    sections = {key: {**section, **config.get(key, {})} for key, section in defaults.items()}
    user = _complete(name, {**config, **sections})
    with tempfile.TemporaryDirectory() as folder:
        pipeline = SerialPipeline(user, folder=Path(folder) / "run")
        for _ in pipeline:
            pass
    reward = (pipeline.progress.eval_value or 0.0) / MatchEnv.length
    _expect(
        reward > 0.9,
        f"the mean reward in ding_lite.testing.MatchEnv is above 0.9 of 1, got {reward:.2f}. If the loss is "
        "right, its settings may not be: pass others in config, such as learn=dict(epoch_per_collect=1) for "
        "a loss without a bound on the ratio",
    )
