"""Who is slow?

    python -m analysis.stragglers DIR                   a row a rank of each run of several ranks
    python -m analysis.stragglers DIR --by batch        a row a rank and batch

Runs without a profiler suffice; where collectives were recorded, these tell. A rank is late in a batch if the
others (their median) waited for it for 2 % of a batch or more; what it was behind without anybody waiting is
not held against it. Columns:

    rank, node, told_by        collectives, or stages of the batches (analysis/measures/lateness/lateness.py)
    judged_batches, batch_ms   those that tell; median duration of a batch of the job
    lateness_ms (_low, _high)  how long the others waited for it: median of the batches, with its
                               interval inside the run, of 95 % or more; below 0: it waited
    mean_lateness_ms           the mean: a rank that is late only at times has a median near 0
    late_pct, last_pct         share of the batches in which it was late; in which it came last
    held_up_ms                 how long it alone held up all others, a batch: the last less the second last
    chance                     how probable it is that some rank of equal ranks is late as often
    verdict                    straggler, may be chance, too few batches, nobody waited, clock, no: see
                               analysis/measures/lateness/verdicts.py; only stragglers are named
    cause, evidence            of a straggler: loader, GPU (on a CPU, processor), node (all its ranks are),
                               host (the same kernels take as long, but come late), or what is not told apart

With ``--by batch``: ``batch_index``, ``lateness_ms``, ``behind_ms``, ``late``, and what its update, load and
forward stages took longer than the others'.
"""

from typing import Any

from analysis.display import output
from analysis.display.terminal import Answer, Column, Part, Rows, digits
from analysis.measures.lateness.lateness import PARTS
from analysis.measures.lateness.stragglers import (
    BATCH_COLUMNS,
    CAPTION,
    COLUMNS,
    keys,
    rows,
    sentences,
    shown,
)
from analysis.results.load import load
from jobs.run import Run
from profiling.errors import run_command


def columns_of(by_batch: bool = False) -> list[str]:
    """The columns of :func:`rows`."""
    return ["id", *Run.model_fields, "repetition", *(BATCH_COLUMNS if by_batch else COLUMNS)]


def main() -> int:
    parser = output.parser("analysis.stragglers", __doc__)
    parser.add_argument(
        "--by", choices=("rank", "batch"), default="rank", help="a row a rank, or a batch of it [rank]"
    )
    arguments = parser.parse_args()
    study = load(arguments.path, arguments.peaks)
    by_batch = arguments.by == "batch"
    made = rows(study, by_batch)
    if by_batch:
        part = Part("Lateness of each rank in each batch, ms", made, _shown_by_batch(made), CAPTION)
        return output.emit(Answer(made, columns_of(True), parts=[part]), study, arguments)
    part = Part("Lateness of each rank", made, shown(made), CAPTION)
    return output.emit(Answer(made, columns_of(), [part], notes=sentences(made)), study, arguments)


def _shown_by_batch(made: Rows) -> list[Column]:
    def figure(name: str) -> Any:
        return lambda row: digits(row[name], 3)

    return [
        *keys(made),
        Column("batch", lambda row: row["batch_index"], key=True),
        Column("lateness", figure("lateness_ms")),
        Column("behind", figure("behind_ms")),
        *(Column(f"{name}\nlonger", figure(f"{name}_longer_ms")) for name in PARTS),
        Column("late", lambda row: "late" if row["late"] else "", left=True),
    ]


if __name__ == "__main__":
    run_command(main)
