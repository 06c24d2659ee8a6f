"""Vector environments that are stepped in worker processes or Ray actors."""
