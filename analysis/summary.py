"""The answer in ten lines: what a step takes, how the job scales, what is lost and why, what to try.

    python -m analysis.summary DIR
    python -m analysis.summary DIR --short          without what to try
    python -m analysis.summary DIR --format json    the findings in their order

The findings are those of the report's opening. A bar shows what a part costs, in percent of a step.
"""

from collections.abc import Sequence

from analysis.display import output
from analysis.display.metrics import Metric
from analysis.display.terminal import Answer
from analysis.frames.load import load
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command

METRICS = (
    Metric("code", "the finding: its code in the catalogue", text=True),
    Metric(
        "cause",
        "computation, transfer, latency, data, host, copies, imbalance, straggler, idle, none or cannot_tell",
        text=True,
    ),
    Metric(
        "cost_pct",
        "points of scaling efficiency; of step_waits percent of a step",
        interval="in run",
        ends=("cost_pct_low", "cost_pct_high"),
    ),
    Metric("cost_ms", "the same, per step"),
    Metric("of", "GPUs or ranks, and nodes, that it is of", text=True),
    Metric("configuration", "the values in which the configuration differs from the others", text=True),
    Metric("rank", "of a straggler: the ranks", text=True),
    Metric("node", "of a straggler: its host", text=True),
    Metric("why", "of a straggler: loader, GPU (processor), node or host", text=True),
    Metric("advice", "codes of what to try, the cheapest first", text=True),
    Metric("gain_pct", "gain in images/s that was simulated or measured"),
    Metric("text", "the finding in words", text=True),
)
COLUMNS = {"Columns (a row a finding):": METRICS}


def main(words: Sequence[str] | None = None) -> int:
    parser = output.parser("analysis.summary", __doc__, columns=COLUMNS)
    parser.add_argument("--short", action="store_true", help="the first findings, without what to try")
    arguments = parser.parse_args(words)
    from analysis import diagnosis  # pandas: not for the help
    from analysis.diagnosis.evidence import Evidence

    study = load(arguments.path, arguments.peaks)
    found = diagnosis.in_order(diagnosis.diagnosis(Evidence(study)))
    shown = diagnosis.short(found) if arguments.short else found
    notes = diagnosis.as_lines(shown) if arguments.format == "table" else ()
    rows = [diagnosis.as_row(one) for one in shown]
    output.emit(Answer(rows, METRICS, parts=(), notes=notes), None, arguments)
    return EXIT_FAILED if study.missing else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
