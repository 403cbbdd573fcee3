"""The kernels that take the most time and what limits each, from a timed run and one that read counters.

Readers store a metric of a kernel as an event of ``atomics`` named ``NAME (UNIT) : KERNEL``, with its mean
over launches.
"""

import re
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.display.metrics import Metric, columns, names_of
from analysis.display.output import Answer
from analysis.frames.kernel_sums import query
from analysis.frames.measure import measure
from analysis.frames.study import Source, Study
from analysis.measures import kernels, peaks
from analysis.measures.kernels import BY
from profiling import schemas
from profiling.cost.classify import classify, short_name
from profiling.errors import UserError, did_you_mean
from profiling.readers.ncu import TENSOR_KERNEL
from profiling.schemas import APART

TOOLS = ("ncu", "nvprof", "vtune")  # that count, the best first

COUNTED = (
    Metric("achieved_occupancy_pct", "resident warps divided by the maximum", "occup.\n%", places=0),
    Metric("ipc", "instructions per cycle (per multiprocessor; on a CPU per core)", "IPC", places=2),
    Metric("load_efficiency_pct", "bytes requested by loads / bytes moved", "load\neff. %", places=0),
    Metric("store_efficiency_pct", "the same for stores", "store\neff. %", places=0),
    Metric("dram_utilization_pct", "throughput of device memory divided by its peak", "DRAM\n%", places=0),
)
METRICS = (
    BY["kernel"],
    replace(BY["class"], table=False),
    *columns(kernels.METRICS, "ms_per_step", "share_pct", "calls_per_step"),
    *(replace(metric, table=False) for metric in columns(kernels.METRICS, "mean_us")),
    Metric("cpu_s", "CPU time of a function in the whole run, measured by VTune", "CPU\ns"),
    *COUNTED,
    Metric("tensor_cores", "used, not used, or deduced from the kernel's name", text=True),
    *(replace(metric, table=metric.name != "bound") for metric in peaks.METRICS),
    Metric("counters", "profiler that read the counters; empty: none", text=True, table=False),
    Metric("why", "what bounds the kernel: memory, arithmetic, ...", "bound by", text=True, priority=2),
)
COLUMNS = {"Columns, one row per kernel (on a CPU: operator), longest first:": METRICS}


def _chosen(study: Study, run: str | None) -> tuple[Source, Source | None]:
    """The timed run of this id (None: the first whose point had counters read), and the one that counted."""
    runs = study.of_kind("run")
    timed = {one.id: one for one in runs if one.fields["profile"] == "torch"}
    counted = [one for tool in TOOLS for one in runs if one.fields["profile"] == tool]
    counts = {key: next((one for one in counted if one.point == of.point), None) for key, of in timed.items()}
    if not timed:
        raise UserError(f"{study.path} holds no kernels of a run under the torch profiler (jobs.hotspots)")
    if run is not None and run not in timed:
        raise UserError(f"--run: {study.path} holds no such run {run!r}{did_you_mean(run, timed)}")
    chosen = run or next((key for key in timed if counts[key]), next(iter(timed)))
    return timed[chosen], counts[chosen]


def _table(study: Study, source: Source | None, name: str) -> pd.DataFrame:
    """A table of a run that counted, if there is one; a finding where it has no such table."""
    names = schemas.SCHEMAS[name].names
    found = None
    if source and (paths := source.tables(name)):
        sql = f"select {', '.join(names)} from read_parquet($paths)"
        found = study.use(source, lambda one: query(study, one, sql, paths=paths))
    elif source:
        study.note("not_recorded", source, what="counters")
    return pd.DataFrame(columns=names) if found is None else found


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
_EVENT = re.compile(r"^(?P<metric>.+?)(?: \((?P<unit>[^()]*)\))? : (?P<kernel>.+)$", re.DOTALL)


def by_kernel(events: pd.DataFrame) -> pd.DataFrame:
    """Counters (:data:`COUNTERS`) by the short name of a kernel (of VTune a function): means over launches.

    ``events``: rows of ``atomics``, with ``event``, ``count`` and ``mean``.
    """
    named = events["event"].astype(str).str.extract(_EVENT).join(events[["count", "mean"]].astype(float))
    named = named[named["metric"].isin(_COLUMN) & named["mean"].notna()]
    of = pd.DataFrame([_COLUMN[name] for name in named["metric"]], named.index, ["column", "factor"])
    # One short name may stand for several instances of a template, and for several ranks.
    sums = pd.DataFrame({
        "kernel": named["kernel"].map(short_name),
        "column": of["column"],
        "total": of["factor"] * named["mean"] * named["count"],
        "count": named["count"],
    }).groupby(["kernel", "column"]).sum()  # fmt: skip
    means = (sums["total"] / sums["count"].where(sums["count"] > 0)).dropna().unstack("column")
    means = means.reindex(columns=list(COUNTERS)).astype(float)
    means["ipc"] = (means["instructions"] / means["cycles"].where(means["cycles"] > 0)).fillna(means["ipc"])
    return means


