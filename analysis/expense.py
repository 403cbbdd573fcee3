"""Memory, energy, startup and node-hours.

    python -m analysis.expense DIR                  one row per configuration (runs of all profilers together)
    python -m analysis.expense DIR --by rank        one row per configuration and rank

Memory, energy and startup come from the unprofiled runs (from profiled runs if there are no others; column
kind_of_runs says which). Node-hours include all runs that ended, also failed ones (of those that failed
repeatedly in the same way, the last), and none that was interrupted.

Energy is measured from before the first step to after the last. It includes warmup, but not startup.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.measures.expense import COLUMNS, columns_of, node_hours, rows, shown, spent
from profiling.errors import UserError, run_command


def main(words: list[str] | None = None) -> int:
    parser = output.parser("analysis.expense", __doc__, columns=COLUMNS)
    parser.add_argument(
        "--by", choices=("run", "rank"), default="run", help="one row per configuration, or per rank [run]"
    )
    arguments = parser.parse_args(words)
    study = load(arguments.path, arguments.peaks)
    by_rank = arguments.by == "rank"
    answer = rows(study, by_rank)
    if not answer:
        raise UserError(f"{study.path} holds no usable run: the cost of its ranks is not available")
    part = Part("Cost", answer, shown(answer), node_hours(spent(study)))
    return output.emit(Answer(answer, columns_of(by_rank), parts=[part]), study, arguments)


if __name__ == "__main__":
    run_command(main)
