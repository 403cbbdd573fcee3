"""What does communication cost?

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
from analysis.display.metrics import Rows
from analysis.display.terminal import Answer, Part
from analysis.measures.anatomy.communication import (
    CAPTION,
    COLUMNS,
    at_once,
    columns_of,
    no_bandwidth,
    no_transfer,
    rows,
    shown,
)
from analysis.measures.tau import messages
from analysis.results.counted_steps import left_out
from analysis.results.load import load
from profiling.clocks import rounded
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
    said = caption(answer, no_transfer(study), left_out(study, study.recorded))
    part = Part("Collectives, per step and rank", answer, shown(answer), said)
    return output.emit(Answer(answer, columns_of(by_rank), parts=[part]), study, arguments)


def caption(rows: Rows, why_no_transfer: str, steps: str = "") -> str:
    """What stands below the table: how to read it, what is not known, how well the clocks are aligned.

    Args:
        steps: which are left out, a line; empty: none.
    """
    lines = [CAPTION, *([steps] if steps else []), *at_once(rows), *no_bandwidth(rows, why_no_transfer)]
    residuals = [row["clock_residual_us"] for row in rows if row.get("clock_residual_us") is not None]
    if residuals:
        within = rounded(1e3 * max(residuals))
        lines.append(f"The ranks' clocks are aligned on their collectives to within {within}.")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
