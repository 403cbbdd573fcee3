"""Summaries as tools print them: GPU activities and their shares; functions and counters of a run."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa

from analysis.display.metrics import FIELDS, RANK, RUN, STEP, Metric, columns, names_of
from analysis.display.numbers import in_order
from analysis.display.output import Answer, Part
from analysis.frames.kernel_sums import BY, has_kernels
from analysis.frames.measure import measure
from analysis.frames.study import NOT_OF_POINT, Source, Study, connect, reading
from profiling import tables, tools
from profiling.cost.classify import classify, short_name
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.files import read_head
from profiling.readers.printed import DURATION, ON_DEVICE
from profiling.readers.pyprof import read_table
from profiling.traces import files_of

GPU, CPU, CALLS, RANGES = "GPU activities", "CPU operators", "API calls", "ranges"
_TYPES = (GPU, CPU, CALLS, RANGES)
_OF_A_FILE = ("kernels", "intervals")  # tables
_CALL = re.compile(r"cu(da)?[A-Z]\w*")
_CAPTION = "All recorded launches, warmup included."
_TOP = 25  # rows of each type that the terminal shows
_THREAD = Metric("thread", "thread of the rank, as the tool numbers it", key=True)
LEVELS = {"rank": RANK, "step": STEP, "thread": _THREAD}
METRICS = (
    Metric("type", "GPU activities, CPU operators (without a GPU), API calls, ranges", text=True),
    Metric("time_pct", "share of the time of its type"),
    Metric("time_s", "total"),
    Metric("calls", "number of calls"),
    Metric("mean_us", "mean duration of a call"),
    Metric("min_us", "shortest call", priority=0),
    Metric("max_us", "longest call", priority=0),
    Metric("class", "gemm, convolution, communication, memcpy, ...", text=True, table=False),
    Metric("name", "full kernel name; [CUDA memcpy HtoD] etc. for copies", text=True, priority=2, longest=60),
)  # fmt: skip
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
        RUN, RANK, STEP, *METRICS,
    ),
    "Columns of the shares, one row per number of GPUs, batch size and backend:": SHARES,
}  # fmt: skip
_PRINTED = {"gpus", "batch", "time_pct", "time_s", "calls", "kernel"}


def of_kernels(kernels: pa.Table | Sequence[Path], by: Sequence[str] = ()) -> pd.DataFrame:
    """The activities of a ``kernels`` table (or of Parquet files), largest first; by rank, step: of each."""
    connection = connect()
    sql = f"""
select {"".join(f"{BY[name]} as {name}, " for name in by)} coalesce(device >= 0, true) as on_gpu,
    coalesce(name::varchar, '(without a name)') as name, "class"::varchar as "class", count(*) as calls,
    sum(duration_ns)::double / 1e9 as time_s, min(duration_ns) / 1e3 as min_us,
    max(duration_ns) / 1e3 as max_us
from kernels where duration_ns >= 0 group by all order by time_s desc, "class"
"""
    if files := isinstance(kernels, Sequence):
        tables.verify(kernels, "kernels", sql)
    relation = connection.read_parquet([*map(str, kernels)]) if files else connection.from_arrow(kernels)
    rows = relation.query("kernels", sql).df()  # type: ignore[union-attr]
    rows["type"] = np.where(rows.pop("on_gpu"), GPU, CPU)
    copies = rows["class"].isin(["memcpy", "memset"]) & (rows["type"] == GPU)
    kinds = rows["name"].map(lambda name: short_name(name).replace("Mem", "mem", 1))
    rows["name"] = rows["name"].mask(copies, "[CUDA " + kinds + "]")
    return _finished(rows, by)


def of_summary(intervals: pa.Table, atomics: pa.Table | None) -> pd.DataFrame:
    """The activities of a summary that a tool printed: rows on a device's thread, and calls of the API."""
    rows = intervals.select(["thread", "function", "calls", "inclusive_ns"]).to_pandas()
    rows = rows.rename(columns={"function": "name"}).fillna({"calls": 0, "inclusive_ns": 0})
    rows["name"] = rows["name"].astype(object)
    spread = atomics if atomics is not None else tables.as_table("atomics", {})
    took = spread.select(["thread", "event", "min", "max"]).to_pandas()
    took["name"] = took.pop("event").astype(str).str.removeprefix(f"{DURATION} : ")
    took = took.groupby(["thread", "name"], as_index=False).agg({"min": "min", "max": "max"})
    rows = rows.merge(took, "left", on=["thread", "name"])
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
    joined = of_name[["calls", "time_s"]].sum().assign(
        min_us=of_name["min_us"].min(skipna=False), max_us=of_name["max_us"].max(skipna=False),
        **{"class": of_name["class"].first()},
    )  # fmt: skip
    joined["mean_us"] = joined["time_s"] / joined["calls"].where(joined["calls"] > 0) * 1e6
    whole = joined.groupby(keys[:-1], dropna=False)["time_s"].transform("sum")
    joined["time_pct"] = 100 * joined["time_s"] / whole.where(whole > 0)
    frame = joined.reset_index()
    frame["order"] = frame["type"].map(_TYPES.index)
    keys, ascending = [*by, "order", "time_s", "name"], [*(True for _ in by), True, False, True]
    frame = frame.sort_values(keys, ascending=ascending, na_position="first", kind="stable")
    return frame[[*by, *names_of(METRICS)]].reset_index(drop=True)


