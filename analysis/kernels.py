"""Time of each kernel, and how well it uses the device.

    python -m analysis.kernels DIR                               one run, a sweep, or a PyProf table
    python -m analysis.kernels DIR --by operator                 also class, layer, direction; class,direction
    python -m analysis.kernels A B --direction bprop             comparison of two runs
    python -m analysis.kernels A B --summary --format csv        what their difference consists of
    python -m analysis.kernels A B --direction fprop --method published
    python -m analysis.kernels A --metric flops-efficiency --method published

The corrected method (default) gives times per step and rank, in profiled steps only. For two runs, each
kernel is slower, faster, called more or less often, new, gone or the same. The differences of these kinds sum
to that of all kernels; with the time that kernels share and the time without a kernel, they sum to that of
the step. The published method reads PyProf tables, by kernel name, largest first.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.display import output
from analysis.display.metrics import RUN, Metric, Rows
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.frames.study import RECORDING, Source, Study
from analysis.measures import kernels_changed as kernel_difference
from analysis.measures.kernels import (
    BY,
    DEFAULT_BY,
    GROUPS,
    METRICS,
    TOP,
    TOP_OF_EACH,
    naming,
    nothing,
    rows,
    shown,
    with_kernels,
)
from analysis.measures.roofline import flops_efficiency_of
from analysis.published import kernels_published
from jobs.flags import make_parser
from profiling.arguments import with_values
from profiling.errors import UserError, did_you_mean, run_command
from profiling.schemas import DIRECTIONS

COLUMNS = {
    "Columns: run, if there are several; kernel, class and direction, or the fields of --by; then:": (
        RUN,
        *BY.values(),
        *METRICS,
    ),
    "For two runs: the fields of --by, then (largest difference first):": kernel_difference.METRICS[
        "duration"
    ],
    "With --metric flops-efficiency:": kernel_difference.METRICS["flops-efficiency"],
    "With --summary:": kernel_difference.SUMMARY_METRICS,
    "Published method:": kernels_published.DURATION_METRICS,
    "Published method, --metric flops-efficiency, one file:": kernels_published.EFFICIENCY_METRICS,
}


def _only(study: Study) -> Source:
    sources = with_kernels(study)
    if len(sources) != 1:
        examples = ", ".join(source.id for source in sources[:3])
        raise UserError(f"runs with kernels in {study.path}: {len(sources)}; name one run ({examples})")
    return sources[0]


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    by = _by(arguments)
    output.check_top(arguments.top, "kernels")
    study = load(arguments.path, arguments.peaks)
    other = load(arguments.other, arguments.peaks) if arguments.other else None
    answer = _answer(study, other, by, arguments)
    if other is not None:
        study.log.join(other.log, study.path.resolve() == other.path.resolve())
    return output.emit(answer, study, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m analysis.kernels", __doc__)
    parser.add_argument("path", type=Path, metavar="A", help="a run, a sweep, or a PyProf kernel table")
    parser.add_argument(
        "other", type=Path, metavar="B", nargs="?", help="a second run or table, to compare with the first"
    )
    levels = parser.add_argument(
        "--by", metavar="WHAT,...", help=f"group by {', '.join(GROUPS)} [{','.join(DEFAULT_BY)}]"
    )
    with_values(levels, lambda: GROUPS, several=True)
    parser.add_argument("--direction", choices=DIRECTIONS, help="fprop, bprop, ... [all]")
    parser.add_argument("--method", choices=("corrected", "published"), default="corrected")
    metrics = tuple(kernel_difference.METRICS)
    parser.add_argument("--metric", choices=metrics, default="duration", help="sort by [duration]")
    parser.add_argument(
        "--summary", action="store_true", help="of two runs: only what their difference consists of"
    )
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help="the first N kernels of each run [all; table: 25 of one run, 5 of each of several]",
    )
    return output.add_output_flags(parser, COLUMNS)


def _by(arguments: argparse.Namespace) -> list[str]:
    names = [name.strip() for name in (arguments.by or "").split(",") if name.strip()]
    for name in names:
        if name not in GROUPS:
            raise UserError(f"--by: unknown kernel field {name!r}{did_you_mean(name, list(GROUPS))}")
    if arguments.by is not None and not names:
        raise UserError("--by needs a field to group kernels by, e.g. --by class")
    if names and arguments.method == "published":
        raise UserError("the published method groups kernels by name: omit --by")
    if arguments.summary and (
        arguments.other is None or arguments.method == "published" or arguments.metric != "duration"
    ):
        raise UserError("--summary needs two runs, A and B, and the corrected method, by duration")
    return list(dict.fromkeys(names)) or list(DEFAULT_BY)


def _answer(study: Study, other: Study | None, by: Sequence[str], arguments: Any) -> Answer:
    title = kernels_published.with_method("Kernels", study, arguments.method)
    title += f", {arguments.direction}" if arguments.direction else ""
    caption = f"A: {arguments.path.name}; B: {arguments.other.name}" if other else ""
    if arguments.method == "published":
        if arguments.metric == "duration":
            kernels, columns = kernels_published.durations(study, other, arguments.direction, _only)
        elif other is None:
            kernels, columns = kernels_published.efficiencies(study, arguments.direction, _only)
        else:
            raise UserError("the published FLOPS efficiency of kernels takes one file: omit B")
    elif other is not None:
        return _difference(study, other, by, (title, caption), arguments)
    else:
        kernels, columns = rows(study, direction=arguments.direction, by=by)
        if arguments.metric == "flops-efficiency":
            runs = list(dict.fromkeys(row["run"] for row in kernels))
            kernels.sort(key=lambda row: (runs.index(row["run"]), -(flops_efficiency_of(row) or 0)))
    kept, notes = _first(kernels, columns, arguments, by)
    parts = _parts(study, kept, by, title) if arguments.method == "corrected" else []
    return Answer(kept, columns, parts=parts, title=title, caption=caption, notes=notes)


def _difference(
    study: Study, other: Study, by: Sequence[str], said: tuple[str, str], arguments: Any
) -> Answer:
    """Two runs beside each other; ``said`` is the title and what A and B are."""
    title, caption = said
    pair = _only(study), _only(other)
    caption += _differ(*pair)
    a, b = (
        kernel_difference.side_of(each, source, arguments.direction, by)
        for each, source in zip((study, other), pair, strict=True)
    )
    for each, side in ((study, a), (other, b)):
        # A run without any kernel is not one of which all are gone; of a direction it may have none.
        if not side.kernels and (arguments.direction is None or not (a.kernels or b.kernels)):
            raise UserError(nothing(each, arguments.direction))
    pairs = kernel_difference.rows(a, b, arguments.metric, by)
    columns = kernel_difference.columns_of(arguments.metric, by)
    if arguments.metric != "duration":
        kept, notes = _first(pairs, columns, arguments, by)
        return Answer(kept, columns, title=title, caption=caption, notes=notes)
    totals = kernel_difference.summary(pairs, a, b)
    kept, notes = _first(pairs, columns, arguments, by)
    group = kernel_difference.group_in_words(by)
    named = naming(by, kept)
    parts = kernel_difference.parts(kept, totals, (title, caption), named, group)
    if arguments.summary:
        return Answer(totals, kernel_difference.SUMMARY_METRICS, parts=parts[:1])
    return Answer(kept, columns, parts=parts if named else parts[:1], notes=notes)


def _differ(a: Source, b: Source) -> str:
    """The fields, and the device, in which two runs differ, a line; empty: none."""
    devices = [", ".join(one.devices) for one in (a, b)]
    pairs = {name: (a.fields[name], b.fields[name]) for name in a.fields if name in b.fields}
    pairs |= {"device": (devices[0], devices[1])} if all(devices) else {}
    unlike = ", ".join(f"{name} ({one}, {other})" for name, (one, other) in pairs.items() if one != other)
    return f"\nA and B differ in {unlike}" if unlike else ""


def _first(
    rows: Rows, columns: Sequence[Metric], arguments: Any, by: Sequence[str]
) -> tuple[Rows, list[str]]:
    """The first rows of each run, as many as are asked for, and a note if there are more."""
    several = len({row["run"] for row in rows}) if RUN in columns else 1
    as_table = arguments.format == "table"
    top = arguments.top or ((TOP if several == 1 else TOP_OF_EACH) if as_table else None)
    kept = output.first_of_each(rows, top, "run")
    more = len(rows) - len(kept)
    if not more or not as_table:
        return kept, []
    return kept, [f"{more} more {kernel_difference.group_in_words(by)}s (--top N)"]


def _parts(study: Study, kept: Rows, by: Sequence[str], title: str) -> list[Part]:
    """A table a run: its id is too long for a column."""
    of_run: dict[str, Rows] = {}
    for row in kept:
        of_run.setdefault(row["run"], []).append(row)
    return [
        Part(run if len(of_run) > 1 else title, rows, [*named, *shown(study.a_step([run]) == RECORDING)])
        for run, rows in of_run.items()
        if (named := naming(by, rows))
    ]


if __name__ == "__main__":
    run_command(main)
