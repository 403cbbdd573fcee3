"""Traces become jobs: files to convert, the tables of their ranks, and which ranks are of one job."""
