"""What did a single-node study find?

    python -m analysis.studies results/studies/layers-cpu-20260101T120000.000

python -m train.studies.capacity, layers, order and gemm end with this command; it can be repeated later.
docs/studies.md explains how each is measured.
"""

from analysis.display import output
from analysis.studies import capacity, gemm, layers, order
from analysis.studies.answers import answer
from analysis.studies.result import load
from profiling.errors import UserError, run_command

COLUMNS = {
    f"{module.__name__.rpartition('.')[2]}:": module.METRICS for module in (capacity, layers, order, gemm)
}


def main() -> int:
    parser = output.parser("analysis.studies", __doc__, columns=COLUMNS)
    arguments = parser.parse_args()
    results = load(arguments.path)
    if len(results) > 1:
        names = ", ".join(result.path.name for result in results)
        raise UserError(f"{arguments.path} holds several studies ({names}); name one of them")
    return output.emit(answer(results[0], arguments.peaks), None, arguments)


if __name__ == "__main__":
    run_command(main)
