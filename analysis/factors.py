"""Which setting matters?

    python -m analysis.factors DIR                        results of a sweep, or TAU tables of the reference
    python -m analysis.factors DIR --factors loader,grad  these only; others must not vary

The response is a run's throughput a rank (images/s over world size); of TAU tables, the published scaling
efficiency of each repetition, %. A row is a factor, or two factors together.

An interaction says that a factor's effect depends on another one; the main effects then hold on average only.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.measures.scaling.factors import COLUMNS, METRICS, caption, responses, rows, shown
from analysis.results.load import load
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    parser = output.parser("analysis.factors", __doc__, columns=COLUMNS)
    parser.add_argument("--factors", metavar="FIELD,...", help="fields of a run [all that vary]")
    arguments = parser.parse_args(words)
    factors = output.parse_fields(arguments.factors, flag="--factors")
    study = load(arguments.path, arguments.peaks)
    what, cells = responses(study)
    effects = rows(cells, factors)
    part = Part(f"What moves {what}", effects, shown(), caption(cells, effects))
    return output.emit(Answer(effects, METRICS, parts=[part]), study, arguments)


if __name__ == "__main__":
    run_command(main)
