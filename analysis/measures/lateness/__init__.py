"""Late ranks, and their causes."""
