"""The critical path of a step, and how long it would be without each part.

    python -m analysis.critical_path DIR                       one row per run and part of the path
    python -m analysis.critical_path DIR --by operator,kernel  what is on the path; also: rank, step,
                                                               direction, layer

The path is followed back from the end of the step. A kernel waited for its launch, for the previous kernel on
its stream, or for one on another stream; a launch for the host code before it; a synchronization for the last
kernel launched before it; a collective for the last rank to enter it. The saving from a part is found by
computing the longest path again without it, not by subtraction (docs/methods.md, Critical path).
"""

from analysis.frames.measure import Command, levels, top

main = Command(
    __name__, "critical_path", __doc__,
    levels("rank", "step", "direction", "layer", "operator", "kernel"),
    top("the longest parts of each run [all]"),
)  # fmt: skip
