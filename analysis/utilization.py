"""Utilization of each GPU, and the speedup of more of them.

    python -m analysis.utilization DIR          one row per rank (and GPU) of each profiled run
    python -m analysis.utilization TRACE        a trace: from its first kernel's start to its last one's end

The three metrics are defined as in PyTorch's TensorBoard plugin (torch_tb_profiler, gpu_metrics_parser.py),
which PyTorch has removed; docs/methods.md repeats the definitions. Copies and memory sets are not kernels.
"""

from pathlib import Path

from analysis.display import output
from analysis.display.metrics import Rows
from analysis.display.terminal import Answer
from analysis.frames.divide import length
from analysis.frames.load import load
from analysis.frames.study import Study
from analysis.measures.utilization import (
    COLUMNS,
    by_device,
    columns_of,
    notable,
    of_device,
    part,
    rows,
)
from profiling import tools
from profiling.errors import UserError, run_command
from profiling.findings import Finding, lines


def of_trace(path: Path) -> tuple[Rows, list[Finding]]:
    """The figures of a profiler's own file, whose batches are not known, and what was found in it.

    Raises:
        UserError: no tool's file, or no kernel with its time in it.
    """
    converted = tools.read(path)
    table = converted.tables.get("kernels")
    answer: Rows = []
    for device, kernels in (by_device(table) if table is not None else {}).items():
        whole = (kernels.start_ns.min(keepdims=True), kernels.end_ns.max(keepdims=True))
        if not length(whole):
            continue
        answer.append({"run": path.name, "gpu": device, **of_device(kernels, whole, device < 0)})
    if not answer:
        why = "".join(f"; {finding}" for finding in converted.findings[:1])
        raise UserError(f"{path} holds no timed kernel{why}")
    return answer, converted.findings


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    arguments = output.parser("analysis.utilization", __doc__, columns=COLUMNS).parse_args(words)
    study: Study | None = None
    found: list[Finding] = []
    if arguments.path.is_file():
        answer, found = of_trace(arguments.path)
    else:
        study = load(arguments.path, arguments.peaks)
        answer = rows(study)
    on_cpus = study.on_cpus if study else all(row["gpu"] < 0 for row in answer)
    some = answer if arguments.wide else notable(answer)
    shown = part(some, answer, f"Utilization of each {'rank' if on_cpus else 'GPU'}")
    return output.emit(Answer(answer, columns_of(), parts=[shown], notes=lines(found)), study, arguments)


if __name__ == "__main__":
    run_command(main)
