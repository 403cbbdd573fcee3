"""How busy was each GPU, and what did more of them gain?

    python -m analysis.utilization DIR          a row a rank (and GPU) of each profiled run
    python -m analysis.utilization TRACE        of a trace: from its first kernel's start to its last's end

The three definitions are those of PyTorch's TensorBoard plugin (torch_tb_profiler, gpu_metrics_parser.py),
which PyTorch has removed: docs/methods.md has them. A kernel is no copy or memory set.
"""

from pathlib import Path

from analysis.display import output
from analysis.display.metrics import Rows
from analysis.display.terminal import Answer, Part
from analysis.measures.batches.overlap import length
from analysis.measures.scaling.utilization import (
    CAPTION,
    COLUMNS,
    by_device,
    columns_of,
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
    answer: Rows = []
    for device, kernels in (by_device(table) if table is not None else {}).items():
        whole = (kernels.start_ns.min(keepdims=True), kernels.end_ns.max(keepdims=True))
        if not length(whole):
            continue
        answer.append({"id": path.name, "gpu": device, **of_device(kernels, whole, device < 0)})
    if not answer:
        why = "".join(f"; {said}" for said in converted.findings[:1])
        raise UserError(f"{path} holds no kernel with its time and duration{why}")
    return answer, converted.findings


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    arguments = output.parser("analysis.utilization", __doc__, columns=COLUMNS).parse_args(words)
    study: Study | None = None
    if arguments.path.is_file():
        answer, notes = of_trace(arguments.path)
    else:
        study = load(arguments.path, arguments.peaks)
        answer, notes = rows(study), []
    part = Part("Utilisation of each GPU", answer, shown(answer), CAPTION)
    return output.emit(
        Answer(answer, columns_of(), parts=[part], notes=[*notes_of(answer), *notes]), study, arguments
    )


if __name__ == "__main__":
    run_command(main)
