"""How long does a batch take?

    python -m analysis.batches DIR

A row a run. A step of a job ends when its slowest rank does, so the job's batch is the maximum over ranks.
Columns: ``id``, the fields of the run, ``repetition``, then

    batches, warmup            batches done, and how many at the head were off the steady level (dropped)
    batch_ms (_low, _high)     median of the steady ones, ms, and its 95 % interval inside the run (it says
                               nothing of other runs; empty: too few batches, or too much alike)
    p95_ms, p99_ms, max_ms     percentiles and maximum, ms
    images_per_s               images of all ranks over the job's time for the steady batches
    load_ms, forward_ms, backward_ms, update_ms   medians of the stages (mean over ranks), ms
    attributed_ms              median of the batches that the profiler recorded, ms
    startup_s                  start of the process to the first batch (slowest rank), s

For TAU tables of the reference (both the 50-batch and the 1-batch runs of a configuration): ``tau_batch_ms``,
its published estimate of the batch duration, ms.
"""

from typing import Any

from analysis.display import output
from analysis.display.terminal import Answer, Column, Part, Rows, digits, header, with_interval
from analysis.measures.batches.rows import columns_of, rows
from analysis.measures.batches.series import STAGES
from analysis.results.load import load
from jobs.run import Run
from profiling.errors import run_command


def main() -> int:
    arguments = output.parser("analysis.batches", __doc__).parse_args()
    study = load(arguments.path, arguments.peaks)
    made = rows(study)
    part = Part(
        "Batches of each run (ms; the job's batch ends with its slowest rank)",
        made,
        _shown(_varying(made), made),
        "Intervals are of batches inside the run; none: too few batches, or neighbours too much alike.\n"
        "Warm-up is left out of all figures.",
    )
    answer = Answer(made, columns_of(made), parts=[part])
    return output.emit(answer, study, arguments)


def _varying(made: Rows) -> list[str]:
    return [name for name in Run.model_fields if len({str(row.get(name)) for row in made}) > 1]


def _shown(fields: list[str], made: Rows) -> list[Column]:
    def interval(row: Any) -> str:
        return with_interval(row.get("batch_ms"), row.get("batch_ms_low"), row.get("batch_ms_high"))

    def figure(name: str, significant: int = 0) -> Any:
        return lambda row: digits(row.get(name), significant) if significant else row.get(name)

    shown = [
        Column(header(name), figure(name), left=isinstance(made[0].get(name), str), key=True)
        for name in fields
    ]
    shown += [
        Column("rep", figure("repetition"), key=True),
        Column("warm-\nup", figure("warmup")),
        Column("batch\nmedian [95 %]", interval),
        *(Column(name.replace("_ms", ""), figure(name)) for name in ("p95_ms", "max_ms")),
        Column("images\n/s", figure("images_per_s")),
        *(Column(name, figure(f"{name}_ms", 3)) for name in STAGES),
    ]
    if any("tau_batch_ms" in row for row in made):
        shown.append(Column("TAU\nestimate", figure("tau_batch_ms")))
    return [column for column in shown if any(column.value(row) not in (None, "-") for row in made)]


if __name__ == "__main__":
    run_command(main)
