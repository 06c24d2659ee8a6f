"""A training run, from its config to its result.

In the order of reading:

pipeline            makes a run or resumes it; the loop; the end
build               environments, policy, collector and evaluator from the config; the share of each rank
progress            counters, metrics of an iteration, evaluations
folder, checkpoint  the files of a run; a checkpoint is one file with the run's whole state
resume, load        the config that a resumed run continues with; a saved policy or its weights alone
hooks               code called at fixed points: folder, health, trackers, display, video
signals, resources  the process of a run: its signals, CPU threads and memory
settings            the config of ``train --env ID``, which has no config file
"""
