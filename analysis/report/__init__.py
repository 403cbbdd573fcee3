"""The report: one HTML file that opens offline, with findings, charts, tables and provenance.

``python -m analysis.report DIR`` writes it.
"""
