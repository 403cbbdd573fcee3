"""Readers of tools' files, one module per format; they return events or tables."""
