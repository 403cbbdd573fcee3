"""What does communication cost?

    python -m analysis.communication DIR                 runs under a profiler, or TAU's tables
    python -m analysis.communication DIR --by rank

A row is a kind of collective of a run, a batch of a rank (mean of all ranks' attributed batches; batches of
which no kernel was recorded are left out, and a note counts them).
Where a job has several process groups, those of one shape (as many ranks, as far apart) have their own row:

    group_size, groups    ranks of such a group, and how many groups there are; group_ranks: of the first ones
    calls_per_batch, mbyte_per_call, mbyte_per_batch    messages, 1e6 bytes; empty: sizes are not known
    ms_per_batch          from a rank's entry to its end
    transfer_ms           since the last rank had arrived at the collective; wait_ms: before that
    exposed_ms            while no model kernel runs on that rank; overlapped_ms: while one does. Both in the
                          recorded batches, and time in which several are under way once: over a run's rows
                          they add up to those of analysis.anatomy
    algbw_gb_per_s        bytes over transfer time, 1e9 a second; busbw_gb_per_s: that times what the
                          collective must move a rank (nccl-tests: 2(P-1)/P for an allreduce of P ranks, those
                          of the group)
    busbw_of_measured_pct over the bus bandwidth measured at the start of the sweep
    clock_residual_us     how well the ranks' clocks are aligned (they are, on the ends of collectives that no
                          rank leaves before all have come to them), microseconds

Ranks' collectives are matched within a process group, by their order. Where some rank's are missing, or the
group is not recorded and there are several, wait and transfer are not known, and a note says so. For TAU
tables see analysis/measures/tau/messages.py.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part, Rows
from analysis.measures.anatomy.communication import CAPTION, COLUMNS, rows, shown
from analysis.measures.tau import messages
from analysis.results.load import load
from jobs.run import Run
from profiling.errors import run_command


def main() -> int:
    parser = output.parser("analysis.communication", __doc__)
    parser.add_argument(
        "--by", choices=("run", "rank"), default="run", help="a row a run, or a rank of it [run]"
    )
    arguments = parser.parse_args()
    study = load(arguments.path, arguments.peaks)
    profiles = {source.fields["profile"] for source in study.of_kind("run")} - {"none"}
    if messages.has_tau(study) and profiles <= {"tau"}:
        return output.emit(messages.answer(study), study, arguments)
    made = rows(study, arguments.by == "rank")
    columns = ["id", *Run.model_fields, *(["rank"] if arguments.by == "rank" else []), *COLUMNS]
    part = Part("Collectives, a batch of a rank", made, shown(made), caption(made))
    return output.emit(Answer(made, columns, parts=[part]), study, arguments)


def caption(made: Rows) -> str:
    """What stands below the table: how to read it, and how well the ranks' clocks are aligned."""
    residuals = [row["clock_residual_us"] for row in made if row.get("clock_residual_us") is not None]
    if not residuals:
        return CAPTION
    return f"{CAPTION}\nThe ranks' clocks are aligned on their collectives to within {max(residuals):.3g} us."


if __name__ == "__main__":
    run_command(main)
