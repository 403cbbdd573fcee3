"""Estimates, their intervals, and tests."""
