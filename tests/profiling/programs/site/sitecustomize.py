"""For the tests' own environment: PyPI's torchvision beside a PyTorch for CPUs, as in train.models."""

from profiling.watching.program import when_imported
from train.models import declare_missing_operators

when_imported("torch", declare_missing_operators)
