"""What would shorten the step? What is on its critical path, and how long would it be without that?

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
from analysis.measures.critical_path.rows import COLUMNS, LEVELS, caption, columns_of, rows, shown, title
from analysis.results.load import load
from profiling.errors import run_command

_MOST_SHOWN = 40  # pieces by kernel or operator that the terminal shows; other formats have all


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.critical_path", __doc__, columns=COLUMNS)
    parser.add_argument(
        "--by", default="", metavar="LEVEL,...", help=f"{', '.join(LEVELS)} [one row per part]"
    )
    arguments = parser.parse_args(words)
    by = output.parse_levels(arguments.by, tuple(LEVELS))
    study = load(arguments.path, arguments.peaks)
    answer = rows(study, by)
    shown_rows = answer[:_MOST_SHOWN] if by else answer
    of, left_out = study.a_step(row["id"] for row in answer), len(answer) - len(shown_rows)
    table = Part(title(of), shown_rows, shown(answer, by, of), caption(by, left_out, of))
    return output.emit(Answer(answer, columns_of(by), [table]), study, arguments)


if __name__ == "__main__":
    run_command(main)
