"""Functions and counters that a tool summed over a run, from the tables ``intervals`` and ``atomics``."""

import pstats
from collections.abc import Sequence
from pathlib import Path

import orjson
import pandas as pd

from analysis.display.metrics import RANK, RUN, Metric, columns, names_of
from analysis.display.terminal import Answer, Part
from analysis.frames.measure import measure
from analysis.frames.study import Study
from profiling import tables, tools
from profiling.errors import UserError
from profiling.findings import Finding

FUNCTION, COUNTER = "function", "counter"
_KINDS = {
    "intervals": (FUNCTION, "function"),
    "atomics": (COUNTER, "event"),
}
LEVELS = {"rank": RANK, "thread": Metric("thread", "thread of the rank, as the tool numbers it", key=True)}
_NAME = Metric(
    "name", "function, or counter and what it counted", text=True, priority=2,
    longest=70,
)  # fmt: skip
FUNCTIONS = (
    Metric("calls", "number of calls, of all ranks and threads"),
    Metric("exclusive_s", "time in it, without the functions that it called"),
    Metric("inclusive_s", "time in it, with the functions that it called"),
)
COUNTERS = (
    Metric("count", "number of values"),
    Metric("mean", "mean of the values, in the tool's unit"),
    Metric("min", "least value"),
    Metric("max", "greatest value"),
)
_KIND = Metric("kind", f"{FUNCTION} or {COUNTER}", text=True)
COLUMNS = {
    "Columns: run, the fields of --by, then": (RUN, *LEVELS.values(), _KIND, *FUNCTIONS, *COUNTERS, _NAME)
}
_TOP = 25


@measure(COLUMNS)
def functions(study: Study, by: Sequence[str] = (), top: int | None = None) -> Answer:
    """A row per run and function, longest exclusive time first, then a row per counter.

    Args:
        by: a row for each rank, thread.
        top: so many functions and counters of each run.

    Raises:
        UserError: nothing below the path holds functions or counters.
    """
    keys = ["run", *by, "name"]
    cprofile = study.path.suffix in (".prof", ".pstats") and study.path.exists()
    sums = {"intervals": _of_cprofile(study.path)} if cprofile else sums_of_tools(study)
    found = []
    for name, (kind, column) in _KINDS.items():
        if name in sums:
            rows = sums[name].rename(columns={column: "name"}).astype({"name": str})
            found.append((_functions if kind == FUNCTION else _counters)(rows, keys).assign(kind=kind))
    if not found:
        raise UserError(
            f"{study.path} holds no functions and no counters (profiling.convert reads raw files)"
        )
    levels = [LEVELS[name] for name in by]
    metrics = [RUN, *levels, _KIND, *FUNCTIONS, *COUNTERS, _NAME]
    frame = pd.concat(found, ignore_index=True).reindex(columns=names_of(metrics))
    for name in ("calls", "count"):
        number = frame[name].astype(float)
        frame[name] = number.where(number.abs() < 2**53).round().astype("Int64")  # else it is damaged
    frame = frame.sort_values(["run", "kind", "exclusive_s"], ascending=[True, False, False], kind="stable")
    groups = frame.groupby(["run", *by, "kind"], dropna=False, sort=False)
    shown = {
        kind: columns([*levels, *of_kind, _NAME])
        for kind, of_kind in ((FUNCTION, FUNCTIONS), (COUNTER, COUNTERS))
    }
    parts = [
        Part(f"{run}: {kind}s", rows, shown[str(kind)])
        for (run, kind), rows in groups.head(top or _TOP).groupby(["run", "kind"], sort=False)
    ]
    return Answer(groups.head(top or len(frame)).reset_index(drop=True), metrics, parts)


def _functions(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    times = rows.assign(exclusive_s=rows["exclusive_ns"] / 1e9, inclusive_s=rows["inclusive_ns"] / 1e9)
    groups = times.groupby(keys, dropna=False, sort=False)
    # What one thread does not know is not known of the sum.
    return groups[["calls", "exclusive_s", "inclusive_s"]].sum(min_count=1).reset_index()


def _counters(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    groups = rows.assign(total=rows["mean"] * rows["count"]).groupby(keys, dropna=False, sort=False)
    sums = groups.agg(count=("count", "sum"), total=("total", "sum"), min=("min", "min"), max=("max", "max"))
    return sums.assign(mean=sums.pop("total") / sums["count"]).reset_index()


def sums_of_tools(
    study: Study, names: Sequence[str] = tuple(_KINDS), tool: str | None = None
) -> dict[str, pd.DataFrame]:
    """Tables of the sums that a tool kept: of its file, or of all ranks below a folder; findings are noted.

    Args:
        study: its path is the file's, or the folder's.
        names: of the tables.
        tool: that wrote what is read; None: recognised, and a folder is not its.

    Returns:
        By name, of those that are there: the rows, with the ``run`` that they are of.
    """
    path = study.path
    if not path.exists():
        raise UserError(f"{path} does not exist")
    # Of one tool, its first table says which runs are its.
    of_tool = names[:1] if tool else names
    folders = sorted({file.parent for name in of_tool for file in path.rglob(f"{name}.parquet")})
    files = [file for name in names for of in folders if (file := of / f"{name}.parquet").exists()]
    found = [(_run_of(path, file.parent), file.stem, tables.read(file.parent, file.stem)) for file in files]
    for report in sorted({file.with_name("rank.json") for file in files}):
        if report.exists():
            for finding in orjson.loads(report.read_bytes()).get("findings", []):
                study.log.add(Finding.from_json(finding))
    if path.is_file() or (tool and not files):
        converted = tools.read(path, tool)
        found = [(path.name, name, table) for name, table in converted.tables.items()]
        for finding in converted.findings:
            study.log.add(finding)
    rows = {name: [one.to_pandas().assign(run=run) for run, of, one in found if of == name] for name in names}
    return {name: pd.concat(some, ignore_index=True) for name, some in rows.items() if some}


def _run_of(path: Path, folder: Path) -> str:
    of_run = folder.parent if folder.name.startswith("rank_") else folder
    return path.name if of_run in (path, path.parent) else str(of_run.relative_to(path))


def _of_cprofile(path: Path) -> pd.DataFrame:
    try:
        stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    except (OSError, EOFError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a file of cProfile ({error})") from None
    return pd.DataFrame([
        {
            "run": path.name, "rank": 0, "thread": 0, "calls": calls,
            "function": f"{function} ({file}:{line})" if line else function,
            "exclusive_ns": 1e9 * exclusive, "inclusive_ns": 1e9 * inclusive,
        }
        for (file, line, function), (_, calls, exclusive, inclusive, _) in stats.items()
    ])  # fmt: skip
