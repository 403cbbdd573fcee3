"""Are the traces of two jobs of the same program? If not, their durations say nothing of scaling."""

from collections.abc import Sequence

from analysis.measures.kernels.rows import kernels_of
from analysis.results.source import Source
from analysis.results.study import Study

# Of the launches of two jobs the share that they have in common, from which they are the same program: on
# more ranks a library may choose other kernels for a few layers; another model shares about half.
ALIKE = 0.8


def programs(study: Study, sources: Sequence[Source]) -> list[list[Source]]:
    """The traces of jobs, each list of one program, in the order of ``sources``.

    The same program: the user says so by giving each folder its number of ranks (``1=DIR 8=DIR``), or the
    devices are of one name and the model launches the same kernels as often per batch.
    """
    if study.named:
        return [list(sources)] if sources else []
    groups: list[list[Source]] = []
    if len(sources) < 2:
        return [[source] for source in sources]
    launches = {source.id: launches_of(study, source) for source in sources}
    for source in sources:
        of_source = launches[source.id]
        for group in groups:
            first = group[0]
            if first.devices == source.devices and in_common(launches[first.id], of_source) >= ALIKE:
                group.append(source)
                break
        else:
            groups.append([source])
    return groups


def in_common(a: dict[str, float], b: dict[str, float]) -> float:
    """Of the launches of both, by kernel, the share that both have; 0 where nothing was launched."""
    every = {*a, *b}
    most = sum(max(a.get(name, 0.0), b.get(name, 0.0)) for name in every)
    return sum(min(a.get(name, 0.0), b.get(name, 0.0)) for name in every) / most if most else 0.0


def launches_of(study: Study, source: Source) -> dict[str, float]:
    """How often the model launches each kernel per batch."""
    found: dict[str, float] = {}
    for row in kernels_of(study, source):
        if row["class"] != "communication":
            name = str(row["kernel"])
            found[name] = found.get(name, 0.0) + row["calls_per_step"]
    return found
