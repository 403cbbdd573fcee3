"""Load the results in a folder: a sweep, one run, converted traces, PyProf or TAU tables, or one such file.

Only the facts about runs are read here; tables are read when an analysis needs them. Runs that failed, were
left out or cannot be read are listed with the reason, never dropped silently.
"""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.frames.study import Failure, FailureKind, Kind, Source, Study, in_counts
from jobs import store
from jobs.run_fields import ID_FIELDS, attempted, in_order, parse_id
from jobs.store import Calibration, Manifest
from profiling.errors import UserError, nearest_file
from profiling.readers import pyprof
from profiling.tables import rank_directory
from profiling.tools import recognise, tool
from profiling.traced_job import JOB, read_job
from profiling.traces import files_of, is_unfinished

_RESULTS = Path("results")  # where sweeps leave theirs, unless --out says another folder
_RANKS = "rank_[0-9][0-9][0-9][0-9]*/"  # the folders of ranks (profiling.tables)


def newest_sweep() -> Path:
    """The sweep in ``results/`` that was started last; standard error names it. UserError: there is none."""
    started = {file.stat().st_mtime_ns: file.parent for file in _RESULTS.glob(f"*/{store.SWEEP}")}
    if not started:
        raise UserError(f"{_RESULTS} holds no sweep: name a folder of results")
    print(f"scaleprof: the newest sweep is {(newest := started[max(started)])}", file=sys.stderr)
    return newest


def load(path: Path | str, own_peaks: Path | None = None) -> Study:
    """The results in ``path``; UserError: it does not exist, is empty, or holds nothing known."""
    path = Path(path)
    study = Study(path, own_peaks=own_peaks)
    if path.is_file():
        try:
            if not _add_file(study, path):
                raise UserError(f"{path} is no PyProf or TAU table, and no folder of results")
        except UserError as error:
            raise UserError(how_to_convert(path) or str(error)) from None
    elif not path.is_dir():
        places = dict.fromkeys(place for place in (path.parent, _RESULTS) if place.is_dir())
        near = nearest_file(path, [one for place in places for one in _visible(place)])
        raise UserError(f"{path} does not exist" + (f"; did you mean {str(near)!r}?" if near else ""))
    elif (path / JOB).is_file():
        _add_trace(study, path)
    elif _is_run(path):
        _add_run(study, path)
        _read_calibration(study, path.parent)
    elif _is_sweep(path):
        _add_sweep(study, path)
    else:
        _add_folder(study, path)
    if not study.loaded:
        raise UserError((None if study.failed else how_to_convert(path)) or no_result(study))
    return study


def no_result(study: Study) -> str:
    """Why a study has nothing to analyse, in one line."""
    if bad := study.missing:
        return f"{study.path} has no usable result: {in_counts(bad)}; {bad[0].point}: {bad[0].reason}"
    if is_unfinished(study.path):
        return f"{study.path} is not complete: run the conversion again to resume"
    if any(study.path.glob(_RANKS)):
        return f"{study.path} has no usable result: {store.state_of_begun(study.path)[1]}"
    return f"{study.path} holds no results: no runs, converted traces, PyProf or TAU tables"


def _is_sweep(path: Path) -> bool:
    """Whether a folder holds runs: those of a sweep, or some that were started by hand."""
    return (path / store.SWEEP).is_file() or any(map(_is_run, _visible(path)))


def _is_run(directory: Path) -> bool:
    """Whether it is a run, also one that has begun: of one by hand there may be only a rank's folder."""
    if store.is_run(directory) or not directory.name.startswith("run_") or (directory / JOB).is_file():
        return store.is_run(directory)
    return (directory / store.LOG).exists() or any(directory.glob(_RANKS))


def _visible(path: Path) -> list[Path]:
    """The folders in a folder: runs of a configuration one after the other, and numbers by their value."""
    inside = [one for one in path.iterdir() if one.is_dir() and one.name[0] != "."]
    return sorted(inside, key=lambda one: in_order(one.name))


def _add_sweep(study: Study, path: Path) -> None:
    for directory in _visible(path):
        if (directory / JOB).is_file():
            _add_trace(study, directory)
        elif directory.name.startswith("run_") or store.is_run(directory):
            _add_run(study, directory)
        elif _is_sweep(directory):
            study.note("parts_unread", what=[str(directory)])
    # A point that failed and was begun again has the state of its later attempt.
    later = ("done", "running", "interrupted")
    now = {attempted(one.point): one.kind for one in study.failed if one.kind in later}
    now |= {attempted(source.id): "done" for source in study.loaded}
    study.failed = [one for one in study.failed if now.get(attempted(one.point), one.kind) == one.kind]
    _read_sweep(study, path)
    _read_calibration(study, path)


