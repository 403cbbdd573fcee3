"""What fits in one device, and how is a larger network divided between two?"""

import re
from pathlib import Path
from typing import Any

from analysis.display.metrics import Metric, Rows, columns
from analysis.display.numbers import digits
from analysis.display.terminal import Answer, Part
from analysis.studies.result import (
    Key,
    Result,
    in_units,
    interval_columns,
    not_none,
    timed,
    timing,
    yes_or_no,
)
from profiling.schemas import PASSES, SPLIT_STEP
from profiling.wording import how_many, verb

# Of a step (train.studies.attempt); a stage's own are those in which it computes.
_MIB = 1 << 20
_SPLIT = re.compile(r"(?P<network>\d+\+\d+) split after (?P<place>\d+)")
METRICS = (
    Metric("layers", "convolutions + linear layers", text=True, key=True),
    Metric("devices", "number of devices the network is split over"),
    Metric("device", "where", text=True, key=True),
    Metric("split_after", "with two devices: number of layers on the first"),
    Metric("chosen", "with two devices: whether this is the best-balanced split"),
    Metric("convolutions", "convolutions on this device", "convo-\nlutions"),
    Metric("linears", "linear layers on this device"),
    Metric(
        "fits",
        "no: PyTorch, C++ or Python ran out of memory, or the kernel killed the process",
        show=yes_or_no,
        text=True,
    ),
    Metric("boundary", "largest network that fits, smallest that does not", text=True),
    timed("step", "duration of a step: forward, mean of squares, backward and plain SGD"),
    Metric(
        "step_on_devices",
        "number of devices the step was timed on (for the first network that does not fit: the chosen split)",
        "timed on\ndevices",
    ),
    timed("own", "computation of this device, part of step_ms", header="its own\nms"),
    Metric("limit_bytes", "memory limit", "limit\nMiB", show=in_units(_MIB)),
    Metric("base_bytes", "memory in use before the network is built", "base\nMiB", show=in_units(_MIB)),
    Metric("peak_memory_bytes", "peak memory during a step", "peak\nMiB", show=in_units(_MIB)),
    Metric("held_bytes", "memory held in fragments by PyTorch's allocator", "held\nMiB", show=in_units(_MIB)),
    Metric("free_bytes", "limit minus peak and held memory", "free\nMiB", show=in_units(_MIB)),
    Metric("reason", "reason why it does not fit", "why not", show=lambda reason: reason[:60], text=True),
    Metric("why_free", "reason why the chosen split leaves so much memory free", "why it is free", text=True),
)
# Columns, by what the result calls them.
_BYTES = {"limit_bytes": "limit_bytes", "base_bytes": "base_bytes", "peak_bytes": "peak_memory_bytes",
          "held_bytes": "held_bytes"}  # fmt: skip


def answer(result: Result, _own_peaks: Path | None = None) -> Answer:
    """A row a try and device: the networks tried on one device, then the splits over two."""
    rows = rows_of(result)
    return Answer(rows, METRICS, _parts(result, rows), notes=verdicts(result, rows))


def rows_of(result: Result) -> Rows:
    """The data, by the number of layers; ``boundary`` says which tries are on either side of it."""
    one = [_row(result, key) for key in result.keys if not _SPLIT.fullmatch(key[0])]
    one.sort(key=_layers)
    fit = [row for row in one if row["fits"]]
    wanting = [row for row in one if not row["fits"]]
    if fit:
        fit[-1]["boundary"] = "largest that fits"
    if wanting:
        wanting[0]["boundary"] = "smallest that does not"
    two = [_row(result, key) for key in result.keys if _SPLIT.fullmatch(key[0])]
    for row in two:
        if row["chosen"]:
            other = next(o for o in two if o["split_after"] == row["split_after"] and o is not row)
            balance = str(result.manifest.settings.get("balance"))
            row["why_free"] = why_free(row, other, balance, layer_bytes(fit))
    if wanting and (chosen := [row for row in two if row["chosen"]]):
        # On its far side the boundary has a time too: over two devices.
        for name in ("step_ms", "step_low_ms", "step_high_ms", "step_on_devices"):
            wanting[0][name] = chosen[0][name]
    return [*one, *two]


def _row(result: Result, key: Key) -> dict[str, Any]:
    case, device = key
    split = _SPLIT.fullmatch(case)
    sizes = {column: result.quantity(key, name) for name, column in _BYTES.items()}
    limit, peak, held = (sizes[name] for name in ("limit_bytes", "peak_memory_bytes", "held_bytes"))
    fits = result.quantity(key, "fits") == 1
    step = interval_columns("step", result.estimate(key, SPLIT_STEP))
    return {
        "layers": split["network"] if split else case,
        "devices": 2 if split else 1,
        "device": device,
        "split_after": int(split["place"]) if split else None,
        "chosen": result.quantity(key, "chosen") == 1 if split else None,
        "convolutions": int(result.quantity(key, "convolutions") or 0),
        "linears": int(result.quantity(key, "linears") or 0),
        "fits": fits,
        "boundary": "",
        **step,
        "step_on_devices": (2 if split else 1) if step["step_ms"] is not None else None,
        **interval_columns("own", result.estimate(key, PASSES)),
        **sizes,
        "free_bytes": limit - peak - (held or 0) if fits and limit and peak else None,
        "reason": result.note(key, "fits"),
        "why_free": "",
    }


