"""The effect of each factor of a sweep.

    python -m analysis.factors DIR                        results of a sweep, or TAU tables of the reference
    python -m analysis.factors DIR --factors loader,grad  only these; other fields must not vary

The response is throughput per rank (images/s divided by world size). For TAU tables it is the published
scaling efficiency of each repetition, in percent. One row per factor or pair of factors.

An interaction means that the effect of one factor depends on another; main effects then hold only on average.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.frames.load import load
from analysis.measures.factors import COLUMNS, METRICS, check, responses, rows, shown
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    parser = output.parser("analysis.factors", __doc__, columns=COLUMNS)
    parser.add_argument("--factors", metavar="FIELD,...", help="fields of a run [all that vary]")
    arguments = parser.parse_args(words)
    study = load(arguments.path, arguments.peaks)
    factors = output.parse_fields(arguments.factors, flag="--factors", own=study.own_factors)
    what, cells = responses(study)
    effects = rows(cells, factors)
    check(study, cells, effects)
    part = Part(f"Effect of each factor on {what}", effects, shown())
    return output.emit(Answer(effects, METRICS, parts=[part]), study, arguments)


if __name__ == "__main__":
    run_command(main)
