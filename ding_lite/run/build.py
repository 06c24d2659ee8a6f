"""Builds the parts of a run from its config: environments, policy and collector; and describes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from easydict import EasyDict

from ding_lite.config.compile import Config
from ding_lite.config.registry import POLICY_REGISTRY, env_name
from ding_lite.config.values import encode
from ding_lite.data.collector import Collector
from ding_lite.data.samples import even_sizes
from ding_lite.data.tensors import TensorCollector
from ding_lite.envs.make import EnvSetting, make_vector_env
from ding_lite.envs.tensor import TensorVectorEnv
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.policies.base import Policy
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.ranks import Ranks
from ding_lite.run.load import load_policy

# Numbers of the config that the ranks share: equally, or rounded up.
SHARED = ("env.collector_env_num", "policy.learn.batch_size", "policy.learn.aux_batch_size")
ROUNDED = ("policy.other.replay_buffer.replay_buffer_size",)


def with_env_setting(cfg: Any, setting: EnvSetting | None) -> Any:
    """Returns the values of a complete config with the environments that a script gives in place of its own.

    Args:
        cfg: stays as it is.
        setting: ``(make, collector_cfgs, evaluator_cfgs)``; None: those that the config describes.
    """
    if setting is None:
        return cfg
    make, *cfgs = setting

    def make_numbered(env_index: int, evaluate: bool) -> Any:
        return make(cfgs[evaluate][env_index])

    for name in ("__module__", "__qualname__"):  # for messages
        setattr(make_numbered, name, getattr(make, name, "env_setting"))
    cfg = _copied(cfg)
    cfg.env.update(type=make_numbered, kwargs={}, wrappers=[], manager={"type": "base"})
    cfg.env.update(collector_env_num=len(cfgs[0]), evaluator_env_num=len(cfgs[1]))
    return cfg


def own_share(cfg: Any, ranks: Ranks) -> Any:
    """Returns the values of a complete config for one rank; the config itself if there is one rank.

    All ranks together have the environments, the rollouts and the minibatches that the config asks for.

    Args:
        cfg: of the whole run.
        ranks: of the run.

    Raises:
        ConfigError: if a number cannot be divided equally.
    """
    if ranks.size == 1:
        return cfg
    own = _copied(cfg)
    num_envs, num_played = own.env.collector_env_num, own.env.evaluator_env_num
    for path in (*SHARED, *ROUNDED):
        *sections, name = path.split(".")
        section = own
        for part in sections:
            section = section.get(part, {})
        number = section.get(name)
        if number is None:
            continue
        if path in SHARED and number % ranks.size:
            raise ConfigError(f"{path}: {number} cannot be shared equally by {ranks.size} ranks")
        section[name] = -(-number // ranks.size)
    steps = math.ceil(cfg.policy.collect.n_sample / num_envs)
    own.policy.collect.n_sample = steps * own.env.collector_env_num
    if not num_played:
        return own
    episodes = even_sizes(cfg.env.n_evaluator_episode, num_played)[ranks.slice_of(num_played)]
    own.env.evaluator_env_num = max(1, len(episodes))  # a rank without one plays no episode
    own.env.n_evaluator_episode = sum(episodes)
    return own


def _copied(section: EasyDict) -> EasyDict:
    """Returns a copy of a section and those in it; a key of the user, such as "items", may hide a method."""
    copied = EasyDict()
    for name, value in dict.items(section):
        copied[name] = _copied(value) if isinstance(value, EasyDict) else value
    return copied


def build_envs(cfg: Any, own: Any, ranks: Ranks, resources: ExitStack) -> tuple[VectorEnv, VectorEnv | None]:
    """Makes the environments of a run, or those of one of its ranks.

    Args:
        cfg: a complete config.
        own: this rank's share of it.
        ranks: of the run.
        resources: closes the environments when it is closed.

    Returns:
        The environments to collect from, and those to evaluate on; None if the config asks for none.

    Raises:
        EnvError: if the environments cannot be made.
    """

    def made(side: str) -> VectorEnv:
        count, evaluate = f"{side}_env_num", side == "evaluator"
        first = ranks.slice_of(cfg.env[count]).start
        envs = make_vector_env(cfg.env, own.env[count], cfg.seed, evaluate=evaluate, index_offset=first)
        resources.callback(envs.close)
        return envs

    return made("collector"), made("evaluator") if own.env.evaluator_env_num else None


def build_policy(cfg: Any, envs: VectorEnv, model: torch.nn.Module | None, trust: Sequence[str]) -> Policy:
    """Builds the policy for the spaces of ``envs``.

    Args:
        cfg: a complete config.
        envs: environments that the policy acts in.
        model: trained as it is, instead of a model built from the config.
        trust: modules that the checkpoint at ``policy.learn.pretrained_model_path`` may import.

    Raises:
        ConfigError: if the policy or its model cannot be built for these spaces.
        CheckpointError: if ``policy.learn.pretrained_model_path`` cannot be loaded.
    """
    factory, section = POLICY_REGISTRY.get(cfg.policy.type), cfg.policy
    if isinstance(envs, TensorVectorEnv) and section.device == "auto" and model is None:
        section = EasyDict({**section, "device": str(envs.device)})
    policy: Policy = factory(section, envs.obs_space, envs.action_space, model=model, seed=cfg.seed)
    reference = cfg.policy.learn.get("pretrained_model_path")
    if reference is not None and isinstance(policy, PPOPolicy):
        try:
            frozen = load_policy(reference, device=str(policy.device), trust=trust)
        except CheckpointError as error:
            raise CheckpointError(f"policy.learn.pretrained_model_path: {error}") from error
        policy.use_reference(frozen)
    # The model of a caller may differ between ranks.
    policy.ranks.copy_first([*policy.model.state_dict().values()])
    return policy


def build_collector(own: Any, envs: VectorEnv, policy: Policy) -> Collector:
    """Builds what collects from ``envs``; ``own`` is this rank's share of the config."""
    n_sample = own.policy.collect.n_sample
    if isinstance(envs, TensorVectorEnv):
        return TensorCollector(envs, policy, n_sample, strict=own.env.strict_truncation)
    return Collector(envs, policy, n_sample)


def description(config: Config, own: Any, policy: Policy, collector: Collector) -> list[str]:
    """Returns the first lines of a run: environments, policy, and the settings that were adapted.

    Args:
        config: of the run.
        own: this rank's share of its values.
        policy, collector: of the run.
    """
    cfg, envs, threads = config.values, collector.envs, torch.get_num_threads()
    lines = [
        f"env {env_name(cfg.env)}: {envs.backend}",
        f"policy {encode(cfg.policy.type, 'policy.type')} on {policy.device}, "
        f"{sum(parameter.numel() for parameter in policy.model.parameters()):,} parameters, "
        f"{threads} torch {'thread' if threads == 1 else 'threads'}, seed {cfg.seed}",
    ]
    if torch.cuda.is_available() and policy.device.type == "cpu" and cfg.policy.device == "auto":
        lines.append("the GPU is not used: this network is faster on the CPU; policy.device=cuda uses it")
    if policy.ranks.size > 1:
        lines.append(
            f"{policy.ranks.size} ranks, each with {envs.num_envs} of the environments and "
            f"{own.policy.learn.batch_size} samples of a minibatch"
        )
    lines += policy.lines
    lines += [f"WARNING: {note}" for note in envs.notes.values()]
    if not envs.restorable:
        lines.append("open episodes are not saved: a resumed run begins new ones")
    return lines
