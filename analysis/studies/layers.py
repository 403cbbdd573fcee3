"""What does a layer cost, and where does it stand on the roofline?

The roofline is that of :mod:`analysis.measures.kernels.roofline`, for each stage of a layer alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.display.terminal import Answer, Column, Part, Rows, digits
from analysis.measures.kernels import peaks, roofline
from analysis.measures.kernels.costs import Bound
from analysis.studies.result import Key, Result, columns_of, interval_columns, interval_shown, timing

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
        for name in ("peak_memory_bytes", "retained_memory_bytes"):
            row[name] = result.quantity(key, name)
        row["idle_power_w"] = result.quantity((PEAKS, device), "idle_w")
        for name, unit in (("power", "w"), ("energy_above_idle", "j")):
            row[f"{name}_{unit}"] = result.quantity(key, f"{name}_{unit}")
            row[f"{name}_low_{unit}"], row[f"{name}_high_{unit}"] = result.spread(key, f"{name}_{unit}")
        for name in STAGES:
            row |= _place(result, key, name, row[f"{name}_ms"], own_peaks)
        rows.append(row)
    return rows


def _place(
    result: Result, key: Key, stage: str, duration_ms: float | None, own_peaks: Path | None
) -> dict[str, Any]:
    """Where a stage stands beside the rooflines of the measured peaks and of the datasheet's."""
    flops, moved = (result.quantity(key, f"{stage}_{name}") for name in ("flops", "bytes"))
    measured = (result.quantity((PEAKS, key[1]), name) for name in ("flops_per_s", "bytes_per_s"))
    sheet = peaks.find(key[1], own_peaks)
    datasheet = (sheet.flops_per_s.get("fp32"), sheet.bytes_per_s) if sheet else (None, None)
    seconds = duration_ms / 1e3 if duration_ms else None
    place: dict[str, Any] = dict.fromkeys(roofline.COLUMNS)
    if flops is not None and moved is not None and seconds:
        place = roofline.place(flops, moved, seconds * 1e9, Bound(key[1], *datasheet, *measured))
    return {
        f"{stage}_flops": flops,
        f"{stage}_bytes": moved,
        f"{stage}_tflops_per_s": flops / seconds / 1e12 if flops is not None and seconds else None,
        f"{stage}_gb_per_s": moved / seconds / _GIGA if moved is not None and seconds else None,
        **{f"{stage}_{name}": value for name, value in place.items()},
    }


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
        interval_shown("power, W\n[range]", "power", "w"),
        interval_shown("energy above\nidle, J [range]", "energy_above_idle", "j"),
    ]
    stages = [{**_of_stage(row, stage), "stage": stage} for row in rows for stage in STAGES]
    places = [
        first[0],
        Column("stage", lambda row: row["stage"], left=True, key=True),
        Column("GFLOP", lambda row: _over(row["flops"], _GIGA)),
        Column("GB", lambda row: _over(row["bytes"], _GIGA)),
        Column("FLOP\na byte", lambda row: row["intensity_flop_per_byte"]),
        Column("TFLOP/s", lambda row: row["tflops_per_s"]),
        Column("GB/s", lambda row: row["gb_per_s"]),
        Column("bound by", lambda row: row["bound"], left=True),
        Column("of the roof\n%", lambda row: row["roof_of_measured_pct"]),
        Column("of the\ndatasheet's %", lambda row: row["roof_pct"]),
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
        _of_roof(stage, row[f"{stage}_bound"], share)
        for stage in STAGES
        if (share := row[f"{stage}_roof_pct"] or row[f"{stage}_roof_of_measured_pct"])
    ]
    return f"{text}; {', '.join(places)}." if places else f"{text}."


def _of_roof(stage: str, bound: str, share: float) -> str:
    """How near a stage is to its roof; none passes it, but tensors in a cache move less than they hold."""
    if share <= roofline.ABOVE_PCT:
        return f"{stage} {digits(share, 2)} % of what {bound} allows"
    if bound == roofline.BANDWIDTH:
        return f"{stage} not bound by memory (its tensors would be {digits(share, 2)} % of the bandwidth)"
    return f"{stage} at {digits(share, 2)} % of the peak, which is therefore not the device's"


def _energy_absent(result: Result, key: Key) -> str:
    if result.quantity(key, "idle_w") is not None:
        return ""
    return f"No power or energy: {result.note(key, 'idle_w') or 'no meter was read'}."
