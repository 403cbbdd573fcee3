"""Nsight Systems' files."""

REPORT_HEAD = b"NVIDIA Tegra Profiler Report"
