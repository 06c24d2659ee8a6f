"""Builds the parts of a run from its config: environments, policy and collector; and describes them."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from typing import Any

import torch
from easydict import EasyDict

from ding_lite.config.compile import Config
from ding_lite.config.registry import POLICY_REGISTRY, SCRIPT, script_name
from ding_lite.config.schema import leaves, set_value
from ding_lite.config.values import PLACES, decode, encode
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluator
from ding_lite.data.samples import even_sizes
from ding_lite.data.tensors import GreedyEpisodes, TensorCollector
from ding_lite.envs.make import EnvSetting, make_vector_env
from ding_lite.envs.tensor import TensorVectorEnv
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import CheckpointError, ConfigError, counted
from ding_lite.policies.base import Policy
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.ranks import Ranks
from ding_lite.run.load import load_policy
from ding_lite.run.resources import threads, torch_defaults
from ding_lite.trees import box_size

OF_SIGMA = ("sigma_type", "initial_sigma_value", "fixed_sigma_value", "bound_type")  # of policy.model


def with_env_setting(cfg: Any, setting: EnvSetting | None) -> Any:
    """Returns the values of a complete config, with a script's environments in place of the config's.

    Args:
        cfg: values of the config, which are not changed.
        setting: ``(make, collector_cfgs, evaluator_cfgs)``; None: the config's environments.
    """
    cfg = EasyDict(decode(cfg))
    if setting is None:
        return cfg
    make, *cfgs = setting

    def make_numbered(env_index: int, evaluate: bool) -> Any:
        return make(cfgs[evaluate][env_index])

    for name in ("__module__", "__qualname__"):  # for messages
        setattr(make_numbered, name, getattr(make, name, "env_setting"))
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
    share, numbers = EasyDict(decode(cfg)), dict(leaves(cfg))
    divided = ["env.collector_env_num", "env.greedy_env_num"]
    divided += ["policy.learn.batch_size", "policy.learn.aux_batch_size"]
    for path in divided:
        if (number := numbers.get(path)) is not None:  # None: aux_batch_size follows batch_size
            if number % ranks.size:
                raise ConfigError(f"{path}: {number} cannot be divided by {ranks.size} ranks")
            set_value(share, path, number // ranks.size)
    replay = "policy.other.replay_buffer.replay_buffer_size"
    if size := numbers.get(replay):
        set_value(share, replay, math.ceil(size / ranks.size))
    env, collect, played = share.env, share.policy.collect, cfg.env.evaluator_env_num
    collect.n_sample = math.ceil(collect.n_sample / cfg.env.collector_env_num) * env.collector_env_num
    if played:
        episodes = even_sizes(env.n_evaluator_episode, played)[ranks.slice_of(played)]
        env.evaluator_env_num = max(1, len(episodes))  # a rank without episodes has one, too
        env.n_evaluator_episode = sum(episodes)
    return share


def build(
    config: Config, cfg: Any, ranks: Ranks, model: torch.nn.Module | None, resources: ExitStack
) -> tuple[Policy, Collector, Evaluator | GreedyEpisodes | None]:
    """Builds the parts of a run on one of its ranks.

    Args:
        config: of the run.
        cfg: its values after :func:`with_env_setting`.
        ranks: of the run.
        model: trained as it is, instead of a model built from the config.
        resources: closes the environments, and restores torch's settings, when it is closed.

    Returns:
        The policy, the collector, and the evaluator, which is None without environments to evaluate on.

    Raises:
        ConfigError: if the policy or its model cannot be built for the spaces of the environments, or if
            ``env.greedy_env_num`` is set and the environments return NumPy arrays.
        EnvError: if the environments cannot be made.
        CheckpointError: if ``policy.learn.pretrained_model_path`` cannot be loaded.
    """
    share = own_share(cfg, ranks)

    def make_side(side: str) -> VectorEnv:
        count, evaluate = f"{side}_env_num", side == "evaluator"
        first = ranks.slice_of(cfg.env[count]).start
        envs = make_vector_env(cfg.env, share.env[count], cfg.seed, evaluate=evaluate, index_offset=first)
        return resources.enter_context(closing(envs))

    envs, greedy_num = make_side("collector"), share.env.greedy_env_num
    for key in ("greedy_env_num", "strict_truncation", "init_at_random_ep_len"):
        if share.env[key] and not isinstance(envs, TensorVectorEnv):
            raise ConfigError(f"env.{key}: it needs environments of tensors, got {envs.backend}")
    evaluator_envs = make_side("evaluator") if share.env.evaluator_env_num and not greedy_num else None
    resources.enter_context(threads(cfg.num_threads, envs.obs_space))
    lines = resources.enter_context(torch_defaults())
    factory, section = POLICY_REGISTRY.get(cfg.policy.type), EasyDict(decode(share.policy))
    # Whole rows; a script or a simulator may make another number of environments.
    rows = section.collect.n_step or math.ceil(section.collect.n_sample / envs.num_envs)
    section.collect.n_sample = rows * envs.num_envs
    if isinstance(envs, TensorVectorEnv) and section.device == "auto" and model is None:
        section.device = str(envs.device)
    policy: Policy = factory(section, envs.obs_space, envs.action_space, model=model, seed=cfg.seed)
    policy.action_maps = envs.action_maps
    policy.lines += [*lines, *(f"WARNING: {note}" for note in envs.notes().values())]
    reference = section.learn.get("pretrained_model_path")
    if reference is not None and isinstance(policy, PPOPolicy):
        try:
            policy.use_reference(load_policy(reference, device=str(policy.device), trust=config.trusted))
        except CheckpointError as error:
            raise CheckpointError(f"policy.learn.pretrained_model_path: {error}") from error
    # The model of a caller may differ between ranks.
    ranks.copy_first([*policy.model.state_dict().values()])
    n_sample, env = section.collect.n_sample, share.env
    evaluator: Evaluator | GreedyEpisodes | None = None
    if isinstance(envs, TensorVectorEnv):
        greedy = evaluator = GreedyEpisodes(envs, greedy_num, ranks) if greedy_num else None
        strict = env.strict_truncation
        collector: Collector = TensorCollector(envs, policy, n_sample, strict=strict, greedy=greedy)
    else:
        collector = Collector(envs, policy, n_sample)
    if evaluator_envs is not None:
        limits = env.n_evaluator_episode, env.max_eval_steps
        evaluator = Evaluator(evaluator_envs, policy, *limits, ranks)
    return policy, collector, evaluator


def description(config: Config, env: str, policy: Policy, collector: Collector) -> list[str]:
    """Returns the first lines of a run: environments, policy, and the settings that were adapted.

    Args:
        config: of the run.
        env: the name of its environments.
        policy, collector: of the run.
    """
    cfg, envs, threads = config.values, collector.envs, torch.get_num_threads()
    lines = [
        f"env {env}: {envs.backend}",
        f"policy {encode(cfg.policy.type, 'policy.type')} on {policy.device}, "
        f"{sum(parameter.numel() for parameter in policy.model.parameters()):,} parameters, "
        f"{counted(threads, 'torch thread')}, seed {cfg.seed}",
    ]
    if torch.cuda.is_available() and policy.device.type == "cpu" and cfg.policy.device == "auto":
        lines.append("the GPU is not used: this network is faster on the CPU; policy.device=cuda uses it")
    if policy.ranks.size > 1:
        lines.append(f"{policy.ranks.size} ranks, each with {envs.num_envs} of the environments")
    if SCRIPT in config.trusted:
        lines.append("WARNING: only this notebook or shell can load the run: write its classes to a .py file")
    elif (script := script_name()) in config.trusted:
        lines.append(f"to load this run, {script}.py is executed: train under if __name__ == '__main__'")
    for key, name in leaves(encode(cfg)):
        if isinstance(name, str) and PLACES.fullmatch(key) and "<" in name:  # a lambda, or made in a function
            lines.append(
                f"WARNING: {key}: nothing can load {name} again; define it at the top level of a module"
            )
    if cfg.env.greedy_env_num:
        lines.append(f"the last {cfg.env.greedy_env_num:,} environments play greedily: they evaluate")
    conditions: list[Any] = [("learn.sequence_length", policy.recurrence, "a recurrent network")]
    scaled = getattr(policy.obs_norm, "stats", True)  # empty if all leaves are images or symbols
    conditions += [("normalize.obs", scaled, "observations of numbers that are not images")]
    conditions.append(("model.box_distribution", box_size(envs.action_space), "a Box action"))
    sigma = any(getattr(part, "has_sigma", False) for part in policy.model.modules())
    conditions += [(f"model.{key}", sigma, "a Box action with a sigma") for key in OF_SIGMA]
    for key, is_used, what in conditions:
        if not is_used and config.source.get(f"policy.{key}", "default") != "default":
            lines.append(f"policy.{key}: no effect without {what}")
    lines += policy.lines
    if not envs.restorable:
        lines.append("open episodes are not saved: a resumed run begins new ones")
    return lines
