"""Which kernels take the time, and how well do they use the device?

    python -m analysis.kernels DIR                               one run, a sweep, or a PyProf table
    python -m analysis.kernels A B --direction bprop             two side by side
    python -m analysis.kernels A B --direction fprop --method published
    python -m analysis.kernels A --metric flops-efficiency --method published

Corrected (the default): attributed batches only, a batch of a rank. Columns:

    run                          its id, where there are several
    kernel, class, direction     short name; gemm, convolution, ...; fprop, bprop, update, loader, none
    calls_per_batch              launches a batch
    ms_per_batch                 their time, ms a batch; share_pct: of all kernels, %
    min_us, mean_us, max_us      of a launch, microseconds
    gflop_per_batch              credited FLOPs, 1e9 a batch; mbyte_per_batch: bytes, 1e6 a batch
    flops_efficiency_pct         FLOP rate over the datasheet's peak, %
    bandwidth_efficiency_pct     bytes a second over the datasheet's bandwidth, %

Two: ``kernel, class, direction``, then the metric of each (``a_``, ``b_``) and ``b_to_a``, their ratio.

Published (PyProf tables): ``kernel, a_s, b_s``: the sum of ``Sil(ns)`` by kernel name over all launches that
PyProf calls by that direction, joined on the name, largest first; with ``--metric flops-efficiency``:
``kernel, duration_ns, flops, flops_per_s, flops_efficiency_pct``.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import kernels_published, output
from analysis.kernels_of_run import kernels_of
from analysis.load import load, no_result
from analysis.study import Source, Study
from analysis.terminal import Answer, Column, Part, Rows, with_places
from jobs.run import make_parser
from profiling.errors import UserError, run_command
from profiling.tables import DIRECTIONS

if TYPE_CHECKING:
    import pandas as pd

TOP, TOP_OF_EACH = 25, 5  # kernels that the terminal shows of one run, of each of several
METRICS = ("duration", "flops-efficiency")
NAMED = ("kernel", "class", "direction")
COLUMNS = (
    *NAMED, "calls_per_batch", "ms_per_batch", "share_pct", "min_us", "mean_us", "max_us", "gflop_per_batch",
    "mbyte_per_batch", "flops_efficiency_pct", "bandwidth_efficiency_pct",
)  # fmt: skip
_METRIC_COLUMN = {"duration": "ms_per_batch", "flops-efficiency": "flops_efficiency_pct"}


def table(study: Study, run: str | None = None, direction: str | None = None) -> "pd.DataFrame":
    """The kernels of ``run`` (an id), or of all runs that have some, largest first.

    Columns: see this file's docstring.

    Raises:
        UserError: no run has kernels, or none of this id.
    """
    made, columns = rows(study, run, direction)
    return output.to_frame(made, columns)


def with_kernels(study: Study) -> list[Source]:
    """The runs and PyProf tables that have kernels."""
    return [source for source in study.sources if source.kind == "pyprof" or source.tables("kernels")]


def rows(study: Study, run: str | None = None, direction: str | None = None) -> tuple[Rows, list[str]]:
    """The corrected answer's rows and columns; see :func:`table`."""
    sources = with_kernels(study)
    if run is not None:
        sources = [source for source in sources if source.id == run]
    if not sources:
        which = f"run {run} of {study.path}" if run else str(study.path)
        raise UserError(f"{which} has no kernels: it needs a run under a profiler (profile: torch)")
    made = []
    for source in sources:
        made += [{"run": source.id, **row} for row in kernels_of(study, source, direction)]
    if not made:
        raise UserError(_none(study, direction))
    return made, ["run", *COLUMNS] if len(sources) > 1 else list(COLUMNS)


def _none(study: Study, direction: str | None) -> str:
    if not with_kernels(study):
        return no_result(study)
    which = f"no kernels of direction {direction}" if direction else "no kernels in attributed batches"
    return " ".join([f"{study.path} has {which}", *(f"({finding})" for finding in study.findings[:1])])


# --- two side by side ---------------------------------------------------------------------------------


def compared(
    first: Study, second: Study, direction: str | None, metric: str = "duration"
) -> tuple[Rows, list[str]]:
    """Kernels of two runs beside each other; a kernel that one of them lacks has no figure there."""
    column = _METRIC_COLUMN[metric]
    sides = []
    for study in (first, second):
        source = _only(study)
        sides.append({
            tuple(row[name] for name in NAMED): row[column] for row in kernels_of(study, source, direction)
        })  # fmt: skip
    a, b = f"a_{column}", f"b_{column}"
    made = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        values = [side.get(key) for side in sides]
        ratio = values[1] / values[0] if values[0] and values[1] is not None else None
        made.append({**dict(zip(NAMED, key, strict=True)), a: values[0], b: values[1], "b_to_a": ratio})
    if not made:
        raise UserError(_none(first, direction))
    made.sort(key=lambda row: -(row[a] if row[a] is not None else row[b] or 0))
    return made, [*NAMED, a, b, "b_to_a"]


