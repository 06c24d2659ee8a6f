"""A training run: its loop, its folder and checkpoints, and how it is resumed."""
