"""Single-node studies as a page: a section a study, with its verdict and its tables."""

from pathlib import Path

from analysis.display.terminal import Answer
from analysis.report.base import as_view
from analysis.report.build import facts_of
from analysis.report.render import Line, Page, Section
from analysis.studies.answers import STUDIES, answer, timing
from analysis.studies.result import Result, is_study, load
from profiling.findings import lines

METHODS = (
    "Medians with intervals over the repetitions within a run, after a warmup that is not counted. A "
    "multiply-add counts as 2 FLOPs; 1 MiB is 2^20 bytes, 1 GB is 1e9 bytes."
)


def holds_studies(path: Path) -> bool:
    """Whether a folder is a study's result, or holds such folders."""
    return path.is_dir() and (is_study(path) or any(is_study(folder) for folder in path.iterdir()))


def page(path: Path, own_peaks: Path | None = None) -> Page:
    """The page of the studies in ``path``.

    Raises:
        UserError: one is damaged, or of a study that is not known.
    """
    results = load(path)
    answers = [answer(result, own_peaks) for result in results]
    sections = [
        _section(f"study-{number}", result, content)
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
        methods=METHODS,
        provenance=facts_of(path, manifests),
    )


def _section(id: str, result: Result, content: Answer) -> Section:
    """A study's section; its tables are the terminal's."""
    views = [as_view(part, f"{id}-table-{number}") for number, part in enumerate(content.parts or ())]
    notes = lines([*content.verdict, *result.findings])
    heading = STUDIES[result.manifest.study].question
    return Section(id, heading, timing(result.manifest), tables=views, notes=notes)
