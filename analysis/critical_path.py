"""The critical path of a step, and how long it would be without each part.

    python -m analysis.critical_path DIR                       one row per run and part of the path
    python -m analysis.critical_path DIR --by operator,kernel  what is on the path; also rank, step,
                                                               direction, layer

Each moment of a step is followed back to what it waited for: a kernel to its launch, to the kernel before it
on its stream, or to that of another stream; a launch to the host's code before it, a synchronisation to the
kernel, a collective to the last rank that entered it. What would be saved if a part took no time is computed
by the longest path without it, not by subtraction (docs/methods.md: critical path).
"""

from analysis.frames.measure import Command, levels, top
from profiling.errors import run_command

main = Command(
    "critical_path",
    __doc__,
    levels("rank", "step", "direction", "layer", "operator", "kernel"),
    top("the longest parts of each run [all]"),
)

if __name__ == "__main__":
    run_command(main)
