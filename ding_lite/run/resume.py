"""Finds the checkpoint that a saved run continues from, and the config that it continues with.

The saved config takes precedence. A requested change is classified by its effect on the saved state:

    free      no learned number depends on it
    warned    the state fits, but from here on the numbers differ from those of an uninterrupted run
    refused   the state would be wrong

Changes that the call names are applied if they are free or warned; refused changes are an error unless
``override`` is set. Of the differences to a config file only the free ones are applied, except for keys that
were set on the command line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium as gym

from ding_lite.config.compile import Config, compile_config, differences
from ding_lite.config.named_classes import names_of
from ding_lite.config.schema import leaves
from ding_lite.config.trust import advised_imports, trusted_config
from ding_lite.envs.space_json import space_from_json
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.policies.base import Policy
from ding_lite.rl.seeding import GeneratorState
from ding_lite.run.atomic_files import read_bounded
from ding_lite.run.checkpoint import MANIFEST, checkpoints_of, damage_of, find_checkpoint, load_checkpoint
from ding_lite.run.folder import claim
from ding_lite.run.progress import Progress
from ding_lite.trees import space_leaves, stored_dtype

FREE, WARNED, REFUSED = "free", "warned", "refused"
NOT_BIT_EQUAL = "from here on the numbers differ from those of an uninterrupted run"
NUMERIC_PACKAGES = ("torch", "numpy", "gymnasium")  # their versions can change numbers
SAME_TASK = (  # keys of env whose change leaves the returns of evaluations comparable
    *("env.manager", "env.collector_env_num", "env.evaluator_env_num", "env.n_evaluator_episode"),
    *("env.stop_value", "env.info_keys", "env.on_bad_value", "env.action_mask"),
)
# The effect of a change, by the longest matching prefix of the key; a key without one is refused.
EFFECTS = {
    "max_env_step": FREE,
    "max_train_iter": FREE,
    "num_threads": WARNED,  # the order of summation changes
    "checkpoint": FREE,
    "stop_timeout": FREE,
    "logger": FREE,
    "hooks": WARNED,  # they may change anything
    "env.evaluator_env_num": FREE,
    "env.n_evaluator_episode": FREE,
    "env.stop_value": FREE,
    "env.max_eval_steps": FREE,
    "env.info_keys": FREE,
    "env.manager": FREE,  # transitions do not depend on worker processes and their limits
    "env.manager.type": REFUSED,
    "env.manager.double_buffer": WARNED,  # which environments share a batch of actions, and their order
    "policy.device": WARNED,
    "policy.cuda": WARNED,
    "policy.cuda_graph": WARNED,  # other rounding
    "policy.multi_gpu": FREE,
    "policy.model.encoder_dtype": WARNED,  # the saved weights are float32
    "policy.recompute_adv": WARNED,
    "policy.nstep_return": WARNED,
    "policy.nstep": WARNED,
    "policy.other": WARNED,
    "policy.other.replay_buffer.policy": REFUSED,  # equal to value's: one buffer; otherwise two
    "policy.other.replay_buffer.value": REFUSED,
    # Of the keys that every intrinsic reward has; those of its class, such as sizes, are refused.
    "policy.intrinsic.extrinsic_weight": WARNED,
    "policy.intrinsic.weight": WARNED,
    "policy.intrinsic.discount_factor": WARNED,
    "policy.intrinsic.epoch_per_collect": WARNED,
    "policy.intrinsic.update_proportion": WARNED,
    "policy.intrinsic.learning_rate": WARNED,
    "policy.intrinsic.obs_clip": WARNED,
    "policy.eval": FREE,
    "policy.collect": WARNED,
    "policy.learn": WARNED,
    "policy.learn.value_norm": REFUSED,
    "policy.learn.sequence_length": REFUSED,  # the rows in which a buffer stores hidden states
    "policy.learn.actor_epoch_per_collect": REFUSED,  # equal to the critic's: one optimiser; otherwise two
    "policy.learn.critic_epoch_per_collect": REFUSED,
    "policy.learn.aux_freq": REFUSED,  # the size of the store
    "policy.learn.aux_train_epoch": REFUSED,  # 0: no store
    "policy.normalize": WARNED,
    "policy.normalize.obs": REFUSED,
    "policy.normalize.reward": REFUSED,
}
# A file that differs in one of these describes another task or another algorithm.
WHAT_IT_IS = ("env.type", "env.env_id", "policy.type")


def effect_of(path: str) -> str:
    """Returns the effect of a change of the key ``path`` on a saved state: free, warned or refused."""
    parts = path.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((EFFECTS[prefix] for prefix in prefixes if prefix in EFFECTS), REFUSED)


@dataclass(frozen=True)
class ResumeRequest:
    """Arguments of a call that resumes a run.

    Attributes:
        changes: changes of single keys, such as ``{"policy.learn.learning_rate": 1e-4}``.
        config: a config to compare with the saved one, such as that of ``-c``.
        override: apply refused changes too, and begin new episodes in any case.
        trust: modules that the saved config may import.
    """

    changes: Mapping[str, Any]
    config: Config | None = None
    override: bool = False
    trust: Sequence[str] = ()


@dataclass(frozen=True)
class ResumePoint:
    """An undamaged checkpoint, and the config that the run continues with.

    Attributes:
        checkpoint: folder of the checkpoint.
        state: state tree of the checkpoint.
        saved: its config.json.
        config: config to continue with.
        requested: changes that the call names, with their new values.
        changed: keys in which that config differs from the saved one.
        new_episodes: whether the open episodes of the checkpoint are dropped.
        is_exact: whether the numbers from here on are those of an uninterrupted run.
        messages: lines for the user.
    """

    checkpoint: Path
    state: Mapping[str, Any]
    saved: Mapping[str, Any]
    config: Config
    requested: Mapping[str, Any]
    changed: frozenset[str]
    new_episodes: bool
    is_exact: bool
    messages: tuple[str, ...]

    def apply_to(self, progress: Progress) -> None:
        """Notes in the progress how the changes affect a solved run, so that they survive an interruption.

        A new ``env.stop_value`` makes the run unsolved, so that it ends when it is solved again. A higher
        limit lets a run that is already solved train on; a run that is not solved yet still ends when it is.
        """
        if "env.stop_value" in self.changed:
            progress.solved = progress.past_solved = False
        if progress.solved:
            limits = (
                ("max_env_step", progress.env_step),
                ("max_train_iter", progress.train_iter),
            )
            progress.past_solved |= any((self.requested.get(key) or 0) > reached for key, reached in limits)

    @property
    def changes_task(self) -> bool:
        """Whether returns from here on are not comparable with those before."""
        return any(key.startswith("env.") and not key.startswith(SAME_TASK) for key in self.changed)

    @property
    def has_other_reference(self) -> bool:
        """Whether stored rollouts lack the logits of the reference policy, or have those of another one."""
        return "policy.learn.pretrained_model_path" in self.changed

    def observations_differ(self, space: gym.Space) -> bool:
        """Returns whether observations of ``space`` are other arrays than those of the checkpoint."""
        try:
            saved = space_from_json(self.saved["spaces"]["obs"])
        except (KeyError, TypeError):  # a checkpoint of an earlier version
            return False
        return _arrays_of(saved) != _arrays_of(space)

    def lost(self, has_episodes: bool, saved_by: int, policy: Policy, dropped: Sequence[str]) -> list[str]:
        """Returns a line for each part of the checkpoint's state that the run goes on without.

        Args:
            has_episodes: whether its open episodes could be restored.
            saved_by: number of ranks that saved it.
            policy: of the run, with the state of the checkpoint.
            dropped: names of what it has forgotten of that state.
        """
        reasons, ranks = [], policy.ranks.size
        if not GeneratorState(policy.generator).is_of_its_kind(self.state["policy"]["generator of action"]):
            reasons.append(f"saved on another kind of device than {policy.device}: other random numbers")
        if not has_episodes:
            reasons.append("the open episodes could not be restored: new episodes")
        if saved_by != ranks:
            *others, last = ["new episodes", "random streams", *dropped]
            reasons.append(f"number of ranks {saved_by} -> {ranks}: {', '.join(others)} and {last}")
        if dropped and self.observations_differ(policy.obs_space):
            reasons.append(f"the observations have other shapes or dtypes: new {' and '.join(dropped)}")
        if dropped and self.has_other_reference:
            reasons.append(f"another reference policy: new {' and '.join(dropped)}")
        collector = self.state["collector"]
        if collector.get("envs", True) is None:
            reasons.append("the rollout after this checkpoint did not end: new episodes")
        return [f"{reason}; {NOT_BIT_EQUAL}" for reason in reasons]


def _arrays_of(space: gym.Space) -> dict[tuple[str, ...], Any]:
    """Returns the shapes and dtypes of the arrays of observations, by their paths."""
    return {path: (leaf.shape, stored_dtype(leaf.dtype)) for path, leaf in space_leaves(space)}


def run_of(path: Path) -> Path:
    """Returns the run's folder for ``path``, which is a run or one of its checkpoints.

    Raises:
        CheckpointError: if it is neither.
        ConfigError: if it is a run that another pipeline trains, and that has no checkpoint yet.
    """
    if (path / MANIFEST).is_file():
        parent = path.absolute().parent
        if parent.name != "ckpt":
            raise CheckpointError(
                f"{path} is a checkpoint outside of the folder ckpt/ of a run: there is no run to continue. "
                f"A new run can begin from its weights: --init-from {path}"
            )
        return path.parent.parent if path.parent.name == "ckpt" else parent.parent
    if not checkpoints_of(path):
        if (path / "config.json").is_file():
            claim(path).close()  # raises an error if the run has not ended
        find_checkpoint(path, "last")  # raises an error that says what is expected
    return path


def find_resume_point(path: Path, checkpoint: str | None, request: ResumeRequest) -> ResumePoint:
    """Returns the point that ``path``, a run or one of its checkpoints, continues from.

    Args:
        path: of a run, the newest undamaged checkpoint is used. A checkpoint that is named, here or by
            ``checkpoint``, is never replaced by another one.
        checkpoint: the name of a checkpoint of the run, or None.
        request: the other arguments of the call.

    Raises:
        CheckpointError: if the checkpoint is damaged, or names classes that are not trusted.
        ConfigError: if a change is faulty or refused.
    """
    if checkpoint is None and not (path / MANIFEST).is_file():
        folder, state, saved, messages = _newest_undamaged(path)
        messages = messages or _edits(path, saved, request)  # an older checkpoint may have other values
    else:
        folder = find_checkpoint(path, checkpoint or "last")
        state, saved = load_checkpoint(folder)
        messages = []
    best = folder.with_name("best")
    if folder != best and best.is_dir() and (damage := damage_of(best)):
        messages = [*messages, f"WARNING: {damage}. The next evaluation with a better score replaces it"]
    own = config_of_checkpoint(folder, saved, request.trust)
    config, changed, change_messages = _changed_config(own, request, folder, _done(state))
    version_messages = _version_messages(saved)
    file = None if request.config is None else request.config.file
    config = dataclasses.replace(config, imports=tuple(request.trust), file=file)
    return ResumePoint(
        checkpoint=folder,
        state=state,
        saved=saved,
        config=config,
        requested=request.changes,
        changed=frozenset(changed),
        new_episodes=request.override,
        is_exact=not (request.override or version_messages)
        and all(effect_of(key) == FREE for key in changed),
        messages=(*messages, *version_messages, *change_messages),
    )


def _edits(run: Path, saved: Mapping[str, Any], request: ResumeRequest) -> list[str]:
    """Returns a line for the user if the config.json of a run's folder was edited.

    Args:
        run: its folder.
        saved: config.json of its newest checkpoint, which rules.
        request: whose changes are made.
    """
    try:
        file = dict(leaves(json.loads(read_bounded(run / "config.json"))["config"]))
        own = dict(leaves(saved["config"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    edited = [
        path
        for path in own
        if path in file and repr(file[path]) != repr(own[path]) and path not in request.changes
    ]
    if not edited:
        return []
    return [
        f"config.json was edited ({', '.join(edited)}), which changes nothing; changes are arguments of "
        "--resume, as key.path=value"
    ]


def versions() -> dict[str, str]:
    """Returns the versions that the numbers of a run depend on, to be saved with its checkpoints."""
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in NUMERIC_PACKAGES},
    }


def _version_messages(saved: Mapping[str, Any]) -> list[str]:
    """Returns a line for the user if a checkpoint was written under other versions than the present ones."""
    saved_versions = saved.get("versions")
    if not isinstance(saved_versions, Mapping):
        return []
    changed = [
        f"{name} {saved_versions[name]!s:.20} -> {version}"
        for name, version in versions().items()
        if name in saved_versions and saved_versions[name] != version
    ]
    return [f"written under other versions ({', '.join(changed)}): {NOT_BIT_EQUAL}"] if changed else []


def _newest_undamaged(run: Path) -> tuple[Path, dict[str, Any], dict[str, Any], list[str]]:
    """Returns a run's newest undamaged checkpoint: its folder, state, config, and lines for the user."""
    skipped: list[str] = []
    for folder in checkpoints_of(run):
        try:
            state, saved = load_checkpoint(folder)
        except CheckpointError as error:
            skipped.append(f"skipped: {error}")
            continue
        messages = [*skipped, f"the newest undamaged checkpoint: {folder}"] if skipped else []
        return folder, state, saved, messages
    raise CheckpointError("\n  ".join([f"{run} has no undamaged checkpoint", *skipped]))


