"""The files that tools write, as events or tables: one module a format."""
