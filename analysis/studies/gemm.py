"""Many small matrix products, or one merged? The same FLOPs and output, in how much of the time?"""

from pathlib import Path
from typing import Any

from analysis.display.metrics import IN_RUN, Metric, Rows, columns
from analysis.display.numbers import with_interval
from analysis.display.terminal import Answer, Part
from analysis.statistics import inside_run
from analysis.statistics.estimates import Estimate
from analysis.studies.result import Result, as_count, in_units, interval_columns, timed, timing, yes_or_no

STAGE = "forward"
_SEPARATE, _MERGED = "separate", "merged"
METRICS = (
    Metric("device", "where", text=True, key=True),
    Metric("way", "separate matrix products, or one merged product", "products", text=True, key=True),
    Metric("inputs", "inputs per step: equal to hidden, or 3 N for a row of an image", show=as_count),
    Metric("hidden", "size of the hidden layer", key=True, show=as_count),
    Metric("batch", "batch size, images", show=as_count),
    Metric("gates", "products per step, if separate", show=as_count),
    Metric("time_steps", "number of time steps", show=as_count),
    Metric(
        "products",
        "matrix products per repetition: gates x time_steps, or time_steps",
        "calls",
        show=as_count,
    ),
    timed("time", "duration of all steps, median over repetitions"),
    Metric(
        "flops_per_s",
        "2 x batch x inputs x hidden x gates x time_steps divided by time_ms",
        "GFLOP/s",
        show=in_units(1e9),
    ),
    Metric(
        "speedup",
        "of the merged product: time of the separate products divided by its time, median over "
        "repetitions; significant only if the interval excludes 1",
        interval=IN_RUN,
        places=2,
    ),
    Metric(
        "same_output",
        "whether the outputs of the last step differ by less than 0.01 (a different order of summation "
        "changes the last digits)",
        "same\noutput",
        show=yes_or_no,
        text=True,
    ),
    Metric("largest_difference", "largest difference of the outputs"),
)
_FIGURES = ("inputs", "hidden", "batch", "gates", "products")


def answer(result: Result, _own_peaks: Path | None = None) -> Answer:
    """A row a device, size and way; ``speedup`` is the separate products' time over the merged one's."""
    rows = rows_of(result)
    devices = ", ".join(dict.fromkeys(row["device"] for row in rows))
    shown = columns(
        METRICS, "device", "inputs", "hidden", "way", "batch", "products", "time_ms", "flops_per_s",
        "speedup", "same_output",
    )  # fmt: skip
    part = Part(f"Products of a recurrent layer's gates, on {devices}", rows, shown, timing(result.manifest))
    return Answer(rows, METRICS, [part], notes=verdicts(rows))


def rows_of(result: Result) -> Rows:
    """The data; the speedup stands beside the merged product."""
    rows = []
    for key in result.keys:
        case, device = key
        way = case.rpartition(" ")[2]
        row: dict[str, Any] = {"device": device, "way": way}
        row |= {name: result.quantity(key, name) for name in _FIGURES}
        row["time_steps"] = result.quantity(key, "steps")
        row["inputs"] = row["inputs"] or row["hidden"]  # what older results do not say
        time = result.estimate(key, [STAGE])
        flops = result.quantity(key, "flops")
        row |= interval_columns("time", time)
        row["flops_per_s"] = flops / time.value * 1e3 if time and flops else None
        faster = speedup(result, device, case) if way == _MERGED else None
        row |= {
            "speedup": faster and faster.value,
            "speedup_low": faster and faster.low,
            "speedup_high": faster and faster.high,
        }
        row["same_output"] = bool(result.quantity(key, "same_output"))
        row["largest_difference"] = result.quantity(key, "largest_difference")
        rows.append(row)
    return rows


def speedup(result: Result, device: str, merged: str) -> Estimate:
    """The separate products' time over the merged one's, repetition by repetition, taken in turns."""
    separate = result.durations[merged.replace(_MERGED, _SEPARATE), device][STAGE]
    return inside_run.of_median(separate / result.durations[merged, device][STAGE])


def verdicts(rows: Rows) -> list[str]:
    """What is to be said of each device and size."""
    return [_verdict(row) for row in rows if row["way"] == _MERGED]


def _verdict(row: dict[str, Any]) -> str:
    spread = with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], 2)
    what = f"On {row['device']}, hidden {row['hidden']:.0f}: {row['gates']:.0f} products merged into one"
    if row["speedup_low"] > 1:
        finding = f"are {spread} times as fast"
    elif row["speedup_high"] < 1:
        finding = f"are slower: {spread} times as fast"
    elif row["speedup_low"] <= 1 <= row["speedup_high"]:
        finding = f"show no significant difference in time ({spread})"
    else:
        finding = f"are {spread} times as fast, but with too few repetitions to be sure"
    same = "" if row["same_output"] else f"; the outputs differ by {row['largest_difference']:.3g}"
    return f"{what} {finding}{same}."