def _add_run(study: Study, directory: Path) -> None:
    name = directory.resolve().name
    if not (directory / store.MANIFEST).exists():
        state, how_known = store.state_of_begun(directory)
        _fail(study, name, how_known, state)
        return
    try:
        if name.startswith("run_"):  # one that was started by hand may have a name of the user's
            parse_id(name)
        manifest = store.read_record(directory / store.MANIFEST, Manifest)
    except UserError as error:
        _fail(study, name, str(error), "unusable")
        return
    wrong = manifest.reason or f"exit code {manifest.exit_code}" if manifest.exit_code else ""
    try:
        if not wrong:
            store.check_reports(manifest.run, manifest.ranks)
    except UserError as error:
        wrong = str(error)
    if wrong:
        _fail(study, name, wrong, "interrupted" if manifest.failure == "interrupted" else "failed")
        return
    source = Source(name, "run", manifest.fields, directory, manifest.repetition, manifest)
    study.loaded.append(source)
    for finding in manifest.findings:
        study.add(finding.of(run=name))
    # Figures of a profiled run are of the ranks that have kernels.
    there = {path.parent for path in source.tables("kernels") if _has_rows(path)}
    missing = [rank for rank in range(source.ranks) if rank_directory(source.path, rank) not in there]
    if there and missing:
        study.note("profiles_missing", source, n=len(missing), of=source.ranks, ranks=missing)


