"""Where a saved run goes on from, and under which config.

The config that was saved rules. What a call says differently is sorted by what it would do to the state:

    free      nothing that is learned depends on it
    warned    the state fits, but from here on the numbers are not those of a run that was never stopped
    refused   the state would be wrong

Of what the user names in this very call, free and warned are taken over, and refused is an error unless it
is overridden. Of what a config file says, free is taken over, where no command line has said otherwise.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ding_lite.checkpoint import MANIFEST, checkpoints_of, find_checkpoint, load_checkpoint
from ding_lite.config import (
    Config,
    compile_config,
    differences,
    foreign_modules,
    trusted_config,
)
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.types import Progress

FREE, WARNED, REFUSED = "free", "warned", "refused"
NOT_BIT_EQUAL = "from here on the numbers are not those of a run that was never stopped"
NUMERIC = ("torch", "numpy", "gymnasium")  # packages whose versions change numbers
# The longest beginning of a key's path decides; what none of them fits is refused.
KINDS = {
    "max_env_step": FREE,
    "max_train_iter": FREE,
    "num_threads": WARNED,  # sums come out in another order
    "checkpoint": FREE,
    "logger": FREE,
    "env.evaluator_env_num": FREE,
    "env.n_evaluator_episode": FREE,
    "env.stop_value": FREE,
    "env.max_eval_steps": FREE,
    "env.info_keys": FREE,
    "env.manager": FREE,  # worker processes and their limits: transitions do not depend on them
    "env.manager.type": REFUSED,
    "env.manager.autoreset": REFUSED,
    "env.manager.double_buffer": WARNED,  # who is acted on together, and in which order
    "policy.device": WARNED,
    "policy.cuda": WARNED,
    "policy.model.encoder_dtype": WARNED,  # what is saved is float32
    "policy.recompute_adv": WARNED,
    "policy.nstep_return": WARNED,
    "policy.nstep": WARNED,
    "policy.priority": WARNED,
    "policy.priority_IS_weight": WARNED,
    "policy.other": WARNED,
    "policy.other.replay_buffer.policy": REFUSED,  # alike or not: one buffer or two
    "policy.other.replay_buffer.value": REFUSED,
    "policy.eval": FREE,
    "policy.collect": WARNED,
    "policy.collect.n_episode": REFUSED,  # what the rollouts in a buffer are
    "policy.collect.unroll_len": REFUSED,
    "policy.learn": WARNED,
    "policy.learn.value_norm": REFUSED,
    "policy.learn.actor_epoch_per_collect": REFUSED,  # equal or not: one optimiser or two
    "policy.learn.critic_epoch_per_collect": REFUSED,
    "policy.learn.aux_freq": REFUSED,  # the size of the memory
    "policy.learn.aux_train_epoch": REFUSED,  # none: no memory
    "policy.normalize": WARNED,
    "policy.normalize.obs": REFUSED,
    "policy.normalize.reward": REFUSED,
}


def kind_of(path: str) -> str:
    """Returns what a change of the key ``path`` does to a saved state: free, warned or refused."""
    parts = path.split(".")
    beginnings = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((KINDS[start] for start in beginnings if start in KINDS), REFUSED)


@dataclass(frozen=True)
class Wishes:
    """What a call says of the run that it resumes.

    Attributes:
        typed: ``{"policy.learn.learning_rate": 1e-4}``, named in this very call.
        file: a config to compare with, such as that of ``-c``.
        override: takes over what is refused, too, and begins new episodes in any case.
        trust: modules that the saved config may import.
    """

    typed: Mapping[str, Any]
    file: Config | None = None
    override: bool = False
    trust: Sequence[str] = ()


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint that is whole, and the config to go on under."""

    checkpoint: Path
    state: Mapping[str, Any]
    config: Config
    changed: frozenset[str]  # keys in which that config is not the saved one
    new_episodes: bool  # the open ones do not belong to it
    said: tuple[str, ...]  # what the user is to be told

    def tell(self, progress: Progress, typed: Mapping[str, Any]) -> None:
        """Puts what the user wants of a solved run into its progress, where it survives an interruption.

        One that is not solved yet ends when it is, as it would have without an interruption.
        """
        if "env.stop_value" in self.changed:
            progress.solved = False  # by the old bar
        further = (("max_env_step", progress.env_step), ("max_train_iter", progress.train_iter))
        progress.past_solved |= progress.solved and any(
            (typed.get(name) or 0) > done for name, done in further
        )


def run_of(path: Path) -> Path:
    """Returns the folder of the run that ``path`` is, or is a checkpoint of.

    Raises:
        CheckpointError: if it is neither.
    """
    if (path / MANIFEST).is_file():
        parent = path.absolute().parent
        if parent.name != "ckpt":
            raise CheckpointError(
                f"{path} is a checkpoint, but not in the folder ckpt/ of a run, where the rows would go on. "
                f"A new run can begin from its weights: --init-from {path}"
            )
        return path.parent.parent if path.parent.name == "ckpt" else parent.parent
    if not checkpoints_of(path):
        find_checkpoint(path, "last")  # says what was expected
    return path


