"""The only module of the reference that reads attributes of the library.

The reference uses the initial layers, the sampled actions and the order of the minibatches. All other values
are read to compare them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import ding_lite
from ding_lite.config.compile import compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.collector import Collector
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.errors import ConfigError
from ding_lite.trees import to_dict
from reference.algorithm import Draws
from reference.networks import Layers
from reference.recording import branches, map_tree

Key = tuple[int, int, int]  # (iteration, environment, row)
LIBRARY = str(Path(ding_lite.__file__).parent)


def compiled_config(env_type: type, envs: int, policy: dict[str, Any]) -> Any:
    """Returns the complete section ``policy`` of a config, or None if the library refuses it."""
    user = {"env": {"type": env_type, "collector_env_num": envs}, "policy": policy}
    try:
        return compile_config(user).values.policy
    except ConfigError:
        return None


class Product:
    """A policy of the library and its collector.

    Args:
        cfg: the complete section ``policy``.
        make: builds the environment with an index.
        envs: their number.
        autoreset: of the vector environment.
        seed: of the run.
        closed_form: whether gradients may be those in closed form; else all are torch's.
    """

    def __init__(
        self,
        cfg: Any,
        make: Callable[[int], gym.Env],
        envs: int,
        autoreset: str,
        seed: int,
        closed_form: bool,
    ) -> None:
        self.cfg, self.seed, self.envs = cfg, seed, envs
        vector = InProcessVectorEnv(
            lambda index: EpisodeRecorder(make(index)),
            envs,
            seed,
            autoreset=autoreset,
            final_of_terminated=cfg.learn.ignore_done,
        )
        self.policy = POLICY_REGISTRY.get(cfg.type)(cfg, vector.obs_space, vector.action_space, seed=seed)
        self.collector = Collector(vector, self.policy.collect_mode, cfg.collect.n_sample)
        self.policy.fast.use_numpy = closed_form
        self._draws: dict[str, list[torch.Tensor]] = {}
        for name, buffer in self.policy.buffers.items():
            self._listen(name, buffer)
        self._memory: list[Key] = []  # the samples of the auxiliary memory, in their order

    # Inputs of the reference.

    def layers(self) -> Layers:
        """Returns a copy of the layers as they are now, in float64."""
        model = copy.deepcopy(self.policy.model).double()
        head = model.actor_head
        encoders = (model.actor_encoder, model.critic_encoder)
        auxiliary = getattr(model, "auxiliary_head", None)
        return Layers(
            *(None if encoder is None else encoder.trunk for encoder in encoders),
            head.layers[:-1],
            _of_leaves(model.action_space, head.out, _outputs(head)),
            _of_leaves(model.action_space, head.out, lambda leaf: getattr(leaf, "log_sigma", None)),
            model.critic_head,
            auxiliary,
            dict(model.named_parameters()),
            list(model.modules()),
        )

    @property
    def arch(self) -> str:
        """Whether policy and value share an encoder: "separate", "shared" or an ``arch`` of PPG."""
        model = self.policy.model
        return getattr(model, "arch", "separate" if model.critic_encoder is not None else "shared")

    @property
    def entropy_weight(self) -> float:
        return float(self.policy.entropy_weight)

    def set_log_sigma(self, value: float) -> None:
        """Sets the free log sigmas."""
        with torch.no_grad():
            for name, parameter in self.policy.model.named_parameters():
                if name.endswith("log_sigma"):
                    parameter.fill_(value)

    # A run.

    def warm_up(self) -> int:
        """Takes the random steps before training; returns the number of observations."""
        steps = self.policy.warm_up_steps
        if steps:
            self.policy.warm_up(self.collector.random_observations(steps, self.seed))
        return steps

    def collect(self) -> dict[str, Any]:
        """Returns one rollout with its credit, as arrays."""
        self._rollout = self.collector.collect()
        return arrays(to_dict(self._rollout))

    def learn(self) -> tuple[dict[str, float], Draws]:
        """Learns from the rollout; returns the metrics and the order of the draws."""
        auxiliary = getattr(self.policy, "auxiliary", None)
        order = torch.Generator()
        if auxiliary is not None:
            order.set_state(auxiliary.generator.get_state())
            self._memory += self._sample_keys()
        self._draws = {name: [] for name in self.policy.buffers}
        self._places: dict[str, Any] = {}
        metrics = self.policy.learn_mode.forward(self._rollout)
        epochs: list[list[Key]] = []
        if metrics.get("aux_updates"):
            for _ in range(self.cfg.learn.aux_train_epoch):
                drawn = torch.randperm(len(self._memory), generator=order).tolist()
                epochs.append([self._memory[index] for index in drawn])
            self._memory = []
        return metrics, Draws({name: list(drawn) for name, drawn in self._draws.items()}, epochs)

    def _listen(self, name: str, buffer: Any) -> None:
        """Records each draw from a buffer; ``use`` receives rows of its wide rollout (T, C)."""
        use = buffer.use

        def noted(rows: torch.Tensor) -> None:
            columns = len(buffer.version)
            keys = [
                self._key(int(row) // columns, int(row) % columns, buffer.version) for row in rows.tolist()
            ]
            self._draws[name].append(keys)
            use(rows)

        buffer.use = noted

    def _key(self, t: int, column: int, version: torch.Tensor) -> Key:
        """Returns the step at row ``t`` of a column of the wide rollout."""
        iteration = int(version[column])
        return self._place(iteration, t, column - int((version < iteration).sum()))

    def _place(self, iteration: int, t: int, column: int) -> Key:
        """Returns the step at row ``t`` of a column of one iteration."""
        length = self.cfg.collect.unroll_len
        segment, env = divmod(column, self.envs)
        return (iteration, env, t + segment * (length if length > 1 else 0))

    def _sample_keys(self) -> list[Key]:
        """Returns the valid steps of the rollout in the order of the auxiliary memory."""
        valid = self._rollout.valid
        steps, length = len(valid), self.cfg.collect.unroll_len
        length = length if length > 1 else steps
        iteration = self.policy.buffers["policy"].iteration
        places = [(t, column) for t in range(length) for column in range(steps // length * self.envs)]
        keys = [self._place(iteration, t, column) for t, column in places]
        return [key for key in keys if bool(valid[key[2], key[1]])]

    # Values to compare.

    def uses_closed_form(self) -> bool:
        """Returns whether some gradient of the policy phase is computed in closed form."""
        names = [optimizer.gradients.name_of(loss) for optimizer, loss in self.policy.optimized_losses()]
        return "closed form" in names

    def parameters(self) -> dict[str, np.ndarray]:
        return {name: p.detach().double().numpy() for name, p in self.policy.model.named_parameters()}

    def statistics(self) -> dict[str, np.ndarray]:
        """Returns mean and std of each scale; the leaves of observations are concatenated."""
        policy, found = self.policy, {}
        if policy.obs_norm is not None:
            stats = [policy.obs_norm.stats[path] for path in sorted(policy.obs_norm.stats)]
            found["obs_mean"] = np.concatenate([each.mean for each in stats])
            found["obs_std"] = np.concatenate([each.std for each in stats])
        if policy.reward_scale is not None:
            found["reward_std"] = np.array(policy.reward_scale.std)
        if policy.value_norm is not None:
            found["value_mean"] = np.array(policy.value_norm.mean)
            found["value_std"] = np.array(policy.value_norm.std)
        return found

    def kept(self, name: str) -> dict[Key, tuple[int, float]]:
        """Returns the uses and the priority of each valid step that a buffer keeps."""
        buffer = self.policy.buffers[name]
        if buffer.data is None:
            return {}
        valid = buffer.data.valid
        return {
            self._key(t, column, buffer.version): (
                int(buffer.uses[t, column]),
                float(buffer.priority[t, column]),
            )
            for t, column in valid.nonzero().tolist()
        }


def _outputs(head: Any) -> Callable[[Any], Any]:
    """Returns what maps the head of a leaf to the part of the policy's last layer that is its own."""
    starts, last = {}, head.layers[-1]
    for leaf in (
        part for part in head.out.modules() if hasattr(part, "size") and not hasattr(part, "by_name")
    ):
        starts[leaf] = sum(other.size for other in starts)
    return lambda leaf: lambda x: last(x)[..., starts[leaf] : starts[leaf] + leaf.size]


def _of_leaves(space: gym.Space, out: Any, function: Callable[[Any], Any]) -> Any:
    """Returns ``function`` of the head of each leaf of an action space."""
    parts = branches(space)
    if parts is None:
        return function(out)
    return {name: _of_leaves(part, out.by_name[name], function) for name, part in parts.items()}


def arrays(tree: Any) -> Any:
    """Returns copies of a tree's tensors as arrays."""
    return map_tree(lambda leaf: leaf.numpy().copy(), tree)
