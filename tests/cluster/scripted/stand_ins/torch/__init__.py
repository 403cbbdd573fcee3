"""Stands in for PyTorch, of which a thousand processes do not fit into one machine."""
