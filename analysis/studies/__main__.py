"""Print the results of a single-node study.

    python -m analysis.studies results/studies/layers-cpu-20260101T120000.000

python -m train.studies.capacity, layers, order and gemm end with this output; this command prints it again.
docs/studies.md explains how each quantity is measured.
"""

from analysis.display import output
from analysis.studies.answers import STUDIES, answer
from analysis.studies.result import load
from profiling.errors import UserError, run_command

COLUMNS = {f"{name}:": study.metrics for name, study in STUDIES.items()}


def main() -> int:
    parser = output.parser("analysis.studies", __doc__, lambda: COLUMNS)
    arguments = parser.parse_args()
    results = load(arguments.path)
    if len(results) > 1:
        names = ", ".join(result.path.name for result in results)
        raise UserError(f"{arguments.path} holds several studies ({names}); name one of them")
    return output.emit(answer(results[0], arguments.peaks), results[0], arguments)


if __name__ == "__main__":
    run_command(main)
