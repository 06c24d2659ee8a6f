"""Data: from environment steps over rollouts and replay buffers to minibatches, and evaluation."""
