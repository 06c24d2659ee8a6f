"""Counts the optimiser steps of any library, by a hook of torch."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class UpdateCounter:
    """Counts the steps of all torch optimisers from its creation on."""

    def __init__(self) -> None:
        self.count = 0
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.count += 1
