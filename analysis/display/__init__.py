"""Output of answers: terminal tables, CSV, charts, Perfetto timelines."""
