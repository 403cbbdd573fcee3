"""Which kernels take the time, and what bounds each? From a timing run and one that read counters.

The tools' readers keep a metric of a kernel as an event of ``atomics``: ``NAME (UNIT) : KERNEL``, with its
mean over the launches. Which metric of nvprof is which of ncu stands in the manual of Nsight Compute's CLI
("nvprof Metric Comparison"), but for ipc: profiling/tools/ncu.py says why.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from analysis.display.metrics import IN_RUN, Column, Metric, Rows, columns, filled, names_of, picked
from analysis.display.numbers import digits, shortened
from analysis.measures.kernels import hotspot_runs, roofline
from analysis.measures.kernels import rows as kernels
from analysis.measures.kernels.of_run import BY, kernels_of
from analysis.results.study import Study
from profiling.cost.classify import classify, short_name
from profiling.errors import UserError
from profiling.readers.ncu_csv import TENSOR_KERNEL
from profiling.tables import APART

COUNTED = (
    Metric("achieved_occupancy_pct", "warps that were resident, of those that fit", "occup.\n%", places=0),
    Metric("ipc", "instructions a cycle (of a multiprocessor; of a core)", "IPC", places=2),
    Metric(
        "load_efficiency_pct",
        "bytes that loads asked for over bytes of the sectors that were moved",
        "load\neff. %",
        places=0,
    ),
    Metric("store_efficiency_pct", "the same of stores", "store\neff. %", places=0),
    Metric("dram_utilization_pct", "throughput of the device's memory over its peak", "DRAM\n%", places=0),
)
METRICS = (
    replace(BY["kernel"], show=shortened),
    BY["class"],
    Metric("ms_per_batch", "time a batch; its interval is over the run's batches", "ms a batch", IN_RUN),
    *picked(kernels.METRICS, "share_pct", "calls_per_batch", "mean_us"),
    Metric("cpu_s", "of a function that VTune measured: its CPU time in the whole run", "CPU\ns"),
    *COUNTED,
    Metric(
        "tensor_cores",
        "used, not used, or by its name (their instructions were not counted)",
        text=True,
    ),
    *roofline.METRICS,
    Metric("counters", "the tool that counted; empty: none did", text=True),
    Metric("why", "what bounds it, in a sentence", "bound by", text=True),
)
_NAMES = names_of(METRICS)
COLUMNS = {"Columns, a row a kernel (an operator, on a CPU), the longest first:": METRICS}
# From so much of a peak on, that peak bounds; below, latency does (Nsight Compute's "speed of light" rule).
NEAR_PCT = 60.0
# A launch costs the host 2 to 10 us: a kernel as short may wait for it.
SHORT_US = 10.0
LOW_OCCUPANCY_PCT, LOW_EFFICIENCY_PCT, LOW_IPC = 25.0, 50.0, 1.0


def why(row: Mapping[str, Any]) -> str:
    """What bounds a kernel, in a sentence, by the first of these that its figures show."""
    roof = row.get("roof_pct") if row.get("roof_pct") is not None else row.get("roof_of_measured_pct")
    dram = row.get("dram_utilization_pct")
    if dram is not None and dram >= NEAR_PCT:
        return _memory(f"memory, at {dram:.0f} % of its throughput", row)
    if roof is not None and roof > roofline.ABOVE_PCT and row.get("bound") == "compute":
        return f"not known: at {roof:.0f} % of the peak, its FLOPs or the peak (--peaks) are wrong"
    if roof is not None and roof >= NEAR_PCT and row.get("bound") == "compute":
        return f"arithmetic, at {roof:.0f} % of the peak: fewer FLOPs or a lower precision would help"
    # Tensors that stay in a cache move less: counters know better, and more than all cannot be.
    if (
        roof is not None
        and NEAR_PCT <= roof <= roofline.ABOVE_PCT
        and row.get("bound") == "bandwidth"
        and dram is None
    ):
        return _memory(f"memory, at {roof:.0f} % of its bandwidth by the bytes of its tensors", row)
    if (row.get("mean_us") or SHORT_US) < SHORT_US:
        return f"calls: each lasts {row['mean_us']:.1f} us, about what it takes to start one; merge some"
    wasted = [
        f"{row[name]:.0f} % of the bytes that {what} move are used"
        for name, what in (("load_efficiency_pct", "loads"), ("store_efficiency_pct", "stores"))
        if row.get(name) is not None and row[name] < LOW_EFFICIENCY_PCT
    ]
    if wasted:
        return (
            f"access to memory: {' and '.join(wasted)}; neighbouring threads should take neighbouring bytes"
        )
    occupancy, ipc = row.get("achieved_occupancy_pct"), row.get("ipc")
    if occupancy is not None and occupancy < LOW_OCCUPANCY_PCT:
        return (
            f"latency: {occupancy:.0f} % of the warps that fit are there to hide it; more or smaller blocks"
        )
    if ipc is not None and ipc < LOW_IPC:
        return f"latency: {ipc:.2f} instructions a cycle, and no unit near its peak"
    return _by_the_roof(row, roof)


def _memory(what: str, row: Mapping[str, Any]) -> str:
    load = row.get("load_efficiency_pct")
    if load is not None and load < LOW_EFFICIENCY_PCT:
        return f"{what}, of which loads use {load:.0f} %: neighbouring threads should take neighbouring bytes"
    return f"{what}: fewer bytes (fused operators, lower precision) would help"


def _by_the_roof(row: Mapping[str, Any], roof: float | None) -> str:
    if row.get("bound") is None:
        return "not known: no counters, and no FLOPs or bytes or no peak beside which they stand"
    side = "arithmetic" if row["bound"] == "compute" else "memory"
    if roof is not None and roof >= NEAR_PCT:
        dram = row.get("dram_utilization_pct")
        moved = "" if dram is None else f", which moved at {dram:.0f} % of its throughput"
        return (
            f"not the memory{moved}: its tensors alone would be {roof:.0f} % of the bandwidth, "
            "so caches hold them"
        )
    counted = "its counters show no unit near its peak" if row.get("counters") else "no counters were read"
    return f"nothing near a peak: at {digits(roof, 2)} % of the {side} roof above it; {counted}"


def rows(study: Study, top: int, wanted: str | None = None) -> tuple[Rows, str]:
    """The answer's rows with :data:`METRICS`, and their caption.

    Args:
        wanted: id of the run under the torch profiler; see ``hotspot_runs.timed``.

    Raises:
        UserError: no run under the torch profiler, or no kernels in it.
    """
    timing = hotspot_runs.timed(study, wanted)
    kernels_of_run = kernels_of(study, timing, by=("kernel", "class"))
    hot = [row for row in kernels_of_run if row["class"] not in APART][:top]
    if not hot:
        raise UserError(f"{study.path}: {timing.id} holds no kernels of its batches")
    known, source, events, timers = hotspot_runs.read(study, timing)
    caption = hotspot_runs.caption(timing, source, known)
    # From here on nothing is read.
    tool = source.fields["profile"] if source else ""
    counters = by_kernel(events)
    answer = [_row(row, counters.get(row["kernel"], {}), tool, known) for row in hot]
    if tool == "vtune":
        return answer + _functions(timers, counters, top), caption
    missing = [row["kernel"] for row in answer if not row["counters"]]
    if source and missing:
        study.note(
            f"{tool} counted none of {', '.join(missing)}: the other run did not launch them, or not so named"
        )
    return answer, caption


def _row(
    row: dict[str, Any],
    counted: Mapping[str, float],
    tool: str,
    known: Mapping[tuple[str, str], tuple[float, float]],
) -> dict[str, Any]:
    low, high = known.get((row["kernel"], row["class"]), (None, None))
    tensor = counted.get("tensor_instructions")
    by_name = "by its name" if TENSOR_KERNEL.search(row["kernel"]) else None
    figures = {
        **{name: value for name, value in row.items() if name in _NAMES},
        "ms_per_batch_low": low,
        "ms_per_batch_high": high,
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
        known = f"{row['ipc']:.2f} instructions a cycle" if row["ipc"] is not None else ""
        rows.append(
            {**row, "why": f"latency: {known}" if slow else known or "not known: VTune took samples of time"}
        )
    return rows


def shown(rows: Rows) -> list[Column]:
    """The tables' columns: those that some row has."""
    left_out = ("class", "mean_us", "bound", "counters")
    every = columns([metric for metric in METRICS if metric.name not in left_out])
    return filled(every, rows)


