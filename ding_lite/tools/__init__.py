"""Implementations of the commands other than training one run."""
