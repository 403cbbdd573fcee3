"""The kind, ranks and bytes that a profiler recorded for a collective.

PyTorch records them on the call (``record_param_comms``) and, for NCCL and RCCL, on the kernel. Otherwise the
kind comes from the range that launched the kernel (``nccl:all_reduce``), and as a last resort from the
kernel's name; RCCL's ``ncclDevKernel_Generic`` may be any collective.
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from profiling.cost.operators import element_bytes

# What a name of a collective holds, in any library -> its kind.
KINDS = {
    "allreduce": "allreduce", "reducescatter": "reducescatter", "allgather": "allgather",
    "alltoall": "alltoall", "broadcast": "broadcast", "bcast": "broadcast", "gather": "gather",
    "scatter": "scatter", "barrier": "barrier", "reduce": "reduce", "send": "sendrecv", "recv": "sendrecv",
}  # fmt: skip
UNKNOWN = "other"

# The process group of a collective that does not say it, of a process that has several.
ONE_OF_SEVERAL = "one of several"

_MOST_RANKS = 1 << 24


class Message(NamedTuple):
    """What is known of a collective; empty, 0 and NaN: not recorded."""

    collective: str = ""  # its kind, one of the values of :data:`KINDS`
    group: str = ""  # the process group's name
    ranks: str = ""  # those of the group, as numbers of the job: ``0,1``
    size: int = 0  # how many they are
    # of the message, as nccl-tests counts them: the larger of what goes in and comes out
    bytes: float = math.nan
    dtype: str = ""  # of its elements, as :func:`profiling.cost.operators.element_bytes` takes it
    # target, source: the rank of the job that a send goes to, or that a receive comes from; -1: neither
    target: int = -1
    source: int = -1


NOT_RECORDED = Message()


@cache
def kind_of(name: str) -> str:
    """The kind of collective that the name of a kernel, operator or range says; ``other`` if it says none."""
    plain = name.lower().replace("_", "")
    return next((kind for word, kind in KINDS.items() if word in plain), UNKNOWN)


def of_arguments(args: Mapping[str, Any]) -> Message | None:
    """What Kineto's arguments of an event say; None if the event is no collective's."""
    if "Collective name" not in args and "In msg nelems" not in args and "In msg size" not in args:
        return None
    kind = kind_of(str(args.get("Collective name")))
    # PyTorch 2.1 called the same numbers sizes.
    keys = [f"{side} msg {word}" for side in ("In", "Out") for word in ("nelems", "size")]
    counts = [args[key] for key in keys if isinstance(args.get(key), int)]
    element = element_bytes(str(args.get("dtype")))
    is_known = element and counts and max(counts) < 1 << 62
    return Message(
        "" if kind == UNKNOWN else kind,
        str(args.get("Process Group Name", "")),
        _ranks(args.get("Process Group Ranks", "")),
        max(_integer(args.get("Group size")), 0),
        float(max(counts) * element) if is_known else math.nan,  # type: ignore[operator]
        str(args.get("dtype", "")),
        _integer(args.get("Dst Rank")),
        _integer(args.get("Src Rank")),
    )


def between_two(message: Message, rank: int) -> Message:
    """A send or receive as a collective of its two ranks in its direction; any other message as it is.

    In a pipeline all stages are one process group, of which two make each send and receive: only those
    between the same ranks in the same direction come in the same order on both.
    """
    if message.target < 0 and message.source < 0:
        return message
    source, target = (rank, message.target) if message.target >= 0 else (message.source, rank)
    return message._replace(
        group=f"{message.group} {source} to {target}".strip(),
        ranks=",".join(map(str, sorted((source, target)))),
        size=2,
        target=-1,
        source=-1,
    )


def of_process(distributed: Mapping[str, Any]) -> Message:
    """The only process group of several ranks, for collectives that do not say theirs."""
    listed = distributed.get("pg_config")
    several: dict[tuple[str, int], Message] = {}
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict) and (size := _integer(one.get("pg_size"))) > 1:
            ranks = _ranks(one.get("ranks", ""))
            several.setdefault((ranks, size), Message("", str(one.get("pg_name", "")), ranks, size))
    if len(several) > 1:
        return Message(group=ONE_OF_SEVERAL)
    return next(iter(several.values()), NOT_RECORDED)


def complete(name: str, messages: list[Message], otherwise: Message) -> Message:
    """All that is known of a collective, by its messages, the best first.

    ``name``: of what ran, for the kind, and ``otherwise``: its process group, where no message says it.
    """
    kinds = [one.collective for one in messages if one.collective not in ("", UNKNOWN)]
    sizes = [one.bytes for one in messages if not math.isnan(one.bytes)]
    size = next((one.size for one in messages if one.size), otherwise.size)
    # PyTorch 2.2 records no more of a group than its size.
    by_size = otherwise if size == otherwise.size else NOT_RECORDED
    group = next((one for one in messages if one.group or one.ranks), by_size)
    return Message(
        kinds[0] if kinds else kind_of(name),
        group.group,
        group.ranks,
        group.size or size,
        sizes[0] if sizes else math.nan,
        next((one.dtype for one in messages if one.dtype), ""),
    )


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_RANKS else -1


def _ranks(value: Any) -> str:
    """``[0, 1]``, a list or its text (which Kineto ends with dots if it is long), as ``0,1``."""
    return str(value).strip("[]").replace(" ", "")
