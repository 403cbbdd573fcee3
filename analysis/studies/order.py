"""Does the order of ReLU and MaxPool2d matter? The same output, in how much of the time and memory?"""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.display.metrics import IN_RUN, Metric, Rows, columns, picked
from analysis.display.numbers import digits
from analysis.display.terminal import Answer, Part
from analysis.statistics import inside_run
from analysis.statistics.estimates import Estimate
from analysis.studies.result import Result, as_count, in_units, interval_columns, timed, timing, yes_or_no
from profiling.schemas import PASSES

FIRST = "ReLU, MaxPool2d"  # the usual order, that the other is compared with
_MIB = 1 << 20
METRICS = (
    Metric("model", "name of the model", text=True),
    Metric("device", "where", text=True, key=True),
    Metric("order", "operator that comes first", text=True, key=True),
    Metric("pairs", "number of pairs of ReLU and MaxPool2d"),
    Metric("batch", "batch size, images", show=as_count),
    Metric("image_size", "height and width, in pixels", "pixels", show=as_count),
    Metric(
        "activation_memory_bytes",
        "memory of the activations that autograd keeps, shared memory counted once",
        "activations\nMiB",
        show=in_units(_MIB),
    ),
    Metric("peak_memory_bytes", "peak memory", "peak\nMiB", show=in_units(_MIB)),
    timed("forward", "duration of the forward pass, median over repetitions"),
    timed("backward", "duration of the backward pass, median over repetitions"),
    timed("step", "both", header="both\nms"),
    Metric(
        "time_ratio",
        "duration of a step divided by that of the usual order in the same repetition, median over "
        "repetitions; significant only if the interval excludes 1",
        "time relative\nto usual",
        IN_RUN,
        places=3,
    ),
    Metric(
        "same_output",
        "whether both outputs are bitwise equal (without dropout)",
        "same\noutput",
        show=yes_or_no,
        text=True,
    ),
    Metric("largest_difference", "largest difference of the outputs"),
)
_FIGURES = ("pairs", "batch", "image_size", "activation_memory_bytes", "peak_memory_bytes")


def answer(result: Result, _own_peaks: Path | None = None) -> Answer:
    """A row a device and order; the verdict compares the orders on a device."""
    rows = rows_of(result)
    devices = ", ".join(dict.fromkeys(row["device"] for row in rows))
    (ratio,) = picked(METRICS, "time_ratio")
    shown = [
        *columns(METRICS, "device", "order", "batch", "image_size", "forward_ms", "backward_ms", "step_ms"),
        ratio.column(printed=lambda row: "1" if row["order"] == FIRST else ratio.printed(row)),
        *columns(METRICS, "activation_memory_bytes", "peak_memory_bytes", "same_output"),
    ]
    model = result.manifest.settings.get("model")
    part = Part(
        f"{model}: ReLU before or after MaxPool2d, on {devices}", rows, shown, timing(result.manifest)
    )
    return Answer(rows, METRICS, [part], notes=verdicts(rows))


def rows_of(result: Result) -> Rows:
    """The data; the usual order's row comes first on each device."""
    rows = []
    for key in sorted(result.keys, key=lambda key: (key[1], key[0] != FIRST)):
        row: dict[str, Any] = {
            "model": result.manifest.settings.get("model"),
            "device": key[1],
            "order": key[0],
        }
        row |= {name: result.quantity(key, name) for name in _FIGURES}
        for name in PASSES:
            row |= interval_columns(name, result.estimate(key, [name]))
        row |= interval_columns("step", result.estimate(key, PASSES))
        quotient = ratio(result, key[1], key[0])
        row |= {
            "time_ratio": quotient.value,
            "time_ratio_low": quotient.low,
            "time_ratio_high": quotient.high,
        }
        row["same_output"] = bool(result.quantity(key, "same_output"))
        row["largest_difference"] = result.quantity(key, "largest_difference")
        rows.append(row)
    return rows


def ratio(result: Result, device: str, case: str) -> Estimate:
    """A case's time over the usual order's, repetition by repetition, which were taken in turns."""
    timed = result.durations[case, device], result.durations[FIRST, device]
    own, usual = (np.sum([stages[name] for name in PASSES], axis=0) for stages in timed)
    return inside_run.of_median(own / usual)


def verdicts(rows: Rows) -> list[str]:
    """What is to be said of each device."""
    usual = {row["device"]: row for row in rows if row["order"] == FIRST}
    return [_verdict(row, usual[row["device"]]) for row in rows if row["order"] != FIRST]


def _verdict(row: dict[str, Any], usual: dict[str, Any]) -> str:
    low, high = row["time_ratio_low"], row["time_ratio_high"]
    spread = f"[{low:.3f}, {high:.3f}]"
    if high < 1:
        time = f"the step takes {row['time_ratio']:.3f} {spread} of the time: pool first"
    elif low > 1:
        time = f"the step takes {row['time_ratio']:.3f} {spread} of the time: keep the usual order"
    elif low <= 1 <= high:
        time = f"no significant difference in time ({row['time_ratio']:.3f} {spread} of it)"
    else:
        time = "too few repetitions for a comparison of times"
    saved = (usual["activation_memory_bytes"] - row["activation_memory_bytes"]) / _MIB
    memory = (
        f"{digits(abs(saved))} MiB {'less' if saved > 0 else 'more'} memory for activations"
        if saved
        else "the same memory for activations"
    )
    same = (
        "the same output"
        if row["same_output"]
        else f"NOT the same output (they differ by {row['largest_difference']:.3g})"
    )
    return f"On {row['device']}, MaxPool2d before ReLU gives {same}; {time}; {memory}."
