"""Batch, stage, operator and layer of each kernel."""
