"""Faster ways to act and to compute gradients: NumPy below small networks, CUDA graphs."""
