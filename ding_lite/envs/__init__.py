"""Vector environments of every kind behind one face, and how they are made from a config."""

import ding_lite.envs.atari  # noqa: F401 - its wrappers register
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.vector import VectorEnv

__all__ = ["VectorEnv", "make_env", "make_vector_env"]
