"""Pure functions of tensors: credit, losses, distributions, schedules, running statistics."""
