"""What changed between two sets of runs? The sections that say it, and what could not be compared."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from analysis.report import changed_configurations, changed_steps
from analysis.report.base import Content, content_or_why
from analysis.report.render import Section
from analysis.report.sides import Sides


def _alone(sides: Sides) -> Content:
    """The configurations that only one side has, all of them by name."""
    notes = [
        f"only in {name}: {one}"
        for name, names in zip(sides.names, sides.compared.alone, strict=True)
        for one in names
    ]
    if not notes:
        text = f"Both results have the same configurations{_apart_from(sides)}."
        return Content(text, finding=text)
    sizes = zip(sides.names, map(len, sides.compared.alone), strict=True)
    counts = [f"{count} only in {name}" for name, count in sizes if count]
    return Content(
        "Nothing is said of configurations that only one side has.", notes=notes,
        finding=f"Configurations on one side: {', '.join(counts)}.",
    )  # fmt: skip


def _apart_from(sides: Sides) -> str:
    """In which of the fields that may differ the two do: ``, apart from batch (A: 32; B: 64)``."""
    parts = []
    for name in sides.compared.across:
        of_a, of_b = (
            sorted({str(one.fields.get(name)) for one in context.study.of_kind("run")})
            for context in (sides.a, sides.b)
        )
        if of_a != of_b:
            parts.append(f"{name} (A: {', '.join(of_a)}; B: {', '.join(of_b)})")
    return f", apart from {' and '.join(parts)}" if parts else ""


def _none(sides: Sides) -> str:
    return ""


@dataclass(frozen=True)
class Kind:
    """A section that says what changed.

    Attributes:
        finding: its answer in a sentence, of the configurations that filters leave; empty: of all of them the
            content has it, of some it is not known.
    """

    id: str
    heading: str
    build: Callable[[Sides], Content]
    finding: Callable[[Sides], str] = _none

    def section(self, sides: Sides) -> Section:
        """The section of all configurations."""
        content = content_or_why(self.build, sides)
        section = Section(self.id, self.heading, **vars(content))
        if content.finding:
            return section
        return replace(section, finding=self.finding(sides), follows=True)


SECTIONS: Sequence[Kind] = (
    Kind(
        "change",
        "Which configurations changed?",
        changed_configurations.changes,
        changed_configurations.counted,
    ),
    Kind(
        "changed-scaling",
        "How does it scale, before and after?",
        changed_configurations.scaling,
        changed_configurations.efficiencies,
    ),
    Kind(
        "changed-parts",
        "What grew and what shrank in a step?",
        changed_steps.parts,
        changed_steps.largest_part,
    ),
    Kind(
        "changed-stages",
        "Which stages of a step changed?",
        changed_steps.stages,
        changed_steps.largest_stage,
    ),
    Kind("changed-kernels", "Which kernels changed?", changed_steps.kernels, changed_steps.largest_kernel),
    Kind("not-compared", "What could not be compared?", _alone),
)


def sections(sides: Sides) -> list[Section]:
    """The sections that say what changed."""
    return [kind.section(sides) for kind in SECTIONS]


def findings(sides: Sides, ids: Collection[str]) -> dict[str, str]:
    """What sections with these ids say of the configurations that filters leave."""
    return {kind.id: kind.finding(sides) for kind in SECTIONS if kind.id in ids}
