"""The rollouts that an iteration learns from: the fresh one, and off-policy those of the last iterations.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.rollout import Rollout, as_rollout, to_device
from ding_lite.trees import in_one_order, map_tree

MOST_USES = 2**31 - 1  # uses are counted in int32
ROLLOUTS_KEPT = 4  # without a given capacity


@dataclass
class Stored:
    """A rollout and how it was used.

    Attributes:
        rollout: (T, B), as it was collected, with its credit.
        iteration: in which it was collected.
        uses: (T, B), how often each transition was drawn.
        prox_over_mu: (T, B), pi_prox / mu of each action (``policies.ppo``); None: it is fresh, so 1.
        newer: fields (T, B, ...) of this iteration that replace those of collection, or are added to them.
    """

    rollout: Rollout
    iteration: int
    uses: Tensor
    prox_over_mu: Tensor | None = None
    newer: dict[str, Any] = field(default_factory=dict)


class Replay:
    """A queue of rollouts; one leaves when its room is needed, or all its transitions are spent or stale.

    The defaults hold one fresh rollout for one iteration.

    Args:
        capacity: transitions; the newest rollout always stays. None: four rollouts.
        max_use: draws of one transition.
        max_staleness: iterations after its own in which a transition may be drawn.
        device: of the rollouts.

    Attributes:
        iteration: number of iterations so far.
        log: metrics of this iteration.
    """

    def __init__(
        self,
        capacity: int | None = 0,
        max_use: int = MOST_USES,
        max_staleness: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity, self.max_use, self.max_staleness = capacity, max_use, max_staleness
        self.device = torch.device(device)
        self.iteration = 0
        self.log: dict[str, float] = {}
        self.rollouts: deque[Stored] = deque()

    @property
    def limits(self) -> tuple[int | None, int, int]:
        """What decides which transitions are drawn."""
        return self.capacity, self.max_use, self.max_staleness

    def push(self, rollout: Rollout) -> None:
        """Adds the rollout (T, B) of this iteration."""
        uses = torch.zeros(rollout.valid.shape, dtype=torch.int32, device=rollout.valid.device)
        self.rollouts.append(Stored(rollout, self.iteration, uses))
        while len(self.rollouts) > 1 and self._is_over():
            self.rollouts.popleft()

    def _is_over(self) -> bool:
        if self.capacity is None:
            return len(self.rollouts) > ROLLOUTS_KEPT
        return sum(stored.uses.numel() for stored in self.rollouts) > self.capacity

    def age(self, stored: Stored) -> int:
        """Returns the iterations since a rollout was collected."""
        return self.iteration - stored.iteration

    def live(self, stored: Stored) -> Tensor:
        """Returns which transitions (T, B) may be drawn: valid, neither spent nor stale."""
        if self.age(stored) > self.max_staleness:
            return torch.zeros_like(stored.rollout.valid)
        live: Tensor = stored.rollout.valid & (stored.uses < self.max_use)
        return live

    def has_live(self) -> bool:
        """Returns whether a transition may be drawn."""
        return any(bool(self.live(stored).any()) for stored in self.rollouts)

    def use(self, place: Tensor) -> None:
        """Counts a draw of transitions (N,), by their places in all flattened rollouts."""
        for stored in self.rollouts:
            size = stored.uses.numel()
            stored.uses.view(-1)[place[(place >= 0) & (place < size)]] += 1
            place = place - size

    def end_iteration(self) -> None:
        """Makes all rollouts an iteration older, and drops those without live transitions."""
        self.iteration += 1
        self.rollouts = deque(
            stored
            for stored in self.rollouts
            if self.age(stored) <= self.max_staleness and bool(self.live(stored).any())
        )
        for stored in self.rollouts:
            stored.prox_over_mu, stored.newer = None, {}
            if self.age(stored) == 1:  # the collector writes its next rollout into the same memory
                stored.rollout = as_rollout(map_tree(torch.clone, stored.rollout))

    def metrics(self, clip_ratio: Tensor) -> dict[str, float]:
        """Returns age and uses of the live samples, and how far the policy has moved since collection.

        Args:
            clip_ratio: (), of the policy.
        """
        live = [(stored, self.live(stored)) for stored in self.rollouts]
        ages = torch.tensor([self.age(stored) for stored, _ in live])
        age = ages.repeat_interleave(torch.tensor([int(which.sum()) for _, which in live]))
        uses = torch.cat([stored.uses[which] for stored, which in live])
        ratios = [
            torch.ones_like(s.rollout.reward) if s.prox_over_mu is None else s.prox_over_mu for s, _ in live
        ]
        ratio = torch.cat([x[which] for x, (_, which) in zip(ratios, live, strict=True)]).cpu()
        outside = ((ratio - 1).abs() > clip_ratio.cpu()).float()
        return {
            "samples": float(len(ratio)),
            "age": float(age.float().mean()),
            "uses": float(uses.float().mean()),
            "ratio_mean": float(ratio.mean()),
            "ratio_max": float(ratio.max()),
            "outside_clip": float(outside.mean()),
        }

    def clear(self) -> None:
        """Drops all rollouts."""
        self.rollouts.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "rollouts": {
                str(k): {
                    "rollout": in_one_order(stored.rollout),
                    "iteration": stored.iteration,
                    "uses": stored.uses,
                }
                for k, stored in enumerate(self.rollouts)
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self.iteration = int(state["iteration"])
        for _, stored in sorted(state["rollouts"].items(), key=lambda item: int(item[0])):
            rollout = as_rollout(to_device(stored["rollout"], self.device))
            uses = torch.as_tensor(stored["uses"], device=self.device)
            self.rollouts.append(Stored(rollout, int(stored["iteration"]), uses))