def _add_trace(study: Study, directory: Path) -> None:
    """Traces of a job, as profiling.convert left them; of its fields only what they say."""
    name = directory.resolve().name
    try:
        job = read_job(directory)
    except UserError as error:
        _fail(study, name, str(error), "unusable")
        return
    fields: dict[str, object] = {"profile": job.tool, "job": name}
    if job.nodes and job.world_size and job.world_size % job.nodes == 0:
        fields |= {"nodes": job.nodes, "gpus_per_node": job.world_size // job.nodes}
    study.loaded.append(Source(name, "trace", fields, directory, job=job))
    for finding in job.findings:
        study.add(finding.of(run=name))


def _has_rows(path: Path) -> bool:
    try:
        return pq.read_metadata(path).num_rows > 0
    except (pa.ArrowException, OSError):
        return True  # it is damaged: who reads it says so


def _read_sweep(study: Study, path: Path) -> None:
    record = path / store.SWEEP
    if not record.is_file():
        return
    try:
        content = json.loads(record.read_bytes())
        left_out = [(str(entry["id"]), str(entry["reason"])) for entry in content.get("excluded", [])]
        order = [str(point) for point in content.get("order", [])]
    except (ValueError, KeyError, TypeError, AttributeError):
        study.note("records_damaged", what=str(record), n=1)
        return
    study.failed += [Failure(point, reason, "excluded") for point, reason in left_out]
    names = [*(source.id for source in study.loaded), *(failure.point for failure in study.failed)]
    known = {attempted(name) for name in names}
    running = store.where_calibrating(path) or any(one.kind == "running" for one in study.failed)
    idle = f"unless {store.QUEUED}, {store.RESUME}" if content.get("launcher") != "local" else store.RESUME
    usual = "the sweep is running" if running else idle
    study.failed += [Failure(point, usual, "not started") for point in order if point not in known]


def _read_calibration(study: Study, path: Path) -> None:
    record = path / store.CALIBRATION
    try:
        study.calibration = store.read_record(record, Calibration)
    except UserError:
        if record.exists():
            study.note("records_damaged", what=str(record), n=1)


def _add_folder(study: Study, path: Path) -> None:
    """A folder that is no sweep: the one that holds a sweep, or one of the reference's files."""
    jobs = sorted(path.glob(f"*/{JOB}"))
    for record in jobs:
        _add_trace(study, record.parent)
    if jobs:
        return
    sweeps = [folder for folder in _visible(path) if _is_sweep(folder)]
    if len(sweeps) > 1:
        names = ", ".join(map(str, sweeps))
        raise UserError(f"{path} holds {len(sweeps)} sweeps; name one of them: {names}")
    if sweeps:
        _add_sweep(study, sweeps[0])
        return
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name = str(file.relative_to(path))
        if name.startswith(".") or "/." in name:
            continue
        try:
            if not _add_file(study, file):
                study.note("parts_unread", what=[name])
        except UserError as error:
            _fail(study, name, str(error).removeprefix(f"{file} "), "unusable")


def how_to_convert(path: Path) -> str | None:
    """That traces have to be converted first; None: there are none."""
    how = f"python -m profiling.convert {shlex.quote(str(path))} --out DIR"
    for file in files_of([path]):
        with suppress(UserError):
            if (name := recognise(file)) is not None and tool(name).facts(file) is not None:
                return f"{path} holds raw traces ({name}: {file.name}); convert them first: {how}"
    return None


def load_named(paths: Sequence[str], own_peaks: Path | None = None) -> Study:
    """The results in one folder; or those in several, each named with its number of ranks: ``4=DIR``.

    All are then of one program: runs of it (:mod:`profiling.watch`), or the traces of a job per folder.
    UserError: as :func:`load`; or they are not, or what is in one says another number of ranks.
    """
    sized = [re.match(r"(\d{1,7})=(.+)$", path) for path in paths]
    if len(paths) == 1 and not (sized[0] and not Path(paths[0]).exists()):
        return load(paths[0], own_peaks)
    study = Study(Path(paths[0]), own_peaks=own_peaks, named=True)
    for path, match in zip(paths, sized, strict=True):
        if match is None:
            raise UserError(f"{path}: give each of several folders with its number of ranks: P={path}")
        _add_sized(study, int(match[1]), Path(match[2]))
    return study


def _add_sized(study: Study, ranks: int, path: Path) -> None:
    """What a folder holds of a program on the number of ranks that the user says."""
    found = load(path)
    sources = found.of_kind("run") or found.of_kind("trace")
    if not sources or (sources[0].kind == "trace" and len(sources) > 1):
        raise UserError(f"{path} holds {len(sources)} jobs: name a folder of runs, or of the traces of one")
    if (kind := sources[0].kind) != (first := [*study.loaded, *sources][0]).kind:
        raise UserError(f"{path} holds {kind}s, the folders before it {first.kind}s")
    for source in sources:
        said = ranks if source.job is not None and source.job.world_size_from else source.world_size
        if said not in (None, ranks):
            raise UserError(f"{ranks}={path}: {source.id} has {said} ranks")
        taken, name = {one.id for one in study.loaded}, source.id
        if name in taken and source.path != path:
            name = f"{path.resolve().name}/{name}"
        name = f"{name} ({ranks})" if name in taken else name
        if source.job is None:  # all are of one program: that of the first
            named = replace(source, fields=source.fields | {"program": first.fields.get("program")})
        else:
            job = source.job.model_copy(update={"world_size": ranks})
            named = replace(source, job=job, fields=source.fields | {"job": name})
        study.loaded.append(replace(named, id=name))
        for finding in found.noted:
            if finding.run in (source.id, None):
                study.add(finding.of(run=name if finding.run else None))
    study.failed += found.failed


# PyProf kernel tables and TAU tables are known by their columns, whatever they are called; the configuration
# of a PyProf table is what its name says. A run that failed by its name does not count.
_TAU_POINT = {
    "run",
    "nodes",
    "gpus_per_node",
    "workers",
    "data_loader",
    "batch_size_per_gpu",
    "gpu",
    "thread",
}
_KINDS: dict[Kind, set[str]] = {
    "tau_intervals": _TAU_POINT | {"function", "calls", "exc_time", "inc_time"},
    "tau_atomics": _TAU_POINT | {"function", "num_samples", "mean"},
}
MARK, MARKED = "name_str", "timestamp"  # of marks of a profiled run, in CSV: name, and time in ns


def _add_file(study: Study, file: Path) -> bool:
    """Add a table of the reference's; False: it is none; UserError: it is unreadable or lacks columns."""
    try:
        with file.open("rb") as content:
            head = content.read(4)
        if head != b"PAR1" and file.suffix in (".gzip", ".parquet"):
            raise UserError(f"{file} is {'not a Parquet file' if head else 'empty'}")
        if head != b"PAR1":
            with file.open(encoding="utf-8", errors="replace") as content:
                columns = set(content.readline(1000).strip().replace('"', "").split(","))
            return columns >= {MARK, MARKED} and _add_named(study, file, "marks")
        columns = set(pq.read_schema(file).names)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is damaged or truncated ({str(error).splitlines()[0]})") from None
    if pyprof.is_pyprof(columns):
        return _add_named(study, file, "pyprof")
    for kind, needed in _KINDS.items():
        if columns >= needed:
            study.loaded.append(Source(file.name, kind, {}, file))
            return True
    needed = max((set(pyprof.NEEDED), *_KINDS.values()), key=lambda kind: len(kind & columns) / len(kind))
    if len(needed & columns) > len(needed) / 2:  # it was meant to be one
        name = "PyProf kernel" if "Kernel" in needed else "TAU"
        raise UserError(f"{file} is not a {name} table: it lacks {', '.join(sorted(needed - columns))}")
    return False


def _fail(study: Study, point: str, reason: str, kind: FailureKind) -> None:
    study.failed.append(Failure(point, reason, kind))


def _add_named(study: Study, file: Path, kind: Kind) -> bool:
    """Add a table of a run whose id is the file's name."""
    # Two folders may hold tables of one name.
    taken = any(source.id == file.name for source in study.loaded)
    named = str(file.relative_to(study.path)) if taken else file.name
    fields, repetition = dict.fromkeys(ID_FIELDS), 0
    try:
        run_id = parse_id(file.name.partition(".")[0])
        fields, repetition = dict(run_id.fields), run_id.repetition
        if run_id.exit_code:
            _fail(study, named, f"exit code {run_id.exit_code}", "failed")
            return True
    except UserError:
        study.note("configuration_doubtful", named)
    study.loaded.append(Source(named, kind, fields, file, repetition))
    return True
