"""Checks that users can run on what they write: ``check_policy("my_policy")``.

Also the small worlds that the checks play in: each has a known best policy and is learned in seconds. And
``FaultyEnv``, a wrapper that goes wrong on purpose, to try what a set-up makes of it.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from ding_lite.checkpoint import load_checkpoint
from ding_lite.collector import Collector
from ding_lite.config import compile_config
from ding_lite.envs.faulty import FaultyEnv as FaultyEnv  # light, so that workers can import it
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.spaces import tree_leaves
from ding_lite.errors import ContractError
from ding_lite.models.encoders import Encoder
from ding_lite.models.phasic import PhasicActorCritic
from ding_lite.pipeline import SerialPipeline
from ding_lite.policies.base import Policy
from ding_lite.policies.load import as_tensors, policy_from_state
from ding_lite.policies.postmortem import bad_gradients
from ding_lite.registry import POLICY_REGISTRY
from ding_lite.rollout import Batch, Rollout, as_rollout, map_tree

SAMPLES = 20_000  # draws of the Monte-Carlo checks
STEPS = 12_000  # of a training that must learn; too few for anything to be compiled first
TOLERANCE = 0.05  # nats, of those checks


class MatchEnv(gym.Env):
    """Reward 1 for the action that the observation shows (less for one that is near), 8 steps long.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of them.
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
        return self._show(), {}

    def _show(self) -> np.ndarray:
        self.target = self.action_space.sample()
        flat = np.asarray(spaces.flatten(self.action_space, self.target), np.float32)
        self.flat_target = np.clip(flat, -1.0, 1.0)
        return self.flat_target

    def step(self, action: Any) -> Any:
        flat = np.asarray(spaces.flatten(self.action_space, action), np.float32)
        reward = 1.0 - float(np.abs(np.clip(flat, -1.0, 1.0) - self.flat_target).mean())
        self.t += 1
        return self._show(), reward, self.t >= self.length, False, {}


