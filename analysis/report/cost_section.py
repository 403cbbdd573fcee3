"""What did it cost? A section of the report: memory, energy, start-up and node-hours."""

from collections.abc import Sequence

from analysis.display.terminal import Part
from analysis.measures.scaling import expense
from analysis.report.render import Section
from analysis.report.views import as_view
from analysis.results.study import Study

HEADING = "What did it cost?"
RANKS = 256  # rows of the table by rank


def section(study: Study, factors: Sequence[str]) -> Section | None:
    """The costs of the study's runs; none if it has no runs (reference files say nothing of it)."""
    if not study.of_kind("run"):
        return None
    made = expense.rows(study)
    by_rank = expense.rows(study, by_rank=True)
    text, *notes = expense.caption(made, expense.spent(study)).split("\n")
    views = [as_view(Part("", made, expense.shown(made)), "cost-table", factors)]
    if len(by_rank) > len(made):
        part = Part("By rank", by_rank[:RANKS], expense.shown(by_rank))
        views.append(as_view(part, "cost-by-rank", factors))
    if len(by_rank) > RANKS:
        notes.append(f"The first {RANKS} of {len(by_rank)} ranks; analysis.expense --by rank gives all.")
    if not any(row.get("device_memory_gb") for row in made):
        cpu = all(device == "cpu" for device in study.runs["device_name"])
        notes.append(f"No memory of a GPU was recorded{': on a CPU there is none' if cpu else ''}.")
    return Section("cost", HEADING, text, tables=views, notes=notes)
