"""One-thread torch, and this folder on the path, so that tests can ``from worlds import ...``."""

import torch

torch.set_num_threads(1)