ACTION_SPACES: dict[str, gym.Space] = {
    "Discrete": spaces.Discrete(3),
    "Discrete(start=-2)": spaces.Discrete(3, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "Dict": spaces.Dict(move=spaces.Discrete(2), force=spaces.Box(-1.0, 1.0, (1,), np.float32)),
}


def check_policy(name: str | type, config: Mapping[str, Any] | None = None, *, learns: bool = True) -> None:
    """Proves that a policy keeps the contract that every worker relies on.

    On each kind of action space: shapes, log-prob, entropy and KL against sampling, the ratio of the
    first minibatch, a gradient for every parameter (in PPG's policy phase none of the value for the
    policy), and that a copy loaded from its state acts alike. Then, if ``learns``, that it
    learns a tiny environment.

    Args:
        name: registered, or "package.module:Class", or the class.
        config: what to set besides the defaults: the section ``policy`` of a config.
        learns: run the learning check too (some seconds).

    Raises:
        ContractError: saying what was expected, and what came.
    """
    for title, space in ACTION_SPACES.items():
        try:
            _check_on(name, dict(config or {}), space)
        except ContractError as error:
            raise ContractError(f"policy {name!r} on {title} actions: {error}") from error
    if learns:
        _check_learns(name, dict(config or {}))


def replay_step(folder: str | Path, *, trust: Sequence[str] = ()) -> dict[str, Any]:
    """Takes a gradient step that was not finite again, from the ``dump`` of its run, up to the gradient.

    Args:
        folder: ``dump`` in the run's folder.
        trust: modules of your own that the saved config may import.

    Returns:
        ``metrics`` of the loss, ``inputs``: the fields of the minibatch that are not finite, and
        ``gradients``: the names of the parameters whose gradient is not.

    Raises:
        CheckpointError: if there is no dump, or it does not fit.
    """
    state, saved = load_checkpoint(Path(folder))
    policy = policy_from_state(Path(folder), state, saved, device="cpu", trust=trust)
    given = {k: as_rollout(v) if isinstance(v, dict) else v for k, v in as_tensors(state["batch"]).items()}
    total, metrics = getattr(policy, state["loss"])(Batch(**given))
    spoilt: list[str] = []
    for name, value in given.items():
        map_tree(lambda leaf, n=name: spoilt.append(n) if not torch.isfinite(leaf).all() else None, value)
    return {
        "metrics": {name: float(value.detach()) for name, value in metrics.items()},
        "inputs": sorted(set(spoilt)),
        "gradients": bad_gradients(policy.model, total),
    }


def _complete(name: str | type, config: Mapping[str, Any]) -> Any:
    policy = {"type": name, **copy.deepcopy(dict(config))}
    user = {"env": {"type": MatchEnv}, "policy": policy, "max_env_step": STEPS}
    return compile_config(user, origin="check_policy").values


def _check_on(name: str | type, config: dict[str, Any], space: gym.Space) -> None:
    cfg = _complete(name, config).policy
    envs = InProcessVectorEnv(lambda index: EpisodeRecorder(MatchEnv(space)), 4)
    cls = POLICY_REGISTRY.get(name) if isinstance(name, str) else name
    try:
        policy: Policy = cls(cfg, envs.obs_space, envs.action_space)
        rollout = Collector(envs, policy.collect_mode, n_sample=32).collect()
        _check_shapes(policy, rollout)
        _check_distribution(policy, rollout.obs[0, :1])
        _check_gradients(policy, rollout)
        _check_state(cls, policy, envs, rollout)
        _check_learning_step(policy, rollout)
    finally:
        envs.close()


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise ContractError(message)


def _check_shapes(policy: Policy, rollout: Rollout) -> None:
    for field in ("log_prob", "reward", "value", "advantage", "value_target"):
        shape = tuple(rollout[field].shape)
        _expect(shape == (8, 4), f"rollout.{field} is (T, B) = (8, 4), got {shape}")
    obs = rollout.obs[0].cpu().numpy()
    action = policy.act(obs)
    for one in (policy.act(obs[0]), _row(action, 0)):
        _expect(policy.action_space.contains(_scalar(one)), f"act gave {one!r}, not in {policy.action_space}")
    with torch.no_grad():
        dist = _dist(policy, rollout.obs.flatten(0, 1))
        again = dist.log_prob(map_tree(lambda x: x.flatten(0, 1), rollout.action))
    difference = float((again - rollout.log_prob.flatten()).abs().max())
    rounded = any(
        isinstance(part, Encoder) and part.dtype != torch.float32 for part in policy.model.modules()
    )
    _expect(
        difference <= (5e-3 if rounded else 1e-5),
        f"log_prob of the stored actions, computed again, differs by {difference:.2g}: the ratio of the "
        "first minibatch must be 1",
    )


def _dist(policy: Policy, obs: Any) -> Any:
    inputs = policy._inputs(obs) if hasattr(policy, "_inputs") else obs
    return policy._distribution(inputs, policy.model.compute_actor(inputs))


def _check_distribution(policy: Policy, obs: Any) -> None:
    """Entropy = -E log p, and KL(p || q) = E log p - log q, by sampling."""
    with torch.no_grad():
        many = obs.expand(SAMPLES, *obs.shape[1:])
        p, q = _dist(policy, many), _dist(policy, many * 0.5)
        action = p.sample(torch.Generator(policy.device).manual_seed(0))
        log_p, log_q = p.log_prob(action), q.log_prob(action)
        checks = {
            "entropy": (p.entropy().mean(), -log_p.mean()),
            "KL": (p.kl(q).mean(), (log_p - log_q).mean()),
        }
    for what, (exact, sampled) in checks.items():
        difference = abs(float(exact) - float(sampled))
        _expect(
            difference <= TOLERANCE,
            f"{what} is {float(exact):.4f}, and {SAMPLES} samples say {float(sampled):.4f}",
        )


def _check_gradients(policy: Policy, rollout: Rollout) -> None:
    if not hasattr(policy, "loss"):
        return
    flat = policy._training_set(rollout, rollout)  # type: ignore[attr-defined]
    batch = next(policy._minibatches(flat))  # type: ignore[attr-defined]
    policy.model.zero_grad(set_to_none=True)
    loss, metrics = policy.loss(batch)
    _expect(loss.dim() == 0, f"loss is one number, got the shape {tuple(loss.shape)}")
    _expect(isinstance(metrics, dict), f"loss returns (loss, metrics), got {type(metrics).__name__}")
    loss.backward()
    if isinstance(policy.model, PhasicActorCritic):  # its auxiliary head learns in the auxiliary phase
        policy.model.compute_auxiliary(batch.obs)[1].sum().backward()
        _check_no_value_gradient(policy, batch)
    without = [n for n, p in policy.model.named_parameters() if p.requires_grad and p.grad is None]
    _expect(not without, f"the loss reaches no gradient to {', '.join(without)}")
    policy.model.zero_grad(set_to_none=True)


def _check_no_value_gradient(policy: Any, batch: Batch) -> None:
    """In PPG's policy phase the value moves nothing of the policy, but where ``arch`` says they share."""
    if getattr(policy.model, "arch", "shared") == "shared":
        return
    actor = policy._reached_by(policy.model.compute_actor)
    found = torch.autograd.grad(policy._critic_loss(batch)[0], actor, allow_unused=True)
    names = {id(p): name for name, p in policy.model.named_parameters()}
    moved = [names[id(p)] for p, g in zip(actor, found, strict=True) if g is not None and bool(g.any())]
    _expect(not moved, f"in the policy phase a gradient of the value reaches {', '.join(moved)}")


def _check_state(cls: type, policy: Policy, envs: InProcessVectorEnv, rollout: Rollout) -> None:
    other: Policy = cls(policy.cfg, envs.obs_space, envs.action_space, seed=1)
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    obs = rollout.obs[0].cpu().numpy()
    acts = [p.collect_mode.forward(obs)["action"] for p in (policy, other)]
    same = all(torch.equal(a, b) for a, b in zip(*map(tree_leaves, acts), strict=True))
    _expect(same, "a policy loaded from state_dict() acts differently: something is not in the state")


def _check_learning_step(policy: Policy, rollout: Rollout) -> None:
    before = [p.detach().clone() for p in policy.model.parameters()]
    metrics = policy.learn_mode.forward(rollout)
    auxiliary = getattr(policy, "auxiliary", None)
    if auxiliary is not None and auxiliary.memory.size:  # no need to wait until it is due
        metrics |= auxiliary.run()
    after = list(policy.model.parameters())
    moved = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    _expect(moved, "learn_mode.forward left every parameter as it was")
    _expect("updates" in metrics, f"learn_mode.forward must count its 'updates', got {sorted(metrics)}")
    numbers = all(isinstance(value, float) for value in metrics.values())
    _expect(numbers, "learn_mode.forward returns a dict of floats")


def _check_learns(name: str | type, config: dict[str, Any]) -> None:
    config.setdefault("collect", {}).setdefault("n_sample", 256)
    config.setdefault("learn", {}).setdefault("learning_rate", 3e-3)
    user = _complete(name, config)
    user.policy.eval.eval_freq = 0
    with tempfile.TemporaryDirectory() as folder:
        pipeline = SerialPipeline(user, folder=Path(folder) / "run")
        for _ in pipeline:
            pass
    assert pipeline.scores.last is not None
    reached = pipeline.scores.last.mean / MatchEnv.length
    _expect(
        reached > 0.9,
        f"after {STEPS:,} steps it earns {reached:.2f} of 1 a step in ding_lite.testing.MatchEnv",
    )


def _row(tree: Any, index: int) -> Any:
    if isinstance(tree, tuple):
        return tuple(_row(branch, index) for branch in tree)
    return map_tree(lambda x: x[index], tree)


def _scalar(action: Any) -> Any:
    return map_tree(lambda x: x.item() if np.ndim(x) == 0 else x, action)
