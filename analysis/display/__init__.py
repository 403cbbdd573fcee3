"""Answers in a terminal, as CSV, as charts and for Perfetto."""
