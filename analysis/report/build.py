"""How does a study become a page? Answers first, then their sections, then where it all comes from."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from analysis.display.left_out import in_counts, missing
from analysis.display.lines import levels
from analysis.display.metrics import RANKS_PER_NODE
from analysis.measures.kernels import rows as kernels_of_run
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
from analysis.report.choices import Filter, Key
from analysis.report.filtered import Said, filtered
from analysis.report.opening import drawings
from analysis.report.render import Page
from analysis.report.summary import summary
from analysis.report.views import in_a_line
from analysis.results.study import Study
from jobs.run_values import as_text
from jobs.store import Manifest
from profiling.wording import how_many

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
_OF_RUNS = (
    "Medians with 95 % confidence intervals (parametric bootstrap over the runs), for each "
    "configuration separately. Warmup is detected, not assumed. "
    "Durations come from unprofiled runs where available; FLOPs, bytes and "
    "kernels come from profiled runs."
)
_OF_TRACES = (
    "All figures are of steps that a profiler recorded, and recording slows the host. Intervals are within a "
    "recording: they do not cover differences between runs. Warmup is detected, not assumed."
)
_OF_BOTH = (
    "Costs are summed before ratios are formed. A multiply-add counts as 2 FLOPs; 1 GB is 1e9 bytes. "
    "docs/methods.md defines every number, with sources; docs/glossary.md explains the terms."
)


def build(study: Study) -> Page:
    """The page of a study.

    Raises:
        UserError: nothing in the study can be reported.
    """
    with kernels_of_run.reading_ahead(study):
        context = Context(study)
        page = page_of(context)
        ids = [section.id for section in page.sections if section.follows]

        def say(left: frozenset[Key]) -> Said:
            return said_of(context.only(left), ids)

        return replace(page, filtered=filtered(page.filters, context.coverage, say))


def page_of(context: Context) -> Page:
    """The page of what a context reads, before anything is chosen."""
    study = context.study
    every = [kind.section(context) for kind in SECTIONS]
    sections = [section for section in every if section]
    said = said_of(context, [section.id for section in sections if section.follows])
    return Page(
        title=_title(study),
        subtitle=_subtitle(study),
        summary=said.summary or [],
        sections=[replace(one, finding=said.findings.get(one.id, one.finding)) for one in sections],
        drawings=said.drawings,
        methods=f"{_OF_TRACES if _only_traces(study) else _OF_RUNS} {_OF_BOTH}",
        provenance=provenance.of_study(study),
        filters=filters_of(context),
    )


def said_of(context: Context, ids: Collection[str]) -> Said:
    """What is said of a context's configurations.

    Args:
        ids: of the sections whose findings are wanted.
    """
    sentences = summary(context)
    by_section = {sentence.figure: sentence.text for sentence in reversed(sentences)}
    kinds = [kind for kind in SECTIONS if kind.id in ids]
    findings = {kind.id: kind.said(context) or by_section.get(kind.id, "") for kind in kinds}
    return Said(findings, sentences, drawings(context))


def _only_traces(study: Study) -> bool:
    return bool(study.of_kind("trace")) and not study.of_kind("run", "pyprof")


def _title(study: Study) -> str:
    name = study.path.resolve().name
    if _only_traces(study):
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
    failed = missing(study.failed)
    bad = len(failed)
    jobs = study.of_kind("trace")
    if jobs and not manifests:
        return traces.counted(jobs) + (f"; {bad} unusable" if bad else "")
    if not manifests:
        counts = {"PyProf kernel tables": len(study.sources), "TAU tables": len(study.tau_intervals)}
        kinds = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
        return f"{kinds}; unusable: {bad}"
    used = len(study.sources)
    profiled = sum(source.fields.get("profile", "none") != "none" for source in study.sources)
    kinds = f" ({used - profiled} unprofiled, {profiled} profiled)" if 0 < profiled < used else ""
    counted = f"{how_many(used, 'run')} used{kinds}" + (f", {in_counts(failed)}" if failed else "")
    started = min(manifest.started for manifest in manifests)[:16].replace("T", " ")
    devices = sorted({_device(manifest) for manifest in manifests})
    return f"{counted}; {', '.join(devices)}; started {started} UTC"


def _device(manifest: Manifest) -> str:
    device = manifest.ranks[0].device
    return f"CPU ({manifest.host.get('cpu')})" if device == "cpu" else device


def filters_of(*contexts: Context) -> list[Filter]:
    """A filter for each factor, with its levels in any of the contexts, whose factors are the same."""
    rows = [fields for context in contexts for fields in context.configurations]
    per_node = in_a_line(RANKS_PER_NODE) if all(context.study.on_cpus for context in contexts) else ""
    filters = []
    for name in contexts[0].factors:
        values = [value for value in levels(rows, name) if value is not None]
        if len(values) > 1:
            label = per_node if name == "gpus_per_node" else ""
            filters.append(Filter(name, [as_text(value) for value in values], label))
    return filters
