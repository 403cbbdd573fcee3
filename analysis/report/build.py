"""How does a study become a page? Answers first, then their sections, then where it all comes from."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from analysis.display.terminal import Rows
from analysis.measures.kernels import of_run as kernels_of_run
from analysis.measures.scaling.points import other_devices, points_of
from analysis.measures.scaling.shared_cores import shared_cores
from analysis.published import by_method
from analysis.published.explain import explain
from analysis.report import (
    activities,
    communication,
    cost_section,
    hotspots,
    kernel_change,
    loss,
    prediction,
    roofline,
    sections,
    stragglers,
    utilization,
)
from analysis.report import factors as of_factors
from analysis.report.render import Filter, Page
from analysis.report.sentences import Sentence
from analysis.report.verdict import verdict
from analysis.report.views import FACTORS, called, varied
from analysis.results.study import Study
from jobs.store import Facts, Manifest

_FACTORS = [name for name in FACTORS if name != "world_size"]
METHODS = (
    "Medians with intervals of 95 % or more from resampled runs, each point by its own; warm-up is detected, "
    "not assumed; durations come from unprofiled runs where there are any, FLOPs, bytes and kernels from the "
    "profiled ones; costs are summed before ratios are formed. FLOP counts a multiply-add as 2; GB is 1e9 "
    "bytes. docs/methods.md says what every number means, with sources."
)


def build(study: Study) -> Page:
    """The page of a study.

    Raises:
        UserError: nothing in the study can be reported.
    """
    with kernels_of_run.reading_ahead(study):
        return _page(study)


def _page(study: Study) -> Page:
    rows, own = _rows(study)
    others = [row for row in rows if not row.get("scaling")]
    fields = [source.fields for source in study.sources] or rows
    factors = varied(fields, _FACTORS)
    lines = _of_lines(own, factors)
    predicted = _predicted(study) if own else ""
    judged = stragglers.judged(study) if own else None
    found = [
        sections.scaling(own, lines),
        *sections.reference(others, study),
        sections.table(own, study),
        loss.section(own, lines),
        of_factors.section(study),
        sections.stages(own, factors),
        sections.batch_anatomy(study, factors) if own else None,
        communication.section(study, factors),
        stragglers.section(judged, factors) if judged is not None else None,
        sections.top_kernels(study, factors) if study.sources else None,
        kernel_change.section(study, factors),
        roofline.section(study, factors),
        hotspots.section(study, factors),
        utilization.section(study, factors),
        activities.section(study, factors),
        cost_section.section(study, factors),
        prediction.section(predicted, own, factors) if own else None,
        # What own runs correct is said in the published rows only, where there are some.
        sections.corrections(explain(study, own)) if others else None,
        sections.left_out(study),
    ]
    return Page(
        title=f"How {_model(study)}training scales: {study.path.resolve().name}",
        subtitle=_subtitle(study),
        summary=_of_own(study, own, lines, predicted, judged or []) if own else _of_reference(others),
        sections=[section for section in found if section],
        methods=METHODS,
        provenance=provenance(study),
        filters=_filters(study, own, factors),
    )


def _rows(study: Study) -> tuple[Rows, Rows]:
    """The rows of analysis.scaled, and those of runs of our own."""
    rows = by_method.rows(study, _methods_for(study))
    return rows, [row for row in rows if row.get("scaling")]


def _of_lines(own: Rows, factors: Sequence[str]) -> list[str]:
    """The factors that may tell lines apart: not the batch of a rank, where that of the job is constant."""
    jobs = {row["batch"] * row["world_size"] for row in own if row["scaling"] == "strong"}
    return [name for name in factors if name != "batch" or len(jobs) != 1]


def _methods_for(study: Study) -> list[str]:
    methods = ["corrected"] if study.sources else []
    return [*methods, "published"] if study.tau_intervals else methods


def _model(study: Study) -> str:
    models = {str(source.fields.get("model") or "") for source in study.sources}
    if len(models) != 1 or models == {""}:
        return ""
    name = models.pop()
    names = {"resnet50": "ResNet50", "resnet18": "ResNet18", "vgg16": "VGG16", "alexnet": "AlexNet"}
    return f"{names.get(name, name)} "


def _subtitle(study: Study) -> str:
    manifests = [source.manifest for source in study.sources if source.manifest]
    bad = sum(failure.kind != "excluded" for failure in study.failed)
    if not manifests:
        counts = {"PyProf kernel tables": len(study.sources), "TAU tables": len(study.tau_intervals)}
        kinds = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
        return f"{kinds}; unreadable: {bad}"
    counted = f"{len(study.sources)} runs count, {bad} do not"
    started = min(manifest.started for manifest in manifests)[:16].replace("T", " ")
    devices = sorted({_device(manifest) for manifest in manifests})
    return f"{counted}; {', '.join(devices)}; started {started} UTC"


def _device(manifest: Manifest) -> str:
    device = manifest.ranks[0].device
    return f"CPU ({manifest.host.get('cpu')})" if device == "cpu" else device


def opening(study: Study) -> list[Sentence]:
    """The report's first sentences, without the rest of the page.

    Raises:
        UserError: nothing in the study can be reported.
    """
    rows, own = _rows(study)
    if not own:
        return list(_of_reference(rows))
    factors = varied((source.fields for source in study.sources), _FACTORS)
    judged = stragglers.judged(study) or []
    return _of_own(study, own, _of_lines(own, factors), _predicted(study), judged)


def _predicted(study: Study) -> Rows | str:
    """What more ranks would give; or why that is not known."""
    return shared_cores(study) or prediction.predicted(study)


def _of_own(
    study: Study,
    own: Rows,
    lines: Sequence[str],
    predicted: Rows | str,
    late: Sequence[stragglers.Judged],
) -> list[Sentence]:
    series = sections.series_factors(lines)
    names = [called(row, series) for row in own]
    rows = [] if isinstance(predicted, str) else predicted
    named = [{**row, "name": called(row, series) if series else ""} for row in rows]
    sentences = verdict(own, names, named, stragglers.rows_of(late))
    # An efficiency across devices is not one of scaling: who reads no further has to know it.
    mixed = [f"{text[0].upper()}{text[1:]}." for text in other_devices(points_of(study, None))]
    place = 1 + next((n for n, one in enumerate(sentences) if one.figure == "scaling"), 0)
    return [*sentences[:place], *(Sentence(text, "left-out") for text in mixed), *sentences[place:]]


def _of_reference(rows: Rows) -> Sequence[Sentence]:
    published = [row for row in rows if row.get("epoch_duration_s")]
    sentences = []
    if published:
        largest = max(row["world_size"] for row in published)
        values = [row["scaling_efficiency_pct"] for row in published if row["world_size"] == largest]
        sentences.append(Sentence(
            f"On {largest} ranks the published scaling efficiency is "
            f"{min(values):.0f} to {max(values):.0f} %.",
            "scaling",
        ))  # fmt: skip
        fixed = [row["batch_independent_pct"] for row in published if row.get("batch_independent_pct")]
        if fixed:
            sentences.append(Sentence(
                f"{median(fixed):.0f} % of the durations behind it (median of {len(fixed)} points) do not "
                "depend on the batch: that is start-up, not training.", "scaling",
            ))  # fmt: skip
    counted = [row for row in rows if "fprop_batches" in row]
    if counted:
        values = [row["flops_efficiency_of_kernels_pct"] for row in counted
                  if row.get("flops_efficiency_of_kernels_pct")]  # fmt: skip
        if values:
            sentences.append(Sentence(
                f"The kernels reach {min(values):.0f} to {max(values):.0f} % of the device's peak FLOP rate.",
                "table",
            ))  # fmt: skip
        sentences.append(Sentence(
            "Not enough data to say how training scales: kernel tables hold no durations of batches.",
            "left-out",
        ))  # fmt: skip
    return sentences


def _filters(study: Study, own: Rows, factors: Sequence[str]) -> list[Filter]:
    rows = own or [source.fields for source in study.sources]
    made = []
    for name in factors:
        values = {(row[name], str(row[name])) for row in rows if row.get(name) is not None}
        if len(values) > 1:
            made.append(Filter(name, [text for _, text in sorted(values)]))
    return made


def provenance(study: Study) -> list[tuple[str, str]]:
    """Where the figures come from: pairs of a name and its value (or values, if runs differ)."""
    manifests = [source.manifest for source in study.sources if source.manifest]
    found = facts_of(study.path, manifests)
    if manifests:
        found.append(("node-hours", f"{sum(m.seconds * m.run.nodes for m in manifests) / 3600:.3f}"))
    if study.calibration:
        measured = f"{study.calibration.seconds:.1f} s, {study.calibration.precision}"
        found.append(("peaks measured in", measured))
    return found


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