def config_of_checkpoint(folder: Path, saved: Mapping[str, Any], trust: Sequence[str]) -> Config:
    """Returns the complete config of a checkpoint, which may come from an untrusted source.

    Args:
        folder: the checkpoint, for messages.
        saved: contents of its config.json.
        trust: modules that the config may import.

    Raises:
        CheckpointError: if this version cannot read the config, or the config names classes that are
            missing or not trusted.
    """
    if "config" not in saved:
        raise CheckpointError(
            f"{folder} has weights and nothing else. A new run can begin from them: --init-from {folder}"
        )
    config: Mapping[str, Any] = trusted_config(saved, names_of, trust)
    try:
        return compile_config({"config": config, "source": saved["source"]})
    except Exception as error:  # a forged config can fail in any way
        reason = str(error).rstrip(".")
        if imports := advised_imports(saved, trust):
            reason += f". The run was started with {imports}: add that, if you trust it"
        elif "--import" not in reason:
            reason += (
                ". If it names a class of your own, import the module that registers it: --import MODULE"
            )
        raise CheckpointError(f"the config of {folder} cannot be used: {reason}") from error


def _changed_config(
    own: Config, request: ResumeRequest, folder: Path, done: Mapping[str, int]
) -> tuple[Config, list[str], list[str]]:
    """Returns the config to continue with, the keys that change, and lines for the user.

    Args:
        own: the saved config.
        request: the requested changes.
        folder: the checkpoint, for messages.
        done: what the run has done, by the keys of its limits.

    Raises:
        ConfigError: if a change is faulty, or is refused and not overridden.
    """
    requested = compile_config(own.as_json(), request.changes, origin="the run's config")
    changes = [
        (key, old, new) for key, old, new in differences(own.values, requested.values) if key != "exp_name"
    ]
    _refuse_passed_limits(changes, done)
    _refuse_changes(changes, request.override, folder)
    lines = [(effect_of(key), f"applied: {key}: {old!r} -> {new!r}") for key, old, new in changes]
    from_file: dict[str, Any] = {}
    file_differences = [] if request.config is None else differences(requested.values, request.config.values)
    _refuse_file_of_another_run(file_differences, request.override)
    for key, own_value, file_value in file_differences:
        if key == "exp_name" or key in request.changes:
            continue
        effect = effect_of(key)
        is_own = requested.source.get(key) == "command line" or _is_passed(key, file_value, done)
        if effect == FREE and not is_own:
            from_file[key] = file_value
            lines.append((effect, f"applied from the file: {key}: {own_value!r} -> {file_value!r}"))
        else:
            lines.append((effect, f"the run keeps its own value: {key}: {own_value!r}, not {file_value!r}"))
    config = compile_config(requested.as_json(), from_file)
    if request.config is not None:
        config.source.update({key: request.config.source[key] for key in from_file})
    order = (FREE, WARNED, REFUSED)
    messages = [
        f"{effect}: {line}" for effect, line in sorted(lines, key=lambda entry: order.index(entry[0]))
    ]
    if any(effect_of(key) != FREE for key, _, _ in changes):
        messages.append(NOT_BIT_EQUAL)
    return config, [key for key, _, _ in changes] + list(from_file), messages


