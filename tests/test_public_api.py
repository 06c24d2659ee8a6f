"""The public names: what they are, and that they load lazily."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def in_a_new_process(code: str) -> Any:
    """Runs ``code`` in a fresh interpreter and returns the JSON in its last line."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "statement",
    ["from ding_lite import POLICY_REGISTRY", "from ding_lite.cli import main; main(['--help'])"],
)
def test_import_alone_loads_nothing_heavy(statement):
    loaded = in_a_new_process(
        f"import sys, json; {statement}; print(json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"
    )
    assert "ding_lite" in loaded
    assert not {"torch", "gymnasium", "numpy", "ray", "rich"}.intersection(loaded)


def test_import_of_everything_changes_nothing_in_the_process():
    """Threads, variables and the like are as torch, gymnasium and treetensor leave them by themselves."""
    code = """
import json, os, signal, sys
import torch, gymnasium, treetensor.torch

def process():
    return [
        dict(os.environ), torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled(),
        str(signal.getsignal(signal.SIGINT)), list(sys.path),
    ]

before = process()
import ding_lite
names = {}
exec("from ding_lite import *", names)
print(json.dumps([before == process(), "SerialPipeline" in names]))
"""
    assert in_a_new_process(code) == [True, True]
