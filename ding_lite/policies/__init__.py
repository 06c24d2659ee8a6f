"""Policies: how to act, what to learn from a rollout, and the state that must survive a restart.

Importing this package registers what it ships in ``POLICY_REGISTRY``.
"""

from ding_lite.policies.base import Policy
from ding_lite.policies.ppg import PPGPolicy
from ding_lite.policies.ppo import PPOPolicy

__all__ = ["PPGPolicy", "PPOPolicy", "Policy"]
