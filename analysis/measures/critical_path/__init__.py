"""What would shorten a step? The longest chain of what waited for each other in it."""