# From so much of a peak on, that peak bounds; below, latency does (Nsight Compute's "speed of light" rule).
NEAR_PCT = 60.0
SHORT_US = 10.0  # a launch costs the host 2 to 10 us: a kernel as short may wait for it
# Below these, occupancy, use of memory accesses and instructions per cycle are low.
_LOW = {"load_efficiency_pct": 50.0, "store_efficiency_pct": 50.0, "achieved_occupancy_pct": 25.0, "ipc": 1.0}


def why(rows: pd.DataFrame) -> np.ndarray:
    """What bounds each kernel: the first of these that its figures show."""
    figures = rows.reindex(columns=names_of(METRICS))
    names = [*_LOW, "dram_utilization_pct", "mean_us", "roof_pct", "roof_of_measured_pct"]
    number = figures[names].astype(float)
    share = number["roof_pct"].fillna(number["roof_of_measured_pct"])
    dram, bound, near = number["dram_utilization_pct"], figures["bound"], share >= NEAR_PCT
    possible, low = share <= peaks.ABOVE_PCT, number[list(_LOW)] < pd.Series(_LOW)
    rules = (
        ("memory", dram >= NEAR_PCT),
        ("arithmetic", (bound == "compute") & near & possible),
        ("unknown", (bound == "compute") & near),
        # Tensors that stay in a cache move less: counters know better, and more than all cannot be.
        ("memory", (bound == "bandwidth") & near & possible & dram.isna()),
        ("calls", number["mean_us"] < SHORT_US),
        ("memory access", low["load_efficiency_pct"] | low["store_efficiency_pct"]),
        ("latency", low["achieved_occupancy_pct"] | low["ipc"]),
        ("unknown", bound.isna()),
        ("cache", near),
    )
    return kernels.chosen(rules, "nothing near")


@measure(COLUMNS)
def hotspots(study: Study, top: int = 5, run: str | None = None) -> Answer:
    """A row a kernel of the model that takes most time; below these, functions that VTune measured.

    ``run``: under the torch profiler; None: the first whose point had counters read.
    """
    timing, counting = _chosen(study, run)
    hot = kernels.figures(study, [timing], ("kernel", "class"))
    hot = hot[~hot["class"].isin(APART)].head(top)
    if hot.empty:
        raise UserError(f"{study.path}: {timing.id} holds no kernels of its steps")
    tool = counting.fields["profile"] if counting else ""
    counters = by_kernel(_table(study, counting, "atomics"))
    rows = hot.join(counters, on="kernel")
    by_name = hot["kernel"].map(lambda name: "from name" if TENSOR_KERNEL.search(name) else None)
    tensor = rows["tensor_instructions"]
    rows["tensor_cores"] = by_name.astype(object).mask(tensor > 0, "used").mask(tensor <= 0, "not used")
    rows["counters"] = np.where(hot["kernel"].isin(counters.index), tool, "")
    rows["why"] = why(rows)
    missing = rows.loc[rows["counters"] == "", "kernel"]
    if len(missing) and tool in ("ncu", "nvprof"):  # VTune knows functions, and no kernels
        study.note("not_recorded", counting, what=[f"counters of {kernel}" for kernel in missing])
    if counting and tool == "vtune":
        by_function = _table(study, counting, "intervals").groupby("function")["exclusive_ns"].sum()
        spent = by_function.sort_values(ascending=False, kind="stable").head(top)
        of = pd.DataFrame({"kernel": spent.index, "cpu_s": spent.to_numpy() / 1e9, "counters": "vtune"})
        of = of.assign(**{"class": of["kernel"].map(classify)}).join(counters, on="kernel")
        of["why"] = np.where(of["ipc"] < _LOW["ipc"], "latency", "unknown")
        rows = pd.concat([rows, of], ignore_index=True)
    rows = rows.reindex(columns=names_of(METRICS)).astype(object)
    caption = "Times: profiled steps" + (f"; counters: {tool}, another run" if tool else "")
    return Answer(rows, METRICS, title="Hottest kernels", caption=caption)
