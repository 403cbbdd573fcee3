"""Build the page of a study (summary, sections, provenance), of two, and of single-node studies."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.diagnosis import diagnosis, in_order
from analysis.diagnosis.evidence import PLACES
from analysis.display import plots
from analysis.display.metrics import RANKS_PER_NODE, Metric, records, varied
from analysis.display.output import Answer, Part
from analysis.display.plots import GREEN, GREY, SKY, VERMILLION, levels
from analysis.frames.study import Study
from analysis.measures import expense, studies
from analysis.measures.compare import SHOWN, compared
from analysis.report import kernels, others, prediction, ranks, scaling
from analysis.report.base import MOST_BARS, Context, SectionKind, labels_of, portable, section
from analysis.report.render import Chapter, Chart, Filter, Line, Page, Section, in_a_line
from analysis.report.studies import charts as study_charts
from jobs.run_fields import FACTOR, as_text
from jobs.store import Facts, Manifest
from profiling.errors import UserError
from profiling.findings import Finding, lines, merged
from profiling.traced_job import TracedJob

_SEVERITY = "3: numbers are missing or wrong; 2: uncertain or not comparable; 1: worth knowing"
_FINDING = (
    Metric("severity", _SEVERITY),
    Metric("finding", "what to know about the numbers", text=True),
    Metric("code", "kind of the finding, as in JSON", text=True),
)
MEASURED_RUNS = (
    "Medians with 95 % confidence intervals (parametric bootstrap over the runs) of each configuration. "
    "Warmup is detected. Durations come from unprofiled runs if there are any; kernels, FLOPs and bytes from "
    "profiled runs. A multiply-add counts as 2 FLOPs; 1 GB is 1e9 bytes."
)
MEASURED_TRACES = (
    "All numbers come from steps that a profiler recorded, which slows the host. Intervals are within a "
    "recording. Warmup is detected. A multiply-add counts as 2 FLOPs; 1 GB is 1e9 bytes."
)
OF_STUDIES = (
    "Medians with intervals over the repetitions within a run, after a warmup that is not counted. A "
    "multiply-add counts as 2 FLOPs; 1 MiB is 2^20 bytes, 1 GB is 1e9 bytes."
)


# Reference files say nothing of what their runs cost.
@section("cost", "What did it cost?", lambda context: bool(context.study.of_kind("run")))
def cost(context: Context) -> Section:
    """Memory, energy, startup and node-hours."""
    return Section(tables=[replace(expense.expense(context.study).tables[0], title="")])


# In the order of the page, whose first two are open.
CHAPTERS: Mapping[Chapter, Sequence[SectionKind]] = {
    Chapter("Scaling", "How does it scale?"): (
        others.scaling, scaling.scaling, others.published, scaling.table,
    ),
    Chapter("Loss", "Where is scaling efficiency lost?"): (scaling.loss, scaling.factors_section),
    Chapter("Step", "Where does the time of a step go?"): (
        scaling.anatomy_section, scaling.stages, scaling.BATCHES,
    ),
    Chapter("Ranks", "What do ranks wait for?"): (
        ranks.collectives, ranks.mpi, ranks.stragglers_section,
    ),
    Chapter("Kernels", "Which kernels take the time?"): (
        kernels.top, kernels.roofline, kernels.HOTSPOTS,
    ),
    Chapter("Faster", "What would be faster?"): (
        prediction.critical_path, prediction.prediction, prediction.plan_section,
    ),
    Chapter("Appendix", "Appendix"): (
        cost, kernels.UTILIZATION, others.kernel_tables, others.corrections,
    ),
}  # fmt: skip


def build(study: Study, training: Mapping[str, float] | None = None) -> Page:
    """The page of a study, with the plan of a training; UserError: nothing in it can be reported."""
    context = Context(study, training)
    sections = [
        section
        for chapter, kinds in CHAPTERS.items()
        for kind in kinds
        if (section := kind.section(context, chapter))
    ]
    there = {"findings", *(one.id for one in sections if not one.unavailable)}
    jobs = others.unlike_jobs(context)
    found = [one for one in in_order(diagnosis(context)) if not (jobs and one.code in others.OF_EACH_JOB)]
    placed = [(str(one), *PLACES.get(one.code, ("", ""))) for one in found]
    summary = [Line(text, place if place in there else "", heading) for text, heading, place in placed]
    return Page(
        title=_title(study),
        subtitle=_subtitle(study),
        summary=summary,
        # Findings that measures made for the sections and the opening are on the page, too.
        sections=[*sections, findings_section(study.findings, [study.path])],
        methods=MEASURED_TRACES if study.only_traces else MEASURED_RUNS,
        provenance=provenance_of(study),
        filters=filters_of(context),
        factors=context.factors,
        jobs=jobs,
    )


def _title(study: Study) -> str:
    name = study.path.resolve().name
    if study.only_traces:
        return f"Traces of {name}"
    models = {str(source.fields.get("model") or "") for source in study.sources}
    model = models.pop() if len(models) == 1 else ""
    return f"How {model or 'training'} scales: {name}"


def _subtitle(study: Study) -> str:
    """How many runs, jobs or tables count, how many do not, and the device."""
    manifests = [source.manifest for source in study.sources if source.manifest]
    jobs = study.of_kind("trace")
    counts = {
        "runs": len(study.of_kind("run")), "traced jobs": len(jobs),
        "PyProf kernel tables": len(study.of_kind("pyprof")),
        "TAU tables": len(study.of_kind("tau_intervals")),
        "not usable": len(study.missing),
    }  # fmt: skip
    devices = {one for job in jobs for one in job.devices}
    for manifest in manifests:
        device = manifest.ranks[0].device
        devices.add(f"CPU ({manifest.host.get('cpu')})" if device == "cpu" else device)
    started = [min(manifest.started for manifest in manifests)[:16].replace("T", " ")] if manifests else []
    said = [
        ", ".join(f"{name}: {count}" for name, count in counts.items() if count),
        ", ".join(sorted(devices)),
    ]
    return "; ".join([*filter(None, said), *(f"started {one} UTC" for one in started)])


def filters_of(context: Context) -> list[Filter]:
    """A filter for each factor, with its levels."""
    filters = []
    for name in context.factors:
        values = [value for value in levels(records(context.configurations), name) if value is not None]
        if len(values) > 1:
            on_cpus = name == "gpus_per_node" and context.study.on_cpus
            label = in_a_line(RANKS_PER_NODE) if on_cpus else name.removeprefix(FACTOR)
            filters.append(Filter(name, [as_text(value) for value in values], label))
    return filters


def findings_section(findings: Sequence[Finding], folders: Sequence[Path]) -> Section:
    """All findings on the results, a row for each code, the most severe first."""
    rows = [
        {"severity": group[0].severity, "finding": portable(text, folders), "code": group[0].code}
        for group in merged(findings)
        for text in lines(group)
    ]
    tables = [Part("", pd.DataFrame(rows), _FINDING)] if rows else []
    return Section("" if rows else "None.", tables=tables, id="findings", heading="Findings")


def provenance_of(study: Study) -> list[tuple[str, str]]:
    """Where the figures come from: pairs of a name and its value (or values, if runs differ)."""
    manifests = [source.manifest for source in study.sources if source.manifest]
    facts = facts_of(study.path, manifests, [source.job for source in study.sources if source.job])
    if manifests:
        facts.append(("node-hours", f"{sum(m.seconds * m.run.nodes for m in manifests) / 3600:.3f}"))
    if study.calibration:
        facts.append(("peaks measured", f"{study.calibration.seconds:.1f} s, {study.calibration.precision}"))
    return facts


def facts_of(path: Path, manifests: Sequence[Facts], jobs: Sequence[TracedJob] = ()) -> list[tuple[str, str]]:
    """What manifests and traces say of machine, software and time, each value once."""
    said: list[tuple[str, object]] = [("results", path.resolve().name)]
    for manifest in manifests:
        dirty = " with uncommitted changes" if manifest.git_dirty else ""
        revision = f"{manifest.git_revision}{dirty}" if manifest.git_revision else None
        ranks = manifest.ranks[:1] if isinstance(manifest, Manifest) else []
        said += [("revision", revision), ("host", manifest.host.get("hostname"))]
        said += [("CPU", manifest.host.get("cpu")), *(("GPU", gpu) for gpu in manifest.gpus)]
        said += [("driver", manifest.driver), *(("backend", rank.backend) for rank in ranks)]
        said += manifest.versions.items()
    for job in jobs:
        said += [("profiler", job.tool), ("steps", job.batches_from), ("backend", job.backend)]
        said += [*(("device", device) for device in job.devices), *job.versions.items()]
    if manifests:
        said.append(("started", min(manifest.started for manifest in manifests)))
        said.append(("ended", max(manifest.ended for manifest in manifests)))
    facts: dict[str, dict[str, None]] = {}
    for name, value in said:
        if value not in (None, ""):
            facts.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in facts.items()]


def build_studies(path: Path, own_peaks: Path | None = None) -> Page:
    """The page of the studies in ``path``; UserError: one is damaged, or of a study that is not known."""
    results = studies.load(path, own_peaks)
    answers = [studies.studies(result) for result in results]
    sections = [
        _of_study(f"study-{number}", result, content)
        for number, (result, content) in enumerate(zip(results, answers, strict=True), 1)
    ]
    manifests = [result.manifest for result in results]
    devices = dict.fromkeys(device for manifest in manifests for device in manifest.devices)
    started = min(manifest.started for manifest in manifests)[:16].replace("T", " ")
    return Page(
        title=f"Single-node studies: {path.resolve().name}",
        subtitle=f"{', '.join(manifest.study for manifest in manifests)}; {', '.join(devices)}; "
        f"started {started} UTC",
        summary=[
            Line(line, section.id)
            for content, section in zip(answers, sections, strict=True)
            for line in lines(content.verdict)
        ],
        sections=sections,
        methods=OF_STUDIES,
        provenance=facts_of(path, manifests),
    )


def _of_study(id: str, result: studies.Result, content: Answer) -> Section:
    """A study's section; its tables are the terminal's."""
    notes = lines([*content.verdict, *result.findings])
    charts = study_charts(id, result.manifest.study, content.rows)
    return Section(studies.timing(result.manifest), charts, content.parts or (), notes, id, content.title)


_LONGER, _SHORTER = "longer in B", "shorter in B"
_COLOURS = {"slower": VERMILLION, "faster": GREEN, "no difference": GREY, "too few runs": SKY,
            _LONGER: VERMILLION, _SHORTER: GREEN}  # fmt: skip


def build_compared(a: Study, b: Study, across: Sequence[str] = ()) -> Page:
    """The page of two results, which may differ in ``across``; UserError: they have nothing in common."""
    names = names_compared(a.path, b.path)
    of_traces = a.only_traces and b.only_traces
    answer = compared(a, b, across)
    if not answer.tables:
        same = "traces" if of_traces else "runs"
        raise UserError(f"A and B are the same {same}, so nothing can differ; compare two separate results")
    change = _change(answer, b)
    a.join(b)
    return Page(
        title=f"{names[1].removeprefix('B: ')} compared with {names[0].removeprefix('A: ')}",
        subtitle="; ".join(names),
        summary=[Line(text, "change") for text in lines(answer.verdict)],
        sections=[change, findings_section(a.findings, [a.path, b.path])],
        methods=MEASURED_TRACES if of_traces else MEASURED_RUNS,
        provenance=[(f"{key} of {side}", value) for side, study in (("A", a), ("B", b))
                    for key, value in provenance_of(study)],
    )  # fmt: skip


def names_compared(a: Path, b: Path) -> tuple[str, str]:
    """What the two are called on their page: ``A: before``, ``B: after``."""
    paths = [a.resolve(), b.resolve()]
    named = [path.name for path in paths]
    if a.name == b.name:
        common = os.path.commonpath([path.parent for path in paths])
        named = [str(path.relative_to(common)) for path in paths]
    return f"A: {named[0]}", f"B: {named[1]}"


def _change(answer: Answer, b: Study) -> Section:
    """The change of each configuration's step as bars, of traces that of each part; and the rows of both."""
    rows = answer.rows
    bars = _parts(rows) if b.only_traces else _steps(rows, b)
    if b.only_traces:
        of = ("Parts of a step, B minus A", "ms per step, B minus A", "%{x:+.2f} ms per step")
    else:
        of = ("Step, B relative to A", "% of the step in A", "%{x:+.1f} %")
    figure = plots.bars(bars, _COLOURS, *of, SHOWN)
    charts = [Chart("change", figure)] if len(bars) else []
    tables = [replace(part, title="") for part in answer.tables]
    return Section("", charts, tables, id="change", heading="What changed?")


