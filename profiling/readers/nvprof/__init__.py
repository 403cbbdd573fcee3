"""nvprof's files."""
