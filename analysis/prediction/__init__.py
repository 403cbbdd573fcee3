"""Prediction of throughput on more ranks: fitted curves, and simulated steps."""
