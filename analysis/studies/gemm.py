"""Many small matrix products, or one merged? The same FLOPs and output, in how much of the time?"""

from pathlib import Path
from typing import Any

from analysis.display.metrics import CONFIDENCE
from analysis.display.terminal import Answer, Column, Part, Rows, digits, with_interval
from analysis.statistics import inside_run
from analysis.statistics.estimates import Estimate
from analysis.studies.result import Result, columns_of, interval_columns, interval_shown, timing

STAGE = "forward"
_SEPARATE, _MERGED = "separate", "merged"
_FIGURES = ("inputs", "hidden", "batch", "gates", "steps", "products")


def answer(result: Result, _own_peaks: Path | None = None) -> Answer:
    """A row a device, size and way; ``gain`` is the separate products' time over the merged one's."""
    rows = rows_of(result)
    devices = ", ".join(dict.fromkeys(row["device"] for row in rows))
    shown = [
        Column("device", lambda row: row["device"], left=True, key=True),
        Column("inputs", lambda row: int(row["inputs"])),
        Column("hidden", lambda row: int(row["hidden"]), key=True),
        Column("products", lambda row: row["way"], left=True, key=True),
        Column("batch", lambda row: int(row["batch"])),
        Column("calls", lambda row: int(row["products"])),
        interval_shown("time\nms", "time"),
        Column("GFLOP/s", lambda row: digits(row["flops_per_s"] and row["flops_per_s"] / 1e9)),
        Column(
            f"gain\n[{CONFIDENCE}]",
            lambda row: with_interval(row["gain"], row["gain_low"], row["gain_high"], 2),
        ),
        Column("same\noutput", lambda row: "yes" if row["same_output"] else "no", left=True),
    ]
    part = Part(f"Products of a recurrent layer's gates, on {devices}", rows, shown, timing(result.manifest))
    return Answer(rows, columns_of(rows), [part], notes=verdicts(rows))


def rows_of(result: Result) -> Rows:
    """The data; the gain stands beside the merged product."""
    rows = []
    for key in result.keys:
        case, device = key
        way = case.rpartition(" ")[2]
        row: dict[str, Any] = {"device": device, "way": way}
        row |= {name: result.quantity(key, name) for name in _FIGURES}
        row["inputs"] = row["inputs"] or row["hidden"]  # what older results do not say
        found = result.estimate(key, [STAGE])
        flops = result.quantity(key, "flops")
        row |= interval_columns("time", found)
        row["flops_per_s"] = flops / found.value * 1e3 if found and flops else None
        gained = gain(result, device, case) if way == _MERGED else None
        row |= {
            "gain": gained and gained.value,
            "gain_low": gained and gained.low,
            "gain_high": gained and gained.high,
        }
        row["same_output"] = bool(result.quantity(key, "same_output"))
        row["largest_difference"] = result.quantity(key, "largest_difference")
        rows.append(row)
    return rows


def gain(result: Result, device: str, merged: str) -> Estimate:
    """The separate products' time over the merged one's, repetition by repetition, taken in turns."""
    separate = result.durations[merged.replace(_MERGED, _SEPARATE), device][STAGE]
    return inside_run.of_median(separate / result.durations[merged, device][STAGE])


def verdicts(rows: Rows) -> list[str]:
    """What is to be said of each device and size."""
    return [_verdict(row) for row in rows if row["way"] == _MERGED]


def _verdict(row: dict[str, Any]) -> str:
    spread = with_interval(row["gain"], row["gain_low"], row["gain_high"], 2)
    what = f"On {row['device']}, hidden {row['hidden']:.0f}: {row['gates']:.0f} products merged into one"
    if row["gain_low"] > 1:
        said = f"are {spread} times as fast"
    elif row["gain_high"] < 1:
        said = f"are slower: {spread} times as fast"
    elif row["gain_low"] <= 1 <= row["gain_high"]:
        said = f"are not told apart in time ({spread})"
    else:
        said = f"are {spread} times as fast, by too few repetitions to be sure"
    same = "" if row["same_output"] else f"; the outputs differ by {row['largest_difference']:.3g}"
    return f"{what} {said}{same}."
