"""Time, bytes and bandwidth of collectives.

    python -m analysis.communication DIR                 profiled runs, or TAU's tables
    python -m analysis.communication DIR --by rank

One row per run and kind of collective: mean per step and rank, over the profiled steps of all ranks.
Steps without any recorded kernel are left out; a note counts them. If a job has several process groups,
groups of the same shape share a row.

The collectives of the ranks are matched by their order within a process group. Transfer and wait
cannot be separated if only some ranks of a group were recorded, or if there are several groups and they were
not recorded; a note says so.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.measures import tau as messages
from analysis.measures.communication import COLUMNS, columns_of, rows, shown
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    parser = output.parser("analysis.communication", __doc__, columns=COLUMNS)
    parser.add_argument(
        "--by", choices=("run", "rank"), default="run", help="one row per run, or per rank of each run [run]"
    )
    arguments = parser.parse_args(words)
    study = load(arguments.path, arguments.peaks)
    profiles = {source.fields["profile"] for source in study.recorded}
    if messages.has_tau(study) and profiles <= {"tau"}:
        return output.emit(messages.answer(study), study, arguments)
    by_rank = arguments.by == "rank"
    answer = rows(study, by_rank)
    caption = "Wait: until the last rank enters the collective; transfer: after that."
    part = Part("Collectives, per step and rank", answer, shown(answer), caption)
    return output.emit(Answer(answer, columns_of(by_rank), parts=[part]), study, arguments)


if __name__ == "__main__":
    run_command(main)
