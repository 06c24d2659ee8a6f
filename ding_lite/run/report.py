"""What a run reports about itself: its first lines, and the columns of its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch

from ding_lite.config.compile import Config
from ding_lite.config.registry import env_name
from ding_lite.config.values import encode
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluation
from ding_lite.data.timer import PHASES
from ding_lite.policies.base import Policy
from ding_lite.rl.schedules import ADAPTIVE, schedule
from ding_lite.run.resources import thread_count
from ding_lite.run.scores import evaluation_metrics
from ding_lite.trees import MASK_KEY, children

SCHEDULED = {"lr": "the learning rate", "clip": "the clip range", "entropy": "the entropy weight"}
TIME_METRICS = ("env_steps_per_second", *(f"{phase}_s" for phase in PHASES), "wall_s")


def description(cfg: Any, policy: Policy, collector: Collector) -> list[str]:
    """Returns the first lines of a run: environments, policy, and the settings that were adapted."""
    envs, threads = collector.envs, torch.get_num_threads()
    lines = [
        f"env {env_name(cfg.env)}: {envs.backend}",
        f"policy {encode(cfg.policy.type, 'policy.type')} on {policy.device}, "
        f"{_size(policy.model):,} parameters, "
        f"{threads} torch {'thread' if threads == 1 else 'threads'}, seed {cfg.seed}",
        *_parts(policy),
    ]
    lines += _notes_on_envs(cfg.env, envs.obs_space)
    if torch.cuda.is_available() and policy.device.type == "cpu" and cfg.policy.device == "auto":
        lines.append("the GPU is not used: this network is faster on the CPU; policy.device=cuda uses it")
    if policy.ranks.size > 1:
        learn = cfg.policy.learn
        lines.append(
            f"{policy.ranks.size} ranks, each with {envs.num_envs} of the environments and "
            f"{learn.batch_size} samples of a minibatch"
        )
    elif cfg.policy.multi_gpu:
        lines.append("policy.multi_gpu=True: one process; torchrun --nproc-per-node=N starts more")
    lines += policy.describe()
    if policy.recurrence is not None:
        length = min(policy.recurrence.length, collector.steps)
        lines.append(f"recurrent: learned from in runs of {length} steps")
    threads = thread_count(cfg.num_threads, policy.obs_space)
    if threads != torch.get_num_threads():
        slower = ". Small networks train several times faster on one thread" if threads == 1 else ""
        lines.append(
            f"num_threads={cfg.num_threads} (torch threads: {threads}) is not applied, since this process "
            f"belongs to a script; own_process=True applies it{slower}"
        )
    if not envs.restorable:
        lines.append("this backend cannot save open episodes: a resumed run begins new ones")
    n_sample = cfg.policy.collect.n_sample
    if collector.n_sample != n_sample:
        lines.append(
            f"n_sample={n_sample} is rounded up to {collector.n_sample}: {collector.steps} steps of "
            f"{envs.num_envs} environments"
        )
    return lines


def _notes_on_envs(env: Any, obs_space: gym.Space) -> list[str]:
    """Returns what a user may not expect of the section ``env``."""
    notes = []
    if env.type != "gymnasium" and env.env_id:
        notes.append(f"env.env_id={env.env_id!r}: no effect, since env.type makes the environment")
    if env.env_id.startswith("ALE/") and not env.wrappers and obs_space.shape == (210, 160, 3):
        notes.append(
            "whole frames of an Atari game, and a large network: env.wrappers=['atari'] with "
            "env.kwargs={'frameskip': 1} makes the usual four small grey ones"
        )
    if MASK_KEY in (children(obs_space) or {}):
        notes.append(f"action masks: from {'info' if env.action_mask == 'info' else 'the observation'}")
    return notes


def _parts(policy: Policy) -> list[str]:
    """Returns a line with the number of parameters of each part of the model, if it has several."""
    sizes = {name: _size(part) for name, part in policy.model.named_children()}
    if len([size for size in sizes.values() if size]) < 2:
        return []
    return ["parameters: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items() if size)]


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def schedule_notes(config: Config) -> list[str]:
    """Returns a line for the user if the schedules do not end where the run does, else none.

    A limit of the call never changes a schedule: a run that is continued later has the same rates.
    """
    learn, end = config.values.policy.learn, config.values.max_env_step
    total = learn.get("schedule_env_step") or 0
    if end == total:
        return []
    reached = []
    for name, what in SCHEDULED.items():
        kind = learn.get(f"{name}_schedule", "constant")
        if kind not in ("constant", ADAPTIVE):
            share = f"{schedule(kind, min(1.0, end / total), learn[f'{name}_final']):.3g} of its start"
            reached.append(f"{what} is then at {share}" if end < total else f"{what} stays at {share}")
    if not reached:
        return []
    return [
        f"schedules end at {total:,} env steps, this run at {end:,}: {', '.join(reached)}; to anneal over "
        f"this run: policy.learn.schedule_env_step={end}"
    ]


def auxiliary_notes(config: Config) -> list[str]:
    """Returns a line for the user if a run of PPG may end before its first auxiliary phase, else none."""
    policy, limit = config.values.policy, config.values.max_env_step
    freq = policy.learn.get("aux_freq")
    if freq is None or not policy.learn.aux_train_epoch or policy.collect.n_sample is None:
        return []
    iterations = -(-limit // policy.collect.n_sample)  # or some more, where rows are not valid
    if iterations >= freq:
        return []
    return [
        f"the auxiliary phase comes every {freq} iterations, and this run of {limit:,} env steps has "
        f"about {iterations}: there may be none; a lower policy.learn.aux_freq or policy.collect.n_sample "
        "helps"
    ]


def metric_names(policy: Policy, info_keys: Sequence[str]) -> list[str]:
    """Returns the names of the metrics that a run logs, in the order of the columns of metrics.csv."""
    info = dict.fromkeys(info_keys, 0.0)
    return [
        *(f"collect/{name}" for name in dict.fromkeys((*Collector.METRICS, *info))),
        *(f"learn/{name}" for name in policy.learn_mode.monitor_vars()),
        *evaluation_metrics(Evaluation((0.0,), (0,), infos=(info,))),
        *(f"time/{name}" for name in TIME_METRICS),
    ]
