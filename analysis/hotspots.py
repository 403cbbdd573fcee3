"""Which kernels take the time, and what bounds each? From a timing run and one that read counters.

    python -m jobs.hotspots CONFIG --top 5      runs both, and prints this
    python -m analysis.hotspots DIR --top 5     prints it again

DIR holds a run under the torch profiler and, where counters could be read, one of the same point under ncu,
nvprof or vtune; of several points --run says which.
Columns, a row a kernel (an operator, on a CPU), the longest first:

    kernel, class
    ms_per_batch (_low, _high)           time a batch, with its interval over the run's batches, of 95 % or
                                         more
    share_pct                            of the time of all kernels
    calls_per_batch, mean_us             launches a batch; of a launch
    achieved_occupancy_pct               warps that were resident, of those that fit
    ipc                                  instructions a cycle (of a multiprocessor; of a core)
    load_efficiency_pct, store_efficiency_pct   bytes asked for over bytes of the sectors that were moved
    dram_utilization_pct                 throughput of the device's memory over its peak
    tensor_cores                         used, not used, or by its name (their instructions were not counted)
    intensity_flop_per_byte, bound, roof_pct, roof_of_measured_pct   its place on the roofline
    counters                             the tool that counted; empty: none did
    why                                  what bounds it, in a sentence

VTune measures functions, which are no operators: they are rows of their own (``counters`` vtune), with
``cpu_s``, the CPU time of the whole run.
"""

from analysis.display import output
from analysis.display.terminal import Answer, Part
from analysis.measures.kernels.hotspots import COLUMNS, rows, shown
from analysis.results.load import load
from profiling.errors import UserError, run_command


def main() -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.hotspots", __doc__)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many kernels [5]")
    parser.add_argument("--run", metavar="ID", help="the timed run, of several points")
    arguments = parser.parse_args()
    if arguments.top < 1:
        raise UserError(f"--top: {arguments.top} is no number of kernels; give 1 or more")
    study = load(arguments.path, arguments.peaks)
    made, caption = rows(study, arguments.top, arguments.run)
    notes = (
        []
        if any(row["counters"] for row in made)
        else ["no counters were read: times and the roofline alone"]
    )
    part = Part("The hottest kernels, and what bounds them", made, shown(made), caption)
    return output.emit(Answer(made, COLUMNS, parts=[part], notes=notes), study, arguments)


if __name__ == "__main__":
    run_command(main)
