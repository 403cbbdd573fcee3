"""What did it cost: memory, energy, start-up, node-hours?

    python -m analysis.expense DIR                  a row a configuration: a run's fields but its profiler
    python -m analysis.expense DIR --by rank        a row a rank of it

Memory, energy and start-up are of the unprofiled runs (of the profiled ones where there are no others, and
``metered_on`` says so); node-hours are of all.

    memory_gb, memory_rank    most resident memory of a rank, GB, and which; least_memory_gb: the least
    device_memory_gb          most memory of tensors on a GPU, GB; device_reserved_gb: taken for them
    device_j_per_image        energy of all GPUs (NVML, whole boards) over all images, joules
    processors_j_per_image    the same of all nodes' processors (RAPL), whoever used them
    device_w, processors_w    mean power of a GPU, and of a node's processors, watts
    energy_note               why an energy is not there
    startup_s, first_batch_s  process start to first batch, and that batch; slowest rank, median of runs
    node_hours                nodes x wall time of runs that count; failed_node_hours: of those that do not

Energy is counted from before the first batch to after the last, warm-up included, start-up not.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.measures.scaling.expense import ENERGY, MEMORY, OF_A_RANK, TIME, caption, rows, shown, spent
from analysis.measures.scaling.points import POINT_FIELDS
from analysis.results.load import load
from profiling.errors import UserError, run_command


def columns_of(by_rank: bool) -> list[str]:
    """The columns of :func:`rows`."""
    mine = OF_A_RANK if by_rank else ("runs", "metered_on", *MEMORY, *ENERGY, *TIME)
    return [*POINT_FIELDS, *mine]


def main() -> int:
    parser = output.parser("analysis.expense", __doc__)
    parser.add_argument(
        "--by", choices=("run", "rank"), default="run", help="a row a configuration, or a rank of it [run]"
    )
    arguments = parser.parse_args()
    study = load(arguments.path, arguments.peaks)
    by_rank = arguments.by == "rank"
    made = rows(study, by_rank)
    if not made:
        raise UserError(f"{study.path} holds no run that counts: its ranks' costs are not known")
    part = Part("What it cost", made, shown(made), caption(made, spent(study)))
    return output.emit(Answer(made, columns_of(by_rank), parts=[part]), study, arguments)


if __name__ == "__main__":
    run_command(main)
