"""How steady is a batch? The batches of each run: warmup, median, and how long the slow ones take."""

import math

from analysis.display.metrics import Rows
from analysis.measures.batches import rows as batches
from analysis.report.base import Content, Context, SectionKind
from analysis.report.sentences import least_and_most
from analysis.report.views import as_view
from analysis.statistics import estimates


def _batches(context: Context) -> Content:
    """The table of analysis.batches: a row a run."""
    part = batches.part(context.once(_rows))
    # Of traces no other interval is on the page.
    above = "; those in the results above are between runs" if context.study.of_kind("run") else ""
    text = (
        "The steps of each run, without warmup. A step of the job ends with its slowest rank. One step "
        f"in twenty takes longer than p95. Intervals here are within a run{above}."
    )
    view = as_view(part, "batches-table", context.factors)
    return Content(text, tables=[view])


def _rows(context: Context) -> Rows:
    return batches.rows(context.study)


def _steadiness(context: Context) -> str:
    """How much longer the slow steps are than the median: in the least and in the most steady run, and of
    jobs, which are unlike each other, in the least steady one."""
    known = [
        (100 * (row["p95_ms"] / row["step_ms"] - 1), row)
        for row in context.rows_of(_rows)
        if math.isfinite(row.get("p95_ms") or math.nan)
    ]
    if not known:
        fewest = estimates.fewest_beyond(95)
        return (
            f"Not available: the 95th percentile of a run needs {fewest} steps after warmup; no run has them."
        )
    if len(context.traces) > 1:
        pct, row = max(known, key=lambda one: one[0])
        which = f"{row['run']}{', the least steady job' if len(known) > 1 else ''}"
        steps = f"its {row['steady_steps']} steps"
        return f"{which}: the 95th percentile of {steps} is {pct:.0f} % above their median."
    ends = least_and_most([(pct, "") for pct, _ in known], ".0f", " %")
    return f"The 95th percentile of a run's steps is {ends} above their median."


BATCHES = SectionKind(
    "batches",
    "How steady is a step?",
    _batches,
    lambda context: bool(context.own or context.traces),
    finding=_steadiness,
)
