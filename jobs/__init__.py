"""Jobs: what should run, where, and whether it has run."""

import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the checkout; ranks start there

# Under another Python than the one that scaleprof is installed for, every module would end in a traceback.
if find_spec("pydantic") is None:
    remedy = "activate its environment, or set PYTHON for the batch scripts"
    print(f"scaleprof: error: {sys.executable} lacks what scaleprof needs: {remedy}", file=sys.stderr)
    sys.exit(2)
