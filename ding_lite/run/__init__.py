"""A training run, from its config to its result.

In the order of reading:

pipeline            makes a run or resumes it; the loop; the end
build               environments, policy, collector and evaluator from the config; the share of a rank
progress            counters, metrics of an iteration, evaluations
folder, checkpoint  the files of a run; its whole state in one of them
resume, load        the config that a saved run continues with; its policy, or its weights, alone
hooks               what is called at fixed points: folder, health, trackers, display, video
signals, resources  what a run needs of its process
settings            the config of a run that has none: ``train --env ID``
"""
