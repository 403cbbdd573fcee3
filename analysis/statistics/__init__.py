"""Statistics: estimates, their intervals, and tests."""
