"""Pure functions of tensors: returns, losses, distributions, scales, schedules and random streams."""
