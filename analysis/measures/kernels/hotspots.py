"""Which kernels take the time, and what bounds each? From a timing run and one that read counters."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.display.metrics import IN_RUN, Column, Metric, Rows, columns, filled, names_of, picked
from analysis.display.numbers import digits, shortened
from analysis.display.open_ends import WIDEST_FACTOR, has_open_interval, with_open_ends
from analysis.display.terminal import Part
from analysis.measures.kernels import hotspot_runs, of_run, roofline
from analysis.measures.kernels import rows as kernels
from analysis.measures.kernels.hotspot_runs import GROUPED_BY, Inputs
from analysis.measures.kernels.of_run import BY
from analysis.results.counted_steps import Counted
from analysis.results.source import Source
from analysis.results.study import Study
from analysis.statistics import inside_run
from jobs.run import Run
from profiling.cost.classify import classify
from profiling.errors import UserError
from profiling.readers.ncu_csv import TENSOR_KERNEL
from profiling.schemas import APART
from profiling.wording import how_many

COUNTED = (
    Metric(
        "achieved_occupancy_pct",
        "achieved occupancy: resident warps divided by the maximum",
        "occup.\n%",
        places=0,
    ),
    Metric("ipc", "instructions per cycle (per multiprocessor; on a CPU per core)", "IPC", places=2),
    Metric(
        "load_efficiency_pct",
        "bytes requested by loads divided by bytes of the sectors moved",
        "load\neff. %",
        places=0,
    ),
    Metric("store_efficiency_pct", "the same for stores", "store\neff. %", places=0),
    Metric("dram_utilization_pct", "throughput of device memory divided by its peak", "DRAM\n%", places=0),
)
METRICS = (
    replace(BY["kernel"], show=shortened),
    BY["class"],
    Metric("ms_per_step", "time per step; the interval is over the run's steps", "ms/step", IN_RUN),
    *picked(kernels.METRICS, "share_pct", "calls_per_step", "mean_us"),
    Metric("cpu_s", "CPU time of a function in the whole run, measured by VTune", "CPU\ns"),
    *COUNTED,
    Metric(
        "tensor_cores",
        "used, not used, or deduced from the kernel's name (if their instructions were not counted)",
        text=True,
    ),
    *roofline.METRICS,
    Metric("counters", "profiler that read the counters; empty: none", text=True),
    Metric("why", "what bounds the kernel, in a sentence", "bound by", text=True, priority=2),
)
_NAMES = names_of(METRICS)
COLUMNS = {"Columns, one row per kernel (on a CPU: operator), longest first:": METRICS}
# From so much of a peak on, that peak bounds; below, latency does (Nsight Compute's "speed of light" rule).
NEAR_PCT = 60.0
# A launch costs the host 2 to 10 us: a kernel as short may wait for it.
SHORT_US = 10.0
LOW_OCCUPANCY_PCT, LOW_EFFICIENCY_PCT, LOW_IPC = 25.0, 50.0, 1.0


def why(row: Mapping[str, Any]) -> str:
    """What bounds a kernel, in a sentence, by the first of these that its figures show."""
    roof = roofline.share_of(row)
    dram = row.get("dram_utilization_pct")
    if dram is not None and dram >= NEAR_PCT:
        return _memory(f"memory, at {dram:.0f} % of its throughput", row)
    if roof is not None and roof > roofline.ABOVE_PCT and row.get("bound") == "compute":
        return f"unknown: at {roof:.0f} % of the peak, either its FLOPs or the peak (--peaks) are wrong"
    if roof is not None and roof >= NEAR_PCT and row.get("bound") == "compute":
        return f"arithmetic, at {roof:.0f} % of the peak: fewer FLOPs or a lower precision would help"
    # Tensors that stay in a cache move less: counters know better, and more than all cannot be.
    if (
        roof is not None
        and NEAR_PCT <= roof <= roofline.ABOVE_PCT
        and row.get("bound") == "bandwidth"
        and dram is None
    ):
        return _memory(f"memory, at {roof:.0f} % of its bandwidth, from the bytes of its tensors", row)
    if (row.get("mean_us") or SHORT_US) < SHORT_US:
        return f"calls: each takes {row['mean_us']:.1f} us, about as long as a launch; merge some"
    wasted = [
        f"{row[name]:.0f} % of the bytes moved by {what} are used"
        for name, what in (("load_efficiency_pct", "loads"), ("store_efficiency_pct", "stores"))
        if row.get(name) is not None and row[name] < LOW_EFFICIENCY_PCT
    ]
    if wasted:
        return f"memory access: {' and '.join(wasted)}; neighbouring threads should access neighbouring bytes"
    occupancy, ipc = row.get("achieved_occupancy_pct"), row.get("ipc")
    if occupancy is not None and occupancy < LOW_OCCUPANCY_PCT:
        return (
            f"latency: only {occupancy:.0f} % of the possible warps are resident to hide it; use more or "
            "smaller blocks"
        )
    if ipc is not None and ipc < LOW_IPC:
        return f"latency: {ipc:.2f} instructions per cycle, and no unit near its peak"
    return _by_the_roof(row, roof)


def _memory(what: str, row: Mapping[str, Any]) -> str:
    load = row.get("load_efficiency_pct")
    if load is not None and load < LOW_EFFICIENCY_PCT:
        return (
            f"{what}, of which loads use {load:.0f} %: neighbouring threads should access neighbouring bytes"
        )
    return f"{what}: fewer bytes (fused operators, lower precision) would help"


def _by_the_roof(row: Mapping[str, Any], roof: float | None) -> str:
    if row.get("bound") is None:
        return "unknown: no counters, and FLOPs, bytes or the peak are missing"
    side = "arithmetic" if row["bound"] == "compute" else "memory"
    if roof is not None and roof >= NEAR_PCT:
        dram = row.get("dram_utilization_pct")
        moved = "" if dram is None else f", which moved at {dram:.0f} % of its throughput"
        return (
            f"not the memory{moved}: its tensors alone would need {roof:.0f} % of the bandwidth, so they "
            "are cached"
        )
    counted = "its counters show no unit near its peak" if row.get("counters") else "no counters were read"
    return f"not near any limit: {digits(roof, 2)} % of the {side} roof; {counted}"


def rows(study: Study, top: int, wanted: str | None = None) -> tuple[Rows, str]:
    """The answer's rows with :data:`METRICS`, and their caption.

    Args:
        wanted: the id of the run under the torch profiler; see ``hotspot_runs.read``.

    Raises:
        UserError: no run under the torch profiler, or no kernels in it.
    """
    inputs = hotspot_runs.read(study, wanted)
    hottest, below = rows_of(inputs, top), caption(inputs)
    for text in _uncounted(inputs, hottest):
        study.note(text)
    return hottest, below


def rows_of(inputs: Inputs, top: int) -> Rows:
    """The same of what was read.

    Raises:
        UserError: it holds no kernel of the model.
    """
    every = of_run.rows_of(inputs.kernels, GROUPED_BY, inputs.bound)
    hot = [row for row in every if row["class"] not in APART][:top]
    if not hot:
        raise UserError(f"{inputs.timing.path.parent}: {inputs.timing.id} holds no kernels of its steps")
    known = intervals(inputs.per_batch)
    answer = [_row(row, inputs.counters.get(row["kernel"], {}), inputs.tool, known) for row in hot]
    return answer + (_functions(inputs.timers, inputs.counters, top) if inputs.tool == "vtune" else [])


def _uncounted(inputs: Inputs, rows: Rows) -> list[str]:
    missing = [row["kernel"] for row in rows if not row["counters"]]
    # VTune knows functions, and no kernels.
    if inputs.tool in ("", "vtune") or not missing:
        return []
    return [
        f"{inputs.tool} has no counters for {', '.join(missing)}: the other run did not launch them, or "
        "under other names"
    ]


Ends = dict[tuple[str, str], tuple[float, float]]  # of an interval, ms, by short name and class


def intervals(per_batch: Iterable[tuple[str, str, int, float]]) -> Ends:
    """Intervals of the time that kernels take per batch, over the batches; none where they are too few.

    Args:
        per_batch: of ``hotspot_runs.Inputs``.
    """
    rows = list(per_batch)
    places = {batch: place for place, batch in enumerate(sorted({row[2] for row in rows}))}
    series: dict[tuple[str, str], np.ndarray] = {}
    for name, kind, batch, milliseconds in rows:
        # A batch that did not launch a kernel spent no time in it.
        series.setdefault((name, kind), np.zeros(len(places)))[places[batch]] = milliseconds
    estimates = {key: inside_run.of_mean(values) for key, values in series.items()}
    return {key: (one.low, one.high) for key, one in estimates.items() if not one.note}


def caption(inputs: Inputs) -> str:
    """Of which batches the figures are, which are left out, and what their intervals are of."""
    spans = _batches(inputs.timing, inputs.counted)
    said = [f"Times: one run on {how_many(inputs.timing.ranks, 'rank')}, {spans}."]
    said.append(
        "Their intervals are over these steps, not over runs."
        if intervals(inputs.per_batch)
        else "Too few steps for an interval."
    )
    if inputs.tool == "vtune":
        said.append("Counters: vtune, over the whole of another run.")
    elif inputs.counting is not None:
        said.append(
            f"Counters: {inputs.tool}, means over all launches of another run, {_batches(inputs.counting)}."
        )
    return " ".join(said)


def _batches(source: Source, counted: Counted | None = None) -> str:
    """The recorded batches that count."""
    run = source.manifest.run if source.manifest else Run(**source.fields)
    first = counted.steps.start if counted else 0
    ranges = [range(max(one.start, first), one.stop) for one in run.recordings if one.stop > first]
    spans = [f"{one.start} to {one.stop - 1}" if len(one) > 1 else f"{one.start}" for one in ranges]
    before = f"; {counted.dropped} recorded before left out as warmup" if counted and counted.dropped else ""
    return f"steps {', '.join(spans)} of {run.batches}{before}"


def _row(
    row: dict[str, Any],
    counted: Mapping[str, float],
    tool: str,
    known: Ends,
) -> dict[str, Any]:
    low, high = known.get((row["kernel"], row["class"]), (None, None))
    tensor = counted.get("tensor_instructions")
    by_name = "from name" if TENSOR_KERNEL.search(row["kernel"]) else None
    figures = {
        **{name: value for name, value in row.items() if name in _NAMES},
        "ms_per_step_low": low,
        "ms_per_step_high": high,
        **{name: counted.get(name) for name in names_of(COUNTED)},
        "tensor_cores": by_name if tensor is None else "used" if tensor > 0 else "not used",
        "counters": tool if counted else "",
    }
    return {**figures, "why": why(figures)}


def _functions(timers: Rows, counters: Mapping[str, Mapping[str, float]], top: int) -> Rows:
    spent: dict[str, float] = {}
    for row in timers:
        spent[row["function"]] = spent.get(row["function"], 0.0) + (row["exclusive_ns"] or 0.0)
    rows = []
    for name in sorted(spent, key=lambda name: -spent[name])[:top]:
        row = {"kernel": name, "class": classify(name), "cpu_s": spent[name] / 1e9, "counters": "vtune"}
        row |= {column: counters.get(name, {}).get(column) for column in names_of(COUNTED)}
        slow = row["ipc"] is not None and row["ipc"] < LOW_IPC
        known = f"{row['ipc']:.2f} instructions per cycle" if row["ipc"] is not None else ""
        rows.append(
            {**row, "why": f"latency: {known}" if slow else known or "unknown: VTune took samples of time"}
        )
    return rows


def part(title: str, rows: Rows, caption: str) -> Part:
    """The table, with ``[?]`` for intervals that tell nothing: a kernel takes no negative time."""
    usable = [with_open_ends(row, ["ms_per_step"]) for row in rows]
    if any(map(has_open_interval, usable)):
        caption += (
            f" [?]: no usable interval, steps differ so much that the mean may be {WIDEST_FACTOR:g} times as "
            "high or as low."
        )
    return Part(title, usable, _shown(usable), caption)


def _shown(rows: Rows) -> list[Column]:
    """The table's columns: those that some row has."""
    left_out = ("class", "mean_us", "bound", "counters")
    every = columns([metric for metric in METRICS if metric.name not in left_out])
    return filled(every, rows)
