"""Analysis of results: commands, reports, and DataFrames for notebooks.

    from analysis import load          # for notebooks: see analysis.notebook

Each command is a module: python -m analysis.scaled DIR.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # Only when it is asked for: every command's start would pay for what a notebook needs.
    if name == "load":
        return importlib.import_module("analysis.notebook").load
    raise AttributeError(f"module 'analysis' has no attribute {name!r}")
