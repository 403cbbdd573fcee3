"""Sections on cost and findings, and where the figures come from: machine and software."""

from collections.abc import Sequence
from pathlib import Path

from analysis.display.metrics import Rows
from analysis.display.terminal import Part
from analysis.measures.scaling import expense
from analysis.report.base import Content, Context, SectionKind, portable
from analysis.report.render import Cell, Heading, Row, Section, TableView
from analysis.report.views import as_view
from analysis.results.study import Study
from jobs.store import Facts, Manifest
from profiling.findings import Finding, lines, merged

RANKS = 256  # rows of the table by rank
_SEVERITY = "3: numbers are missing or wrong; 2: uncertain or not comparable; 1: worth knowing"
_FINDING = (
    Heading("severity", _SEVERITY, numeric=True),
    Heading("finding", "what a reader of the figures has to know"),
    Heading("code", "of all findings of its kind, in JSON"),
)


def _cost(context: Context) -> Content:
    """Memory, energy, startup and node-hours."""
    rows = context.once(_expense)
    by_rank = expense.rows(context.study, by_rank=True)
    views = [as_view(Part("", rows, expense.shown(rows)), "cost-table", context.factors)]
    if len(by_rank) > len(rows):
        part = Part("By rank", by_rank[:RANKS], expense.shown(by_rank))
        views.append(as_view(part, "cost-by-rank", context.factors))
    return Content(tables=views)


def _expense(context: Context) -> Rows:
    return expense.rows(context.study)


def findings_section(findings: Sequence[Finding], folders: Sequence[Path]) -> Section:
    """All findings on the results, a row for each code, the most severe first."""
    rows = [
        Row([Cell(str(group[0].severity), group[0].severity, numeric=True),
             Cell(portable(text, folders), wide=True), Cell(group[0].code)])
        for group in merged(findings)
        for text in lines(group)
    ]  # fmt: skip
    tables = [TableView("findings-table", _FINDING, rows)] if rows else []
    return Section("findings", "Findings", "" if rows else "None.", tables=tables)


# Reference files say nothing of what their runs cost.
COST = SectionKind("cost", "What did it cost?", _cost, lambda context: bool(context.study.of_kind("run")))


def of_study(study: Study) -> list[tuple[str, str]]:
    """Where the figures come from: pairs of a name and its value (or values, if runs differ)."""
    manifests = [source.manifest for source in study.sources if source.manifest]
    facts = facts_of(study.path, manifests)
    if manifests:
        facts.append(("node-hours", f"{sum(m.seconds * m.run.nodes for m in manifests) / 3600:.3f}"))
    if study.calibration:
        facts.append(("peaks measured", f"{study.calibration.seconds:.1f} s, {study.calibration.precision}"))
    return facts


def facts_of(path: Path, manifests: Sequence[Facts]) -> list[tuple[str, str]]:
    """What manifests say of machine, software and time."""
    facts: dict[str, dict[str, None]] = {}

    def add(name: str, value: object) -> None:
        if value not in (None, ""):
            facts.setdefault(name, {})[str(value)] = None

    add("results", path.resolve().name)
    for manifest in manifests:
        dirty = " with uncommitted changes" if manifest.git_dirty else ""
        add("revision", f"{manifest.git_revision}{dirty}" if manifest.git_revision else None)
        add("host", manifest.host.get("hostname"))
        add("CPU", manifest.host.get("cpu"))
        for gpu in manifest.gpus:
            add("GPU", gpu)
        add("driver", manifest.driver)
        for rank in manifest.ranks[:1] if isinstance(manifest, Manifest) else []:
            add("backend", rank.backend)
        for name, version in manifest.versions.items():
            add(name, version)
    if manifests:
        add("started", min(manifest.started for manifest in manifests))
        add("ended", max(manifest.ended for manifest in manifests))
    return [(name, ", ".join(values)) for name, values in facts.items()]
