"""Nsight Systems' files."""
