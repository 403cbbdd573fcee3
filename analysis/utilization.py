"""How busy was each GPU, and what did more of them gain?

    python -m analysis.utilization DIR          a row a rank (and GPU) of each profiled run
    python -m analysis.utilization TRACE        of a trace: from its first kernel's start to its last's end

Columns: ``id``, the fields of the run, ``rank``, ``gpu`` (its index; -1: the CPU), ``device_name``, then

    attributed_batches           batches that the profiler recorded, with kernels; the figures are of their
                                 time only
    profiled_ms                  their time, ms
    gpu_utilization_pct          of it, in which at least one kernel runs
    sm_efficiency_pct            estimated: of the multiprocessors, how many have a block, mean over it
    achieved_occupancy_pct       estimated: warps of those that would fit, mean over kernels weighted by time
    communication_pct            collectives in the summed time of kernels
    unknown                      why a figure is not known

and of the run's configuration (unprofiled runs count, if there are any; time is that of the slowest rank):

    images_per_s                 of all ranks
    speedup (_low, _high)        over one GPU of the same configuration (in a sweep of strong scaling, of the
                                 same global batch), with its interval over runs, of 95 % or more

The three definitions are those of PyTorch's TensorBoard plugin (torch_tb_profiler, gpu_metrics_parser.py),
which PyTorch has removed: docs/methods.md has them. A kernel is no copy or memory set.
"""

from pathlib import Path

from analysis.display import output
from analysis.display.terminal import Answer, Part, Rows
from analysis.measures.batches.overlap import length
from analysis.measures.scaling.utilization import (
    CAPTION,
    COLUMNS,
    by_device,
    notes_of,
    of_device,
    rows,
    shown,
)
from analysis.results.load import load
from analysis.results.study import Study
from profiling import convert
from profiling.errors import UserError, run_command


def of_trace(path: Path) -> tuple[Rows, list[str]]:
    """The figures of a profiler's own file, whose batches are not known, and what was found in it.

    Raises:
        UserError: no tool's file, or no kernel with its time in it.
    """
    converted = convert.read(path)
    table = converted.tables.get("kernels")
    made: Rows = []
    for device, kernels in (by_device(table) if table is not None else {}).items():
        whole = (kernels.start_ns.min(keepdims=True), kernels.end_ns.max(keepdims=True))
        if not length(whole):
            continue
        made.append({"id": path.name, "gpu": device, **of_device(kernels, whole, device < 0)})
    if not made:
        why = "".join(f"; {said}" for said in converted.findings[:1])
        raise UserError(f"{path} holds no kernel with its time and duration{why}")
    return made, converted.findings


def main() -> int:
    """The command; see the module's docstring."""
    arguments = output.parser("analysis.utilization", __doc__).parse_args()
    study: Study | None = None
    if arguments.path.is_file():
        made, notes = of_trace(arguments.path)
    else:
        study = load(arguments.path, arguments.peaks)
        made, notes = rows(study), []
    part = Part("Utilisation of each GPU", made, shown(made), CAPTION)
    return output.emit(Answer(made, COLUMNS, parts=[part], notes=[*notes_of(made), *notes]), study, arguments)


if __name__ == "__main__":
    run_command(main)
