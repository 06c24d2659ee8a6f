"""What commands do besides training one run."""
