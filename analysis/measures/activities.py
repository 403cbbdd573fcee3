"""Summary of GPU activities from tables of kernels or printed summaries, and their shares."""

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from analysis.display.metrics import FIELDS, RANK, RUN, STEP, Metric, Rows, names_of
from analysis.frames.kernel_sums import has_kernels, kernels
from analysis.frames.study import NOT_OF_POINT, Source, Study, reading
from profiling import database
from profiling.cost.classify import classify, short_name
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.printed import DURATION, ON_DEVICE

GPU, CPU, CALLS, RANGES = "GPU activities", "CPU operators", "API calls", "ranges"
_TYPES = (GPU, CPU, CALLS, RANGES)
UNNAMED = "(without a name)"
ALL_LAUNCHES = "All recorded launches, warmup included."
_CALL = re.compile(r"^cu(da)?[A-Z]")
LEVELS = {"rank": RANK, "step": STEP}
_COLUMN_OF = {"step": "batch_index"}  # a level -> its column in the tables
METRICS = (
    Metric("type", "GPU activities, CPU operators (without a GPU), API calls, ranges", text=True),
    Metric("time_pct", "share of the time of its type"),
    Metric("time_s", "total"),
    Metric("calls", "number of calls"),
    Metric("mean_us", "mean duration of a call"),
    Metric("min_us", "shortest call", priority=0),
    Metric("max_us", "longest call", priority=0),
    Metric("class", "gemm, convolution, communication, memcpy, ... (profiling/cost/classify.py)", text=True),
    Metric(
        "name",
        "full kernel name; [CUDA memcpy HtoD] etc. for copies",
        show=lambda name: name if len(name) <= 60 else f"{name[:57]}...",
        text=True,
        priority=2,
    ),
)
SHARES = (
    FIELDS["world_size"],
    Metric("batch", "per-GPU batch size (without GPUs: per-rank)", key=True),
    Metric("backend", "backend that exchanged gradients", text=True, key=True),
    Metric("runs", "number of runs summed"),
    Metric("time_s", "time of GPU activities"),
    Metric("communication_pct", "share of collectives"),
    Metric("copies_pct", "share of copies and memory sets"),
    Metric("compute_pct", "share of all other activities"),
    Metric("runs_differ", "other fields in which the runs of a row differ", text=True),
)
COLUMNS = {
    "Columns of the summary, as nvprof prints them (run if there are several; rank and step if requested):": (
        RUN,
        *LEVELS.values(),
        *METRICS,
    ),
    "Columns of the shares, one row per number of GPUs, batch size and backend:": SHARES,
}
_PRINTED = {"gpus", "batch", "time_pct", "time_s", "calls", "kernel"}
_COPIES = ("memcpy", "memset")
_SPREAD = {"mean": "mean", "min": "least", "max": "most"}


@dataclass
class Profile:
    """The activities of one run: rows of :data:`METRICS`, and what the run was."""

    name: str
    rows: Rows
    world_size: int | None = None
    batch: int | None = None
    backend: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


# --- from tables --------------------------------------------------------------------------------------

_OF_KERNELS = """
select {levels} case when device < 0 then '{cpu}' else '{gpu}' end as type,
    coalesce(name::varchar, '{unnamed}') as name,
    "class"::varchar as "class", count(*) as calls, sum(duration_ns)::double as total,
    avg(duration_ns)::double as mean, min(duration_ns)::double as least, max(duration_ns)::double as most
from kernels where duration_ns >= 0 group by all order by total desc, "class"
"""


def of_kernels(kernels: pa.Table | Sequence[Path], by: Iterable[str] = ()) -> Rows:
    """The activities of a ``kernels`` table (or of Parquet files), largest first.

    Args:
        by: ``rank``, ``step``: rows for each.

    Raises:
        UserError: a file is damaged.
    """
    connection = database.connect()
    levels = "".join(f"{_COLUMN_OF.get(name, name)} as {name}, " for name in by)
    try:
        if isinstance(kernels, Sequence):
            files = ", ".join("'" + str(path).replace("'", "''") + "'" for path in kernels)
            connection.execute(f"create temp view kernels as select * from read_parquet([{files}])")
        else:
            connection.register("kernels", kernels)
        found = connection.execute(_OF_KERNELS.format(levels=levels, cpu=CPU, gpu=GPU, unnamed=UNNAMED))
        names = [column[0] for column in found.description or ()]
        rows = [dict(zip(names, values, strict=True)) for values in found.fetchall()]
    except (duckdb.Error, OSError) as error:
        raise UserError(f"a table is damaged or truncated ({str(error).splitlines()[0]})") from None
    for row in rows:
        row["time_s"] = row.pop("total") / 1e9
        row |= {f"{new}_us": row.pop(old) / 1e3 for new, old in _SPREAD.items()}
        if row["class"] in _COPIES and row["type"] == GPU:
            row["name"] = f"[CUDA {short_name(row['name']).replace('Mem', 'mem', 1)}]"
    return _finished(rows, by)


