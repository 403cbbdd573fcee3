"""Roofline of kernels: arithmetic intensity, the roof above it, and the share of that roof.

The roofline model (Williams, Waterman, Patterson 2009): work of F FLOPs over B bytes takes no less than
F over the peak FLOP rate, nor B over the memory's bandwidth. Its arithmetic intensity F / B says which of the
two is more: from the *ridge* (peak over bandwidth) on the arithmetic bounds it, below that the bandwidth.

Bytes are tensors read plus tensors written. What a cache keeps is not taken off, so that a kernel whose
tensors stay in a cache can pass 100 % of the roof of the memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.display.metrics import Metric, names_of
from analysis.measures.peaks import Bound

METRICS = (
    Metric("intensity_flop_per_byte", "arithmetic intensity: FLOPs divided by bytes", "FLOP/\nbyte"),
    Metric("bound", "compute or bandwidth: the roof that limits this intensity", "bound by", text=True),
    Metric("roof_pct", "shortest time by the datasheet's roof over actual time", "of roof\n%", places=1),
    Metric("roof_of_measured_pct", "the same by the roof measured here", "of measured\nroof %", places=1),
)
COLUMNS = tuple(names_of(METRICS))
COMPUTE, BANDWIDTH = "compute", "bandwidth"
# From here on it is not that roof that bounds: clocks and measured peaks are some per cent off, and no more.
ABOVE_PCT = 110.0


@dataclass(frozen=True)
class Roof:
    """What a device can do at best; FLOP/s and bytes/s."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge_flop_per_byte(self) -> float:
        return self.flops_per_s / self.bytes_per_s

    def at(self, intensity_flop_per_byte: float) -> float:
        """The FLOP rate that an intensity allows, FLOP/s."""
        return min(self.flops_per_s, intensity_flop_per_byte * self.bytes_per_s)

    def least_s(self, flops: float, moved_bytes: float) -> float:
        """The time below which this work cannot be done, in s."""
        return max(flops / self.flops_per_s, moved_bytes / self.bytes_per_s)


def roofs(bound: Bound) -> tuple[Roof | None, Roof | None]:
    """The roofs of a device by its datasheet and as measured; None without both peaks."""
    return (
        _roof(bound.flops_per_s, bound.bytes_per_s),
        _roof(bound.measured_flops_per_s, bound.measured_bytes_per_s),
    )


def _roof(flops_per_s: float | None, bytes_per_s: float | None) -> Roof | None:
    return Roof(flops_per_s, bytes_per_s) if flops_per_s and bytes_per_s else None


def place(flops: float, moved_bytes: float, time_ns: float, bound: Bound) -> dict[str, Any]:
    """:data:`COLUMNS` of work that took ``time_ns``; None in all if it moved no known bytes.

    ``bound`` is by the datasheet's roof, by the measured one if the datasheet is not known. The percentages
    are the least time by either roof over the time it took: of work that the arithmetic bounds its FLOPS
    efficiency, of work that the memory bounds its bandwidth efficiency.
    """
    if not (moved_bytes > 0 and time_ns > 0):
        return dict.fromkeys(COLUMNS)
    intensity = flops / moved_bytes
    datasheet, measured = roofs(bound)
    decides = datasheet or measured
    which = None
    if decides:
        which = COMPUTE if intensity >= decides.ridge_flop_per_byte else BANDWIDTH
    shares = [
        100 * roof.least_s(flops, moved_bytes) / time_ns * 1e9 if roof else None
        for roof in (datasheet, measured)
    ]
    return dict(zip(COLUMNS, (intensity, which, *shares), strict=True))


def share_of(row: Mapping[str, Any]) -> float | None:
    """A row's share of its roof, %: of the datasheet's, of the measured one if that is not known."""
    return _of_peak(row, "roof")


def flops_efficiency_of(row: Mapping[str, Any]) -> float | None:
    """A row's FLOP rate in % of the datasheet's peak, of the measured one if that is not known."""
    return _of_peak(row, "flops_efficiency")


def _of_peak(row: Mapping[str, Any], name: str) -> float | None:
    of_datasheet, of_measured = row.get(f"{name}_pct"), row.get(f"{name}_of_measured_pct")
    share = of_measured if of_datasheet is None else of_datasheet
    return None if share is None else float(share)
