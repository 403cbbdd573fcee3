"""What does a layer cost, and where does it stand on the roofline?

The roofline (Williams, Waterman and Patterson, *Communications of the ACM* 52(4), 2009): a stage of so many
FLOPs a byte can do no more FLOP/s than the memory bandwidth feeds, nor more than the peak.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis import peaks
from analysis.studies.result import Key, Result, columns_of, interval_columns, interval_shown, timing
from analysis.terminal import Answer, Column, Part, Rows, digits

STAGES = ("forward", "backward")
PEAKS = "peaks"  # the case that holds the device's
_MIB, _GIGA = 1 << 20, 1e9


def answer(result: Result, own_peaks: Path | None = None) -> Answer:
    """A row a layer: time, memory, power and energy; of each stage FLOPs, bytes and its place."""
    rows = rows_of(result, own_peaks)
    notes = [sentence(row) for row in rows if row["forward_ms"] is not None]
    notes += [_energy_absent(result, key) for key in result.keys if key[0] == PEAKS]
    return Answer(rows, columns_of(rows), _parts(result, rows), notes=[note for note in notes if note])


def rows_of(result: Result, own_peaks: Path | None = None) -> Rows:
    """The data; columns end in their units. What is not known is None."""
    rows = []
    for key in result.keys:
        case, device = key
        if case == PEAKS:
            continue
        layer, _, shape = case.rpartition("@")
        row: dict[str, Any] = {"layer": layer, "input": shape, "device": device}
        for name in STAGES:
            row |= interval_columns(name, result.estimate(key, [name]))
        for name in ("peak_memory_bytes", "retained_memory_bytes", "power_w"):
            row[name] = result.quantity(key, name)
        row["idle_power_w"] = result.quantity((PEAKS, device), "idle_w")
        row["energy_above_idle_j"] = result.quantity(key, "energy_above_idle_j")
        for name in STAGES:
            row |= _place(result, key, name, row[f"{name}_ms"], own_peaks)
        rows.append(row)
    return rows


def _place(
    result: Result, key: Key, stage: str, duration_ms: float | None, own_peaks: Path | None
) -> dict[str, Any]:
    """Where a stage stands: beside the roofline of the measured peaks, and beside the datasheet's."""
    flops, moved = (result.quantity(key, f"{stage}_{name}") for name in ("flops", "bytes"))
    measured = tuple(result.quantity((PEAKS, key[1]), name) for name in ("flops_per_s", "bytes_per_s"))
    sheet = peaks.find(key[1], own_peaks)
    datasheet = (sheet.flops_per_s.get("fp32"), sheet.bytes_per_s) if sheet else (None, None)
    seconds = duration_ms / 1e3 if duration_ms else None
    return {
        f"{stage}_flops": flops,
        f"{stage}_bytes": moved,
        f"{stage}_flops_per_byte": flops / moved if flops is not None and moved else None,
        f"{stage}_tflops_per_s": flops / seconds / 1e12 if flops is not None and seconds else None,
        f"{stage}_gb_per_s": moved / seconds / _GIGA if moved is not None and seconds else None,
        f"{stage}_bound": bound(flops, moved, *measured),
        f"{stage}_roofline_pct": roofline_pct(flops, moved, seconds, *measured),
        f"{stage}_roofline_of_datasheet_pct": roofline_pct(flops, moved, seconds, *datasheet),
    }


def least_seconds(
    flops: float | None, moved: float | None, flops_per_s: float | None, bytes_per_s: float | None
) -> tuple[float, float] | None:
    """(for the arithmetic, for the memory traffic), at the peaks; None if one is not known."""
    if flops is None or moved is None or not flops_per_s or not bytes_per_s:
        return None
    return flops / flops_per_s, moved / bytes_per_s


def bound(
    flops: float | None, moved: float | None, flops_per_s: float | None, bytes_per_s: float | None
) -> str | None:
    """Under which part of the roof a stage is: ``memory`` or ``compute``."""
    least = least_seconds(flops, moved, flops_per_s, bytes_per_s)
    return None if least is None else "compute" if least[0] > least[1] else "memory"


