"""A study as a page: the opening, its sections, and where it all comes from."""

from collections.abc import Sequence
from dataclasses import replace

from analysis.display.left_out import missing
from analysis.display.lines import levels
from analysis.display.metrics import RANKS_PER_NODE
from analysis.report import (
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
    traced,
)
from analysis.report.base import Context, SectionKind
from analysis.report.diagnosis import LOST, PLACES, SCALES, TRY, diagnosis
from analysis.report.render import Filter, Line, Page
from analysis.report.views import in_a_line
from analysis.results.study import Study
from jobs.run_fields import as_text
from jobs.store import Manifest

# In the order of the page.
SECTIONS: Sequence[SectionKind] = (
    traced.TRACES,
    traced.SCALING,
    scaling.SCALING,
    published.SCALING,
    published.TABLES,
    scaling.TABLE,
    scaling.LOSS,
    factors.FACTORS,
    scaling.STAGES,
    scaling.BATCHES,
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
)
MEASURED_RUNS = (
    "Medians with 95 % confidence intervals (parametric bootstrap over the runs) of each configuration. "
    "Warmup is detected. Durations are of unprofiled runs where there are any; kernels, FLOPs and bytes of "
    "profiled runs. A multiply-add counts as 2 FLOPs; 1 GB is 1e9 bytes."
)
MEASURED_TRACES = (
    "All figures are of steps that a profiler recorded, and recording slows the host. Intervals are within a "
    "recording. Warmup is detected. A multiply-add counts as 2 FLOPs; 1 GB is 1e9 bytes."
)


_HEADINGS = (SCALES, LOST, TRY, "")


def build(study: Study) -> Page:
    """The page of a study.

    Raises:
        UserError: nothing in the study can be reported.
    """
    context = Context(study)
    sections = [section for kind in SECTIONS if (section := kind.section(context))]
    there = {"findings", *(section.id for section in sections)}
    summary = []
    for finding in diagnosis(context):
        heading, place = PLACES.get(finding.code, ("", ""))
        summary.append(Line(str(finding), place if place in there or place == "findings" else "", heading))
    # Findings that measures made for the sections and the opening are on the page, too.
    sections.append(provenance.findings_section(study.findings, [study.path]))
    by_section: dict[str, list[str]] = {}
    for line in summary:
        by_section.setdefault(line.section, []).append(line.text)
    return Page(
        title=_title(study),
        subtitle=_subtitle(study),
        summary=[line for heading in (SCALES, LOST, TRY, "") for line in summary if line.heading == heading],
        sections=[replace(one, finding="; ".join(by_section.get(one.id, []))) for one in sections],
        methods=MEASURED_TRACES if study.only_traces else MEASURED_RUNS,
        provenance=provenance.of_study(study),
        filters=filters_of(context),
    )


def _title(study: Study) -> str:
    name = study.path.resolve().name
    if study.only_traces:
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
    """How many runs, jobs or tables count, how many do not, and the device."""
    manifests = [source.manifest for source in study.sources if source.manifest]
    jobs = study.of_kind("trace")
    counts = {
        "runs": len(study.of_kind("run")), "traced jobs": len(jobs),
        "PyProf kernel tables": len(study.of_kind("pyprof")), "TAU tables": len(study.tau_intervals),
        "not usable": len(missing(study.failed)),
    }  # fmt: skip
    devices = sorted(
        {_device(manifest) for manifest in manifests} | {one for job in jobs for one in job.devices}
    )
    started = [min(manifest.started for manifest in manifests)[:16].replace("T", " ")] if manifests else []
    said = [", ".join(f"{name}: {count}" for name, count in counts.items() if count), ", ".join(devices)]
    return "; ".join([*filter(None, said), *(f"started {one} UTC" for one in started)])


def _device(manifest: Manifest) -> str:
    device = manifest.ranks[0].device
    return f"CPU ({manifest.host.get('cpu')})" if device == "cpu" else device


def filters_of(context: Context) -> list[Filter]:
    """A filter for each factor, with its levels."""
    filters = []
    for name in context.factors:
        values = [value for value in levels(context.configurations, name) if value is not None]
        if len(values) > 1:
            label = in_a_line(RANKS_PER_NODE) if name == "gpus_per_node" and context.study.on_cpus else ""
            filters.append(Filter(name, [as_text(value) for value in values], label))
    return filters
