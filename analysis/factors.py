"""The effect of each factor of a sweep.

    python -m analysis.factors DIR                        results of a sweep, or TAU tables of the reference
    python -m analysis.factors DIR --factors loader,grad  only these; other fields must not vary

The response is throughput per rank (images/s divided by world size). For TAU tables it is the published
scaling efficiency of each repetition, in percent. One row per factor or pair of factors.

An interaction means that the effect of one factor depends on another; main effects then hold only on average.
"""

from analysis.display import output
from analysis.frames.measure import Command, flag
from profiling.errors import run_command

main = Command(
    "factors", __doc__,
    flag(
        "--factors", lambda text, study: output.parse_fields(text, flag="--factors", own=study.own_factors),
        metavar="FIELD,...", help="fields of a run [all that vary]",
    ),
)  # fmt: skip

if __name__ == "__main__":
    run_command(main)
