"""Ask HolisticTraceAnalysis, which lives in an environment of its own (pip install -e '.[benchmark]')."""

import json
import os
import subprocess
from typing import Any

from profiling.errors import UserError


def ask_peer(python: str, program: str, *arguments: object) -> dict[str, Any]:
    """What a program that imports the peer prints behind ``RESULT``, as JSON.

    Args:
        python: the Python of the peer's environment.

    Raises:
        UserError: the peer is not there, or has no answer.
    """
    done = subprocess.run(
        [python, "-c", program, *map(str, arguments)],
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("RESULT"):
            answer: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
            return answer
    said = done.stderr.strip().splitlines()[-1:]
    raise UserError(f"no answer of HolisticTraceAnalysis under {python}: {' '.join(said)}")
