"""TAU's files."""
