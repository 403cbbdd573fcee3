"""Stands in for the project's ``train`` (PYTHONPATH puts it first): ranks that train nothing.

How ranks meet is the project's own (``train.world``): what is not here is found there.
"""

from pathlib import Path

__path__.append(str(Path(__file__).resolve().parents[4] / "train"))
