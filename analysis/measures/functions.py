"""Functions and counters that a tool summed over a run, from the tables ``intervals`` and ``atomics``."""

import pstats
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from analysis.display.metrics import RANK, RUN, Metric, columns, names_of
from analysis.display.terminal import Answer, Part
from analysis.frames.measure import measure
from analysis.frames.study import Study
from profiling import tables, tools
from profiling.errors import UserError

FUNCTION, COUNTER = "function", "counter"
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
    found = [
        (_functions if kind == FUNCTION else _counters)(rows, keys).assign(kind=kind)
        for kind, rows in _tables(study.path)
    ]
    if not found:
        raise UserError(
            f"{study.path} holds no functions and no counters (profiling.convert reads raw files)"
        )
    levels = [LEVELS[name] for name in by]
    metrics = [RUN, *levels, _KIND, *FUNCTIONS, *COUNTERS, _NAME]
    frame = pd.concat(found, ignore_index=True).reindex(columns=names_of(metrics))
    frame = frame.astype(dict.fromkeys(("calls", "count"), "Int64"))
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


def _tables(path: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """(kind, rows with ``run``, ``rank``, ``thread``, ``name``) of each table of a file or below a folder."""
    kinds = {"intervals": (FUNCTION, "function"), "atomics": (COUNTER, "event")}
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.suffix in (".prof", ".pstats"):
        yield FUNCTION, _of_cprofile(path)
        return
    if path.is_file():
        read = tools.read(path).tables
        found = [(path.name, name, table) for name, table in read.items() if name in kinds]
    else:
        found = []
        for name in kinds:
            for file in sorted(path.rglob(f"{name}.parquet")):
                folder = file.parent
                of_run = folder.parent if folder.name.startswith("rank_") else folder
                run = path.name if of_run in (path, path.parent) else str(of_run.relative_to(path))
                found.append((run, name, tables.read(folder, name)))
    for name, (kind, column) in kinds.items():
        rows = [table.to_pandas().assign(run=run) for run, of, table in found if of == name]
        if rows:
            joined = pd.concat(rows, ignore_index=True).rename(columns={column: "name"})
            yield kind, joined.astype({"name": str})


def _of_cprofile(path: Path) -> pd.DataFrame:
    try:
        stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    except (OSError, EOFError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a file of cProfile ({error})") from None
    return pd.DataFrame([
        {
            "run": path.name, "rank": 0, "thread": 0, "calls": calls,
            "name": f"{function} ({file}:{line})" if line else function,
            "exclusive_ns": 1e9 * exclusive, "inclusive_ns": 1e9 * inclusive,
        }
        for (file, line, function), (_, calls, exclusive, inclusive, _) in stats.items()
    ])  # fmt: skip
