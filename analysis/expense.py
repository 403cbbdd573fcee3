"""What did it cost: memory, energy, start-up, node-hours?

    python -m analysis.expense DIR                  a row a configuration: a run's fields but its profiler
    python -m analysis.expense DIR --by rank        a row a rank of it

Memory, energy and start-up are of the unprofiled runs (of the profiled ones where there are no others, and
metered_on says so); node-hours are of all.

Energy is counted from before the first batch to after the last, warm-up included, start-up not.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.measures.scaling.expense import COLUMNS, caption, columns_of, rows, shown, spent
from analysis.results.load import load
from profiling.errors import UserError, run_command


def main(words: list[str] | None = None) -> int:
    parser = output.parser("analysis.expense", __doc__, columns=COLUMNS)
    parser.add_argument(
        "--by", choices=("run", "rank"), default="run", help="a row a configuration, or a rank of it [run]"
    )
    arguments = parser.parse_args(words)
    study = load(arguments.path, arguments.peaks)
    by_rank = arguments.by == "rank"
    answer = rows(study, by_rank)
    if not answer:
        raise UserError(f"{study.path} holds no run that counts: its ranks' costs are not known")
    part = Part("What it cost", answer, shown(answer), caption(answer, spent(study)))
    return output.emit(Answer(answer, columns_of(by_rank), parts=[part]), study, arguments)


if __name__ == "__main__":
    run_command(main)
