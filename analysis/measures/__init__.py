"""Measures, one per file: a study in, a DataFrame with its columns out."""
