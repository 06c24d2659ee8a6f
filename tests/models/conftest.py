"""One-thread torch: these networks are too small to share among cores."""

import torch

torch.set_num_threads(1)
