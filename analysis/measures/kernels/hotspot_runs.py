"""What is read for the hottest kernels: which two runs of a point, and what is in their tables?

The tools' readers keep a metric of a kernel as an event of ``atomics``: ``NAME (UNIT) : KERNEL``, with its
mean over the launches. Which metric of nvprof is which of ncu stands in the manual of Nsight Compute's CLI
("nvprof Metric Comparison"), but for ipc: profiling/tools/ncu.py says why.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.display.metrics import Rows
from analysis.measures.kernels.costs import Bound, bound_of
from analysis.measures.kernels.of_run import question_of
from analysis.results.attributed import Groups, Question, groups_of_run
from analysis.results.counted_steps import Counted, counted_steps
from analysis.results.query import query
from analysis.results.source import Source
from analysis.results.study import Study
from profiling import schemas
from profiling.cost.classify import short_name
from profiling.errors import UserError, did_you_mean
from profiling.wording import command

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
    counters, timers = _counted(study, counting) if counting else ({}, [])
    counted = counted_steps(study, timing)
    return Inputs(timing, *launches, counted, bound_of(study, timing), counting, counters, timers)


def _chosen(study: Study, wanted: str | None) -> tuple[Source, Source | None]:
    runs = study.of_kind("run")
    counting = {one.id: _counting(runs, one) for one in runs if one.fields["profile"] == "torch"}
    timed = [one for one in runs if one.id in counting]
    if not timed and study.only_traces:
        raise UserError(
            f"{study.path} holds only traces: to read counters a run is repeated, and traces cannot be "
            "(python -m jobs.hotspots CONFIG starts such a run); the kernels of traces: "
            f"{command('analysis.kernels', study.path)}"
        )
    if not timed:
        raise UserError(
            f"{study.path} holds no kernels of a run under the torch profiler; python -m jobs.hotspots "
            "makes such a run"
        )
    if wanted is not None:
        if wanted not in counting:
            raise UserError(
                f"--run: {study.path} holds no run {wanted!r} under torch{did_you_mean(wanted, counting)}"
            )
        return next(one for one in timed if one.id == wanted), counting[wanted]
    chosen = next((one for one in timed if counting[one.id]), timed[0])
    if len({one.point for one in timed}) > 1:
        study.note(
            f"several configurations were timed; these are the kernels of {chosen.id} (python -m "
            "analysis.hotspots DIR --run ID selects another)"
        )
    return chosen, counting[chosen.id]


def _counting(runs: Iterable[Source], timing: Source) -> Source | None:
    """The run of the same point whose counters a tool read; of several that of the best tool."""
    of_point = [one for one in runs if one.fields["profile"] in TOOLS and one.point == timing.point]
    return min(of_point, key=lambda source: TOOLS.index(source.fields["profile"]), default=None)


def _launches(study: Study, timing: Source) -> tuple[Groups, list[tuple]] | None:
    """What the batches of the timed run launched: all of them together, and each for itself."""
    groups = groups_of_run(study, timing, question_of(GROUPED_BY))
    each = groups_of_run(study, timing, Question(_PER_BATCH))
    if groups is None or each is None:
        return None
    return groups, [(*row, of_rank / timing.gpus_per_rank) for *row, of_rank in each.rows]


def _counted(study: Study, counting: Source) -> tuple[dict[str, dict[str, float]], Rows]:
    """What a tool counted by kernel, and the timers of VTune's functions."""
    counters = by_kernel(_table(study, counting, "atomics"))
    of_functions = counting.fields["profile"] == "vtune"
    return counters, _table(study, counting, "intervals") if of_functions else []


def _table(study: Study, source: Source, name: str) -> Rows:
    paths = source.tables(name)
    if not paths:
        study.note(f"{source.fields['profile']} left no {name}", source)
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
