"""Where does a batch go?

    python -m analysis.anatomy DIR                       a row a run: mean of its attributed batches, ms
    python -m analysis.anatomy DIR --by rank,stage       a row a rank and stage; also batch_index

The wall time of each attributed batch of each rank is split into parts that add up to it, to the nanosecond.
Empty is what idle is made of on a CPU, where nothing is launched, and where a tool does not say when kernels
were; and what communication is made of where not all ranks recorded the same collectives (a note says so).
"""

from analysis.display import output
from analysis.display.terminal import Answer
from analysis.measures.anatomy.rows import COLUMNS, LEVELS, columns_of, parts, rows
from analysis.results.load import load
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.anatomy", __doc__, columns=COLUMNS)
    parser.add_argument(
        "--by", default="", metavar="LEVEL,...", help=f"{', '.join(LEVELS)} [one row per run]"
    )
    arguments = parser.parse_args(words)
    by = output.parse_levels(arguments.by, tuple(LEVELS))
    study = load(arguments.path, arguments.peaks)
    answer = rows(study, by)
    return output.emit(Answer(answer, columns_of(by), parts(answer, by)), study, arguments)


if __name__ == "__main__":
    run_command(main)
