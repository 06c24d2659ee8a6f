"""ding_lite: PPO and PPG from a config file, a registered policy, or a loop of your own.

Names are loaded at first use: ``import ding_lite`` alone imports neither torch nor gymnasium.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

# Read when torch is loaded. A thread of GNU's OpenMP that has nothing to do keeps its core for 6 ms, and the
# environments' workers wait for it; with this, for a third of a millisecond.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

_HOME = {
    "ActionHead": "ding_lite.models",
    "ActorCritic": "ding_lite.models",
    "Batch": "ding_lite.rollout",
    "CheckpointError": "ding_lite.errors",
    "ConfigError": "ding_lite.errors",
    "DingLiteError": "ding_lite.errors",
    "ENCODER_REGISTRY": "ding_lite.registry",
    "ENV_REGISTRY": "ding_lite.registry",
    "EnvError": "ding_lite.errors",
    "Evaluation": "ding_lite.types",
    "Key": "ding_lite.schema",
    "MODEL_REGISTRY": "ding_lite.registry",
    "NumericsError": "ding_lite.errors",
    "POLICY_REGISTRY": "ding_lite.registry",
    "PPGPolicy": "ding_lite.policies",
    "PPOPolicy": "ding_lite.policies",
    "PhasicActorCritic": "ding_lite.models",
    "Policy": "ding_lite.policies",
    "Progress": "ding_lite.types",
    "RegistryError": "ding_lite.errors",
    "SerialPipeline": "ding_lite.pipeline",
    "WRAPPER_REGISTRY": "ding_lite.registry",
    "check_policy": "ding_lite.testing",
    "compile_config": "ding_lite.config",
    "load_config": "ding_lite.config",
    "load_policy": "ding_lite.policies",
    "serial_pipeline": "ding_lite.pipeline",
    "serial_pipeline_onpolicy": "ding_lite.pipeline",
}

__all__ = sorted(_HOME)  # noqa: PLE0605 - a list of names, kept in one place


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ding_lite' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
