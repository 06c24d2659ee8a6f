"""The settings for a task whose observations are numbers and that has no config: ``train --env ID``."""

config = dict(
    policy=dict(normalize=dict(obs=True)),
)
by_policy = {}
