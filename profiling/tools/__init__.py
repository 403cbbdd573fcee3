"""One file a profiler, both halves together: how it wraps a rank's command, how its output is read."""
