"""Divide the time of a step by what runs in it.

    python -m analysis.anatomy DIR                       one row per run: mean of its profiled steps, ms
    python -m analysis.anatomy DIR --by rank,stage       one row per rank and stage; also step

The wall time of each profiled step of each rank is split into parts that sum to it exactly.

Some components can be empty. Those of idle time: on a CPU, which has no launches, and if a profiler does not
record times of kernels. Those of communication: if not all ranks of a group were recorded, or they recorded
different collectives (a note says so).
"""

from analysis.display import output
from analysis.display.terminal import Answer
from analysis.frames.load import load
from analysis.measures.anatomy import COLUMNS, LEVELS, columns_of, parts, rows
from profiling.arguments import with_values
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.anatomy", __doc__, columns=COLUMNS)
    levels = parser.add_argument(
        "--by", default="", metavar="LEVEL,...", help=f"{', '.join(LEVELS)} [one row per run]"
    )
    with_values(levels, lambda: LEVELS, several=True)
    arguments = parser.parse_args(words)
    by = output.parse_levels(arguments.by, tuple(LEVELS))
    study = load(arguments.path, arguments.peaks)
    answer = rows(study, by)
    of = study.a_step(row["run"] for row in answer)
    return output.emit(Answer(answer, columns_of(by), parts(answer, by, of)), study, arguments)


if __name__ == "__main__":
    run_command(main)
