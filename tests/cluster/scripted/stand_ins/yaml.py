"""Stands in for PyYAML: a rank that trains nothing reads no catalogue."""
