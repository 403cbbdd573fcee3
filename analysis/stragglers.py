"""Lateness of ranks, stragglers and their causes.

    python -m analysis.stragglers DIR                   one row per rank of each run of several ranks
    python -m analysis.stragglers DIR --by step         one row per rank and step

Unprofiled runs suffice; if collectives were recorded, lateness is measured from these. A rank is late in a
step if the others (their median) waited for it for 2 % of the step or more. Time that nobody waited for
does not count.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.measures.stragglers import (
    COLUMNS,
    caption,
    columns_of,
    latest_steps,
    notable_ranks,
    rows,
    shown,
    verdict,
)
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    parser = output.parser("analysis.stragglers", __doc__, columns=COLUMNS)
    parser.add_argument(
        "--by", choices=("rank", "step"), default="rank", help="one row per rank, or per rank and step [rank]"
    )
    arguments = parser.parse_args(words)
    study = load(arguments.path, arguments.peaks)
    by_step = arguments.by == "step"
    answer = rows(study, by_step)
    select = latest_steps if by_step else notable_ranks
    some, others = (answer, "") if arguments.wide else select(answer)
    title = "Lateness by rank and step, ms" if by_step else "Lateness of each rank"
    below = "\n".join(filter(None, [caption(some), others]))
    # Which columns tell runs apart does not depend on the rows that are shown.
    part = Part(title, some, shown(answer, by_step), below)
    found = [] if by_step else verdict(answer)
    return output.emit(Answer(answer, columns_of(by_step), [part], verdict=found), study, arguments)


if __name__ == "__main__":
    run_command(main)
