"""Random network distillation (arXiv:1810.12894): its reward, its value, and the training of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference import credit, losses
from reference.credit import Credit
from reference.losses import Watch
from reference.normalizers import ObservationScale, RewardScale
from reference.optimizer import Adam
from reference.recording import Step, vector_of


class Intrinsic:
    """r_t = mean_k (f_k(s_{t+1}) - g_k(s_{t+1}))^2, divided by the std of its discounted return.

    Args:
        cfg: the section ``policy`` of a complete config.
        layers: linear layers of f ("target"), g ("predictor") and V ("value"), with a relu between them.
        watch: of what happens.
    """

    def __init__(self, cfg: Any, layers: dict[str, Any], watch: Watch) -> None:
        self.cfg, self.layers, self.watch = cfg.intrinsic, layers, watch
        self.gae_lambda = cfg.collect.gae_lambda
        self.obs_scale = ObservationScale(self.cfg.obs_clip, running=True)
        self.scale = RewardScale(self.cfg.discount_factor, continues=True)
        learn = cfg.learn
        self.adam = Adam(
            layers["parameters"], learn.adam_eps, learn.grad_clip_type, learn.grad_clip_value, watch
        )
        self.adam.learning_rate = self.cfg.learning_rate

    def _through(self, name: str, observations: list[Any]) -> Tensor:
        x = torch.tensor(self.obs_scale(np.stack([vector_of(obs) for obs in observations])))
        for k, (weight, bias) in enumerate(self.layers[name]):
            if k:
                x = torch.relu(x)
            x = x @ weight.T + bias
        return x

    def _error(self, steps: list[Step]) -> Tensor:
        after = [step.following for step in steps]
        return (self._through("target", after) - self._through("predictor", after)).square().mean(-1)

    def _value(self, observations: list[Any]) -> Tensor:
        return self._through("value", observations)[:, 0]

    @torch.no_grad()
    def reward(self, columns: list[list[Step]]) -> None:
        """Sets ``novelty`` of the valid steps of a rollout, and updates the scale."""
        steps = [step for column in columns for step in column if step.valid]
        for step, novelty in zip(steps, self._error(steps).tolist(), strict=True):
            step.novelty = novelty
        self.scale.take_in(columns, lambda step: step.novelty)

    @torch.no_grad()
    def credit(self, columns: list[list[Step]], ratio: dict[Any, float]) -> dict[Any, Credit]:
        """Returns the intrinsic credit of the valid steps by their keys."""
        steps = [step for column in columns for step in column if step.valid]
        keys = [step.key for step in steps]
        value = dict(zip(keys, self._value([step.obs for step in steps]).tolist(), strict=True))
        after = dict(zip(keys, self._value([step.following for step in steps]).tolist(), strict=True))
        reward = {step.key: step.novelty / self.scale.std for step in steps}
        options = dict(gamma=self.cfg.discount_factor, gae_lambda=self.gae_lambda)
        found: dict[Any, Credit] = {}
        for column in columns:
            found |= credit.assign(column, value, after, reward, ratio, continues=True, **options)
        return found

    def learn(self, columns: list[list[Step]]) -> dict[str, float]:
        """Trains g and V on a fresh rollout as one minibatch, then updates the observation scale."""
        steps = [step for column in columns for step in column if step.valid]
        found = self.credit(columns, {})
        target = torch.tensor([found[step.key].target for step in steps], dtype=torch.float64)
        history = []
        for _ in range(self.cfg.epoch_per_collect):
            error = self._error(steps).mean()
            value = losses.regression(self._value([step.obs for step in steps]), target, "mse").mean()
            norm = self.adam.step(error + value)
            history.append((float(error.detach()), float(value.detach()), norm))
        self.obs_scale.take_in([vector_of(step.obs) for step in steps])
        self.watch.saw("an intrinsic reward")
        means = [sum(each) / len(history) for each in zip(*history, strict=True)]
        return {
            "intrinsic_reward": sum(step.novelty for step in steps) / len(steps),
            "intrinsic_scale": self.scale.std,
            **dict(
                zip(("intrinsic_loss", "intrinsic_value_loss", "intrinsic_grad_norm"), means, strict=True)
            ),
        }
