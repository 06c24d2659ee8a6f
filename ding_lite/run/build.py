"""Builds the parts of a run from its config: environments, policy and collector; and describes them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from ding_lite.config.compile import Config
from ding_lite.config.registry import POLICY_REGISTRY, env_name
from ding_lite.config.values import encode
from ding_lite.data.collector import Collector
from ding_lite.data.samples import even_sizes
from ding_lite.envs.checks import wide_actions
from ding_lite.envs.make import EnvSetting, make_vector_env
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import CheckpointError, ConfigError, counted
from ding_lite.policies.base import Policy
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.ranks import Ranks
from ding_lite.run.load import load_policy

# Numbers of the config that the ranks share: equally, or rounded up.
SHARED = ("env.collector_env_num", "policy.learn.batch_size", "policy.learn.aux_batch_size")
ROUNDED = tuple(f"policy.other.replay_buffer.{name}replay_buffer_size" for name in ("", "policy.", "value."))


def own_share(cfg: Any, ranks: Ranks, env_setting: EnvSetting | None = None) -> Any:
    """Returns the values of a complete config for one rank; the config itself if there is one rank.

    All ranks together have the environments, the rollouts and the minibatches that the config asks for.

    Args:
        cfg: of the whole run.
        ranks: of the run.
        env_setting: the environments of the whole run, if they are not those of the config.

    Raises:
        ConfigError: if a number cannot be divided equally.
    """
    if ranks.size == 1:
        return cfg
    own = copy.deepcopy(cfg)
    if env_setting is not None:
        _, collected, played = env_setting
        own.env.collector_env_num, own.env.evaluator_env_num = len(collected), len(played)
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


def build_envs(
    cfg: Any, own: Any, env_setting: EnvSetting | None, ranks: Ranks, resources: ExitStack
) -> tuple[VectorEnv, VectorEnv]:
    """Makes the environments of a run, or those of one of its ranks.

    Args:
        cfg: a complete config.
        own: this rank's share of it.
        env_setting: ``(make, collector_cfgs, evaluator_cfgs)``, used instead of the environments that the
            config describes.
        ranks: of the run.
        resources: closes the environments when it is closed.

    Returns:
        The environments to collect from, and those to evaluate on.

    Raises:
        EnvError: if the environments cannot be made.
    """
    both: list[VectorEnv] = []
    for number, side in enumerate(("collector", "evaluator")):
        env, total, num_envs = cfg.env, cfg.env[f"{side}_env_num"], own.env[f"{side}_env_num"]
        if not num_envs:  # such as for a simulator that exists once: nothing is evaluated
            return both[0], both[0]
        if env_setting is not None:
            make, *sides = env_setting
            cfgs: Any = sides[number]
            total = len(cfgs)
            num_envs = num_envs if ranks.size > 1 else total

            def made(env_index: int, make: Any = make, cfgs: Any = cfgs) -> Any:
                return make(cfgs[env_index])

            for name in ("__module__", "__qualname__"):  # for messages
                setattr(made, name, getattr(make, name, "env_setting"))
            env = {**env, "type": made, "kwargs": {}, "wrappers": [], "manager": {"type": "base"}}
        first = ranks.slice_of(total).start
        envs = make_vector_env(env, num_envs, cfg.seed, evaluate=bool(number), index_offset=first)
        resources.callback(envs.close)
        both.append(envs)
    return both[0], both[1]


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
    factory = POLICY_REGISTRY.get(cfg.policy.type)
    policy: Policy = factory(cfg.policy, envs.obs_space, envs.action_space, model=model, seed=cfg.seed)
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
        f"{counted(threads, 'torch thread')}, seed {cfg.seed}",
    ]
    if torch.cuda.is_available() and policy.device.type == "cpu" and cfg.policy.device == "auto":
        lines.append("the GPU is not used: this network is faster on the CPU; policy.device=cuda uses it")
    if policy.ranks.size > 1:
        lines.append(
            f"{policy.ranks.size} ranks, each with {envs.num_envs} of the environments and "
            f"{own.policy.learn.batch_size} samples of a minibatch"
        )
    lines += policy.lines
    if wide := wide_actions(envs.action_space):
        lines.append(f"WARNING: {wide}")
    if not envs.restorable:
        lines.append("this backend cannot save open episodes: a resumed run begins new ones")
    return lines