def of_summary(intervals: "pa.Table", atomics: "pa.Table | None") -> Rows:
    """The activities of a summary that a tool printed: rows on a device's thread, and calls of the API."""
    took = {}
    for row in atomics.to_pylist() if atomics is not None else ():
        took[row["thread"], str(row["event"]).removeprefix(f"{DURATION} : ")] = row
    rows = []
    for row in intervals.to_pylist():
        on_device = row["thread"] == ON_DEVICE
        spread = took.get((row["thread"], row["function"]), {})
        calls = row["calls"] or 0
        rows.append(
            {
                "type": GPU if on_device else CALLS if _CALL.match(row["function"]) else RANGES,
                "time_s": (row["inclusive_ns"] or 0) / 1e9,
                "calls": int(calls),
                "mean_us": (row["inclusive_ns"] or 0) / calls / 1e3 if calls else None,
                **{
                    f"{end}_us": None if spread.get(end) is None else spread[end] / 1e3
                    for end in ("min", "max")
                },
                "class": classify(row["function"]) if on_device else None,
                "name": row["function"],
            }
        )
    return _finished(rows)


def _finished(rows: Rows, by: Iterable[str] = ()) -> Rows:
    """Rows of one name joined, with their share of the time of their type, largest first."""
    levels = tuple(by)
    joined: dict[tuple, dict[str, Any]] = {}
    totals: dict[tuple, float] = defaultdict(float)
    for row in rows:  # two ways to copy may have one name
        group = (*(-1 if row.get(one) is None else row[one] for one in levels), _TYPES.index(row["type"]))
        totals[group] += row["time_s"]
        key = (*group, row["name"])
        joined[key] = _together(joined[key], row) if key in joined else row
    for (*of, _), row in joined.items():
        row["time_pct"] = 100 * row["time_s"] / totals[tuple(of)] if totals[tuple(of)] else None
    return [
        joined[key] for key in sorted(joined, key=lambda key: (*key[:-1], -joined[key]["time_s"], key[-1]))
    ]


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    calls, time_s = one["calls"] + other["calls"], one["time_s"] + other["time_s"]
    both = [(one[name], other[name]) for name in ("min_us", "max_us")]
    least, most = (None if None in pair else pick(pair) for pair, pick in zip(both, (min, max), strict=True))
    average = time_s / calls * 1e6 if calls else None
    return {**one, "calls": calls, "time_s": time_s, "mean_us": average, "min_us": least, "max_us": most}


# --- shares -------------------------------------------------------------------------------------------


def shares(profiles: Iterable[Profile]) -> Rows:
    """Communication and copies in GPU time (a CPU's operators where there is no GPU), by GPUs, batch size
    and backend.

    Times are summed over runs first, ratios are formed last.
    """
    groups: dict[tuple, list[Profile]] = defaultdict(list)
    for profile in profiles:
        groups[profile.world_size, profile.batch, profile.backend].append(profile)
    rows = []
    for point in sorted(groups, key=lambda point: (point[0] or 0, point[1] or 0, point[2] or "")):
        members = groups[point]
        activities = [row for member in members for row in member.rows if row["type"] in (GPU, CPU)]
        total = sum(row["time_s"] for row in activities)
        part = {kind: sum(row["time_s"] for row in activities if row["class"] in kind)
                for kind in (("communication",), _COPIES)}  # fmt: skip
        communication, copies = (100 * time_s / total if total else None for time_s in part.values())
        values = {
            name: dict.fromkeys(str(one.fields.get(name)) for one in members) for name in members[0].fields
        }
        differ = "; ".join(
            f"{name} ({', '.join(some)})"
            for name, some in values.items()
            if len(some) > 1 and name not in NOT_OF_POINT
        )
        rows.append(_share(point, len(members), total, communication, copies, differ or None))
    return rows


def _share(
    point: tuple,
    runs: int,
    time_s: float,
    communication: float | None,
    copies: float | None,
    differ: str | None = None,
) -> dict[str, Any]:
    known = communication is not None and copies is not None
    compute = 100 - communication - copies if known else None  # type: ignore[operator]
    return dict(
        zip(names_of(SHARES), (*point, runs, time_s, communication, copies, compute, differ), strict=True)
    )


def printed_shares(path: Path) -> Rows | None:
    """The shares of a table of printed summaries (its first rows only); None if a file is no such table.

    Raises:
        UserError: a row of it is damaged.
    """
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        reader = csv.DictReader(file)
        if not set(reader.fieldnames or ()) >= _PRINTED:
            return None
        groups: dict[tuple[int, int], list[dict[str, str]]] = defaultdict(list)
        for row in reader:
            try:
                groups[int(row["gpus"]), int(row["batch"])].append(row)
                float(row["time_pct"]), float(row["time_s"])
            except (TypeError, ValueError):
                raise UserError(f"{path} is damaged at line {reader.line_num}: numbers expected") from None
    rows = []
    for (gpus, batch), members in sorted(groups.items()):
        percent: dict[str, float] = defaultdict(float)
        for row in members:
            percent[classify(row["kernel"])] += float(row["time_pct"])
        # Time over its share is the time of all; the longest row says it with the most digits.
        largest = max(members, key=lambda row: float(row["time_pct"]))
        total = float(largest["time_s"]) / float(largest["time_pct"]) * 100
        copies = sum(percent[kind] for kind in _COPIES)
        rows.append(_share((gpus, batch, None), 1, total, percent["communication"], copies))
    return rows


def of_study(study: Study, by: Iterable[str] = ()) -> list[Profile]:
    """The activities of the runs of a study that have some."""

    def of_source(source: Source) -> Profile:
        with reading(source):
            rows = of_kernels(kernels(source), by)
        fields = source.fields
        return Profile(source.id, rows, source.world_size, fields.get("batch"), fields.get("backend"), fields)

    return [profile for _, profile in study.each(filter(has_kernels, study.sources), of_source)]
