"""The critical path of a step, and how long it would be without each part.

    python -m analysis.critical_path DIR                       one row per run and part of the path
    python -m analysis.critical_path DIR --by operator,kernel  what is on the path; also rank, step,
                                                               direction, layer

Each moment of a step is followed back to what it waited for: a kernel to its launch, to the kernel before it
on its stream, or to that of another stream; a launch to the host's code before it, a synchronisation to the
kernel, a collective to the last rank that entered it. What would be saved if a part took no time is computed
by the longest path without it, not by subtraction (docs/methods.md: critical path).
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.measures.critical_path.rows import COLUMNS, LEVELS, caption, columns_of, rows, shown
from profiling.arguments import with_values
from profiling.errors import run_command

TOP, TOP_OF_EACH = 40, 10  # rows of --by that the terminal shows of one run, of each of several


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.critical_path", __doc__, columns=COLUMNS)
    levels = parser.add_argument(
        "--by", default="", metavar="LEVEL,...", help=f"{', '.join(LEVELS)} [one row per part]"
    )
    with_values(levels, lambda: LEVELS, several=True)
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help=f"the longest N parts of each run [all; table with --by: {TOP} of one run, {TOP_OF_EACH} of "
        "each of several]",
    )
    arguments = parser.parse_args(words)
    by = output.parse_levels(arguments.by, tuple(LEVELS))
    output.check_top(arguments.top, "parts")
    study = load(arguments.path, arguments.peaks)
    every = rows(study, by)
    several = len({row["run"] for row in every}) > 1
    most = (TOP_OF_EACH if several else TOP) if by and arguments.format == "table" else None
    kept = output.first_of_each(every, arguments.top or most, "run")
    of = study.a_step(row["run"] for row in every)
    more = len(every) - len(kept)
    below = caption(by, of) + (f"\n{more} more rows (--top N)" if more else "")
    table = Part(f"Critical path of {of}", kept, shown(kept, by, of), below)
    return output.emit(Answer(kept, columns_of(by), [table]), study, arguments)


if __name__ == "__main__":
    run_command(main)
