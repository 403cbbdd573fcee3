"""Frames: the results in a folder as DataFrames, of the runs and steps that count."""
