"""The kernels that take the time and what bounds each, from a timing run and a run that read counters.

    python -m jobs.hotspots CONFIG --top 5      starts both runs, and prints this
    python -m analysis.hotspots DIR --top 5     prints it again

DIR holds a run under the torch profiler and, if counters could be read, one of the same configuration under
ncu, nvprof or vtune. With several configurations, --run selects one. VTune measures functions, not operators:
they have rows of their own (counters: vtune).
"""

from analysis.display import output
from analysis.display.terminal import Answer
from analysis.frames.load import load
from analysis.measures.hotspots import COLUMNS, METRICS, part, rows
from profiling.errors import run_command


def main(words: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = output.parser("analysis.hotspots", __doc__, columns=COLUMNS)
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of kernels [5]")
    parser.add_argument("--run", metavar="ID", help="the timed run, if there are several configurations")
    arguments = parser.parse_args(words)
    output.check_top(arguments.top, "kernels")
    study = load(arguments.path, arguments.peaks)
    kernels, caption = rows(study, arguments.top, arguments.run)
    table = part("Hottest kernels", kernels, caption)
    return output.emit(Answer(kernels, METRICS, parts=[table]), study, arguments)


if __name__ == "__main__":
    run_command(main)
