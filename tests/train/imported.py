"""All that a rank imports: ranks of tests fork from a process that has imported this (tests/forked.py)."""

import torch._dynamo

from train import rank
from train.models import import_torchvision

__all__ = ["rank", "torch"]

import_torchvision()
