"""Sets torch to one thread: these networks are too small for several cores."""

import torch

torch.set_num_threads(1)
