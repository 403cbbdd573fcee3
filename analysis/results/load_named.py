"""What is in several folders of one program, each given with its number of ranks (``4=DIR``)?"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.results.load import load
from analysis.results.source import Source
from analysis.results.study import Contents, Study
from profiling.errors import UserError
from profiling.wording import how_many

_SIZED = re.compile(r"^(\d{1,7})=(.+)$")


def load_named(paths: Sequence[str], own_peaks: Path | None = None) -> Study:
    """The results in one folder; or those in several, each named with its number of ranks: ``4=DIR``.

    All are then of one program: runs of it (:mod:`profiling.watch`), or the traces of a job per folder.

    Raises:
        UserError: as :func:`load`; or several folders are not named so, one holds neither runs nor the traces
            of one job, or what is in it says another number of ranks.
    """
    sized = [_SIZED.match(path) for path in paths]
    if len(paths) == 1 and not (sized[0] and not Path(paths[0]).exists()):
        return load(paths[0], own_peaks)
    if unnamed := next((path for path, match in zip(paths, sized, strict=True) if match is None), ""):
        words = shlex.join(map(_with_ranks, paths))
        raise UserError(f"{unnamed}: to load several folders, give each with its number of ranks: {words}")
    contents = Contents(Path(paths[0]))
    for match in sized:
        assert match is not None
        _add_sized(contents, int(match[1]), Path(match[2]))
    return Study(contents.path, tuple(contents.sources), contents.log, None, own_peaks, named=True)


def _with_ranks(path: str) -> str:
    """The word for a folder, with the number of ranks that what is in it says, else P."""
    if _SIZED.match(path):
        return path
    folder = path if Path(path).exists() else path.rpartition("=")[2]
    try:
        sizes = {source.world_size for source in load(folder).sources}
    except UserError:  # what is wrong with it is said when it is given with a number
        sizes = set()
    known = sizes.pop() if len(sizes) == 1 else None
    return f"{known or 'P'}={folder}"


def _add_sized(contents: Contents, ranks: int, path: Path) -> None:
    """What a folder holds of a program on the number of ranks that the user says."""
    found = load(path)
    runs = found.of_kind("run")
    sources = [_sized_run(source, ranks, path) for source in runs] or [_sized_trace(found, ranks, path)]
    for source in sources:
        if {source.kind} != {other.kind for other in [*contents.sources, source]}:
            raise UserError(f"{path} holds {source.kind}s, the folders before it {contents.sources[0].kind}s")
        named = _named(contents, source, ranks, path)
        contents.sources.append(named)
        for finding in found.log.noted:
            if finding.run in (source.id, None):
                contents.log.add(finding.of(run=named.id if finding.run else None))
    contents.log.failed += found.failed


def _sized_run(source: Source, ranks: int, path: Path) -> Source:
    if source.world_size != ranks:
        raise UserError(f"{ranks}={path}: its run {source.id} has {how_many(source.world_size or 0, 'rank')}")
    return source


def _sized_trace(found: Study, ranks: int, path: Path) -> Source:
    traces = found.of_kind("trace")
    if len(traces) != 1 or traces[0].job is None:
        held = f"the traces of {len(traces)} jobs" if traces else "no runs and no converted traces"
        raise UserError(f"{path} holds {held}: name the folder of one as {ranks}=DIR")
    job = traces[0].job
    if not job.world_size_from and job.world_size not in (None, ranks):
        said = how_many(job.world_size or 0, "rank")
        raise UserError(f"{ranks}={path}: its traces say that the job has {said}")
    return replace(traces[0], job=job.model_copy(update={"world_size": ranks}))


def _named(contents: Contents, source: Source, ranks: int, path: Path) -> Source:
    """A source under a name of its own; runs get the command of the first, being of one program."""
    taken = any(other.id == source.id for other in contents.sources)
    name = f"{path.resolve().name}/{source.id}" if taken and source.path != path else source.id
    name = f"{name} ({ranks})" if any(other.id == name for other in contents.sources) else name
    if source.kind == "trace":
        return replace(source, id=name, fields={**source.fields, "job": name})
    program = (contents.sources or [source])[0].fields.get("program")
    return replace(source, id=name, fields={**source.fields, "program": program})
