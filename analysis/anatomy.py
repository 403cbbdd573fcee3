"""Where does a batch go?

    python -m analysis.anatomy DIR                       a row a run: mean of its attributed batches, ms
    python -m analysis.anatomy DIR --by rank,stage       a row a rank and stage; also batch_index

The wall time of each attributed batch of each rank is split into parts that add up to it, to the nanosecond.
Where two things happen at once the first in this order has the time:

    compute_ms                 kernels of the model run (of the host, on a CPU)
    exposed_communication_ms   collectives run and no model kernel does; made of
                               exposed_transfer_ms (since the last rank had come to the collective)
                               and exposed_wait_ms (before that: this rank waits for a later one)
    exposed_loader_ms          the loader's kernels and copies run, or the next batch is waited for; made of
                               loader_kernels_ms, loader_copies_ms and loader_wait_ms
    exposed_copies_ms          other copies and memory sets run
    idle_ms                    nothing runs; on a GPU made of
                               idle_host_bound_ms (nothing was launched that had not begun: a launch was late)
                               and idle_other_ms (something was: dependency, synchronisation, latency)

and beside them, inside other parts: overlapped_communication_ms and overlapped_loader_ms. ``wall_ms`` is the
sum of the parts; ``attributed_batches`` is how many batches (of all its ranks) a row is the mean of. Empty is
what idle is made of on a CPU, where nothing is launched, and where a tool does not say when kernels were; and
what communication is made of where not all ranks recorded the same collectives (a note says so).
``stage`` is load, forward, backward, update or end (from the update's end to the batch's).
"""

from collections.abc import Sequence

from analysis.display import output
from analysis.display.terminal import Answer
from analysis.measures.anatomy.rows import FIGURES, LEVELS, parts, rows
from analysis.results.load import load
from jobs.run import Run
from profiling.errors import run_command


def columns_of(by: Sequence[str]) -> list[str]:
    """The columns of :func:`rows`."""
    return ["id", *Run.model_fields, "repetition", *by, *FIGURES]


def main() -> int:
    parser = output.parser("analysis.anatomy", __doc__)
    parser.add_argument(
        "--by", default="", metavar="LEVEL,...", help="rank, batch_index, stage [a row a run]"
    )
    arguments = parser.parse_args()
    by = output.parse_levels(arguments.by, LEVELS)
    study = load(arguments.path, arguments.peaks)
    made = rows(study, by)
    return output.emit(Answer(made, columns_of(by), parts=parts(made, by)), study, arguments)


if __name__ == "__main__":
    run_command(main)
