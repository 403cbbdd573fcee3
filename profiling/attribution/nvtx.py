"""Parse operators and directions from the texts of NVTX ranges.

``emit_nvtx`` writes an operator's name followed by ``, seq = 65`` or ``, op_id = 7``. PyProf wrapped
PyTorch's functions in ranges whose text is a dict of module, operator and arguments. All other texts are
ranges of the user's. As in PyProf, a forward kernel belongs to the outermost such range. A backward kernel
belongs to the forward operator with its sequence number, if that launched anything; otherwise it is named
after its node of the backward graph.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from profiling.attribution.coding import distinct
from profiling.attribution.context import BPROP, FPROP, NONE, UPDATING, Context
from profiling.attribution.events import OPERATOR, RANGE, Events, name_flags, pick

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
    """What a range's text says."""

    name: str  # without what was appended
    kind: int | None  # of :mod:`profiling.attribution.events`; None: nothing that the tables hold
    sequence: int = -1  # of autograd; -1: none


@lru_cache(maxsize=1 << 12)
def parse_text(text: str) -> RangeName:
    if match := _PYPROF.match(text):
        return RangeName(PYPROF + match[2], OPERATOR)
    if text == _CAPTURE or text.startswith(_TRACE):
        return RangeName(text, None)
    match = _TORCH.match(text)
    name = match[1] if match else text
    kind = OPERATOR if _OPERATOR.match(name) or (match and _NAME.fullmatch(name)) else RANGE
    number = _SEQUENCE.search(text, match.end(1)) if match else None
    # What autograd itself calls has no number of its own: old versions write 0.
    return RangeName(name, kind, int(number[1]) or -1 if number else -1)


def name_operators(events: Events, context: Context) -> Context:
    """``context`` with PyProf's operators and directions where it marked any; names lose their prefix."""
    ours = name_flags(events.names, lambda name: name.startswith(PYPROF))
    if not ours.any():
        return context
    nest, host = context.nest, context.nest.host
    index = np.arange(len(host["name"]))
    named = nest.outermost(np.where(ours[host["name"]], index, -1))
    # Forward operators whose sequence number launched work on a device.
    of_device = np.isin(events.launches["correlation"], events.device["correlation"])
    place = nest.innermost(events.launches["thread"][of_device], events.launches["start_ns"][of_device])
    inside_node = nest.nearest(np.where(context.node, index, -1)) >= 0
    launching = place[place >= 0]
    numbers = distinct(context.sequence[launching[~inside_node[launching]]])
    launched = np.isin(host["sequence"], numbers[numbers >= 0])
    forward = np.where(pick(launched, context.forward, False), context.forward, -1)
    of_forward = pick(named, forward)
    node = nest.nearest(np.where(context.node & (host["sequence"] >= 0), index, -1))
    operator = np.select(
        [named >= 0, of_forward >= 0, node >= 0], [named, of_forward, node], context.operator
    )
    direction = _directions(events, context, named)
    bias = _biases(events, context, named)
    operator = np.where(bias >= 0, bias, operator)
    for number, name in enumerate(events.names):
        if name.startswith(PYPROF):
            events.names[number] = name.removeprefix(PYPROF)
        elif "Backward" in name and "::" not in name:
            events.names[number] = name.partition("Backward")[0]
    return replace(context, operator=operator, direction=direction)


def _biases(events: Events, context: Context, named: np.ndarray) -> np.ndarray:
    """The event that adds the bias of a linear layer, which PyProf calls ``bias``; else -1."""
    host = context.nest.host
    index = np.arange(len(host["name"]))
    adds = name_flags(events.names, lambda name: name == PYPROF + "__iadd__")[host["name"]]
    linear = name_flags(events.names, lambda name: name == PYPROF + "linear")[host["name"]]
    own = adds & pick(linear, named, False)
    host["name"][own] = len(events.names)
    events.names.append("bias")
    return context.nest.nearest(np.where(own, index, -1))


def _directions(events: Events, context: Context, named: np.ndarray) -> np.ndarray:
    """What stages do not tell: after the backward pass operators update, before it they run forward."""
    host = context.nest.host
    direction = context.direction.copy()
    starts_backward = name_flags(events.names, lambda name: name == PYPROF + "backward")[host["name"]]
    inside = context.nest.nearest(np.where(starts_backward, np.arange(len(direction)), -1)) >= 0
    direction[inside & (direction == NONE)] = BPROP
    sources = np.flatnonzero((host["kind"] == OPERATOR) & np.isin(direction, (FPROP, BPROP)))
    sources = sources[np.argsort(host["start_ns"][sources], kind="stable")]
    targets = np.flatnonzero((named >= 0) & (direction == NONE))
    place = np.searchsorted(host["start_ns"][sources], host["start_ns"][targets], side="right") - 1
    before = pick(direction[sources], place, FPROP)
    direction[targets] = np.where(before == BPROP, UPDATING, FPROP)
    return direction
