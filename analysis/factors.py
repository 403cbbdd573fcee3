"""The effect of each factor of a sweep.

    python -m analysis.factors DIR          results of a sweep, or TAU tables of the reference

The response is throughput per rank (images/s divided by world size). For TAU tables it is the published
scaling efficiency of each repetition, in percent. One row per factor or pair of factors.

An interaction means that the effect of one factor depends on another; main effects then hold only on average.
"""

from analysis.frames.measure import Command

main = Command(__name__, "factors", __doc__)
