"""Which rank converts what, and how do the others know of it?

By the records of what became of files (:mod:`profiling.traces.records`) rank 0 learns what the other ranks
have done, and, after a node was lost or a job ended, the next call what this one has.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from profiling.identity import Identity
from profiling.traces.one_unit import convert_unit
from profiling.traces.records import SCRATCH, Unit, kept, kept_record
from profiling.traces.unchanged import records_left

_BUSY = "busy"
_BEAT_S, _LOOK_S = 5.0, 0.5
# Without a beat of any rank that has something to do; file systems of clusters show changes late.
LOST_S = 60.0


def not_kept(units: Sequence[Unit], launch: str = "") -> list[Unit]:
    """Those of which nothing is known."""
    return [unit for unit in units if kept(unit, launch) is None]


def kept_before(units: Sequence[Unit], launch: str = "") -> int:
    """How many units an earlier call has converted: other ranks of this launch may be ahead of this one."""
    records = [record for unit in units if (record := kept_record(unit)) and record.is_whole]
    return sum(not launch or record.launch != launch for record in records)


def is_unfinished(out: Path) -> bool:
    """Whether a conversion into this folder was ended before it was complete."""
    return any(out.glob(f"{SCRATCH}*"))


def share_of(me: Identity, units: Sequence[Unit]) -> list[Unit]:
    """The units that a rank converts: the largest are dealt first, as cards are."""
    sizes = {unit.path: unit.size for unit in units}
    return sorted(units, key=lambda unit: (-sizes[unit.path], unit.path))[me.rank :: me.size]


def convert_share(me: Identity, units: Sequence[Unit], launch: str) -> None:
    """Convert what is this rank's; each outcome is left beside the tables."""
    mine = share_of(me, units)
    for unit, left in zip(mine, records_left(mine), strict=True):
        with busy_with(unit):
            convert_unit(unit, launch, left)


@contextmanager
def busy_with(unit: Unit) -> Iterator[None]:
    """While a rank works on a unit, a file in its scratch folder is touched now and then.

    The folder may not be there yet: the first rows of a large trace come late.
    """
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT_S):
            with suppress(OSError):
                unit.scratch.mkdir(parents=True, exist_ok=True)
                (unit.scratch / _BUSY).touch()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for_others(units: Sequence[Unit], launch: str) -> list[Unit]:
    """Wait until all units have been tried by ``launch``, or none of the ranks that try them lives.

    Returns:
        Those that have not been tried.
    """
    signs: list[float] = []
    last_sign = time.monotonic()
    while left := not_kept(units, launch):
        units = left
        now = [_last_beat(unit) for unit in left]
        if now != signs:
            signs, last_sign = now, time.monotonic()
        if time.monotonic() - last_sign > LOST_S:
            break
        time.sleep(_LOOK_S)
    return left


def _last_beat(unit: Unit) -> float:
    try:
        return (unit.scratch / _BUSY).stat().st_mtime
    except OSError:
        return 0.0