def roofline_pct(
    flops: float | None,
    moved: float | None,
    seconds: float | None,
    flops_per_s: float | None,
    bytes_per_s: float | None,
) -> float | None:
    """What the roof allows over what was measured, %: 100 is on the roof.

    Above it is a stage whose data fit in a cache, or whose algorithm needs fewer FLOPs than are counted.
    """
    least = least_seconds(flops, moved, flops_per_s, bytes_per_s)
    return 100 * max(least) / seconds if least and seconds else None


def _parts(result: Result, rows: Rows) -> list[Part]:
    first = [
        Column("layer", lambda row: row["layer"], left=True, key=True),
        Column("input", lambda row: row["input"], left=True),
    ]
    costs = [
        *first,
        interval_shown("forward\nms", "forward"),
        interval_shown("backward\nms", "backward"),
        Column("peak\nMiB", lambda row: _over(row["peak_memory_bytes"], _MIB)),
        Column("retained\nMiB", lambda row: _over(row["retained_memory_bytes"], _MIB)),
        Column("power\nW", lambda row: row["power_w"]),
        Column("energy\nabove\nidle J", lambda row: row["energy_above_idle_j"]),
    ]
    stages = [{**_of_stage(row, stage), "stage": stage} for row in rows for stage in STAGES]
    places = [
        first[0],
        Column("stage", lambda row: row["stage"], left=True, key=True),
        Column("GFLOP", lambda row: _over(row["flops"], _GIGA)),
        Column("GB", lambda row: _over(row["bytes"], _GIGA)),
        Column("FLOP\na byte", lambda row: row["flops_per_byte"]),
        Column("TFLOP/s", lambda row: row["tflops_per_s"]),
        Column("GB/s", lambda row: row["gb_per_s"]),
        Column("bound by", lambda row: row["bound"], left=True),
        Column("of the roof\n%", lambda row: row["roofline_pct"]),
        Column("of the\ndatasheet's %", lambda row: row["roofline_of_datasheet_pct"]),
    ]
    device = ", ".join(dict.fromkeys(row["device"] for row in rows))
    return [
        Part(f"What a layer costs on {device}", rows, costs, timing(result.manifest)),
        Part("Where it stands on the roofline", stages, places, _peaks_shown(result)),
    ]


def _of_stage(row: Mapping[str, Any], stage: str) -> dict[str, Any]:
    names = [name for name in row if name.startswith(f"{stage}_")]
    return {**row, **{name.removeprefix(f"{stage}_"): row[name] for name in names}}


def _over(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _peaks_shown(result: Result) -> str:
    shown = []
    for key in result.keys:
        flops, moved = result.quantity(key, "flops_per_s"), result.quantity(key, "bytes_per_s")
        if key[0] == PEAKS and flops and moved:
            shown.append(f"{digits(flops / 1e12)} TFLOP/s and {digits(moved / _GIGA)} GB/s on {key[1]}")
    return f"The roof: peaks measured just before, {'; '.join(shown)}, fp32." if shown else ""


def sentence(row: Mapping[str, Any]) -> str:
    """What a layer's figures say."""
    text = (
        f"{row['layer']}: {digits(row['forward_ms'])} ms forward and {digits(row['backward_ms'])} ms backward"
    )
    places = [
        f"{stage} {digits(row[f'{stage}_roofline_pct'], 2)} % of what {row[f'{stage}_bound']} allows"
        for stage in STAGES
        if row[f"{stage}_bound"] and row[f"{stage}_roofline_pct"]
    ]
    return f"{text}; {', '.join(places)}." if places else f"{text}."


def _energy_absent(result: Result, key: Key) -> str:
    if result.quantity(key, "idle_w") is not None:
        return ""
    return f"No power or energy: {result.note(key, 'idle_w') or 'no meter was read'}."
