"""How does an answer look: terminal, CSV, charts, Perfetto?"""
