"""ding_lite: PPO and PPG, launched from a config, extended by a registered policy, or embedded in a script.

Public names are loaded at first use: ``import ding_lite`` alone imports neither torch nor gymnasium, and
changes nothing in the process.
"""

from __future__ import annotations

import importlib
from typing import Any

# The public names, by the module that defines them.
_NAMES = {
    "config.compile": ["compile_config", "load_config"],
    "config.registry": [
        "BOX_DISTRIBUTION_REGISTRY",
        "ENCODER_REGISTRY",
        "ENV_REGISTRY",
        "HOOK_REGISTRY",
        "INTRINSIC_REGISTRY",
        "MODEL_REGISTRY",
        "POLICY_REGISTRY",
        "TRACKER_REGISTRY",
        "WRAPPER_REGISTRY",
    ],
    "config.schema": ["Key"],
    "data.episodes": ["Evaluation"],
    "data.samples": ["Batch"],
    "errors": [
        "CheckpointError",
        "ConfigError",
        "DingLiteError",
        "EnvError",
        "NumericsError",
        "RegistryError",
    ],
    "models": ["ActionHead", "ActorCritic", "IntrinsicReward", "PPG", "PhasicActorCritic"],
    "policies": ["PPGPolicy", "PPOPolicy", "Policy"],
    "run.hooks": ["Hook"],
    "run.load": ["load_policy"],
    "run.pipeline": ["SerialPipeline", "serial_pipeline", "serial_pipeline_onpolicy"],
    "run.progress": ["Progress"],
    "run.settings": ["settings"],
    "run.trackers": ["TrackedRun", "Tracker"],
    "testing": ["check_policy"],
    "tools.env_check": ["check_env"],
    "tools.evaluate": ["evaluate"],
}
_HOME = {name: f"ding_lite.{module}" for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOME)  # noqa: PLE0605 - ruff expects a literal


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("ding_lite")
    if name not in _HOME:
        raise AttributeError(f"module 'ding_lite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
