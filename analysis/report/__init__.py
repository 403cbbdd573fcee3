"""What would one show? One HTML file that opens offline: the answer in words, charts, tables, provenance.

``python -m analysis.report DIR`` writes it.
"""
