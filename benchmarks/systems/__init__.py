"""The measured systems: one module each, imported only by the process that runs it."""