def _only(study: Study) -> Source:
    sources = with_kernels(study)
    if len(sources) != 1:
        examples = ", ".join(source.id for source in sources[:3])
        raise UserError(
            f"{study.path} holds {len(sources)} runs with kernels; give one run (or file)"
            + (f", e.g. {examples}" if examples else "")
        )
    return sources[0]


# --- command ------------------------------------------------------------------------------------------


def main() -> int:
    parser = make_parser("python -m analysis.kernels", __doc__)
    parser.add_argument("path", type=Path, metavar="A", help="a run, a sweep, or a PyProf kernel table")
    parser.add_argument("other", type=Path, metavar="B", nargs="?", help="a run or table to set beside it")
    parser.add_argument("--direction", choices=DIRECTIONS, help="fprop, bprop, ... [all]")
    parser.add_argument("--method", choices=("corrected", "published"), default="corrected")
    parser.add_argument("--metric", choices=METRICS, default="duration", help="what to order by [duration]")
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="the first N kernels of each run [all; table: 25 of one run, 5 of each of several]",
    )
    arguments = output.add_output_flags(parser).parse_args()
    if arguments.top is not None and arguments.top < 1:
        raise UserError(f"--top: {arguments.top} is no number of kernels; give 1 or more")
    study = load(arguments.path, arguments.peaks)
    other = load(arguments.other, arguments.peaks) if arguments.other else None
    made, columns = _answer(study, other, arguments)
    several = len({row["run"] for row in made}) if "run" in columns else 1
    top = arguments.top or ((TOP if several == 1 else TOP_OF_EACH) if arguments.format == "table" else None)
    kept = _first_of_each(made, top)
    note = f"({len(made) - len(kept)} more kernels; --top N shows more)" if len(made) > len(kept) else ""
    if other is not None:
        study.failed += other.failed
        study.findings += other.findings
    of_runs = arguments.method == "corrected" and other is None
    title = f"Kernels, {arguments.method} method"
    title += f", {arguments.direction}" if arguments.direction else ""
    answer = Answer(
        kept,
        columns,
        parts=_parts(kept, title) if of_runs else [],
        title=title,
        caption=f"a: {arguments.path.name}; b: {arguments.other.name}" if other else "",
        notes=[note] if note and arguments.format == "table" else [],
    )
    return output.emit(answer, study, arguments)


def _answer(study: Study, other: Study | None, arguments: Any) -> tuple[Rows, list[str]]:
    direction, metric = arguments.direction, arguments.metric
    if arguments.method == "published":
        if metric == "duration":
            return kernels_published.durations(study, other, direction, _only)
        if other is not None:
            raise UserError("the published FLOPS efficiency of kernels is of one file; leave B out")
        return kernels_published.efficiencies(study, direction, _only)
    if other is not None:
        return compared(study, other, direction, metric)
    made, columns = rows(study, direction=direction)
    if metric == "flops-efficiency":
        runs = list(dict.fromkeys(row["run"] for row in made))
        made.sort(key=lambda row: (runs.index(row["run"]), -(row["flops_efficiency_pct"] or 0)))
    return made, columns


def _first_of_each(made: Rows, top: int | None) -> Rows:
    """The first ``top`` rows of each run (of the answer, where it is of no run)."""
    seen: Counter[Any] = Counter()
    kept = []
    for row in made:
        seen[row.get("run")] += 1
        if top is None or seen[row.get("run")] <= top:
            kept.append(row)
    return kept


def _parts(kept: Rows, title: str) -> list[Part]:
    """A table a run: its id is too long for a column."""
    runs = list(dict.fromkeys(row["run"] for row in kept))
    columns = _shown()
    if len(runs) == 1:
        return [Part(title, kept, columns)]
    return [Part(run, [row for row in kept if row["run"] == run], columns) for run in runs]


def _shown() -> list[Column]:
    """The terminal's columns: what fits into 110."""

    def named(row: Any) -> str:
        return row["kernel"] if len(row["kernel"]) <= 46 else row["kernel"][:20] + "..." + row["kernel"][-23:]

    return [
        Column("kernel", named, left=True),
        Column("class", lambda row: row["class"], left=True),
        Column("pass", lambda row: row["direction"], left=True),
        Column("ms a\nbatch", lambda row: row["ms_per_batch"]),
        Column("share\n%", lambda row: with_places(row["share_pct"], 1)),
        Column("calls a\nbatch", lambda row: with_places(row["calls_per_batch"], 1)),
        Column("mean\nus", lambda row: with_places(row["mean_us"], 1)),
        Column("FLOPS\neff. %", lambda row: with_places(row["flops_efficiency_pct"], 2)),
    ]


if __name__ == "__main__":
    run_command(main)
