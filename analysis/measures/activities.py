"""Summary of GPU activities from tables of kernels or printed summaries, and their shares."""

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.display.metrics import FIELDS, RANK, RUN, STEP, Metric, columns, names_of
from analysis.display.numbers import in_order
from analysis.display.terminal import Answer, Part
from analysis.frames.kernel_sums import BY, has_kernels
from analysis.frames.measure import measure
from analysis.frames.study import NOT_OF_POINT, Source, Study, reading
from profiling import database, tables, tools
from profiling.cost.classify import classify, short_name
from profiling.errors import UserError
from profiling.readers.printed import DURATION, ON_DEVICE

GPU, CPU, CALLS, RANGES = "GPU activities", "CPU operators", "API calls", "ranges"
_TYPES = (GPU, CPU, CALLS, RANGES)
_CALL = re.compile(r"cu(da)?[A-Z]\w*")
_CAPTION = "All recorded launches, warmup included."
_TOP = 25  # rows of each type that the terminal shows
LEVELS = {"rank": RANK, "step": STEP}
METRICS = (
    Metric("type", "GPU activities, CPU operators (without a GPU), API calls, ranges", text=True),
    Metric("time_pct", "share of the time of its type"),
    Metric("time_s", "total"),
    Metric("calls", "number of calls"),
    Metric("mean_us", "mean duration of a call"),
    Metric("min_us", "shortest call", priority=0),
    Metric("max_us", "longest call", priority=0),
    Metric(
        "class",
        "gemm, convolution, communication, memcpy, ... (profiling/cost/classify.py)",
        text=True,
        table=False,
    ),
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
_FIGURES = names_of(METRICS)


@dataclass
class Profile:
    """The activities of one run (columns: levels, :data:`METRICS`), and what the run was."""

    name: str
    rows: pd.DataFrame
    world_size: int | None = None
    batch: int | None = None
    backend: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


# --- from tables --------------------------------------------------------------------------------------

_OF_KERNELS = """
select {levels} device >= 0 as on_gpu, coalesce(name::varchar, '(without a name)') as name,
    "class"::varchar as "class", count(*) as calls, sum(duration_ns)::double / 1e9 as time_s,
    min(duration_ns) / 1e3 as min_us, max(duration_ns) / 1e3 as max_us
from {kernels} where duration_ns >= 0 group by all order by time_s desc, "class"
"""


def of_kernels(kernels: pa.Table | Sequence[Path], by: Sequence[str] = ()) -> pd.DataFrame:
    """The activities of a ``kernels`` table (or of Parquet files), largest first.

    Args:
        by: ``rank``, ``step``: rows for each.

    Raises:
        UserError: a file is damaged.
    """
    connection = database.connect()
    levels = "".join(f"{BY[name]} as {name}, " for name in by)
    paths = {"paths": [str(path) for path in kernels]} if isinstance(kernels, Sequence) else {}
    if not paths:
        connection.register("kernels", kernels)
    sql = _OF_KERNELS.format(levels=levels, kernels="read_parquet($paths)" if paths else "kernels")
    try:
        rows = connection.execute(sql, paths).df()
    except (duckdb.Error, OSError) as error:
        raise UserError(f"a table is damaged or truncated ({str(error).splitlines()[0]})") from None
    rows["type"] = np.where(rows.pop("on_gpu") != False, GPU, CPU)  # noqa: E712
    copies = rows["class"].isin(_COPIES) & (rows["type"] == GPU)
    kinds = rows["name"].map(lambda name: short_name(name).replace("Mem", "mem", 1))
    rows["name"] = rows["name"].mask(copies, "[CUDA " + kinds + "]")
    return _finished(rows, by)


def of_summary(intervals: pa.Table, atomics: pa.Table | None) -> pd.DataFrame:
    """The activities of a summary that a tool printed: rows on a device's thread, and calls of the API."""
    rows = intervals.select(["thread", "function", "calls", "inclusive_ns"]).to_pandas()
    rows = (
        rows.rename(columns={"function": "name"})
        .astype({"name": object})
        .fillna({"calls": 0, "inclusive_ns": 0})
    )
    spread = atomics if atomics is not None else tables.as_table("atomics", {})
    took = spread.select(["thread", "event", "min", "max"]).to_pandas().astype({"event": str})
    took["name"] = took.pop("event").str.removeprefix(f"{DURATION} : ")
    rows = rows.merge(took.drop_duplicates(["thread", "name"], keep="last"), "left", on=["thread", "name"])
    # Where a log lost the line that heads them, calls of the API look as if they ran on the device.
    on_device = (rows["thread"] == ON_DEVICE) & ~rows["name"].map(lambda name: bool(_CALL.fullmatch(name)))
    other = rows["name"].map(lambda name: CALLS if _CALL.match(name) else RANGES)
    return _finished(rows.assign(
        type=other.mask(on_device, GPU),
        calls=rows["calls"].astype(int),
        time_s=rows["inclusive_ns"] / 1e9,
        min_us=rows["min"] / 1e3,
        max_us=rows["max"] / 1e3,
        **{"class": rows["name"].map(classify).where(on_device, None)},
    ))  # fmt: skip


def _finished(rows: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Rows of one name joined, with their share of the time of their type, largest first."""
    keys = [*by, "type", "name"]  # two ways to copy may have one name
    of_name = rows.groupby(keys, dropna=False, sort=False)
    joined = of_name[["calls", "time_s"]].sum()
    joined["class"] = of_name["class"].first()
    joined["min_us"], joined["max_us"] = (
        of_name["min_us"].min(skipna=False),
        of_name["max_us"].max(skipna=False),
    )
    joined["mean_us"] = joined["time_s"] / joined["calls"].where(joined["calls"] > 0) * 1e6
    whole = joined.groupby(keys[:-1], dropna=False)["time_s"].transform("sum")
    joined["time_pct"] = 100 * joined["time_s"] / whole.where(whole > 0)
    frame = joined.reset_index()
    frame["order"], frame["last"] = frame["type"].map(_TYPES.index), -frame["time_s"]
    frame = frame.sort_values([*by, "order", "last", "name"], na_position="first", kind="stable")
    return frame[[*by, *_FIGURES]].reset_index(drop=True)


# --- shares -------------------------------------------------------------------------------------------


def shares_of(profiles: Sequence[Profile]) -> pd.DataFrame:
    """Communication and copies in GPU time (a CPU's operators where there is no GPU): :data:`SHARES`.

    Times are summed over runs of the same GPUs, batch size and backend first, ratios are formed last.
    """
    groups: dict[tuple, list[Profile]] = defaultdict(list)
    for profile in profiles:
        groups[profile.world_size, profile.batch, profile.backend].append(profile)
    rows = []
    for point, members in groups.items():
        activities = pd.concat([one.rows for one in members])
        activities = activities[activities["type"].isin((GPU, CPU))]
        times = activities["time_s"].groupby(activities["class"].fillna("")).sum()
        part = {"communication": times.get("communication", 0.0), "copies": times.reindex(_COPIES).sum()}
        values = {
            name: dict.fromkeys(str(one.fields.get(name)) for one in members)
            for name in members[0].fields
            if name not in NOT_OF_POINT
        }
        differ = "; ".join(f"{name} ({', '.join(some)})" for name, some in values.items() if len(some) > 1)
        rows.append(
            (*point, len(members), times.sum(), part["communication"], part["copies"], differ or None)
        )
    return _in_percent(rows)


def _in_percent(rows: Sequence[tuple]) -> pd.DataFrame:
    """:data:`SHARES` of rows (point, runs, time, time of collectives, of copies, differences)."""
    names = ["world_size", "batch", "backend", "runs", "time_s", "communication", "copies", "runs_differ"]
    frame = pd.DataFrame(rows, columns=names).astype(dict.fromkeys(names[:3], object))
    for part in ("communication", "copies"):
        frame[f"{part}_pct"] = 100 * frame[part] / frame["time_s"].where(frame["time_s"] > 0)
    frame["compute_pct"] = 100 - frame["communication_pct"] - frame["copies_pct"]
    return in_order(frame[names_of(SHARES)], names[:3])


def printed_shares(path: Path) -> pd.DataFrame | None:
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
        parts = (percent["communication"], sum(percent[kind] for kind in _COPIES))
        rows.append((gpus, batch, None, 1, total, *(total * part / 100 for part in parts), None))
    return _in_percent(rows)


# --- the measure --------------------------------------------------------------------------------------


def profiles_of(study: Study, by: Sequence[str] = ()) -> list[Profile]:
    """The activities of the runs of a study that have some."""

    def of_source(source: Source) -> Profile:
        with reading(source):
            of_table = source.kind == "pyprof"
            kernels = (
                tools.read(source.path, "pyprof").tables["kernels"] if of_table else source.tables("kernels")
            )
            rows = of_kernels(kernels, by)
        fields = source.fields
        return Profile(source.id, rows, source.world_size, fields.get("batch"), fields.get("backend"), fields)

    return [profile for _, profile in study.each(filter(has_kernels, study.sources), of_source)]


def of_path(study: Study, by: Sequence[str] = ()) -> Profile:
    """The activities of a profiler's file, or of a folder with tables of one.

    Raises:
        UserError: it holds none.
    """
    path = study.path
    if path.is_file():
        converted = tools.read(path)
        found: dict[str, pa.Table] = dict(converted.tables)
        for finding in converted.findings:
            study.log.add(finding)
    else:
        names = [
            name for name in ("kernels", "intervals", "atomics") if tables.table_path(path, name).exists()
        ]
        found = {name: tables.read(path, name) for name in names}
    rows = of_kernels(found["kernels"], by) if "kernels" in found else pd.DataFrame()
    intervals = found.get("intervals")
    if rows.empty and intervals is not None and ON_DEVICE in intervals["thread"].unique().to_pylist():
        rows = of_summary(intervals, found.get("atomics"))
    if rows.empty:
        why = "".join(f"; {note}" for note in study.notes()[:1])
        raise UserError(f"{path} holds no GPU activities and no timed operators{why}")
    return Profile(path.name, rows)


@measure(COLUMNS)
def activities(
    study: Study,
    by: Sequence[str] = (),
    shares: bool = False,
    top: int | None = None,
) -> Answer:
    """The activities of each run, or of a file, as nvprof prints them; or their shares.

    Args:
        by: rows for each rank, step.
        shares: of communication and copies, by number of GPUs and batch size.
        top: so many rows of each type.

    Raises:
        UserError: there is nothing that a profiler recorded.
    """
    printed = printed_shares(study.path) if shares and study.path.is_file() else None
    profiles = [] if printed is not None else profiles_of(study, by) if study.loaded else [of_path(study, by)]
    if printed is None and not profiles:
        raise UserError(f"{study.path} holds no activities: no profiler recorded kernels")
    if shares:
        rows = shares_of(profiles) if printed is None else printed
        return Answer(rows, SHARES, title="Share of GPU activity time", caption=_CAPTION)
    levels = [LEVELS[name] for name in by]
    shown = columns([*levels, *(metric for metric in METRICS if metric.table)])
    parts = [Part(one.name, _first(one.rows, top or _TOP, by), shown, _CAPTION) for one in profiles]
    rows = pd.concat([_first(one.rows, top, by).assign(run=one.name) for one in profiles], ignore_index=True)
    return Answer(rows, [*([RUN] if len(profiles) > 1 else []), *levels, *METRICS], parts)


def _first(rows: pd.DataFrame, top: int | None, by: Sequence[str]) -> pd.DataFrame:
    return rows.groupby([*by, "type"], dropna=False, sort=False).head(top) if top else rows
