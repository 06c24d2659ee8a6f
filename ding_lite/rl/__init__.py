"""Pure functions of tensors: returns, losses, distributions, running statistics, schedules and seeds."""
