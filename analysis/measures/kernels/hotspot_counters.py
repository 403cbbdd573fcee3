"""What did counters say of each kernel, by ncu's, nvprof's and VTune's names for them?

The tools' readers keep a metric of a kernel as an event of ``atomics``: ``NAME (UNIT) : KERNEL``, with its
mean over the launches. Which metric of nvprof is which of ncu stands in the manual of Nsight Compute's CLI
("nvprof Metric Comparison"), but for ipc: profiling/tools/ncu.py says why.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from profiling.cost.classify import short_name

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
        found = _EVENT.fullmatch(str(row["event"]))
        if found is None or found["metric"] not in _COLUMN or row["mean"] is None:
            continue
        column, factor = _COLUMN[found["metric"]]
        total = sums[short_name(found["kernel"]), column]
        # One short name may stand for several instances of a template, and for several ranks.
        total[0] += factor * row["mean"] * row["count"]
        total[1] += row["count"]
    made: dict[str, dict[str, float]] = defaultdict(dict)
    for (kernel, column), (total_of, count) in sums.items():
        if count:
            made[kernel][column] = total_of / count
    for columns in made.values():
        instructions, cycles = columns.pop("instructions", None), columns.pop("cycles", None)
        if instructions is not None and cycles:
            columns["ipc"] = instructions / cycles
    return dict(made)
