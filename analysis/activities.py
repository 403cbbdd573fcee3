"""Summary of GPU activities, as nvprof prints it, from any profiler's tables.

    python -m analysis.activities PATH                  a run, a sweep, a folder of tables, a profiler's file
    python -m analysis.activities PATH --by rank        one summary per rank; also: step
    python -m analysis.activities PATH --shares         shares of communication and copies, by GPUs and batch
    python -m analysis.activities LOGS --shares         the same from a folder of nvprof's logs
    python -m analysis.activities PATH --shares --chart FILE.html    as a chart, one line per number of GPUs

All recorded launches are counted, as in nvprof's summary, including those of warmup; analysis.kernels leaves
warmup out. With --shares, PATH may be a CSV table of the first rows of printed summaries
(gpus,batch,time_pct,time_s,calls,avg_s,min_s,max_s,kernel); its percentages are used as printed. For logs,
the number of GPUs and the batch size come from command lines (-b 16) or paths (4gpus/b16.txt), or from
--field.
"""

import argparse
import re
from pathlib import Path

from analysis.display import output
from analysis.display.output import Answer
from analysis.frames.load import load
from analysis.frames.measure import Command, at_least, flag, levels, top
from analysis.frames.study import Study
from profiling.errors import UserError


def _load(arguments: argparse.Namespace) -> Study:
    """A file, a folder with its tables, or of such or of nvprof's logs, is no study: it is read as it is."""
    path = arguments.path
    if arguments.chart and not arguments.shares:
        raise UserError("--chart draws shares: add --shares")
    if path.is_file() or any((path / f"{name}.parquet").exists() for name in ("kernels", "intervals")):
        return Study(path)
    try:
        return load(path, arguments.peaks)
    except UserError:
        from analysis.measures.activities import parts_in

        if not path.is_dir() or not parts_in(path):
            raise
        return Study(path)


def _field(given: list[str] | None, study: Study) -> dict[str, str]:
    """``["gpus=RE"]`` as ``{"world_size": "RE"}``."""
    fields = {"gpus": "world_size", "batch": "batch"}
    patterns = {}
    for one in given or ():
        name, pattern = one.partition("=")[::2]
        try:
            if name not in fields or not re.compile(pattern).groups:
                raise UserError("--field needs gpus=REGEX or batch=REGEX, with the number in parentheses")
        except re.error as error:
            raise UserError(f"--field {name}={pattern} is no regular expression: {error}") from None
        patterns[fields[name]] = pattern
    return patterns


def _draw(answer: Answer, arguments: argparse.Namespace) -> None:
    if arguments.chart is None:
        return
    from analysis.report.ranks import page
    from analysis.report.render import render

    output.write(render(page(answer.frame(), arguments.path.name)), arguments.chart)


main = Command(
    __name__, "activities", __doc__,
    levels("rank", "step"),
    flag("--shares", action="store_true", help="shares of communication and copies, by GPUs and batch size"),
    flag(
        "--field", _field, action="append", metavar="NAME=REGEX",
        help="for nvprof's logs: regular expression that finds gpus or batch, e.g. gpus='node_(\\d+)'",
    ),
    top("rows of each type [all; table: 25]"),
    flag("--least", type=at_least(0, float), default=0.0, metavar="PCT", help="least share of the time"),
    flag(
        "--chart", of_study=True, type=Path, metavar="FILE",
        help="with --shares: write a chart to this HTML file",
    ),
    load=_load, after=_draw,
)  # fmt: skip
