"""Several runs at a time: their folders, errors and table; and as processes: failures, signals, resuming, Ray."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import process_of_command
from worlds import digest, small_config

from ding_lite import compile_config
from ding_lite.errors import ConfigError
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.tools.parallel import (
    Job,
    Load,
    Outcome,
    Pool,
    error_of,
    exit_code_of,
    load_of,
    seed_jobs,
    seeds_report,
)
