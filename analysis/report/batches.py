"""How steady is a batch? The batches of each run: warmup, median, and how long the slow ones take."""

from analysis.measures.batches import rows as batches
from analysis.report.base import Content, Context, SectionKind
from analysis.report.views import as_view


def _batches(context: Context) -> Content:
    """The table of analysis.batches: a row a run."""
    part = batches.part(batches.rows(context.study))
    text = (
        "The steps of each run, without warmup. A step of the job ends with its slowest rank. One step "
        "in twenty takes longer than p95. Intervals here are within a run; those in the results above are "
        "between runs."
    )
    return Content(text, tables=[as_view(part, "batches-table", context.factors)])


BATCHES = SectionKind(
    "batches", "How steady is a step?", _batches, lambda context: bool(context.own or context.traces)
)
