"""Stands in for the project's ``train`` (PYTHONPATH puts it first): ranks that train nothing."""
