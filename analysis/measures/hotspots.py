"""Hottest kernels and what bounds each, from a timing run and one that read counters.

The tools' readers keep a metric of a kernel as an event of ``atomics``: ``NAME (UNIT) : KERNEL``, with its
mean over the launches (which metric of nvprof is which of ncu: profiling/tools/ncu.py).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.display.metrics import IN_RUN, Metric, Rows, columns, filled, names_of, picked
from analysis.display.numbers import shortened, with_open_ends
from analysis.display.terminal import Part
from analysis.frames.kernel_sums import Groups, Question, groups_of_run, query
from analysis.frames.steps import Counted, counted_steps
from analysis.frames.study import Source, Study
from analysis.measures import kernels, roofline
from analysis.measures.kernels import BY, question_of
from analysis.measures.peaks import Bound, bound_of
from analysis.statistics import inside_run
from jobs.run import Run
from profiling import schemas
from profiling.cost.classify import classify, short_name
from profiling.errors import UserError, did_you_mean
from profiling.readers.ncu import TENSOR_KERNEL
from profiling.schemas import APART

GROUPED_BY = ("kernel", "class")
TOOLS = ("ncu", "nvprof", "vtune")  # that count, the best first
_PER_BATCH = """
with sums as (select * from {sums} where calls > 0)
select short_name, "class", batch_index, sum(ns)::double / (select count(distinct rank) from sums) / 1e6
from sums group by all
"""


@dataclass(frozen=True)
class Inputs:
    """All that the answer is made of.

    Attributes:
        timing: the run that was timed, under the torch profiler.
        kernels: what its batches that count launched, by :data:`GROUPED_BY`.
        per_batch: of each kernel and such batch: short name, class, batch index, ms per GPU.
        counted: which batches count; None: all that were recorded.
        bound: the peaks of its device.
        counting: the run of the same point whose counters were read; None: there is none.
        counters: columns of :data:`COUNTERS` by short name of a kernel (of a function, of VTune).
        timers: rows of its ``intervals``, of VTune alone.
    """

    timing: Source
    kernels: Groups
    per_batch: list[tuple]
    counted: Counted | None
    bound: Bound
    counting: Source | None
    counters: Mapping[str, Mapping[str, float]]
    timers: Rows

    @property
    def tool(self) -> str:
        """The tool that counted; empty: none did."""
        return self.counting.fields["profile"] if self.counting else ""


def read(study: Study, wanted: str | None = None) -> Inputs:
    """Two runs of one point, the timed one and the one whose counters were read, with their tables.

    Args:
        wanted: the id of the timed run; None: the first whose point had counters read, and where several
            points were timed a note names it.

    Raises:
        UserError: no run under the torch profiler, none of this id, or no kernels in it.
    """
    timing, counting = _chosen(study, wanted)
    launches = study.use(timing, lambda timing: _launches(study, timing))
    if launches is None:
        raise UserError(f"{study.path}: {timing.id} holds no kernels of its steps")
    counters: dict[str, dict[str, float]] = by_kernel(_table(study, counting, "atomics")) if counting else {}
    by_vtune = counting is not None and counting.fields["profile"] == "vtune"
    timers = _table(study, counting, "intervals") if counting and by_vtune else []
    counted = counted_steps(study, timing)
    return Inputs(timing, *launches, counted, bound_of(study, timing), counting, counters, timers)


def _chosen(study: Study, wanted: str | None) -> tuple[Source, Source | None]:
    runs = study.of_kind("run")
    counting: dict[str, Source | None] = {}
    for timing in (one for one in runs if one.fields["profile"] == "torch"):
        of_point = [one for one in runs if one.fields["profile"] in TOOLS and one.point == timing.point]
        counting[timing.id] = min(of_point, key=lambda one: TOOLS.index(one.fields["profile"]), default=None)
    timed = [one for one in runs if one.id in counting]
    if not timed:
        raise UserError(f"{study.path} holds no kernels of a run under the torch profiler (jobs.hotspots)")
    if wanted is not None and wanted not in counting:
        raise UserError(f"--run: {study.path} holds no such run {wanted!r}{did_you_mean(wanted, counting)}")
    chosen = next((one for one in timed if one.id == wanted or (not wanted and counting[one.id])), timed[0])
    return chosen, counting[chosen.id]


def _launches(study: Study, timing: Source) -> tuple[Groups, list[tuple]] | None:
    """What the batches of the timed run launched: all of them together, and each for itself."""
    groups = groups_of_run(study, timing, question_of(GROUPED_BY))
    each = groups_of_run(study, timing, Question(_PER_BATCH))
    if groups is None or each is None:
        return None
    return groups, [(*row, of_rank / timing.gpus_per_rank) for *row, of_rank in each.rows]


def _table(study: Study, source: Source, name: str) -> Rows:
    paths = source.tables(name)
    if not paths:
        study.note("not_recorded", source, what="counters")
        return []
    names = schemas.SCHEMAS[name].names
    sql = f"select {', '.join(names)} from read_parquet($paths)"
    rows = study.use(source, lambda source: query(study, source, sql, paths=paths))
    return [dict(zip(names, values, strict=True)) for values in rows or []]


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


COUNTED = (
    Metric("achieved_occupancy_pct", "resident warps divided by the maximum", "occup.\n%", places=0),
    Metric("ipc", "instructions per cycle (per multiprocessor; on a CPU per core)", "IPC", places=2),
    Metric(
        "load_efficiency_pct", "bytes requested by loads divided by bytes moved", "load\neff. %", places=0
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
    Metric("tensor_cores", "used, not used, or deduced from the kernel's name", text=True),
    *roofline.METRICS,
    Metric("counters", "profiler that read the counters; empty: none", text=True),
    Metric("why", "what bounds the kernel: memory, arithmetic, ...", "bound by", text=True, priority=2),
)
_NAMES = names_of(METRICS)
COLUMNS = {"Columns, one row per kernel (on a CPU: operator), longest first:": METRICS}
# From so much of a peak on, that peak bounds; below, latency does (Nsight Compute's "speed of light" rule).
NEAR_PCT = 60.0
# A launch costs the host 2 to 10 us: a kernel as short may wait for it.
SHORT_US = 10.0
LOW_OCCUPANCY_PCT, LOW_EFFICIENCY_PCT, LOW_IPC = 25.0, 50.0, 1.0


def why(row: Mapping[str, Any]) -> str:
    """What bounds a kernel: the first of these that its figures show."""
    roof, dram = roofline.share_of(row), row.get("dram_utilization_pct")
    bound, near = row.get("bound"), roof is not None and roof >= NEAR_PCT
    possible = roof is not None and roof <= roofline.ABOVE_PCT
    low = [
        row.get(name) is not None and row[name] < least
        for name, least in (
            ("load_efficiency_pct", LOW_EFFICIENCY_PCT),
            ("store_efficiency_pct", LOW_EFFICIENCY_PCT),
            ("achieved_occupancy_pct", LOW_OCCUPANCY_PCT),
            ("ipc", LOW_IPC),
        )
    ]
    rules = (
        ("memory", dram is not None and dram >= NEAR_PCT),
        ("arithmetic", bound == "compute" and near and possible),
        ("unknown", bound == "compute" and near),
        # Tensors that stay in a cache move less: counters know better, and more than all cannot be.
        ("memory", bound == "bandwidth" and near and possible and dram is None),
        ("calls", (row.get("mean_us") or SHORT_US) < SHORT_US),
        ("memory access", any(low[:2])),
        ("latency", any(low[2:])),
        ("unknown", bound is None),
        ("cache", near),
    )
    return next((code for code, applies in rules if applies), "nothing near")


def rows(study: Study, top: int, wanted: str | None = None) -> tuple[Rows, str]:
    """The answer's rows with :data:`METRICS`, and their caption.

    Args:
        wanted: the id of the run under the torch profiler; see ``read``.

    Raises:
        UserError: no run under the torch profiler, or no kernels in it.
    """
    inputs = read(study, wanted)
    hottest = rows_of(inputs, top)
    missing = [row["kernel"] for row in hottest if not row["counters"]]
    if missing and inputs.tool in ("ncu", "nvprof"):  # VTune knows functions, and no kernels
        study.note("not_recorded", inputs.counting, what=[f"counters of {kernel}" for kernel in missing])
    return hottest, caption(inputs)


def rows_of(inputs: Inputs, top: int) -> Rows:
    """The same of what was read.

    Raises:
        UserError: it holds no kernel of the model.
    """
    every = kernels.rows_of(inputs.kernels, GROUPED_BY, inputs.bound)
    hot = [row for row in every if row["class"] not in APART][:top]
    if not hot:
        raise UserError(f"{inputs.timing.path.parent}: {inputs.timing.id} holds no kernels of its steps")
    known = intervals(inputs.per_batch)
    answer = [_row(row, inputs.counters.get(row["kernel"], {}), inputs.tool, known) for row in hot]
    return answer + (_functions(inputs.timers, inputs.counters, top) if inputs.tool == "vtune" else [])


Ends = dict[tuple[str, str], tuple[float, float]]  # of an interval, ms, by short name and class


def intervals(per_batch: Iterable[tuple[str, str, int, float]]) -> Ends:
    """Intervals of the time that kernels take per batch, over the batches; none where they are too few.

    Args:
        per_batch: of ``Inputs``.
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
    """Of which steps the times are, and whose counters stand beside them."""
    source, first = inputs.timing, inputs.counted.steps.start if inputs.counted else 0
    run = source.manifest.run if source.manifest else Run(**source.fields)
    ranges = [range(max(one.start, first), one.stop) for one in run.recordings if one.stop > first]
    steps = ", ".join(f"{one.start}-{one.stop - 1}" if len(one) > 1 else f"{one.start}" for one in ranges)
    counters = f"; counters: {inputs.tool}, another run" if inputs.tool else ""
    return f"Times: steps {steps} of {run.batches}, ranks: {source.ranks}{counters}"


def _row(row: dict[str, Any], counted: Mapping[str, float], tool: str, known: Ends) -> dict[str, Any]:
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
        rows.append({**row, "why": "latency" if slow else "unknown"})
    return rows


def part(title: str, rows: Rows, caption: str) -> Part:
    """The table, with ``[?]`` for intervals that tell nothing: a kernel takes no negative time."""
    usable = [with_open_ends(row, ["ms_per_step"]) for row in rows]
    left_out = ("class", "mean_us", "bound", "counters")
    every = columns([metric for metric in METRICS if metric.name not in left_out])
    return Part(title, usable, filled(every, usable), caption)
