"""Measures, one per file: each takes a study and returns a DataFrame with its columns."""
