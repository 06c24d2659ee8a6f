"""The rollouts that an iteration learns from: the fresh one and, off-policy, older ones.

On-policy, the queue has one rollout. Rollouts are added and dropped whole, so the same code assigns credit to
fresh and to old rollouts.

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
from ding_lite.trees import in_one_order

MOST_USES = 2**31 - 1  # uses are counted in int32
ROLLOUTS_KEPT = 4  # if replay_buffer_size is None


@dataclass
class Stored:
    """A rollout and how it was used.

    Attributes:
        rollout: (T, B), as it was collected, with its credit.
        iteration: the iteration that collected it.
        uses: (T, B), how often each transition was drawn.
        ratio: (T, B), pi_prox / mu of each action, set in each iteration that has pi_prox (``policies.ppo``).
        renewed: fields (T, B, ...) computed in this iteration; they replace or extend the collected ones.
    """

    rollout: Rollout
    iteration: int
    uses: Tensor
    ratio: Tensor = field(init=False)
    renewed: dict[str, Any] = field(default_factory=dict)


class Replay:
    """A queue of rollouts; the oldest is dropped when the queue is full, or none of its samples may be drawn.

    By default it stores one fresh rollout for one iteration.

    Args:
        replay_buffer_size: most transitions; the newest rollout always stays. None: four rollouts.
        max_use: most draws of one transition.
        max_staleness: largest age, in iterations, at which a transition may be drawn.
        device: of the rollouts.

    Attributes:
        iteration: number of iterations so far.
        log: metrics of this iteration.
    """

    def __init__(
        self,
        replay_buffer_size: float | None = 0,
        max_use: int = MOST_USES,
        max_staleness: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size, self.max_use, self.max_staleness = replay_buffer_size, max_use, max_staleness
        self.device = torch.device(device)
        self.iteration = 0
        self.log: dict[str, float] = {}
        self.rollouts: deque[Stored] = deque()

    @classmethod
    def of(cls, rollout: Rollout) -> Replay:
        """Returns a rollout as a queue of one."""
        replay = cls()
        replay.push(rollout)
        return replay

    def push(self, rollout: Rollout) -> None:
        """Adds the rollout (T, B) of this iteration. The caller must not write into its memory later."""
        uses = torch.zeros_like(rollout.valid, dtype=torch.int32)
        self.rollouts.append(Stored(rollout, self.iteration, uses))
        size = ROLLOUTS_KEPT * uses.numel() if self.size is None else self.size
        while len(self.rollouts) > 1 and sum(stored.uses.numel() for stored in self.rollouts) > size:
            self.rollouts.popleft()

    def age(self, stored: Stored) -> int:
        """Returns the iterations since a rollout was collected."""
        return self.iteration - stored.iteration

    def live(self, stored: Stored) -> Tensor:
        """Returns a mask (T, B) of the transitions that may be drawn: valid, within both limits."""
        return stored.rollout.valid & (stored.uses < self.max_use) & (self.age(stored) <= self.max_staleness)

    def has_live(self) -> bool:
        """Returns whether a transition may be drawn."""
        return any(bool(self.live(stored).any()) for stored in self.rollouts)

    def use(self, index: Tensor) -> None:
        """Counts one draw of the transitions with indices (N,) in all rollouts, flattened and joined."""
        for stored in self.rollouts:
            size = stored.uses.numel()
            stored.uses.view(-1)[index[(index >= 0) & (index < size)]] += 1
            index = index - size

    def end_iteration(self) -> None:
        """Makes all rollouts an iteration older, and drops those without live transitions."""
        self.iteration += 1
        self.rollouts = deque(stored for stored in self.rollouts if self.live(stored).any())

    def metrics(self, clip_ratio: float) -> dict[str, float]:
        """Returns age and uses of the live samples, and how far the policy has moved since collection."""
        live = [(stored, self.live(stored)) for stored in self.rollouts]
        age = torch.cat([torch.full_like(s.uses[which], self.age(s)) for s, which in live])
        uses = torch.cat([stored.uses[which] for stored, which in live])
        ratio = torch.cat([stored.ratio[which] for stored, which in live])
        outside = (ratio - 1).abs() > clip_ratio
        means = {"age": age, "uses": uses, "ratio_mean": ratio, "outside_clip": outside}
        return {
            "samples": float(len(ratio)),
            "ratio_max": float(ratio.max()),
            **{name: float(x.float().mean()) for name, x in means.items()},
        }

    def forget(self) -> None:
        """Drops all rollouts."""
        self.rollouts.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "rollouts": [
                {"rollout": in_one_order(s.rollout), "iteration": s.iteration, "uses": s.uses}
                for s in self.rollouts
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.forget()
        self.iteration = int(state["iteration"])
        for stored in state["rollouts"]:
            rollout = as_rollout(to_device(stored["rollout"], self.device))
            uses = torch.as_tensor(stored["uses"], device=self.device)
            self.rollouts.append(Stored(rollout, int(stored["iteration"]), uses))
