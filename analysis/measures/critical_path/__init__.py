"""The longest chain of what waited for each other in a step."""
