"""What makes small networks and gradient steps fast."""
