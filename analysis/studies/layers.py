"""What does a layer cost, and where does it stand on the roofline?

The roofline is that of :mod:`analysis.measures.kernels.roofline`, for each stage of a layer alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.display.metrics import RANGE, Metric, Rows, columns
from analysis.display.numbers import digits
from analysis.display.terminal import Answer, Part
from analysis.measures.kernels import peaks, roofline
from analysis.measures.kernels.costs import Bound
from analysis.studies.result import Key, Result, in_units, interval_columns, timed, timing
from profiling.schemas import PASSES

PEAKS = "peaks"  # the case that holds the device's
_MIB, _GIGA = 1 << 20, 1e9


# What is said of each stage, whose name stands before it in the data: ``forward_flops``.
_OF_A_STAGE = (
    Metric("flops", "FLOPs, by the formulas of profiling/cost/operators.py", "GFLOP", show=in_units(_GIGA)),
    Metric("bytes", "bytes of tensors read and written, by the same formulas", "GB", show=in_units(_GIGA)),
    Metric("tflops_per_s", "FLOPs divided by duration", "TFLOP/s"),
    Metric("gb_per_s", "bytes divided by duration", "GB/s"),
    Metric("intensity_flop_per_byte", "FLOPs divided by bytes", "FLOP\nper byte"),
    Metric("bound", "compute or bandwidth: the roof that limits it", "bound by", text=True),
    Metric(
        "roof_pct",
        "achieved share of the roof, with the datasheet's peaks",
        "of the\ndatasheet's %",
    ),
    Metric(
        "roof_of_measured_pct",
        "the same, with peaks measured just before by a matrix product and a copy; above 100 %: data "
        "stayed in a cache, or the algorithm needs fewer FLOPs than are counted",
        "of the roof\n%",
    ),
)
METRICS = (
    Metric("layer", "layer of torch.nn", text=True, key=True),
    Metric("input", "shape of the input", text=True),
    Metric("device", "where", text=True),
    timed("forward", "duration of the forward pass, median over repetitions"),
    timed("backward", "duration of the backward pass, median over repetitions"),
    Metric(
        "peak_memory_bytes",
        "peak memory of both passes, gradients included, without input and weights",
        "peak\nMiB",
        show=in_units(_MIB),
    ),
    Metric(
        "retained_memory_bytes",
        "memory that the forward pass keeps for the backward pass, output included",
        "retained\nMiB",
        show=in_units(_MIB),
    ),
    Metric("idle_power_w", "power before the study starts"),
    timed(
        "power",
        "mean power over five seconds of repeating both passes; range over five measurements",
        "w",
        "power\nW",
        RANGE,
    ),
    timed(
        "energy_above_idle",
        "energy above idle power per repetition of both passes",
        "j",
        "energy above\nidle, J",
        RANGE,
    ),
    *(
        replace(metric, name=f"{stage}_{metric.name}", meaning=f"{stage}: {metric.meaning}")
        for stage in PASSES
        for metric in _OF_A_STAGE
    ),
)


def answer(result: Result, own_peaks: Path | None = None) -> Answer:
    """A row a layer: time, memory, power and energy; of each stage FLOPs, bytes and its place."""
    rows = rows_of(result, own_peaks)
    notes = [sentence(row) for row in rows if row["forward_ms"] is not None]
    notes += [_energy_absent(result, key) for key in result.keys if key[0] == PEAKS]
    return Answer(rows, METRICS, _parts(result, rows), notes=[note for note in notes if note])


def rows_of(result: Result, own_peaks: Path | None = None) -> Rows:
    """The data; columns end in their units. What is not known is None."""
    rows = []
    for key in result.keys:
        case, device = key
        if case == PEAKS:
            continue
        layer, _, shape = case.rpartition("@")
        row: dict[str, Any] = {"layer": layer, "input": shape, "device": device}
        for name in PASSES:
            row |= interval_columns(name, result.estimate(key, [name]))
        for name in ("peak_memory_bytes", "retained_memory_bytes"):
            row[name] = result.quantity(key, name)
        row["idle_power_w"] = result.quantity((PEAKS, device), "idle_w")
        for name, unit in (("power", "w"), ("energy_above_idle", "j")):
            row[f"{name}_{unit}"] = result.quantity(key, f"{name}_{unit}")
            row[f"{name}_low_{unit}"], row[f"{name}_high_{unit}"] = result.spread(key, f"{name}_{unit}")
        for name in PASSES:
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
    costs = columns(
        METRICS, "layer", "input", "forward_ms", "backward_ms", "peak_memory_bytes", "retained_memory_bytes",
        "power_w", "energy_above_idle_j",
    )  # fmt: skip
    stages = [{**_of_stage(row, stage), "stage": stage} for row in rows for stage in PASSES]
    places = columns(
        (METRICS[0], Metric("stage", "forward or backward", text=True, key=True), *_OF_A_STAGE),
        "layer", "stage", "flops", "bytes", "intensity_flop_per_byte", "tflops_per_s", "gb_per_s", "bound",
        "roof_of_measured_pct", "roof_pct",
    )  # fmt: skip
    device = ", ".join(dict.fromkeys(row["device"] for row in rows))
    return [
        Part(f"What a layer costs on {device}", rows, costs, timing(result.manifest)),
        Part("Roofline of each layer", stages, places, _peaks_shown(result)),
    ]


def _of_stage(row: Mapping[str, Any], stage: str) -> dict[str, Any]:
    names = [name for name in row if name.startswith(f"{stage}_")]
    return {**row, **{name.removeprefix(f"{stage}_"): row[name] for name in names}}


def _peaks_shown(result: Result) -> str:
    shown = []
    for key in result.keys:
        flops, moved = result.quantity(key, "flops_per_s"), result.quantity(key, "bytes_per_s")
        if key[0] == PEAKS and flops and moved:
            shown.append(f"{digits(flops / 1e12)} TFLOP/s and {digits(moved / _GIGA)} GB/s on {key[1]}")
    return f"Peaks for the roofs, measured just before: {'; '.join(shown)}, fp32." if shown else ""


def sentence(row: Mapping[str, Any]) -> str:
    """What a layer's figures say."""
    text = (
        f"{row['layer']}: {digits(row['forward_ms'])} ms forward and {digits(row['backward_ms'])} ms backward"
    )
    places = [
        _of_roof(stage, row[f"{stage}_bound"], share)
        for stage in PASSES
        if (share := row[f"{stage}_roof_pct"] or row[f"{stage}_roof_of_measured_pct"])
    ]
    return f"{text}; {', '.join(places)}." if places else f"{text}."


def _of_roof(stage: str, bound: str, share: float) -> str:
    """How near a stage is to its roof; none passes it, but tensors in a cache move less than they hold."""
    if share <= roofline.ABOVE_PCT:
        return f"{stage} {digits(share, 2)} % of the {bound} limit"
    if bound == roofline.BANDWIDTH:
        return f"{stage} not memory-bound (its tensors would need {digits(share, 2)} % of the bandwidth)"
    return f"{stage} at {digits(share, 2)} % of the measured peak, which is therefore not the device's peak"


def _energy_absent(result: Result, key: Key) -> str:
    if result.quantity(key, "idle_w") is not None:
        return ""
    return f"No power or energy: {result.note(key, 'idle_w') or 'no meter was read'}."