def _layers(row: dict[str, Any]) -> int:
    return int(row["convolutions"] + row["linears"])


def layer_bytes(fit: Rows) -> float | None:
    """What one layer more takes, by the smallest and the largest network that fit; None if one alone does."""
    if len(fit) < 2:
        return None
    layers = [row["convolutions"] + row["linears"] for row in (fit[0], fit[-1])]
    return (fit[-1]["peak_memory_bytes"] - fit[0]["peak_memory_bytes"]) / (layers[1] - layers[0])


def why_free(
    row: dict[str, Any], other: dict[str, Any], balance: str, more_bytes: float | None = None
) -> str:
    """Why so much of a device is left free by the chosen split.

    Args:
        more_bytes: what one layer more takes; by default what one takes on average, input and loss included.
    """
    if not not_none([row["free_bytes"], other["free_bytes"]]):
        return ""
    own, others = (side["peak_memory_bytes"] - side["base_bytes"] for side in (row, other))
    layers = row["convolutions"] + row["linears"]
    less = (others - own) / _MIB
    one_layer = (more_bytes or own / layers) / _MIB
    room = int(row["free_bytes"] / _MIB / one_layer) if one_layer > 0 else 0
    takes = f"its {how_many(layers, 'layer')} {verb(layers, 'take')} {digits(own / _MIB)} MiB"
    text = f"{takes}, input and loss included: room for {room} more"
    if less > 0 and balance == "time":
        text += f"; {digits(less)} MiB less than on the other, since the split balances time"
    elif less > 0:
        text += f"; {digits(less)} MiB less than on the other, since layers are not divided"
    held = row["held_bytes"] or 0
    if held > one_layer * _MIB:
        text += f"; {digits(held / _MIB)} MiB more is held by PyTorch's allocator"
    return text


def _parts(result: Result, rows: Rows) -> list[Part]:
    one = [row for row in rows if row["devices"] == 1]
    two = [row for row in rows if row["chosen"]]
    sizes = ("base_bytes", "peak_memory_bytes", "free_bytes")
    tried = columns(METRICS, "layers", "fits", "boundary", "step_ms", "step_on_devices", *sizes, "reason")
    laid = columns(METRICS, "layers", "device", "convolutions", "linears", "own_ms", *sizes, "why_free")
    limit = next(iter(not_none(row["limit_bytes"] for row in one)), None)
    title = f"What fits in {digits(limit / _MIB) if limit else '?'} MiB of {one[0]['device'] if one else '?'}"
    caption = (
        f"{timing(result.manifest)} Network: convolutions + linear layers; base: memory in use before the "
        "network is built; the step beyond the limit uses two devices."
    )
    parts = [Part(title, one, tried, caption)]
    if two:
        how = result.manifest.settings.get("balance")
        parts.append(Part(f"The next network on two devices, its {how} balanced", two, laid))
    return parts


def verdicts(result: Result, rows: Rows) -> list[str]:
    """Where the boundary is, and what two devices make of the network beyond it."""
    sides = {row["boundary"]: row for row in rows if row["boundary"]}
    inside, outside = sides.get("largest that fits"), sides.get("smallest that does not")
    if not inside or not outside:
        return ["The limit was not found: every network tried fits, or none does."]
    lines = [f"{inside['layers']} layers fit in one device; {outside['layers']} do not."]
    if _layers(inside) > _layers(outside):
        lines = [
            f"{outside['layers']} layers do not fit in one device, though {inside['layers']} do: memory "
            f"is not the reason ({outside['reason'] or 'no reason was recorded'})."
        ]
    if inside["step_ms"] is not None:
        lines.append(f"A step of {inside['layers']} takes {digits(inside['step_ms'])} ms on one device.")
    chosen = [row for row in rows if row["chosen"]]
    if len(chosen) == 2:
        first, second = chosen
        if result.manifest.settings.get("balance") == "time":
            values, unit = [row["own_ms"] for row in chosen], "ms"
        else:
            values, unit = [(row["peak_memory_bytes"] - row["base_bytes"]) / _MIB for row in chosen], "MiB"
        both = " and ".join(map(digits, values))
        lines.append(
            f"{outside['layers']} on two devices: {first['convolutions']}+{first['linears']} and "
            f"{second['convolutions']}+{second['linears']} layers, {both} {unit}; a step takes "
            f"{digits(first['step_ms'])} ms."
        )
    return lines
