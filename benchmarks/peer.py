"""Ask HolisticTraceAnalysis, which lives in an environment of its own (pip install -e '.[benchmark]')."""

from typing import Any

from benchmarks.child import result_of

_TIMEOUT_S = 900


def ask_peer(python: str, program: str, *arguments: object) -> dict[str, Any]:
    """What a program that imports the peer prints behind ``RESULT``, as JSON.

    Args:
        python: the Python of the peer's environment.

    Raises:
        UserError: the peer is not there, or has no answer.
    """
    command = [python, "-c", program, *map(str, arguments)]
    return result_of(command, {"HTA_DISABLE_NS_ROUNDING": "1"}, _TIMEOUT_S)
