"""The config that a saved run continues with: the saved one, with changes.

A change is classified by its effect on the saved state:

    free      no learned number depends on it, or it has no effect
    warned    the state fits, but from here on the numbers differ from those of an uninterrupted run
    refused   the state would be wrong

Refused changes are an error unless ``override`` is set, which begins new episodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ding_lite.config.compile import LENGTH, Config, compile_config, differences, has_schedule
from ding_lite.config.registry import importing_only
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.policies.base import Policy
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.rl.schedules import ADAPTIVE
from ding_lite.run.checkpoint import Checkpoint, find_checkpoint
from ding_lite.run.load import refusing

FREE, WARNED, REFUSED = "free", "warned", "refused"
NOT_BIT_EQUAL = "from here on the numbers differ from those of an uninterrupted run"
# The effect of a change, by the longest matching prefix of the key; a key without one is refused.
EFFECTS = {
    "max_env_step": FREE,
    "max_train_iter": FREE,
    "num_threads": WARNED,  # the order of summation changes
    "checkpoint": FREE,
    "logger": FREE,
    "hooks": WARNED,  # they may change anything
    "env.evaluator_env_num": FREE,
    "env.n_evaluator_episode": FREE,
    "env.stop_value": FREE,
    "env.max_eval_steps": FREE,
    "env.info_keys": FREE,
    "env.strict_truncation": FREE,
    "env.init_at_random_ep_len": FREE,
    "env.manager": FREE,  # transitions do not depend on worker processes and their limits
    "env.manager.type": REFUSED,
    "env.manager.double_buffer": WARNED,  # which environments share a batch of actions, and their order
    "policy.device": WARNED,
    "policy.other": WARNED,
    "policy.eval": FREE,
    "policy.collect": WARNED,
    "policy.learn": WARNED,
    "policy.learn.value_norm": REFUSED,
    "policy.learn.sequence_length": REFUSED,  # the rows in which a buffer stores hidden states
    "policy.learn.actor_epoch_per_collect": REFUSED,  # equal to the critic's: one optimiser; otherwise two
    "policy.learn.critic_epoch_per_collect": REFUSED,
    "policy.learn.aux_freq": REFUSED,  # the number of stored rollouts
    "policy.learn.aux_train_epoch": REFUSED,  # 0: no stored rollouts
    "policy.learn.pretrained_model_path": REFUSED,  # stored rollouts have the old reference's logits
    "policy.normalize": WARNED,
    "policy.normalize.obs": REFUSED,
    "policy.normalize.reward": REFUSED,
}


def effect_of(path: str) -> str:
    """Returns the effect of a change of the key ``path`` on a saved state: free, warned or refused."""
    prefixes = [prefix for prefix in EFFECTS if f"{path}.".startswith(f"{prefix}.")]
    return EFFECTS.get(max(prefixes, key=len, default=""), REFUSED)


def folder_of(path: Path) -> Path:
    """Returns the run's folder, given a path of the folder or of one of its checkpoints.

    Raises:
        CheckpointError: if there is none.
    """
    if path.is_dir():
        return path
    file = find_checkpoint(path)
    if file.absolute().parent.name != "ckpt":
        raise CheckpointError(f"{file} is not in ckpt/ of a run: no run to continue; weights: --init-from")
    return file.parent.parent


def changed_config(
    saved: Config, changes: Mapping[str, Any], limits: Mapping[str, int | None], override: bool
) -> tuple[Config, dict[str, str], list[str]]:
    """Returns the config that a run continues with, the effect of each changed key, and lines for the user.

    Args:
        saved: the config in the checkpoint.
        changes: of single keys, such as ``{"policy.learn.learning_rate": 1e-4}``. A changed ``max_env_step``
            stretches the schedules, unless the user has set their length.
        limits: new values of keys that only stop the run; None: as saved.
        override: apply refused changes too.

    Raises:
        ConfigError: if a change is faulty or refused.
    """
    config = saved.replaced(changes).limited(limits)
    changed = differences(saved.values, config.values)
    if not has_schedule(config.values.policy.learn):  # without one, its length has no effect
        changed = [change for change in changed if change[0] != LENGTH]
    void = {note.partition("=")[0] for note in config.notes}  # keys without effect
    effects = {key: FREE if key in void else effect_of(key) for key, _, _ in changed}
    lines = [f"{effects[key]}: {key}: {old!r} -> {new!r}" for key, old, new in changed]
    lines += config.notes
    if REFUSED in effects.values() and not override:
        raise ConfigError(
            "\n  ".join(["the saved state would be wrong under a refused change:", *lines])
            + "\nLeave it out, begin a new run (--init-from), or apply it with --override if the state fits"
        )
    if {WARNED, REFUSED} & {*effects.values()}:
        lines.append(NOT_BIT_EQUAL)
    return config, effects, lines


def schedules_from_here(policy: Policy, max_env_step: int) -> list[str]:
    """Returns lines for the user about scheduled numbers that the config alone does not say."""
    if not isinstance(policy, PPOPolicy):
        return []
    learn, now, end = policy.cfg.learn, policy.schedules.env_step, policy.cfg.learn.schedule_env_step
    if max_env_step < end and has_schedule(learn):
        here = f"{LENGTH}={max_env_step} ends them with it"
        return [f"the schedules end at {end:,} env steps, after this run; {here}"]
    lines = []
    if learn.lr_schedule in ("constant", ADAPTIVE) and policy.learning_rate != learn.learning_rate:
        lines.append(f"learning rate {policy.learning_rate:g}, as the run had set it")
    if max(max_env_step, now + 1) <= end:
        return lines
    longer = f"{LENGTH}={max_env_step}" if max_env_step > end else "max_env_step=N with a higher N"
    rate = ("learning rate", learn.lr_schedule, policy.learning_rate * learn.lr_final)
    for what, kind, number in (rate, ("clip ratio", learn.clip_schedule, 0.0)):
        if kind not in ("constant", ADAPTIVE):
            mark = "" if number else "WARNING: "
            ends = f"since its {kind} schedule ends at {end:,} env steps; {longer} stretches it"
            lines.append(f"{mark}{what} {number:g} from {max(now, end):,} env steps on, {ends}")
    return lines


def config_of(checkpoint: Checkpoint, trust: Sequence[str], *, to_train: bool = True) -> Config:
    """Returns the complete config of a checkpoint, which may come from an untrusted source.

    Args:
        checkpoint: is not changed.
        trust: modules that the config may import.
        to_train: False: leave out hooks and trackers, which only training needs.

    Raises:
        CheckpointError: if the config cannot be used, or names classes that are missing or not trusted.
    """
    file, _, saved = checkpoint
    with refusing(f"the config of {file} cannot be used", saved, trust), importing_only(trust):
        values = saved["config"] if to_train else {**saved["config"], "hooks": [], "logger": {}}
        config = compile_config({"config": values, "source": saved["source"]})
    return dataclasses.replace(config, trusted=tuple(trust), notes=())
