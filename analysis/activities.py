"""Summary of GPU activities, as nvprof prints it, from any profiler's tables.

    python -m analysis.activities PATH                  a run, a sweep, a folder of tables, a profiler's file
    python -m analysis.activities PATH --by rank        one summary per rank; also step
    python -m analysis.activities PATH --shares         share of communication and copies by GPUs, batch size
    python -m analysis.activities PATH --shares --chart FILE.html    as a chart, one line per number of GPUs

All recorded launches count, as in nvprof's summary, also those of warmup; analysis.kernels leaves it out.
For a table that holds only the first rows of its summaries
(``gpus,batch,time_pct,time_s,calls,avg_s,min_s,max_s,kernel``) the printed percentages are used.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.display import output
from analysis.display.metrics import RUN, Rows, columns
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.frames.study import Study
from analysis.measures.activities import (
    ALL_LAUNCHES,
    COLUMNS,
    LEVELS,
    METRICS,
    SHARES,
    Profile,
    of_kernels,
    of_study,
    of_summary,
    printed_shares,
    shares,
)
from profiling import tools
from profiling.arguments import with_values
from profiling.errors import UserError, run_command
from profiling.findings import Finding, lines
from profiling.readers.printed import ON_DEVICE

TOP = 25  # rows that the terminal shows of each run


# --- from a path --------------------------------------------------------------------------------------


def profiles(path: Path, by: Iterable[str] = ()) -> tuple[list[Profile], Study | None]:
    """The activities of all runs in ``path``, and the study they are of, if they are of one.

    Raises:
        UserError: there is nothing that a profiler recorded.
    """
    if path.is_file():
        converted = tools.read(path)
        rows = _rows(dict(converted.tables), path, by, converted.findings)
        return [Profile(path.name, rows, findings=converted.findings)], None
    tables = sorted(path.glob("*.parquet")) if path.is_dir() else []
    if any(table.name in ("kernels.parquet", "intervals.parquet") for table in tables):
        return [_of_folder(path, by)], None
    study = load(path)
    of_runs = of_study(study, by)
    if not of_runs:
        raise UserError(f"{path} holds no activities: no profiler recorded kernels")
    return of_runs, study


def _of_folder(path: Path, by: Iterable[str]) -> Profile:
    def table(name: str) -> pa.Table | None:
        file = path / f"{name}.parquet"
        try:
            return pq.read_table(file) if file.exists() else None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} is damaged or truncated ({str(error).splitlines()[0]})") from None

    return Profile(
        path.name, _rows({name: table(name) for name in ("kernels", "intervals", "atomics")}, path, by)
    )


def _rows(
    tables: dict[str, pa.Table | None], path: Path, by: Iterable[str], findings: Sequence[Finding] = ()
) -> Rows:
    kernels, intervals = tables.get("kernels"), tables.get("intervals")
    rows = of_kernels(kernels, by) if kernels is not None else []
    if not rows and intervals is not None and ON_DEVICE in intervals["thread"].unique().to_pylist():
        rows = of_summary(intervals, tables.get("atomics"))
    if not rows:
        why = "".join(f"; {said}" for said in findings[:1])
        raise UserError(f"{path} holds no GPU activities and no timed operators{why}")
    return rows


# --- command ------------------------------------------------------------------------------------------


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.activities", __doc__, "PATH", COLUMNS)
    levels = parser.add_argument("--by", metavar="LEVELS", help="one row per rank, per step, or per both")
    with_values(levels, lambda: LEVELS, several=True)
    parser.add_argument(
        "--shares",
        action="store_true",
        help="share of communication and copies, by number of GPUs and batch size",
    )
    parser.add_argument("--top", type=int, metavar="N", help=f"rows of each type [all; table: {TOP}]")
    parser.add_argument(
        "--chart", type=Path, metavar="FILE", help="with --shares: write a chart to this HTML file"
    )
    arguments = parser.parse_args(words)
    if arguments.chart and not arguments.shares:
        raise UserError("--chart draws shares: add --shares")
    by = output.parse_levels(arguments.by, tuple(LEVELS))
    output.check_top(arguments.top, "rows")
    if arguments.path.is_file() and arguments.shares:
        printed = printed_shares(arguments.path)
        if printed is not None:
            return _emit_shares(printed, None, arguments)
    found, study = profiles(arguments.path, by)
    if arguments.shares:
        return _emit_shares(shares(found), study, arguments)
    return output.emit(_answer(found, by, arguments.top, arguments.format), study, arguments)


def _answer(profiles: list[Profile], by: list[str], top: int | None, form: str) -> Answer:
    several = len(profiles) > 1
    levels = [LEVELS[name] for name in by]
    shown = columns([*levels, *(metric for metric in METRICS if metric.name != "class")])
    rows, parts = [], []
    for profile in profiles:
        kept = output.first_of_each(profile.rows, top or (TOP if form == "table" else None), *by, "type")
        rows += [{"run": profile.name, **row} for row in kept]
        parts.append(Part(profile.name, kept, shown))
    parts[-1] = replace(parts[-1], caption=ALL_LAUNCHES)
    notes = lines(finding for profile in profiles for finding in profile.findings)
    return Answer(rows, [*([RUN] if several else []), *levels, *METRICS], parts, notes=notes)


def _emit_shares(rows: Rows, study: Study | None, arguments: Any) -> int:
    notes = []
    if arguments.chart:
        from analysis.report.communication import page
        from analysis.report.render import render

        output.write_bytes(render(page(rows, arguments.path.name)).encode(), arguments.chart)
        notes.append(f"chart written to {arguments.chart}")
    answer = Answer(rows, SHARES, title="Share of GPU activity time", caption=ALL_LAUNCHES, notes=notes)
    return output.emit(answer, study, arguments)


if __name__ == "__main__":
    run_command(main)
