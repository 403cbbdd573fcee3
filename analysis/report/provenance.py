"""Where do the figures come from? What the runs cost, what of them does not count, machine and software."""

from collections.abc import Sequence
from pathlib import Path

from analysis.display.left_out import how_many_not_in_sweep, in_counts, missing, not_done, not_in_sweep
from analysis.display.metrics import Rows
from analysis.display.terminal import Part
from analysis.measures.scaling import expense
from analysis.report.base import Content, Context, SectionKind
from analysis.report.portable import portable
from analysis.report.views import as_view
from analysis.results.study import Study
from jobs.store import LOG, Facts, Manifest
from profiling.wording import how_many

RANKS = 256  # rows of the table by rank
_COSTS = (
    "Memory, energy and startup are of unprofiled runs where there are any; node-hours are of all "
    "that ended: wall time multiplied by nodes. Of runs that failed repeatedly in the same way, only the "
    "last counts; what interrupted runs took is not known."
)


def _cost(context: Context) -> Content:
    """Memory, energy, start-up and node-hours."""
    study = context.study
    rows = context.once(_expense)
    by_rank = expense.rows(study, by_rank=True)
    notes = []
    views = [as_view(Part("", rows, expense.shown(rows)), "cost-table", context.factors)]
    if len(by_rank) > len(rows):
        part = Part("By rank", by_rank[:RANKS], expense.shown(by_rank))
        views.append(as_view(part, "cost-by-rank", context.factors))
    if len(by_rank) > RANKS:
        notes.append(
            f"The first {RANKS} of {len(by_rank)} ranks. For all of them: analysis.expense --by rank."
        )
    if not any(row.get("device_memory_gb") for row in rows):
        cpu = all(device == "cpu" for device in study.runs["device_name"])
        notes.append(f"GPU memory was not recorded{': the ranks ran on CPUs' if cpu else ''}.")
    return Content(_COSTS, tables=views, notes=notes)


def _expense(context: Context) -> Rows:
    return expense.rows(context.study)


def _spent(context: Context) -> Rows:
    return [{**run.fields, "spent": run} for run in expense.spent(context.study)]


def _node_hours(context: Context) -> str:
    return expense.node_hours([row["spent"] for row in context.rows_of(_spent)])


def _left_out(context: Context) -> Content:
    """All points that do not count, and what is to be said of those that do."""
    study = context.study
    wrong = missing(study.failed)
    failed = not_done(wrong)
    notes = [*failed, *not_in_sweep(study.failed), *(f"note: {note}" for note in study.notes())]
    notes = [portable(note, context.folders) for note in notes]
    swept = bool(study.of_kind("run")) or bool(study.failed)  # traces are of no sweep
    left_out = ", combinations that the sweep leaves out and why," if swept else ""
    text = f"Failed runs{left_out} and notes on the data."
    if not notes:
        none = ", the sweep leaves out no combination," if swept else ""
        text = f"No run failed{none} and there are no notes on the data."
    elif any(failure.kind == "failed" for failure in wrong):
        text += f" The log of a run is {LOG} in its folder."
    said = in_counts(wrong) if wrong else "no run failed"
    return Content(text, notes=notes, finding=_finding(study, said) if notes else text)


def _finding(study: Study, said: str) -> str:
    """How many runs the sweep leaves out, apart from those that are missing, and how many notes there are."""
    counts = [how_many_not_in_sweep(study.failed)]
    if noted := len(study.notes()):
        counts.append(f"{how_many(noted, 'note')} on the data")
    return "; ".join(filter(None, [f"{said[0].upper()}{said[1:]}", *counts])) + "."


# Reference files say nothing of what their runs cost.
COST = SectionKind(
    "cost",
    "What did it cost?",
    _cost,
    lambda context: bool(context.study.of_kind("run")),
    finding=_node_hours,
)
LEFT_OUT = SectionKind("left-out", "Failed runs and notes", _left_out)


def of_study(study: Study) -> list[tuple[str, str]]:
    """Where the figures come from: pairs of a name and its value (or values, if runs differ)."""
    manifests = [source.manifest for source in study.sources if source.manifest]
    facts = facts_of(study.path, manifests)
    if manifests:
        facts.append(("node-hours", f"{sum(m.seconds * m.run.nodes for m in manifests) / 3600:.3f}"))
    if study.calibration:
        # The sweep's own words on it have the start of the ranks, too.
        took = f"in {study.calibration.seconds:.1f} s without the ranks' start"
        facts.append(("peaks measured", f"{took}, {study.calibration.precision}"))
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
