"""Policies: how to act, what to learn from a rollout, and the state that must survive a restart.

Importing this package registers what it ships in ``POLICY_REGISTRY``.
"""

from ding_lite.policies.base import Policy, add_to_library
from ding_lite.policies.ppg import PPGOffPolicy, PPGPolicy
from ding_lite.policies.ppo import PPOOffPolicy, PPOPolicy

for policy in (Policy, PPOPolicy, PPOOffPolicy, PPGPolicy, PPGOffPolicy):
    add_to_library(policy)

__all__ = ["PPGPolicy", "PPOPolicy", "Policy"]
