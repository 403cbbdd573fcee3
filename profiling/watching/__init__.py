"""Watching a training program that is not ours: hooks in PyTorch, what they record, and its steps."""
