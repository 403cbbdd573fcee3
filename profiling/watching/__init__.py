"""How is a training program that is not ours watched? Hooks in PyTorch, what they record, and its steps."""
