"""One HTML file that opens offline: findings, charts, tables, provenance.

``python -m analysis.report DIR`` writes it.
"""