def _done(state: Mapping[str, Any]) -> dict[str, int]:
    """Returns what the run has done, by the keys of its limits."""
    progress = Progress()
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # reported when it is restored
        progress.load_state_dict(state["progress"])
    return {"max_env_step": progress.env_step, "max_train_iter": progress.train_iter}


def _is_passed(key: str, value: Any, done: Mapping[str, int]) -> bool:
    """Returns whether ``value`` is a limit below what the run has done."""
    return isinstance(value, int) and value < done.get(key, 0)


def _refuse_passed_limits(changes: Sequence[tuple[str, Any, Any]], done: Mapping[str, int]) -> None:
    for key, _, limit in changes:
        if _is_passed(key, limit, done):
            raise ConfigError(
                f"{key}: {limit:,} is a total, and the run has done {done[key]:,}; for {limit:,} more write "
                f"{key}={done[key] + limit}"
            )


def _refuse_file_of_another_run(differences: Sequence[tuple[str, Any, Any]], override: bool) -> None:
    for key, own, other in differences:
        if key in WHAT_IT_IS and not override:
            raise ConfigError(
                f"the config is not that of the run: {key} is {other!r}, and the run has {own!r}; leave -c "
                "(config=) out, or begin a new run"
            )


def _refuse_changes(changes: Sequence[tuple[str, Any, Any]], override: bool, folder: Path) -> None:
    refused = [f"{key}: {old!r} -> {new!r}" for key, old, new in changes if effect_of(key) == REFUSED]
    if refused and not override:
        raise ConfigError(
            "\n  ".join(["the saved state would be wrong under these changes:", *refused])
            + f"\nLeave them out, or begin a new run from the weights: --init-from {folder} (not for another "
            "network). With --override they are applied with new episodes; whether the result makes sense is "
            "then for you to judge"
        )
