"""What does a page say of the configurations that its filters leave? Sentences, drawings, findings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from analysis.report.choices import Choice, Coverage, Filter, Key, choices_of
from analysis.report.sentences import Sentence
from analysis.report.small import Drawing


@dataclass(frozen=True)
class Said:
    """What is said of some configurations.

    Attributes:
        findings: by the section's id; of sections whose finding is of all configurations whatever is chosen
            there is none.
        summary: the sentences of the opening; None: it is of all configurations.
        lists: sentences of two results side by side, by the name of their list.
    """

    findings: Mapping[str, str]
    summary: Sequence[Sentence] | None = None
    drawings: Mapping[str, Drawing] = field(default_factory=dict)
    lists: Mapping[str, Sequence[Sentence]] = field(default_factory=dict)


@dataclass(frozen=True)
class Filtered:
    """What is said of each choice of filters.

    Attributes:
        said: of each set of configurations that a choice leaves, and how many these are.
        of: by choice its place in ``said``.
        depth: with more filters than these at once, nothing is known.
        configurations: how many there are.
    """

    said: Sequence[tuple[int, Said]]
    of: Mapping[Choice, int]
    depth: int
    configurations: int


def filtered(
    filters: Sequence[Filter], coverage: Coverage, say: Callable[[frozenset[Key]], Said]
) -> Filtered | None:
    """What is said of each choice; None where nothing can be chosen.

    Args:
        say: what is said of some configurations; it is asked once for all choices that leave the same.
    """
    if not filters:
        return None
    choices = choices_of(filters, coverage)
    places = {left: place for place, left in enumerate(dict.fromkeys(choices.left.values()))}
    said = [(len(left), say(left)) for left in places]
    of = {choice: places[left] for choice, left in choices.left.items()}
    return Filtered(said, of, choices.depth, len(coverage.keys))
