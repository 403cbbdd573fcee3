"""Scaling of configurations: efficiency, losses and expense."""
