"""Batches of a run: when each began, and how long it took."""
