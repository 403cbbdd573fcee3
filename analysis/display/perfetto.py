"""Write a timeline in Perfetto's trace format, with the ``perfetto`` package.

A trace is a sequence of packets (perfetto.dev/docs/reference/trace-packet-proto): tracks, interned strings
(names, classes, layers), and for each slice a packet for its start and one for its end. Times are integer
nanoseconds. Perfetto also opens JSON traces, but these have fractional microseconds and repeat every string
in every event, so they are larger and slower to open.
"""

import gzip
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FILE = "trace.pftrace.gz"
MOST_KERNELS = 1_000_000  # drawn without being asked: 20 s, and what a browser opens
# What is interned -> its field of InternedData.
_WORDS = {
    "category": "event_categories", "name": "event_names", "argument": "debug_annotation_names",
    "text": "debug_annotation_string_values",
}  # fmt: skip
_PLAIN, _CODED = ("track", "start_ns", "end_ns", "flow"), ("name", "category")  # columns of slices


class TraceWriter:
    """Writes a trace to ``file``, piece by piece, the last by :meth:`finish`; it keeps the words used."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile) -> None:
        # Half a second of imports: only where a trace is written.
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        self._schema, self._new_builder = schema, TraceProtoBuilder
        self._builder = TraceProtoBuilder()
        self._file = file
        self._tracks = 0
        self._words: dict[str, dict[str, int]] = {kind: {} for kind in _WORDS}
        self._packet().sequence_flags = schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED

    def finish(self) -> None:
        """Write what has not been written."""
        self._file.write(self._builder.serialize())
        self._builder = self._new_builder()

    def start(self, start_ns: int) -> None:
        """Say that the trace's clock is the time since the epoch, and when it starts."""
        packet = self._packet()
        packet.timestamp = start_ns
        for clock in (self._schema.BUILTIN_CLOCK_BOOTTIME, self._schema.BUILTIN_CLOCK_REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=start_ns)

    def process(self, number: int, name: str) -> int:
        """A group of tracks, shown in the order in which they are added; its own track's number."""
        descriptor = self._descriptor()
        descriptor.process.pid, descriptor.process.process_name = number, name
        descriptor.child_ordering = self._schema.TrackDescriptor.EXPLICIT
        return self._tracks

    def track(self, parent: int | None, name: str) -> int:
        """A track for slices; the number by which slices call it."""
        descriptor = self._descriptor()
        descriptor.name = name
        descriptor.sibling_order_rank = self._tracks - 1
        if parent is not None:
            descriptor.parent_uuid = parent
        return self._tracks

    def slices(self, slices: "pd.DataFrame") -> None:
        """Add slices, in the order of time on each track; there they do not overlap.

        Columns: ``track`` as :meth:`track` numbered it; ``start_ns`` and ``end_ns`` since the epoch (without
        ends: instants); ``name`` and, where known, ``category`` (both categorical) and ``flow``: slices with
        the same number (0: none) are joined by arrows in the order of time. All others are shown of a
        selected slice; NaN and integers below 0 are not.
        """
        event = self._schema.TrackEvent
        kind = event.TYPE_SLICE_BEGIN if "end_ns" in slices else event.TYPE_INSTANT
        absent = [None] * len(slices)
        known = {name: slices[name].tolist() for name in _PLAIN if name in slices}
        known |= {name: self._numbers(name, slices[name]) for name in _CODED if name in slices}
        arguments = [self._argument(str(name), slices[name]) for name in slices if name not in known]
        columns = [known.get(name, absent) for name in (*_PLAIN, *_CODED)]
        for row, (track, start, end, flow, name, category) in enumerate(zip(*columns, strict=True)):
            begun = self._event(start, kind, track)
            if name:
                begun.name_iid = name
            if category:
                begun.category_iids.append(category)
            if flow:
                begun.flow_ids.append(flow)
            for number, field_name, values in arguments:
                if (value := values[row]) is not None:
                    begun.debug_annotations.add(name_iid=number, **{field_name: value})
            if end is not None:
                # Behind its own beginning and before the next: of one moment they stay in order.
                self._event(end, event.TYPE_SLICE_END, track)

    def _packet(self) -> Any:
        if len(self._builder.trace.packet) >= 1 << 12:  # are written at a time
            self.finish()
        packet = self._builder.add_packet()
        packet.trusted_packet_sequence_id = 1
        return packet

    def _descriptor(self) -> Any:
        self._tracks += 1
        descriptor = self._packet().track_descriptor
        descriptor.uuid = self._tracks
        return descriptor

    def _event(self, time_ns: int, kind: int, track: int) -> Any:
        packet = self._packet()
        packet.timestamp = time_ns
        packet.sequence_flags = self._schema.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        return event

    def _argument(self, name: str, values: "pd.Series") -> tuple[int, str, list[Any]]:
        """(the number of its name, the field of its values, the values: None where there is none)."""
        number = self._number("argument", name)
        if values.dtype == "category":
            return number, "string_value_iid", [one or None for one in self._numbers("text", values)]
        if values.dtype.kind == "f":
            return number, "double_value", [None if one != one else one for one in values.tolist()]
        return number, "int_value", [one if one >= 0 else None for one in values.tolist()]

    def _numbers(self, kind: str, words: "pd.Series") -> list[int]:
        """The number of each row's word; 0 where it has none."""
        codes, texts = words.cat.codes.to_numpy(), words.cat.categories
        numbers = np.zeros(len(texts) + 1, np.int64)  # one more: -1 is the last
        for code in np.unique(codes[codes >= 0]).tolist():
            numbers[code] = self._number(kind, texts[code])
        return numbers[codes].tolist()

    def _number(self, kind: str, word: str) -> int:
        """The number of a word; a new one is written."""
        numbers = self._words[kind]
        if word not in numbers:
            numbers[word] = len(numbers) + 1
            packet = self._packet()
            packet.sequence_flags = self._schema.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            entry = getattr(packet.interned_data, _WORDS[kind]).add(iid=numbers[word])
            if kind == "text":
                entry.str = word.encode("utf-8", "replace")
            else:
                entry.name = word.encode("utf-8", "replace").decode()
        return numbers[word]