def _steps(rows: pd.DataFrame, b: Study) -> pd.DataFrame:
    """A bar a configuration; of too many those that changed most."""
    steps = rows[rows["kind"] == "step"]
    # A size that all have is no column.
    runs = b.of_kind("run")
    sizes = {name: {source.fields[name] for source in runs} for name in ("nodes", "gpus_per_node")}
    known = {name: steps.get(name, of.pop() if len(of) == 1 else None) for name, of in sizes.items()}
    named = steps.assign(**known).astype(dict.fromkeys(sizes, float))
    unit = "rank" if b.on_cpus else "GPU"
    labels = labels_of(named, [*dict.fromkeys(["nodes", *varied(named)])], unit)
    columns = {"effect_pct": "value", "effect_pct_low": "low", "effect_pct_high": "high", "verdict": "series"}
    bars = steps.rename(columns=columns).assign(label=labels).sort_values("value", kind="stable")
    half = MOST_BARS // 2
    return bars if len(bars) <= MOST_BARS else pd.concat([bars.head(half), bars.tail(half)])


def _parts(rows: pd.DataFrame) -> pd.DataFrame:
    """A bar a part of a step, the largest change on top."""
    parts = rows[rows["kind"] == "parts"].dropna(subset="difference_ms")
    if rows["run"].nunique() > 1:
        parts = parts.assign(quantity=parts["run"] + ": " + parts["quantity"])
    parts = parts.sort_values("difference_ms", key=lambda ms: -ms.abs(), kind="stable").head(MOST_BARS)
    series = np.where(parts["difference_ms"] > 0, _LONGER, _SHORTER)
    return parts.assign(label=parts["quantity"], value=parts["difference_ms"], series=series)
