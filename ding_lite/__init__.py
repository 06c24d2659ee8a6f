"""ding_lite: PPO and PPG, launched from a config, extended by a registered policy, or embedded in a script.

Public names are loaded at first use: ``import ding_lite`` alone imports neither torch nor gymnasium, and
changes nothing in the process.
"""

from __future__ import annotations

import importlib
from typing import Any

# The module that defines each public name.
_HOME = {
    "ActionHead": "ding_lite.models",
    "ActorCritic": "ding_lite.models",
    "BOX_DISTRIBUTION_REGISTRY": "ding_lite.config.registry",
    "Batch": "ding_lite.data.samples",
    "CheckpointError": "ding_lite.errors",
    "ConfigError": "ding_lite.errors",
    "DingLiteError": "ding_lite.errors",
    "ENCODER_REGISTRY": "ding_lite.config.registry",
    "ENV_REGISTRY": "ding_lite.config.registry",
    "EnvError": "ding_lite.errors",
    "Evaluation": "ding_lite.data.episodes",
    "HOOK_REGISTRY": "ding_lite.config.registry",
    "Hook": "ding_lite.run.hooks",
    "INTRINSIC_REGISTRY": "ding_lite.config.registry",
    "IntrinsicReward": "ding_lite.models",
    "Key": "ding_lite.config.schema",
    "MODEL_REGISTRY": "ding_lite.config.registry",
    "NumericsError": "ding_lite.errors",
    "POLICY_REGISTRY": "ding_lite.config.registry",
    "PPG": "ding_lite.models",
    "PPGPolicy": "ding_lite.policies",
    "PPOPolicy": "ding_lite.policies",
    "PhasicActorCritic": "ding_lite.models",
    "Policy": "ding_lite.policies",
    "Progress": "ding_lite.run.progress",
    "RegistryError": "ding_lite.errors",
    "SerialPipeline": "ding_lite.run.pipeline",
    "TRACKER_REGISTRY": "ding_lite.config.registry",
    "TrackedRun": "ding_lite.run.trackers",
    "Tracker": "ding_lite.run.trackers",
    "WRAPPER_REGISTRY": "ding_lite.config.registry",
    "check_env": "ding_lite.tools.env_check",
    "check_policy": "ding_lite.testing",
    "compile_config": "ding_lite.config.compile",
    "evaluate": "ding_lite.tools.evaluate",
    "load_config": "ding_lite.config.compile",
    "load_policy": "ding_lite.run.load",
    "serial_pipeline": "ding_lite.run.pipeline",
    "serial_pipeline_onpolicy": "ding_lite.run.pipeline",
}

__all__ = sorted(_HOME)  # noqa: PLE0605 - ruff expects a literal


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("ding_lite")
    if name not in _HOME:
        raise AttributeError(f"module 'ding_lite' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
