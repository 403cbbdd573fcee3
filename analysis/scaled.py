"""Scaling efficiency, what is lost, and use of the device.

    python -m analysis.scaled DIR                                   results of a sweep, or reference files
    python -m analysis.scaled DIR --method corrected,published      both methods, one row each
    python -m analysis.scaled DIR --group-by batch,nodes --explain
    python -m analysis.scaled DIR --scaling strong                  fixed global batch size (default: the kind
                                                                    for which more configurations have a
                                                                    baseline)
    python -m analysis.scaled 1=DIR 2=DIR 4=DIR                     watched runs, or converted traces, of a
                                                                    program on several numbers of ranks

One row per configuration and world size.
"""

import argparse

from analysis.display import output
from analysis.display.terminal import Answer
from analysis.frames.load import load_named
from analysis.frames.study import Study
from analysis.measures import scaled as scaling
from analysis.measures import traced
from analysis.measures.certainty import sizes_without_result, uncertain, unexplained
from analysis.measures.points import Scaling
from analysis.published import by_method
from analysis.published.by_method import METHODS, columns_of, rows
from analysis.published.scaled_parts import parts
from profiling.arguments import with_values
from profiling.errors import UserError, did_you_mean, run_command

COLUMNS = {**by_method.COLUMNS, **traced.COLUMNS}


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    methods = _methods(arguments.method)
    study = load_named([str(arguments.path), *arguments.more], arguments.peaks)
    group_by = output.parse_fields(arguments.group_by, ("world_size",), own=study.own_factors)
    if study.of_kind("trace") and not study.of_kind("run", "pyprof") and not study.tau_intervals:
        return output.emit(_of_traces(study, arguments.scaling), study, arguments)
    configurations = rows(study, methods, group_by, arguments.scaling)
    notes: list[str] = []
    if arguments.explain:
        from analysis.published.explain import explain

        own = scaling.rows(study, (), arguments.scaling) if study.of_kind("run") else []
        notes = explain(study, own)
    for finding in unexplained(configurations):
        study.log.add(finding)
    answer = Answer(
        configurations,
        columns_of(group_by),
        parts=parts(configurations, group_by),
        verdict=[*sizes_without_result(study), *uncertain(configurations)],
        notes=notes,
    )
    return output.emit(answer, study, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = output.parser("analysis.scaled", __doc__, columns=COLUMNS)
    methods = parser.add_argument(
        "--method",
        default="corrected",
        metavar="METHOD,...",
        help="corrected, published, or both [corrected]",
    )
    with_values(methods, lambda: METHODS, several=True)
    parser.add_argument("--group-by", metavar="FIELD,...", help="fields of a run [every configuration]")
    parser.add_argument(
        "--scaling", choices=("weak", "strong"),
        help="weak: fixed per-GPU batch size; strong: fixed global batch size [the kind for which more "
        "configurations have a baseline]",
    )  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="show the effect of each correction, and why")
    parser.add_argument(
        "more",
        nargs="*",
        default=[],  # else argparse says that they are missing, too, where only DIR is
        metavar="P=DIR",
        help="watched runs or converted traces, with their number of ranks",
    )
    return parser


def _of_traces(study: Study, scaling: Scaling | None) -> Answer:
    found = traced.answer(study, scaling)
    if not found.rows:
        raise study.nothing(f"no job of {study.path} has both steps and a known number of ranks")
    grown = traced.grown(found)
    return Answer(found.rows, traced.METRICS, [traced.part(found), *([grown] if grown else [])])


def _methods(text: str) -> list[str]:
    methods = [name.strip() for name in text.split(",") if name.strip()]
    for name in methods:
        if name not in METHODS:
            raise UserError(f"--method: unknown method {name!r}{did_you_mean(name, METHODS)}")
    return list(dict.fromkeys(methods)) or ["corrected"]


if __name__ == "__main__":
    run_command(main)
