"""What does a range's text say? PyTorch's ``emit_nvtx``, PyProf and our own markers speak through NVTX.

``emit_nvtx`` writes an operator's name with ``, seq = 65`` or ``, op_id = 7`` after it; PyProf
writes a dict of module, operator and arguments; other texts are ranges that someone opened.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from profiling.attribution.events import OPERATOR, RANGE

PYPROF = "pyprof::"  # before an operator that PyProf named, so that it meets none of PyTorch's
_TORCH = re.compile(r"^(.*?), (?:seq|op_id) = (-?\d+)(.*)$", re.DOTALL)
_SEQUENCE = re.compile(r"seq = (\d{1,17})\b")
_OPERATOR = re.compile(r"^(aten|torch::autograd|autograd::engine|prims|quantized)::")
_NAME = re.compile(r"\w+(::\w+)*(\.\w+)?")  # an operator's; record_function's texts are free
_PYPROF = re.compile(r"^\{'mod': '([^']*)', 'op': '([^']*)'")
_CAPTURE = "scaleprof capture"  # our own, which switches a profiler on
_TRACE = "{'traceMarker':"  # where in the program a call stands


@dataclass(frozen=True)
class RangeName:
    """What a range's text says.

    Attributes:
        name: without what was appended.
        kind: of :mod:`profiling.attribution.events`; None: nothing that the tables hold.
        sequence: of autograd; -1: none.
    """

    name: str
    kind: int | None
    sequence: int = -1


@lru_cache(maxsize=1 << 12)
def parse_text(text: str) -> RangeName:
    """What a range's text says."""
    if text.startswith("{"):
        if match := _PYPROF.match(text):
            return RangeName(PYPROF + match[2], OPERATOR)
        if text.startswith(_TRACE):
            return RangeName(text, None)
    if text == _CAPTURE:
        return RangeName(text, None)
    if match := _TORCH.match(text):
        number = _SEQUENCE.search(text, match.end(1))
        # What autograd itself calls has no number of its own: old versions write 0.
        return RangeName(match[1], _kind(match[1], True), int(number[1]) or -1 if number else -1)
    return RangeName(text, _kind(text, False))


def _kind(name: str, of_pytorch: bool) -> int:
    return OPERATOR if _OPERATOR.match(name) or (of_pytorch and _NAME.fullmatch(name)) else RANGE
