"""Builds the parts of a run from its config: environments, policy and collector."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.collector import Collector
from ding_lite.envs.make import EnvSetting, make_vector_env, vector_env_of
from ding_lite.envs.vector import ALL, VectorEnv
from ding_lite.errors import CheckpointError
from ding_lite.policies.base import Policy, check_constructor
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.ranks import Ranks
from ding_lite.run.load import load_policy


def build_envs(
    cfg: Any, own: Any, env_setting: EnvSetting | None, ranks: Ranks, resources: ExitStack
) -> tuple[VectorEnv, VectorEnv]:
    """Makes the environments of a run, or those of one of its ranks.

    Args:
        cfg: a complete config.
        own: this rank's share of it (``run.shares``).
        env_setting: ``(make, collector_cfgs, evaluator_cfgs)``, used instead of the environments that the
            config describes.
        ranks: of the run.
        resources: closes the environments when it is closed.

    Returns:
        The environments to collect from, and those to evaluate on.

    Raises:
        EnvError: if the environments cannot be made.
    """
    env, seed = cfg.env, cfg.seed
    if env_setting is None:
        collector_envs = make_vector_env(
            env,
            own.env.collector_env_num,
            seed,
            index_offset=ranks.slice_of(env.collector_env_num).start,
        )
        resources.callback(collector_envs.close)
        evaluator_envs = make_vector_env(
            env,
            own.env.evaluator_env_num,
            seed,
            evaluate=True,
            index_offset=ranks.slice_of(env.evaluator_env_num).start,
        )
        resources.callback(evaluator_envs.close)
        return collector_envs, evaluator_envs
    make, collector_cfgs, evaluator_cfgs = env_setting
    first = ranks.slice_of(len(evaluator_cfgs)).start
    options = dict(seed=seed, on_bad_value=env.on_bad_value, info_keys=tuple(env.info_keys))
    collector_envs = vector_env_of(
        make,
        collector_cfgs,
        part=ranks.slice_of(len(collector_cfgs)),
        **options,
    )
    resources.callback(collector_envs.close)
    evaluator_envs = vector_env_of(
        make,
        evaluator_cfgs,
        max_steps=env.max_eval_steps,
        part=slice(first, first + own.env.evaluator_env_num) if ranks.size > 1 else ALL,
        **options,
    )
    resources.callback(evaluator_envs.close)
    return collector_envs, evaluator_envs


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
    check_constructor(factory)
    policy: Policy = factory(cfg.policy, envs.obs_space, envs.action_space, model=model, seed=cfg.seed)
    reference = cfg.policy.learn.get("pretrained_model_path")
    if reference is not None and isinstance(policy, PPOPolicy):
        try:
            frozen = load_policy(reference, device=str(policy.device), trust=trust)
        except CheckpointError as error:
            raise CheckpointError(
                f"policy.learn.pretrained_model_path: {error}. A relative path begins in the working "
                "directory or in the config file's folder; if the reference has moved, set the key to its "
                "new place"
            ) from error
        policy.use_reference(frozen)
    policy.ranks.copy_first(
        [*policy.model.state_dict().values()]
    )  # a caller's model may differ between ranks
    return policy


def build_collector(cfg: Any, envs: VectorEnv, policy: Policy) -> Collector:
    """Builds the collector and allocates its memory for one rollout.

    Memory that does not suffice is thus noticed before the run has a folder.
    """
    collect = cfg.policy.collect
    collector = Collector(envs, policy.collect_mode, collect.n_sample, policy.timer)
    collector.storage.write(0, "obs", collector.obs[0], envs.groups[0])
    return collector
