"""Watch a user's training program: hooks in PyTorch, what they record, and the steps found from it."""
