"""One gradient step: the only place with backward, clipping and the optimiser.

The learner's loop lives in the policy, so that ``learn_mode`` works alone; what must be done in one
place, so that it can be guarded and measured, lives here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class BadSteps:
    """How many steps of a run were not finite, over all its optimisers, and how many it survives."""

    def __init__(self, budget: int = 0) -> None:
        self.budget, self.count = budget, 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])


class Updater:
    """Adam over ``parameters``, clipped, and guarded: a step that is not finite changes nothing.

    Args:
        parameters: those that the loss reaches.
        learning_rate: of the first step; assign ``updater.learning_rate`` to change it.
        eps: Adam's.
        grad_clip_type: ``"clip_norm"`` over all parameters together, ``"clip_value"``, or ``None``.
        grad_clip_value: the bound.
        bad_steps: of the run. Without a budget, the first one stops all that follow until it is looked
            at, so that the parameters are still those it failed with.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        eps: float,
        grad_clip_type: str | None,
        grad_clip_value: float,
        bad_steps: BadSteps | None = None,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.clip_type, self.clip_value = grad_clip_type, grad_clip_value
        self.optimizer = torch.optim.Adam(self.parameters, lr=learning_rate, eps=eps, fused=True)
        self.bad_steps = bad_steps or BadSteps()
        self._flags: list[Tensor] = []  # 1 for each step of this pass that was not finite

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.optimizer.param_groups[0]["lr"] = value

    def step(self, loss: Tensor | Iterable[Tensor]) -> Tensor:
        """Takes one step down ``loss`` and returns the norm of the gradient before clipping.

        Where the loss or the norm is not finite, neither parameters nor Adam's moments move; nothing
        is waited for, :meth:`first_bad_step` tells later.

        Args:
            loss: or its parts, made one by one: of a minibatch that is too large for one backward pass.

        Shapes:
            loss: () -> ()
        """
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.parameters[0].device)
        for part in [loss] if isinstance(loss, Tensor) else loss:
            part.backward()
            total += part.detach()
        if self.clip_type == "clip_norm":
            norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_value)
        else:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
            if self.clip_type == "clip_value":
                nn.utils.clip_grad_value_(self.parameters, self.clip_value)
        bad = (~torch.isfinite(norm + total)).to(torch.float32)
        if self._flags and not self.bad_steps.budget:
            bad = torch.maximum(bad, self._flags[-1])
        self._flags.append(bad)
        # What GradScaler uses: a fused optimiser leaves everything as it is where found_inf is 1.
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        return norm

    def first_bad_step(self) -> int | None:
        """Ends a pass: returns which step since the last call was the first that was not finite.

        None if there is none, or if all of them are within the budget.
        """
        flags, self._flags = self._flags, []
        bad = torch.stack(flags).nonzero().flatten().tolist() if flags else []
        self.bad_steps.count += len(bad)
        return bad[0] if bad and self.bad_steps.count > self.bad_steps.budget else None

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # torch keeps the tensors it is given: a copy, so that no two optimisers share their moments.
        self.optimizer.load_state_dict(copy.deepcopy(dict(state)))


def mean_metrics(history: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Returns the mean of every metric over the steps that have it, waiting for the device once."""
    names = sorted({name for step in history for name in step})
    if not names:
        return {}
    means = [torch.stack([step[name] for step in history if name in step]).mean() for name in names]
    return dict(zip(names, torch.stack(means).tolist(), strict=True))
