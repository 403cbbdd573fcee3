"""The report (``python -m analysis.report DIR``): one HTML file that opens offline."""
