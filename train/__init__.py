"""Training: what one rank does."""
