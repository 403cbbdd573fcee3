"""Throughput of more ranks: fitted curves, and simulated steps."""
