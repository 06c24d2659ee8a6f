"""The systems that are measured: a module each, imported only by the process that runs it."""
