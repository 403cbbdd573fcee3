"""Kernels: time, cost, efficiency, and what bounds them."""
