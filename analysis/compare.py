"""Compare two results: effects, intervals and tests.

    python -m analysis.compare A B                        two sets of results: before and after
    python -m analysis.compare A B --across compute       the two sides differ in this field
    python -m analysis.compare A B --threshold 2          accept regressions of less than 2 %

For converted traces (one job on each side): one row per step duration, part, collective and kernel class.

One row per configuration and quantity.

The rows of each kind are tested together. The kinds step and combined decide the exit code: 1 if a row of
theirs is slower by more than --threshold. Without a real difference, this happens in at most 5 % of
comparisons. "Too few runs" is not an error: however large such a slowdown is, the exit code stays 0.

A verdict on one configuration takes 4 runs of it per side, 5 if 2 to 6 configurations are compared, 6 if 7
to 23 are; one on several configurations together takes 3 of each. "No difference shown" ("no difference" in
CSV and JSON) does not say that there is none: the effect may be any that the interval holds.
"""

import argparse
from pathlib import Path

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.frames.study import Study
from analysis.measures import compare as compare_rows
from analysis.measures import traced_difference
from analysis.measures.compare import (
    align_watched,
    columns_of,
    compared,
    least_runs,
    regressed,
    same_runs,
    shown,
    verdict,
)
from jobs.flags import make_parser
from profiling.errors import EXIT_FAILED, UserError, run_command

COLUMNS = {**compare_rows.COLUMNS, **traced_difference.COLUMNS}


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    if arguments.threshold < 0:
        raise UserError(
            f"--threshold: {arguments.threshold:g} is not a valid slowdown; give a percentage of 0 or more"
        )
    studies = [load(path, arguments.peaks) for path in (arguments.a, arguments.b)]
    if all(study.only_traces for study in studies):
        return _of_traces(studies[0], studies[1], arguments)
    own = [name for study in studies for name in study.own_factors]
    across = output.parse_fields(arguments.across, flag="--across", own=own)
    studies = list(align_watched(studies[0], studies[1], across))
    found = compared(studies[0], studies[1], across)
    a, b, figures = found.a, found.b, found.rows
    worse = regressed(figures, arguments.threshold)
    alike = ("no difference", "too few runs")
    changed = [row for row in figures if row["kind"] != "kernels" or row["verdict"] not in alike]
    title = f"{arguments.b.name} (B) compared with {arguments.a.name} (A)"
    parts = [Part(title, changed, shown(figures))]
    if same_runs(a, b):
        parts = []  # a table of intervals would look like an answer
    studies[0].log.join(studies[1].log, studies[0].path.resolve() == studies[1].path.resolve())
    said = [verdict(a, b, figures, arguments.threshold)]
    if not same_runs(a, b):
        said += least_runs(figures)
    answer = Answer(figures, columns_of(figures), parts=parts, verdict=said)
    code = output.emit(answer, studies[0], arguments)
    return EXIT_FAILED if worse else code


def _of_traces(a: Study, b: Study, arguments: argparse.Namespace) -> int:
    """Two jobs' traces beside each other."""
    figures = traced_difference.rows(a, b)
    a.log.join(b.log, a.path.resolve() == b.path.resolve())
    title = f"{arguments.b.name} (B) compared with {arguments.a.name} (A)"
    same = traced_difference.same_traces(figures)
    parts = [] if same else [traced_difference.part(figures, title)]
    said = [*traced_difference.verdicts(figures), *traced_difference.unlike(a, b)]
    code = output.emit(Answer(figures, traced_difference.METRICS, parts, verdict=said), a, arguments)
    return EXIT_FAILED if traced_difference.regressed(figures, arguments.threshold) else code


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m analysis.compare", __doc__)
    parser.add_argument("a", type=Path, metavar="A", help="results before: a sweep, a run, or traces")
    parser.add_argument("b", type=Path, metavar="B", help="results after")
    parser.add_argument("--across", metavar="FIELD,...", help="fields in which A and B may differ")
    parser.add_argument(
        "--threshold", type=float, default=0.0, metavar="PCT", help="accepted slowdown of a step, %% [0]"
    )
    return output.add_output_flags(parser, COLUMNS)


if __name__ == "__main__":
    run_command(main)