# --- counters, by the tools' names for them -----------------------------------------------------------

# Our column -> a tool's name for it, and what makes percent of its unit.
COUNTERS: dict[str, dict[str, float]] = {
    "achieved_occupancy_pct": {
        "sm__warps_active.avg.pct_of_peak_sustained_active": 1, "Achieved Occupancy": 1,
        "achieved_occupancy": 100,
    },
    "ipc": {"sm__inst_executed.avg.per_cycle_active": 1, "Executed Ipc Active": 1, "ipc": 1},
    "load_efficiency_pct": {
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": 1, "gld_efficiency": 1,
    },
    "store_efficiency_pct": {
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct": 1, "gst_efficiency": 1,
    },
    # nvprof says a level from 0 to 10.
    "dram_utilization_pct": {
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": 1, "DRAM Throughput": 1, "dram_utilization": 10,
    },
    "tensor_instructions": {
        "sm__inst_executed_pipe_tensor.sum": 1, "sm__inst_executed_pipe_tensor_op_hmma.sum": 1,
    },
    "instructions": {"Hardware Event Count:INST_RETIRED.ANY": 1, "Instructions Retired": 1},
    "cycles": {"Hardware Event Count:CPU_CLK_UNHALTED.THREAD": 1, "Clockticks": 1},
}  # fmt: skip
_COLUMN = {name: (column, factor) for column, names in COUNTERS.items() for name, factor in names.items()}
_EVENT = re.compile(r"(?P<metric>.+?)(?: \((?P<unit>[^()]*)\))? : (?P<kernel>.+)", re.DOTALL)


def by_kernel(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Short name of a kernel -> column of :data:`COUNTERS` -> its mean over all launches.

    Args:
        events: rows of ``atomics``, with ``event``, ``count`` and ``mean``.
    """
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in events:
        event = _EVENT.fullmatch(str(row["event"]))
        if event is None or event["metric"] not in _COLUMN or row["mean"] is None:
            continue
        column, factor = _COLUMN[event["metric"]]
        total = sums[short_name(event["kernel"]), column]
        # One short name may stand for several instances of a template, and for several ranks.
        total[0] += factor * row["mean"] * row["count"]
        total[1] += row["count"]
    means: dict[str, dict[str, float]] = defaultdict(dict)
    for (kernel, column), (total_of, count) in sums.items():
        if count:
            means[kernel][column] = total_of / count
    for counters in means.values():
        instructions, cycles = counters.pop("instructions", None), counters.pop("cycles", None)
        if instructions is not None and cycles:
            counters["ipc"] = instructions / cycles
    return dict(means)
