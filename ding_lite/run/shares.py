"""The share of a run that one rank does: its environments, samples and evaluation episodes."""

from __future__ import annotations

import copy
import math
from typing import Any

from ding_lite.data.episodes import shares
from ding_lite.envs.make import EnvSetting
from ding_lite.errors import ConfigError
from ding_lite.ranks import Ranks

# Numbers of the config that are divided by the number of ranks: equally, or rounded up.
EXACT = (
    "env.collector_env_num",
    "policy.learn.batch_size",
    "policy.learn.aux_batch_size",
)
ROUNDED = (
    "policy.other.replay_buffer.replay_buffer_size",
    "policy.other.replay_buffer.policy.replay_buffer_size",
    "policy.other.replay_buffer.value.replay_buffer_size",
)


def share_of(cfg: Any, ranks: Ranks, env_setting: EnvSetting | None = None) -> Any:
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
    faults = []
    for path in (*EXACT, *ROUNDED):
        *sections, name = path.split(".")
        section = own
        for part in sections:
            section = section.get(part, {})
        number = section.get(name)
        if number is None:
            continue
        if path in EXACT and number % ranks.size:
            multiple = ranks.size * max(1, round(number / ranks.size))
            faults.append(f"{path}: {number} cannot be shared equally by {ranks.size} ranks; try {multiple}")
        section[name] = -(-number // ranks.size)
    if faults:
        raise ConfigError("\n".join(faults))
    steps = math.ceil(cfg.policy.collect.n_sample / num_envs)
    own.policy.collect.n_sample = steps * own.env.collector_env_num
    episodes = shares(cfg.env.n_evaluator_episode, num_played)[ranks.slice_of(num_played)]
    own.env.evaluator_env_num = max(1, len(episodes))  # a rank without one plays no episode
    own.env.n_evaluator_episode = int(episodes.sum())
    return own
