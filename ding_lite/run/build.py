"""Builds the parts of a run from its config: environments, policy and collector; and describes them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from easydict import EasyDict

from ding_lite.config.compile import Config
from ding_lite.config.registry import POLICY_REGISTRY, SCRIPT, env_name, script_name
from ding_lite.config.values import encode
from ding_lite.data.collector import Collector
from ding_lite.data.samples import even_sizes
from ding_lite.data.tensors import TensorCollector
from ding_lite.envs.make import EnvSetting, make_vector_env
from ding_lite.envs.tensor import TensorVectorEnv
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import CheckpointError, ConfigError, counted
from ding_lite.policies.base import Policy
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.ranks import Ranks
from ding_lite.run.load import load_policy
from ding_lite.trees import example_observations, tree_leaves


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
    env, learn, buffer = own.env, own.policy.learn, own.policy.get("other", {}).get("replay_buffer", {})
    for section, path in ((env, "env"), (learn, "policy.learn"), (buffer, "policy.other.replay_buffer")):
        for name in section.keys() & {"collector_env_num", "batch_size", "aux_batch_size"}:
            if section[name] is None:  # aux_batch_size: it follows batch_size
                continue
            if section[name] % ranks.size:
                raise ConfigError(
                    f"{path}.{name}: {section[name]} cannot be shared equally by {ranks.size} ranks"
                )
            section[name] //= ranks.size
    if size := buffer.get("replay_buffer_size"):
        buffer["replay_buffer_size"] = math.ceil(size / ranks.size)
    collect, played = own.policy.collect, cfg.env.evaluator_env_num
    collect.n_sample = math.ceil(collect.n_sample / cfg.env.collector_env_num) * env.collector_env_num
    if played:
        episodes = even_sizes(env.n_evaluator_episode, played)[ranks.slice_of(played)]
        env.evaluator_env_num = max(1, len(episodes))  # a rank without one plays no episode
        env.n_evaluator_episode = sum(episodes)
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

    has_own = own.env.evaluator_env_num and not own.env.one_simulator
    return made("collector"), made("evaluator") if has_own else None


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
    policy.action_maps = envs.action_maps
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
    """Builds what collects from ``envs``; ``own`` is this rank's share of the config.

    Raises:
        ConfigError: if arrays are to be evaluated in the environments that are collected from.
    """
    n_sample, env = own.policy.collect.n_sample, own.env
    if isinstance(envs, TensorVectorEnv):
        greedy = env.evaluator_env_num if env.one_simulator else 0
        options = dict(strict=env.strict_truncation, greedy=greedy, ranks=policy.ranks)
        return TensorCollector(envs, policy, n_sample, **options)
    if env.one_simulator:
        raise ConfigError(f"env.one_simulator: it needs environments of tensors, got {envs.backend}")
    return Collector(envs, policy, n_sample)


def refuse_small_disk(folder: Path, policy: Policy, n_sample: int) -> None:
    """Compares the samples that PPG saves for its auxiliary phase with the free space at a run's folder.

    Args:
        folder: of the run.
        policy: of the run; each of its ranks saves its own samples.
        n_sample: transitions in a rollout of a rank.

    Raises:
        ConfigError: if a checkpoint has no room.
    """
    learn = policy.cfg.learn
    iterations = learn.get("aux_freq", 0) if learn.get("aux_train_epoch") else 0
    rollout = n_sample * sum(leaf.nbytes for leaf in tree_leaves(example_observations(policy.obs_space, 1)))
    planned, free = iterations * policy.ranks.size * rollout, shutil.disk_usage(folder).free
    if planned > free:
        raise ConfigError(
            f"policy.learn.aux_freq: a checkpoint has the observations of {iterations:,} iterations, "
            f"{planned / 1e9:,.1f} GB, and the disk of {folder} has {free / 1e9:,.1f} GB free. Lower it or "
            "policy.collect.n_sample, or choose another folder; checkpoint.freq says how often it is written"
        )


def description(config: Config, policy: Policy, collector: Collector) -> list[str]:
    """Returns the first lines of a run: environments, policy, and the settings that were adapted.

    Args:
        config: of the run.
        policy, collector: of the run.
    """
    cfg, envs, threads = config.values, collector.envs, torch.get_num_threads()
    lines = [
        f"env {env_name(cfg.env)}: {envs.backend}",
        f"policy {encode(cfg.policy.type, 'policy.type')} on {policy.device}, "
        f"{sum(parameter.numel() for parameter in policy.model.parameters()):,} parameters, "
        f"{counted(threads, 'torch thread')}, seed {cfg.seed}",
    ]
    if torch.cuda.is_available() and policy.device.type == "cpu" and cfg.policy.device == "auto":
        lines.append("the GPU is not used: this network is faster on the CPU; policy.device=cuda uses it")
    if policy.ranks.size > 1:
        lines.append(
            f"{policy.ranks.size} ranks, each with {envs.num_envs} of the environments and "
            f"{policy.cfg.learn.batch_size} samples of a minibatch"
        )
    if SCRIPT in config.trusted:
        lines.append("WARNING: only this notebook can load the run: write its classes to a .py file")
    elif (script := script_name()) in config.trusted:
        lines.append(f"what loads this run executes {script}.py: train under if __name__ == '__main__'")
    if cfg.env.one_simulator:
        lines.append(f"the last {cfg.env.evaluator_env_num:,} environments play greedily: they evaluate")
    lines += policy.lines
    if not envs.restorable:
        lines.append("open episodes are not saved: a resumed run begins new ones")
    return lines
