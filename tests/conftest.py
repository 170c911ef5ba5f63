"""Tests are small and may share a machine: torch keeps to one thread, which is then many times faster."""

import torch

torch.set_num_threads(1)