_POINT = ["world_size", "batch", "backend"]
_COMMUNICATION, _COPIED, _COMPUTE = _SHARES = ("communication_pct", "copies_pct", "compute_pct")
_SHARE_OF = {"communication": _COMMUNICATION, "memcpy": _COPIED, "memset": _COPIED}


def shares_of(activities: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Communication and copies in GPU time (a CPU's operators where there is no GPU): :data:`SHARES`.

    Times are summed over runs of the same GPUs, batch size and backend first. ``activities`` has a column
    ``run``; ``runs`` are the fields of these, by their ids.
    """
    on_device = activities[activities["type"].isin((GPU, CPU))]
    share = on_device["class"].map(_SHARE_OF).fillna(_COMPUTE)
    times = on_device.groupby(["run", share])["time_s"].sum().unstack()
    times = times.reindex(runs.index, columns=list(_SHARES)).fillna(0.0)
    known = runs.reindex(columns=list(dict.fromkeys([*_POINT, *runs])))
    groups = known.join(times).groupby(_POINT, dropna=False, sort=False)
    sums = groups[list(_SHARES)].sum()
    time_s = sums.sum(axis=1)
    differ: list[str | None] = []
    for _, one in groups:
        values = {name: one[name].astype(str).unique() for name in runs if name not in NOT_OF_POINT}
        texts = [f"{name} ({', '.join(some)})" for name, some in values.items() if len(some) > 1]
        differ.append("; ".join(texts) or None)
    shares = 100 * sums.div(time_s.where(time_s > 0), axis=0)
    shares = shares.assign(runs=groups.size(), time_s=time_s, runs_differ=pd.array(differ, object))
    return in_order(shares.reset_index()[names_of(SHARES)], _POINT)


def printed_shares(path: Path) -> pd.DataFrame | None:
    """The shares of a table of printed summaries (its first rows only); None if a file is no such table."""
    with path.open(encoding="utf-8", errors="replace") as file:
        if not {*file.readline(1000).strip().split(",")} >= _PRINTED:
            return None
    keys = ["gpus", "batch"]
    try:
        types = {**dict.fromkeys(keys, int), "time_pct": float, "time_s": float, "kernel": str}
        table = pd.read_csv(path, usecols=list(_PRINTED), encoding_errors="replace").astype(types)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    share = table["kernel"].map(classify).map(_SHARE_OF).fillna(_COMPUTE)
    shares = table["time_pct"].groupby([table["gpus"], table["batch"], share]).sum().unstack()
    shares = shares.reindex(columns=list(_SHARES)).fillna(0.0)
    shares[_COMPUTE] = 100 - shares[_COMMUNICATION] - shares[_COPIED]  # with the rows that were cut off
    # Time over its share is the time of all; the longest row says it with the most digits.
    longest = table.loc[table.groupby(keys)["time_pct"].idxmax()].set_index(keys)
    shares = shares.assign(runs=1, time_s=longest["time_s"] / longest["time_pct"] * 100)
    return shares.rename_axis(["world_size", "batch"]).reset_index().reindex(columns=names_of(SHARES))


def activities_of(study: Study, by: Sequence[str] = ()) -> pd.DataFrame:
    """The activities (:func:`of_kernels`) of the runs of a study that have some, with a column ``run``."""

    def of_source(source: Source) -> pd.DataFrame:
        with reading(source):
            if source.kind != "pyprof":
                return of_kernels(source.tables("kernels"), by)
            return of_kernels(read_table(source.path, connection=study.connection).tables["kernels"], by)

    found = study.each(filter(has_kernels, study.sources), of_source)
    frames = [rows.assign(run=source.id) for source, rows in found]
    if not frames:
        raise UserError(f"{study.path} holds no activities: no profiler recorded kernels")
    return pd.concat(frames, ignore_index=True)


# What the command line in a log, or else its path, says of its run.
_OF_LOG = {
    "world_size": r"(?i)(?:gpus|n(?:um[-_])?gpu|nproc[-_]per[-_]node|\bgpu(?=\d))[ =_-]?(\d+)(?![\d,])"
    r"|(\d+)[ _-]?gpus?",
    "batch": r"(?i)(?:(?<!\S)-b|batch(?:[-_]?size)?|(?<![a-z\d])bs?)[ =_-]?(\d+)",
}


def parts_in(folder: Path) -> list[Path]:
    """The texts that nvprof printed, and the tables of files of no job, in a folder without results."""
    found = sorted({file.parent for name in _OF_A_FILE for file in folder.rglob(f"{name}.parquet")})
    for file in files_of([folder]):
        with suppress(UserError):
            if tools.recognise(file) == "nvprof" and tools.tool("nvprof").facts(file) is None:
                found.append(file)
    return found


def fields_of_logs(study: Study, runs: Sequence[str], patterns: Mapping[str, str]) -> pd.DataFrame:
    """GPUs and batch size of logs, by their names; ``patterns`` (field: regular expression) come first."""
    fields: dict[str, dict[str, int]] = {}
    for run in runs:
        log = study.path if study.path.is_file() else study.path / run
        text = read_head(log).decode("utf-8", "replace") if log.is_file() else ""  # tables hold none
        command = re.search(r"command: (.*)", text)
        texts = [*([command[1]] if command else []), run]
        fields[run] = {}
        for name, pattern in (_OF_LOG | dict(patterns)).items():
            match = next(filter(None, (re.search(pattern, text) for text in texts)), None)
            digits = "".join(filter(None, match.groups())) if match else ""
            if digits.isdecimal():
                fields[run][name] = int(digits)
            else:
                study.note("not_recorded", run, what=name)
    return pd.DataFrame(fields, dtype=object).T


def of_path(study: Study, by: Sequence[str] = ()) -> pd.DataFrame:
    """The activities of a profiler's file, of a folder with its tables, or of a folder of such or of logs."""
    path = study.path
    if path.is_file() or any(tables.table_path(path, name).exists() for name in _OF_A_FILE):
        return _of_file(study, path, by).assign(run=path.name)
    each = []
    for log in parts_in(path):
        name = str(log.relative_to(path))
        try:
            each.append(_of_file(study, log, by).assign(run=name))
        except UserError:  # metrics, or a trace of calls
            study.note("parts_unread", what=[name])
    if not each:
        raise UserError(f"{path} holds no summary of GPU activities")
    return pd.concat(each, ignore_index=True)


def _of_file(study: Study, path: Path, by: Sequence[str]) -> pd.DataFrame:
    found = _read(study, path, ("kernels", "intervals", "atomics"))
    rows = of_kernels(found["kernels"], by) if "kernels" in found else pd.DataFrame()
    intervals = found.get("intervals")
    if rows.empty and intervals is not None and ON_DEVICE in intervals["thread"].unique().to_pylist():
        rows = of_summary(intervals, found.get("atomics"))
    if rows.empty:
        why = "".join(f"; {note}" for note in study.notes()[:1])
        raise UserError(f"{path} holds no GPU activities and no timed operators{why}")
    return rows


@measure(COLUMNS)
def activities(
    study: Study, by: Sequence[str] = (), shares: bool = False, field: Mapping[str, str] | None = None,
    top: int | None = None, least: float = 0.0,
) -> Answer:  # fmt: skip
    """The activities of each run, or of a file, as nvprof prints them; or their shares.

    ``shares``: of communication and copies, by number of GPUs and batch size; ``field``: of logs, see
    :func:`fields_of_logs`; ``top``: so many rows of each type; ``least``: % of its time, or more.
    """
    if shares and (top or least):
        raise UserError("top and least choose activities; shares are of all of them")
    printed = printed_shares(study.path) if shares and study.path.is_file() else None
    if printed is None:
        rows = activities_of(study, by) if study.loaded else of_path(study, by)
        if shares:
            runs = list(rows["run"].unique())
            fields = {one.id: {**one.fields, "world_size": one.world_size} for one in study.sources}
            known = pd.DataFrame(fields, dtype=object).T
            known = known if study.loaded else fields_of_logs(study, runs, field or {})
            printed = shares_of(rows, known.reindex(runs))
    if printed is not None:
        return Answer(printed, SHARES, title="Share of GPU activity time", caption=_CAPTION)
    if (rows := rows[rows["time_pct"] >= least]).empty:
        raise UserError(f"{study.path}: nothing takes {least:g} % of the time or more")
    levels = [LEVELS[name] for name in by]
    shown = columns([*levels, *(metric for metric in METRICS if metric.table)])
    groups = rows.groupby(["run", *by, "type"], dropna=False, sort=False)
    first = groups.head(top or _TOP).groupby("run", sort=False)
    parts = [Part(str(run), of_run, shown, _CAPTION) for run, of_run in first]
    metrics = [*([RUN] if len(parts) > 1 else []), *levels, *METRICS]
    return Answer(groups.head(top or len(rows)), metrics, parts)


# --- functions and counters ---------------------------------------------------------------------------

FUNCTION, COUNTER = "function", "counter"
_TABLES = {"intervals": (FUNCTION, "function"), "atomics": (COUNTER, "event")}
_NAME = Metric("name", "function, or counter and what it counted", text=True, priority=2, longest=70)
FUNCTIONS = (
    Metric("calls", "number of calls, of all ranks and threads"),
    Metric("exclusive_s", "time in the function itself"),
    Metric("inclusive_s", "time in the function and those it called"),
)
COUNTERS = (
    Metric("count", "number of values"),
    Metric("mean", "mean of the values, in the tool's unit"),
    Metric("min", "least value"),
    Metric("max", "greatest value"),
)
_KIND = Metric("kind", f"{FUNCTION} or {COUNTER}", text=True)
FUNCTION_COLUMNS = {
    "Columns: run, the fields of --by, then": (RUN, RANK, _THREAD, _KIND, *FUNCTIONS, *COUNTERS, _NAME)
}


@measure(FUNCTION_COLUMNS)
def functions(study: Study, by: Sequence[str] = (), top: int | None = None) -> Answer:
    """A row per run and function, longest exclusive time first, then a row per counter."""
    cprofile = study.path.suffix in (".prof", ".pstats") and study.path.exists()
    sums = {"intervals": _of_cprofile(study.path)} if cprofile else sums_of_tools(study)
    known = [(sums[table], *of) for table, of in _TABLES.items() if table in sums]
    found = [rows.rename(columns={column: "name"}).assign(kind=kind) for rows, kind, column in known]
    if not found:
        raise UserError(f"{study.path} holds no function and no counter (profiling.convert reads raw files)")
    levels = [LEVELS[name] for name in by]
    metrics = [RUN, *levels, _KIND, *FUNCTIONS, *COUNTERS, _NAME]
    of_functions, of_counters = ["calls", "exclusive_ns", "inclusive_ns"], ["count", "mean", "min", "max"]
    keys = ["run", *by, "kind", "name"]
    rows = pd.concat(found).reindex(columns=[*keys, *of_functions, *of_counters]).astype({"name": str})
    groups = rows.assign(total=rows["mean"] * rows["count"]).groupby(keys, dropna=False, sort=False)
    frame = groups[[*of_functions, "count", "total"]].sum(min_count=1).reset_index()
    frame = frame.assign(
        exclusive_s=frame["exclusive_ns"] / 1e9,
        inclusive_s=frame["inclusive_ns"] / 1e9,
        mean=frame["total"] / frame["count"],
        min=groups["min"].min().array,
        max=groups["max"].max().array,
    )[names_of(metrics)]
    for name in ("calls", "count"):
        number = frame[name].astype(float)
        frame[name] = number.where(number.abs() < 2**53).round().astype("Int64")  # else it is damaged
    frame = frame.sort_values(["run", "kind", "exclusive_s"], ascending=[True, False, False], kind="stable")
    groups = frame.groupby(["run", *by, "kind"], dropna=False, sort=False)
    shown = {FUNCTION: [*levels, *FUNCTIONS, _NAME], COUNTER: [*levels, *COUNTERS, _NAME]}
    first = groups.head(top or _TOP).groupby(["run", "kind"], sort=False)
    parts = [Part(f"{run}: {kind}s", rows, shown[str(kind)]) for (run, kind), rows in first]
    return Answer(groups.head(top or len(frame)).reset_index(drop=True), metrics, parts)


def sums_of_tools(
    study: Study, names: Sequence[str] = tuple(_TABLES), tool: str | None = None
) -> dict[str, pd.DataFrame]:
    """Tables of the sums that a tool kept: of its file, or of all ranks below a folder; findings are noted.

    By name, of those that are there: the rows, with the ``run`` that they are of. ``tool``: that wrote what
    is read; None: recognised, and a folder is not its.
    """
    path = study.path
    if not path.exists():
        raise UserError(f"{path} does not exist")
    # Of one tool, its first table says which runs are its.
    of_tool = names[:1] if tool else names
    folders = sorted({file.parent for name in of_tool for file in path.rglob(f"{name}.parquet")})
    found = []
    for folder in folders:
        of_run = folder.parent if folder.name.startswith("rank_") else folder
        run = path.name if of_run in (path, path.parent) else str(of_run.relative_to(path))
        found.append((run, _read(study, folder, names)))
    for report in (folder / "rank.json" for folder in folders):
        for finding in orjson.loads(report.read_bytes()).get("findings", []) if report.exists() else ():
            study.add(Finding.from_json(finding))
    if path.is_file() or (tool and not folders):
        found = [(path.name, _read(study, path, names, tool))]
    rows = {name: [of[name].to_pandas().assign(run=run) for run, of in found if name in of] for name in names}
    return {name: pd.concat(some, ignore_index=True) for name, some in rows.items() if some}


def _read(study: Study, path: Path, names: Sequence[str], tool: str | None = None) -> Mapping[str, pa.Table]:
    """The tables in a folder, or of a file (or folder) as this tool wrote it, whose findings are noted."""
    if path.is_dir() and not tool:
        return {name: tables.read(path, name) for name in names if tables.table_path(path, name).exists()}
    converted = tools.read(path, tool)
    for finding in converted.findings:
        study.add(finding)
    return converted.tables


# A damaged file may take any memory and time, or end its reader: a process of its own reads it.
_READ_CPROFILE = """
import json, marshal, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
with open(sys.argv[1], "rb") as file:
    stats = marshal.load(file)
json.dump([
    [f"{name} ({path}:{line})" if line else str(name), min(int(calls), 1 << 53), 1e9 * own, 1e9 * total]
    for (path, line, name), (_, calls, own, total, *_) in stats.items()
], sys.stdout)
"""


def _of_cprofile(path: Path) -> pd.DataFrame:
    words = [sys.executable, "-c", _READ_CPROFILE, str(path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    except subprocess.SubprocessError as error:
        why = (str(getattr(error, "stderr", None) or error).splitlines() or [""])[-1]
        raise UserError(f"{path} is not a file of cProfile ({why})") from None
    names = ["function", "calls", "exclusive_ns", "inclusive_ns"]
    return pd.DataFrame(json.loads(done.stdout), columns=names).assign(run=path.name, rank=0, thread=0)
