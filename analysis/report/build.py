"""How does a study become a page? Answers first, then their sections, then where it all comes from."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from analysis.display.encoding import levels
from analysis.display.metrics import RANKS_PER_NODE, Rows
from analysis.measures.kernels import of_run as kernels_of_run
from analysis.measures.scaling.points import other_devices, points_of
from analysis.measures.scaling.unequal_threads import unequal_threads
from analysis.report import (
    batches,
    communication,
    critical_path,
    factors,
    kernels,
    prediction,
    provenance,
    published,
    roofline,
    scaling,
    stragglers,
    traces,
)
from analysis.report.base import Context, SectionKind
from analysis.report.opening import drawings
from analysis.report.render import Filter, Page
from analysis.report.sentences import SCALES, Sentence, ranks_in_words
from analysis.report.verdict import verdict
from analysis.report.views import called, in_a_line, varied
from analysis.results.log import in_counts
from analysis.results.study import Study
from jobs.run_values import as_text
from jobs.store import Manifest
from profiling.wording import how_many, verb

# In the order of the page.
SECTIONS: Sequence[SectionKind] = (
    traces.TRACES,
    traces.SCALING,
    scaling.SCALING,
    published.SCALING,
    published.TABLES,
    scaling.TABLE,
    scaling.LOSS,
    factors.FACTORS,
    scaling.STAGES,
    batches.BATCHES,
    scaling.ANATOMY,
    communication.COMMUNICATION,
    stragglers.STRAGGLERS,
    critical_path.CRITICAL_PATH,
    kernels.TOP,
    kernels.CHANGE,
    roofline.ROOFLINE,
    kernels.HOTSPOTS,
    kernels.UTILIZATION,
    communication.ACTIVITIES,
    provenance.COST,
    prediction.PREDICTION,
    published.CORRECTIONS,
    provenance.LEFT_OUT,
)
_MUCH_LOWER = 5.0  # percentage points of scaling efficiency
METHODS = (
    "Medians with 95 % confidence intervals from resampled runs, for each configuration separately. Warmup "
    "is detected, not assumed. Durations come from unprofiled runs where available; FLOPs, bytes and "
    "kernels come from profiled runs. Costs are summed before ratios are formed. A multiply-add counts as "
    "2 FLOPs; 1 GB is 1e9 bytes. docs/methods.md defines every number, with sources; "
    "docs/glossary.md explains the terms."
)


def build(study: Study) -> Page:
    """The page of a study.

    Raises:
        UserError: nothing in the study can be reported.
    """
    with kernels_of_run.reading_ahead(study):
        return page_of(Context(study))


def page_of(context: Context) -> Page:
    """The page of what a context reads."""
    study = context.study
    summary = _summary(context)
    sections = [kind.section(context) for kind in SECTIONS]
    said = {sentence.figure: sentence.text for sentence in reversed(summary)}
    return Page(
        title=_title(study),
        subtitle=_subtitle(study),
        summary=summary,
        sections=[
            replace(section, finding=section.finding or said.get(section.id, ""))
            for section in sections
            if section
        ],
        drawings=drawings(context),
        methods=METHODS,
        provenance=provenance.of_study(study),
        filters=filters_of(context),
    )


def _title(study: Study) -> str:
    name = study.path.resolve().name
    if study.of_kind("trace") and not study.of_kind("run", "pyprof"):
        return f"Traces of {name}"
    return f"How {_model(study)}training scales: {name}"


def _model(study: Study) -> str:
    models = {str(source.fields.get("model") or "") for source in study.sources}
    if len(models) != 1 or models == {""}:
        return ""
    name = models.pop()
    names = {"resnet50": "ResNet50", "resnet18": "ResNet18", "vgg16": "VGG16", "alexnet": "AlexNet"}
    return f"{names.get(name, name)} "


def _subtitle(study: Study) -> str:
    manifests = [source.manifest for source in study.sources if source.manifest]
    failed = [failure for failure in study.failed if failure.kind != "excluded"]
    bad = len(failed)
    jobs = study.of_kind("trace")
    if jobs and not manifests:
        return traces.counted(jobs) + (f"; {bad} unreadable" if bad else "")
    if not manifests:
        counts = {"PyProf kernel tables": len(study.sources), "TAU tables": len(study.tau_intervals)}
        kinds = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
        return f"{kinds}; unreadable: {bad}"
    used = len(study.sources)
    counted = f"{how_many(used, 'run')} used" + (f", {in_counts(failed)}" if failed else "")
    started = min(manifest.started for manifest in manifests)[:16].replace("T", " ")
    devices = sorted({_device(manifest) for manifest in manifests})
    return f"{counted}; {', '.join(devices)}; started {started} UTC"


def _device(manifest: Manifest) -> str:
    device = manifest.ranks[0].device
    return f"CPU ({manifest.host.get('cpu')})" if device == "cpu" else device


def filters_of(*contexts: Context) -> list[Filter]:
    """A filter for each factor, with its levels in any of the contexts, whose factors are the same."""
    rows = [
        row
        for context in contexts
        for row in (context.own or [source.fields for source in context.study.sources])
    ]
    per_node = in_a_line(RANKS_PER_NODE) if all(context.study.on_cpus for context in contexts) else ""
    filters = []
    for name in contexts[0].factors:
        values = [value for value in levels(rows, name) if value is not None]
        if len(values) > 1:
            label = per_node if name == "gpus_per_node" else ""
            filters.append(Filter(name, [as_text(value) for value in values], label))
    return filters


def opening(study: Study) -> list[Sentence]:
    """The report's first sentences, without the rest of the page.

    Raises:
        UserError: nothing in the study can be reported.
    """
    return list(_summary(Context(study)))


def _summary(context: Context) -> Sequence[Sentence]:
    if context.traces and not context.own:
        return [*traces.opening(context), *(_of_reference(context.others) if context.others else [])]
    return _of_own(context) if context.own else _of_reference(context.others)


def _of_own(context: Context) -> list[Sentence]:
    own, series = context.own, context.series
    predicted, late = context.once(prediction.predicted), context.once(stragglers.late_runs) or []
    names = [called(row, series) for row in own]
    rows = [] if isinstance(predicted, str) else predicted
    named = [{**row, "name": called(row, series) if series else ""} for row in rows]
    sentences = verdict(own, names, named, stragglers.rows_of(late))
    # An efficiency across devices is not one of scaling: who reads no further has to know it.
    points = points_of(context.study, None)
    mixed = [f"{text[0].upper()}{text[1:]}." for text in other_devices(points)]
    threads = unequal_threads(points)
    place = 1 + next((n for n, one in enumerate(sentences) if one.figure == "scaling"), 0)
    return [
        *_not_complete(context.study),
        *sentences[:place],
        *(Sentence(text, "left-out") for text in [*mixed, *([threads] if threads else [])]),
        *sentences[place:],
    ]


def _not_complete(study: Study) -> list[Sentence]:
    """That runs of the sweep are missing, which more runs may change what is said."""
    counted = [failure for failure in study.failed if failure.kind != "excluded"]
    missing = sum(failure.kind == "unfinished" for failure in counted)
    if not missing:
        return []
    runs = how_many(len(study.of_kind("run")) + len(counted), "run")
    text = (
        f"The sweep is not complete: {missing} of {runs} {verb(missing, 'have')} not ended, so all that "
        "follows may change."
    )
    return [Sentence(text, "left-out", answers=SCALES)]


def _much_lower(published: Rows, least_pct: float) -> list[Sentence]:
    """The lowest scaling efficiency of all, where it is far below the least on the most ranks."""
    lowest = min(published, key=lambda row: row["scaling_efficiency_pct"])
    if least_pct - lowest["scaling_efficiency_pct"] < _MUCH_LOWER:
        return []
    name = called(lowest, [name for name in varied(published) if name not in ("nodes", "world_size")])
    ranks = ranks_in_words(lowest["world_size"])
    text = f"Lowest of all: {lowest['scaling_efficiency_pct']:.0f} % on {ranks} ({name})."
    return [Sentence(text, "published-scaling")]


def _of_reference(rows: Rows) -> Sequence[Sentence]:
    published = [row for row in rows if row.get("epoch_duration_s")]
    sentences = []
    if published:
        largest = max(row["world_size"] for row in published)
        values = [row["scaling_efficiency_pct"] for row in published if row["world_size"] == largest]
        text = f"Published scaling efficiency on {largest} ranks: {min(values):.0f} to {max(values):.0f} %."
        sentences.append(Sentence(text, "published-scaling"))
        sentences += _much_lower(published, min(values))
        fixed = [row["batch_independent_pct"] for row in published if row.get("batch_independent_pct")]
        if fixed:
            sentences.append(Sentence(
                f"Of the durations behind it, {median(fixed):.0f} % (median of {len(fixed)} configurations) "
                "do not depend on the batch size: this is startup, not training.", "published-scaling",
            ))  # fmt: skip
    counted = [row for row in rows if row["tables"] is not None]
    if counted:
        values = [row["flops_efficiency_of_kernels_pct"] for row in counted
                  if row.get("flops_efficiency_of_kernels_pct")]  # fmt: skip
        if values:
            sentences.append(Sentence(
                f"Kernels reach {min(values):.0f} to {max(values):.0f} % of the device's peak FLOP rate.",
                "kernel-tables",
            ))  # fmt: skip
        sentences.append(Sentence(
            "Not enough data to say how training scales: kernel tables hold no step durations.",
            "left-out",
        ))  # fmt: skip
    return sentences
