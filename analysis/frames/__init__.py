"""Results in a folder: sources, their tables, and what counts."""