def find_resume_point(path: Path, checkpoint: str | None, wishes: Wishes) -> ResumePoint:
    """Returns where ``path``, a run or one of its checkpoints, goes on.

    Args:
        path: a checkpoint that is named never stands for another one.
        checkpoint: the name of one of a run; None is the newest that is whole.
        wishes: what this call says of it.

    Raises:
        CheckpointError: if it is damaged, or names classes that are not trusted.
        ConfigError: for a change that is faulty, or refused.
    """
    if checkpoint is None and not (path / MANIFEST).is_file():
        folder, state, saved, said = _newest_whole(path)
    else:
        folder, said = find_checkpoint(path, checkpoint or "last"), []
        state, saved = load_checkpoint(folder)
    own = config_of_checkpoint(folder, saved, wishes.trust)
    config, changed, told = _changed(own, wishes, folder)
    told = [*said, *_other_versions(saved), *told]
    return ResumePoint(folder, state, config, frozenset(changed), wishes.override, tuple(told))


def versions() -> dict[str, str]:
    """Returns the versions that the numbers of a run depend on, to be saved with its checkpoints."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in NUMERIC}}


def _other_versions(saved: Mapping[str, Any]) -> list[str]:
    """Returns what to say where a checkpoint was written under other versions than these."""
    before = saved.get("versions")
    changed = [
        f"{name} {before[name]!s:.20} -> {here}"
        for name, here in versions().items()
        if isinstance(before, Mapping) and name in before and before[name] != here
    ]
    return [f"written under other versions ({', '.join(changed)}): {NOT_BIT_EQUAL}"] if changed else []


def _newest_whole(run: Path) -> tuple[Path, dict[str, Any], dict[str, Any], list[str]]:
    passed: list[str] = []
    for folder in checkpoints_of(run):
        try:
            state, saved = load_checkpoint(folder)
        except CheckpointError as error:
            passed.append(f"passed over: {error}")
            continue
        return folder, state, saved, [*passed, f"the newest that is whole: {folder}"] if passed else []
    raise CheckpointError("\n  ".join([f"{run} has no checkpoint that is whole", *passed]))


def config_of_checkpoint(folder: Path, saved: Mapping[str, Any], trust: Sequence[str]) -> Config:
    """Returns the complete config that was saved with a checkpoint, which anyone may have made.

    Raises:
        CheckpointError: if there is none that this version can read, or it names classes that the user
            has not.
    """
    if "config" not in saved:
        raise CheckpointError(
            f"{folder} has weights and nothing else. A new run can begin from them: --init-from {folder}"
        )
    trusted_config(saved, foreign_modules, trust)
    try:
        return compile_config({"config": saved["config"], "source": saved["source"]})
    except Exception as error:  # a forged one can fail in any way
        said = str(error).rstrip(".")
        if "--import" not in said:
            said += ". If it names a class of your own, import the module that registers it: --import MODULE"
        raise CheckpointError(f"the config of {folder} cannot be used: {said}") from error


def _changed(own: Config, wishes: Wishes, folder: Path) -> tuple[Config, list[str], list[str]]:
    """Returns the config to go on under, the keys that are new in it, and what to say."""
    told = compile_config(own.as_json(), wishes.typed, origin="the run's config")
    typed = [diff for diff in differences(own.values, told.values) if diff[0] != "exp_name"]
    wrong = [f"{key}: {old!r} -> {new!r}" for key, old, new in typed if kind_of(key) == REFUSED]
    if wrong and not wishes.override:
        raise ConfigError(
            "\n  ".join(["the saved state would be wrong under these changes:", *wrong])
            + f"\nLeave them out, or begin a new run from the weights: --init-from {folder}. With --override "
            "they are taken over all the same, with new episodes: a run of its own, for you to judge"
        )
    lines = [(kind_of(key), f"taken over: {key}: {old!r} -> {new!r}") for key, old, new in typed]
    free: dict[str, Any] = {}
    file = wishes.file
    for key, mine, theirs in differences(told.values, file.values) if file else ():
        if key == "exp_name":
            continue
        if kind_of(key) == FREE and told.source.get(key) != "command line":
            free[key] = theirs
            lines.append((FREE, f"taken over from the file: {key}: {mine!r} -> {theirs!r}"))
        else:
            lines.append((kind_of(key), f"the run's own rules: {key}: {mine!r}, not {theirs!r}"))
    config = compile_config(told.as_json(), free)
    if file:
        config.source.update({key: file.source[key] for key in free})
    order = (FREE, WARNED, REFUSED)
    said = [f"{kind}: {line}" for kind, line in sorted(lines, key=lambda x: order.index(x[0]))]
    if any(kind_of(key) != FREE for key, _, _ in typed):
        said.append(NOT_BIT_EQUAL)
    return config, [key for key, _, _ in typed] + list(free), said
