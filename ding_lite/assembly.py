"""The parts of a run, built from its config in one place, and their state as one tree."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ding_lite.collector import Collector
from ding_lite.config import plain
from ding_lite.envs.make import EnvSetting, make_vector_env, vector_env_of
from ding_lite.envs.space_json import space_to_json
from ding_lite.envs.spaces import has_box
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.evaluator import Evaluator, Scores, evaluation_metrics
from ding_lite.health import HealthCheck
from ding_lite.learner import Learner
from ding_lite.machine import keep_freed_memory, out_of_memory, use_threads
from ding_lite.policies.base import Policy
from ding_lite.policies.load import as_tensors
from ding_lite.registry import POLICY_REGISTRY
from ding_lite.types import Evaluation, Progress


class Parts:
    """Environments, policy and workers of one run.

    Args:
        cfg: a complete config.
        env_setting: environments instead of those that the config describes.
        model: trained as it is, instead of one built from the config.

    Raises:
        EnvError: if the environments cannot be made.
        ConfigError: if the policy or its model cannot be built for them.
    """

    def __init__(self, cfg: Any, env_setting: EnvSetting | None, model: torch.nn.Module | None) -> None:
        self.cfg = cfg
        self._open_envs: list[VectorEnv] = []
        try:
            self._build(env_setting, model)
        except BaseException as error:
            self.close()
            if not (said := out_of_memory(error)):
                raise
            raise ConfigError(
                f"out of memory while building the run: {said}. Lower the sizes under policy.model, "
                f"policy.collect.n_sample ({cfg.policy.collect.n_sample:,}) or "
                f"env.collector_env_num ({cfg.env.collector_env_num:,})"
            ) from error

    def _build(self, env_setting: EnvSetting | None, model: torch.nn.Module | None) -> None:
        cfg, env, seed = self.cfg, self.cfg.env, self.cfg.seed
        ignores_done = cfg.policy.learn.get("ignore_done", False)
        if env_setting is None:
            self.envs = self._opened(
                make_vector_env(env, env.collector_env_num, seed, final_of_terminated=ignores_done)
            )
            eval_envs = self._opened(make_vector_env(env, env.evaluator_env_num, seed, evaluate=True))
        else:
            make, collector_cfgs, evaluator_cfgs = env_setting
            vector = functools.partial(vector_env_of, make, seed=seed, on_bad_value=env.on_bad_value)
            self.envs = self._opened(vector(collector_cfgs, final_of_terminated=ignores_done))
            eval_envs = self._opened(vector(evaluator_cfgs, max_steps=env.max_eval_steps))
        use_threads(cfg.num_threads, self.envs.obs_space)
        keep_freed_memory()
        self.policy: Policy = POLICY_REGISTRY.get(cfg.policy.type)(
            cfg.policy, self.envs.obs_space, self.envs.action_space, model=model, seed=seed
        )
        collect = cfg.policy.collect
        self.collector = collector = Collector(
            self.envs, self.policy.collect_mode, collect.n_sample, collect.get("n_episode")
        )
        # So that a rollout for which there is no memory ends the run before it has a folder.
        collector.storage.write(0, "obs", collector.obs[0], self.envs.groups[0])
        self.learner = Learner(self.policy.learn_mode)
        self.evaluator = Evaluator(
            eval_envs, self.policy.eval_mode, env.n_evaluator_episode, env.max_eval_steps
        )
        self.progress = Progress()
        self.scores = Scores(env.stop_value)
        self.health = HealthCheck(cfg.policy, cfg.max_env_step, has_box(self.envs.action_space))

    def _opened(self, envs: VectorEnv) -> VectorEnv:
        self._open_envs.append(envs)
        return envs

    def describe(self) -> list[str]:
        """Returns what a run says of itself when it begins."""
        cfg, policy, collector = self.cfg, self.policy, self.collector
        size = sum(p.numel() for p in policy.model.parameters())
        lines = [
            f"env {cfg.env.env_id or plain(cfg.env.type)}: {self.envs.backend}",
            f"policy {plain(cfg.policy.type)} on {policy.device}, {size:,} parameters, "
            f"{torch.get_num_threads()} torch threads, seed {cfg.seed}",
        ]
        lines += policy.describe()
        if not self.envs.restorable and collector.quota is None:
            lines.append("open episodes of this backend cannot be saved: a resumed run begins new ones")
        wanted, taken = cfg.policy.collect.n_sample, collector.n_sample
        if collector.quota is not None:
            lines.append(f"rollouts of {collector.quota.n_episode} whole episodes")
        elif taken != wanted:
            lines.append(
                f"n_sample={wanted} is rounded up to {taken}: {collector.steps} steps of "
                f"{self.envs.num_envs} environments"
            )
        return lines

    def report_to(self, log: Callable[[str], None], show: Callable[[str], None]) -> None:
        """Says what the run is made of; from now on its environments and its health check speak, too.

        The tracebacks of workers that are replaced go to the log alone. Neither may lead back here: a run
        that is dropped frees its environments at once.
        """

        def say(line: str) -> None:
            log(line)
            show(line)

        for line in self.describe():
            say(line)
        self.envs.say = self.health.say = say
        self.evaluator.envs.say = lambda line: say(f"in evaluation: {line}")
        self.envs.explain = self.evaluator.envs.explain = log

    def warm_up(self) -> list[str]:
        """Shows the policy the random steps that it wants to see before training; returns what to say."""
        steps = self.policy.warm_up_steps
        if not steps:
            return []
        self.policy.warm_up(self.collector.random_observations(steps, self.cfg.seed))
        return [f"the statistics of observations are taken from {steps:,} random steps"]

    def import_option(self) -> str:
        """Returns the option that brings back classes of the user's own, for the command line."""
        kinds = (type(self.policy), type(self.policy.model))
        modules = {kind.__module__ for kind in kinds if not kind.__module__.startswith("ding_lite.")}
        main = getattr(sys.modules.get("__main__"), "__file__", None) or "MODULE"
        return "".join(f" --import {main if name == '__main__' else name}" for name in sorted(modules))

    def metric_names(self) -> list[str]:
        """Returns the names of the metrics that a run logs, in the order of its columns."""
        return [
            *(f"collect/{name}" for name in Collector.METRICS),
            *(f"learn/{name}" for name in self.policy.learn_mode.monitor_vars()),
            *evaluation_metrics(Evaluation((0.0,), (0,))),
            *(
                f"time/{name}"
                for name in ("env_steps_per_second", "collect_s", "learn_s", "eval_s", "wall_s")
            ),
        ]

    def results(self, seconds: float) -> dict[str, Any]:
        """Returns what came of ``seconds`` of training, for result.json; what was not measured is None."""
        last, progress, cfg = self.scores.last, self.progress, self.cfg
        return {
            "solved": progress.solved,
            "eval_value": None if last is None else last.mean,
            "eval_value_std": None if last is None else last.std,
            "best_eval_value": self.scores.state_dict()["best"],
            "env_step": progress.env_step,
            "train_iter": progress.train_iter,
            "iterations": progress.iteration,
            "wall_time_s": seconds,
            "env_steps_per_second": progress.env_step / seconds if seconds else None,
            "seed": cfg.seed,
            "policy": plain(cfg.policy.type),
            "env_id": cfg.env.env_id or plain(cfg.env.type),
        }

    def spaces(self) -> dict[str, Any]:
        """Returns the spaces as a checkpoint keeps them."""
        return {
            "obs": space_to_json(self.policy.obs_space),
            "action": space_to_json(self.policy.action_space),
        }

    def _stateful(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "collector": self.collector,
            "learner": self.learner,
            "progress": self.progress,
            "scores": self.scores,
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of every part, as one tree."""
        return {name: part.state_dict() for name, part in self._stateful().items()}

    def load_state_dict(self, state: Mapping[str, Any], *, new_episodes: bool = False) -> None:
        """Takes over the whole state.

        Args:
            state: from :meth:`state_dict`.
            new_episodes: where the open ones do not belong to the environments here.

        Raises:
            CheckpointError: if it lacks a part, or a part does not fit.
        """
        options = {"collector": {"new_episodes": True}} if new_episodes else {}
        for name, part in self._stateful().items():
            if name not in state:
                raise CheckpointError(f"the checkpoint has no {name!r}: it cannot be resumed from")
            try:
                saved = as_tensors(state[name]) if name == "policy" else state[name]
                part.load_state_dict(saved, **options.get(name, {}))
            except CheckpointError:
                raise
            except Exception as error:  # a forged one can make any part fail in any way
                raise CheckpointError(
                    f"the checkpoint's {name!r} does not fit: {type(error).__name__}: {error}"
                ) from error

    def close(self) -> None:
        """Closes the environments; calling it twice is fine."""
        while self._open_envs:
            self._open_envs.pop().close()
