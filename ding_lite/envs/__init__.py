"""Vector environments behind one interface, and functions that make them from a config."""

import ding_lite.envs.adapters  # noqa: F401 - registers simulators
import ding_lite.envs.atari  # noqa: F401 - registers the Atari wrappers
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.vector import VectorEnv

__all__ = ["VectorEnv", "make_env", "make_vector_env"]
