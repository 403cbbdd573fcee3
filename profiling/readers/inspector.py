"""Read the records of NCCL Inspector (NCCL 2.28 on, and RCCL): collectives, one JSON object per line.

A process writes one file. Only in verbose mode do records contain the times of collectives; others contain
sums by kind and size. Ranks are recorded as numbered in their communicator; the number in the largest one is
taken as the rank in the job.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.events import LAUNCH_FACTS, Builder
from profiling.attribution.messages import Message, kind_of
from profiling.cost.operators import Inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.files import UNKNOWN, Origin, read_head, read_lines
from profiling.readers.printed import Activity, summary_intervals
from profiling.traced_job import TraceFacts

_ROWS = 1 << 12
# NCCL counts what one rank gives or gets, nccl-tests what all do, as Inspector's bandwidths do.
_OF_ALL = ("allgather", "reducescatter")

_Rank = Annotated[int, Field(ge=0, lt=1 << 24)]
_Us = Annotated[int, Field(ge=0, lt=1 << 52)]


def _called(name: str) -> AliasChoices:
    """The names of a field of collectives and of sends and receives."""
    return AliasChoices(f"coll_{name}", f"p2p_{name}")


class _Communicator(BaseModel):
    id: str
    rank: _Rank
    n_ranks: _Rank


class _Channel(BaseModel):
    kernel_stop_ts: _Us = 0  # 0: not seen


class _Times(BaseModel):
    start_us: Annotated[_Us, Field(validation_alias=_called("start_ts"))]  # of the host's call
    stop_us: Annotated[_Us, Field(validation_alias=_called("stop_ts"))]
    kernel_events: list[_Channel] = []


class _Call(BaseModel):
    name: Annotated[str, Field(validation_alias=AliasChoices("coll", "p2p"))]
    size: Annotated[int, Field(ge=0, lt=1 << 53, validation_alias=_called("msg_size_bytes"))]
    exec_us: Annotated[_Us, Field(validation_alias=_called("exec_time_us"))]
    peer: Annotated[_Rank | None, Field(validation_alias="p2p_peer")] = None
    number: Annotated[int, Field(ge=-1, lt=1 << 53, validation_alias="coll_sn")] = -1
    times: Annotated[_Times | None, Field(validation_alias="event_trace_ts")] = None


class _Record(BaseModel):
    header: _Communicator
    metadata: dict[str, str | int] = {}
    call: _Call = Field(validation_alias=AliasChoices("coll_perf", "p2p_perf"))

    @property
    def message(self) -> Message:
        kind, group, size = kind_of(self.call.name), self.header.id, self.header.n_ranks
        if self.call.peer is None:
            return Message(kind, group, "", size, self.call.size * (size if kind in _OF_ALL else 1))
        # Only those between the same two in the same direction come in the same order on both.
        pair = [self.header.rank, self.call.peer]
        source, target = pair if self.call.name == "Send" else reversed(pair)
        return Message(kind, f"{group} {source} to {target}", "", 2, self.call.size)

    @property
    def end_us(self) -> int:
        """When its kernel ended, on the host's clock; 0: not recorded."""
        events = self.call.times.kernel_events if self.call.times else []
        return max((one.kernel_stop_ts for one in events), default=0)


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file holds records of NCCL Inspector."""
    return _record(head.partition(b"\n")[0]) is not None


def facts(path: Path) -> TraceFacts:
    """What the first records of a file say of its process."""
    lines = read_head(path).splitlines()
    records = [record for line in lines if (record := _record(line)) is not None]
    if not records:
        return TraceFacts(backend="nccl")
    largest = max(records, key=lambda record: record.header.n_ranks)
    host = str(largest.metadata.get("hostname", ""))
    return TraceFacts(rank=largest.header.rank, world_size=largest.header.n_ranks, host=host, backend="nccl")


def _record(line: bytes | str) -> _Record | None:
    try:
        return _Record.model_validate_json(line)
    except ValidationError:
        return None


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """Collectives with times as ``kernels``, others as ``intervals``: a row per kind, size and ranks.

    Raises:
        UserError: unreadable, or no line is a record.
    """
    of_process = facts(path)
    rank = origin.rank if origin.rank is not None else of_process.rank or 0
    builder = Builder(lambda _: Inputs())
    timed: list[_Record] = []
    untimed: dict[str, Activity] = {}
    for line in read_lines(path):
        record = _record(line)
        if record is None:
            builder.malformed += bool(line.strip())
        elif record.end_us:
            timed.append(record)
        else:
            call = record.call
            name = f"{call.name}, {call.size} bytes, {record.header.n_ranks} ranks"
            of_name = untimed.setdefault(name, Activity(name, 0, 0, on_device=False))
            of_name.add(1000 * call.exec_us)
        if len(timed) >= _ROWS:
            _add(builder, timed)
            timed = []
    _add(builder, timed)
    trace = builder.finish(rank, max(of_process.world_size or 1, origin.world_size))
    if trace.is_empty and not untimed and trace.malformed:
        raise UserError(f"{path} holds no record of NCCL Inspector; is it the right file?")
    if untimed:
        yield "intervals", summary_intervals(list(untimed.values()), rank)
        what = "times of collectives (NCCL_INSPECTOR_DUMP_VERBOSE=1)"
        calls = int(sum(one.calls for one in untimed.values()))
        findings.append(Finding("not_recorded", data={"what": what, "n": calls}))
    elif trace.is_empty:
        findings.append(Finding("recording_empty"))
    if trace.is_empty:
        damaged = Finding("records_damaged", data={"n": trace.malformed, "what": "events"})
        findings += [damaged] if trace.malformed else []
        return
    findings.append(Finding("not_recorded", data={"what": "kernels of the model"}))
    yield from attribute_in_windows(trace, findings, rank, origin.first_batch, batches=origin.batches)


def _add(builder: Builder, records: list[_Record]) -> None:
    """Add collectives with times: one ends on the host's clock, and lasts as its kernel did on the GPU."""
    if not records:
        return
    known = [(one, one.call.times) for one in records if one.call.times]
    number = np.arange(len(records)) + builder.device.rows
    end_ns, took_ns, begun_ns, returned_ns = (
        1000
        * np.array([(one.end_us, one.call.exec_us, times.start_us, times.stop_us) for one, times in known]).T
    )
    empty = builder.names.of([""])[0]
    unknown = dict.fromkeys((*LAUNCH_FACTS, "bytes"), np.nan) | {"grid": empty, "block": empty}
    builder.device.add(unknown | {
        "name": builder.names.of([f"nccl:{one.call.name}" for one in records]),
        "start_ns": end_ns - took_ns, "duration_ns": took_ns, "device": 0, "stream": -1,
        "correlation": number, "external": -1,
        "message": builder.messages.of([one.message for one in records]),
        "sequence": [one.call.number for one in records],
    })  # fmt: skip
    builder.launches.add({
        "name": empty, "start_ns": begun_ns, "end_ns": np.maximum(begun_ns, returned_ns),
        "thread": builder.threads.of([("", 0)])[0], "correlation": number, "external": -1,
    })  # fmt: skip
