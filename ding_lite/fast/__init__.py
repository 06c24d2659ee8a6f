"""Faster ways to act and to compute gradients: NumPy below small networks, torch.compile, CUDA graphs."""
