"""Load the results in a folder: a sweep, one run, converted traces, PyProf or TAU tables, or one such file.

The facts of runs are read here; tables when an analysis asks for them. What failed, was left out or cannot be
read is listed with its reason, never dropped silently.
"""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.frames.study import Failure, FailureKind, Source, Study, in_counts
from jobs import store
from jobs.run_fields import ID_FIELDS, attempted, in_order, parse_id
from jobs.store import (
    QUEUED,
    RESUME,
    Calibration,
    Manifest,
    state_of_begun,
    state_of_failed,
    where_calibrating,
)
from profiling.errors import UserError, nearest_file
from profiling.readers import pyprof
from profiling.tables import rank_directory
from profiling.tools import recognise, tool
from profiling.traced_job import JOB, read_job
from profiling.traces.units import files_of, is_unfinished

_RESULTS = Path("results")  # where sweeps leave theirs, unless --out says another folder
_MOST_NAMED = 8
_RANK = re.compile(r"rank_\d{4,}")  # the folder of one (profiling.tables)
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")  # of Python's tempfile: in /tmp these may be anybody's
_LATER: tuple[FailureKind, ...] = ("done", "running", "interrupted")  # states of a run that had failed


def newest_sweep() -> Path:
    """The sweep in ``results/`` that was started last; a line on standard error names it.

    Raises:
        UserError: there is none.
    """
    started = {file.stat().st_mtime_ns: file.parent for file in _RESULTS.glob(f"*/{store.SWEEP}")}
    if not started:
        raise UserError(f"{_RESULTS} holds no sweep: name a folder of results")
    print(f"scaleprof: the newest sweep is {(newest := started[max(started)])}", file=sys.stderr)
    return newest


def load(path: Path | str, own_peaks: Path | None = None) -> Study:
    """The results in ``path``.

    Raises:
        UserError: it does not exist, is empty, or holds nothing known.
    """
    path = Path(path)
    study = Study(path, own_peaks=own_peaks)
    if path.is_file():
        try:
            add_file(study, path)
        except UserError as error:
            raise UserError(how_to_convert(path) or str(error)) from None
    elif not path.is_dir():
        raise UserError(f"{path} does not exist{_near(path)}")
    elif (path / JOB).is_file():
        _add_trace(study, path)
    elif _is_known(path):
        _add_run(study, path)
        _read_calibration(study, path.parent)
    elif _is_sweep(path):
        _add_sweep(study, path)
    else:
        _add_folder(study, path)
    if not study.loaded:
        raise UserError((None if study.failed else how_to_convert(path)) or no_result(study))
    return study


def _near(path: Path) -> str:
    """What was meant by a folder that does not exist: one like it, beside it or in ``results``; else all."""
    places = dict.fromkeys(place for place in (path.parent, _RESULTS) if place.is_dir())
    beside = dict.fromkeys(folder for place in places for folder in _visible(place))
    folders = [one for one in beside if one not in places and not _TEMPORARY.fullmatch(one.name)]
    if near := nearest_file(path, folders):
        return f"; did you mean {str(near)!r}?"
    results = [str(folder) for folder in folders if _is_sweep(folder) or any(folder.glob(f"*/{JOB}"))]
    return f"; results are in {', '.join(results[:_MOST_NAMED])}" if results else ""


def no_result(study: Study) -> str:
    """Why a study has nothing to analyse, in one line."""
    if bad := study.missing:
        return f"{study.path} has no usable result: {in_counts(bad)}; {bad[0].point}: {bad[0].reason}"
    if is_unfinished(study.path):
        return f"{study.path} is not complete: run the conversion again to resume"
    if _has_rank_folders(study.path):
        return f"{study.path} has no usable result: {state_of_begun(study.path)[1]}"
    return f"{study.path} holds no results: no runs, converted traces, PyProf or TAU tables"


# --- our own results ----------------------------------------------------------------------------------


def _is_sweep(path: Path) -> bool:
    """Whether a folder holds runs: those of a sweep, or some that were started by hand."""
    return (path / store.SWEEP).is_file() or any(map(_is_known, _visible(path)))


def _is_known(directory: Path) -> bool:
    """Whether it is a run, also one that has begun: of one by hand there may be only a rank folder."""
    if store.is_run(directory) or not directory.name.startswith("run_") or (directory / JOB).is_file():
        return store.is_run(directory)
    return (directory / store.LOG).exists() or _has_rank_folders(directory)


def _has_rank_folders(directory: Path) -> bool:
    """Whether ranks of ours have folders in it; raw traces have files and folders of other names."""
    return any(path.is_dir() and _RANK.fullmatch(path.name) for path in directory.glob("rank_*"))


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
    _forget_superseded(study)
    _read_sweep(study, path)
    _read_calibration(study, path)


def _add_run(study: Study, directory: Path) -> None:
    name = directory.resolve().name
    if not (directory / store.MANIFEST).exists():
        state, how_known = state_of_begun(directory)
        _fail(study, name, how_known, state)
        return
    try:
        # A run that was started by hand may have a name of the user's.
        said = parse_id(name).fields if name.startswith("run_") else {}
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
        _fail(study, name, wrong, state_of_failed(manifest))
        return
    fields = manifest.fields
    source = Source(name, "run", fields, manifest.repetition, manifest.exit_code, directory, manifest)
    if any(fields[key] != value for key, value in said.items()):
        study.note("configuration_doubtful", source)
    study.loaded.append(source)
    for finding in manifest.findings:
        # That all is well stays in the run's record: notes are what a reader has to mind.
        if "and step timings agree" not in str(finding):  # in manifests of earlier versions
            study.log.add(finding.of(run=name))
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
    source = Source(name, "trace", fields, 0, None, directory, job=job)
    study.loaded.append(source)
    for finding in job.findings:
        study.log.add(finding.of(run=name))


def _has_rows(path: Path) -> bool:
    try:
        return pq.read_metadata(path).num_rows > 0
    except (pa.ArrowException, OSError):
        return True  # it is damaged: who reads it says so


def _forget_superseded(study: Study) -> None:
    """A point that failed and was begun again has the state of its later attempt."""
    now = {attempted(one.point): one.kind for one in study.log.failed if one.kind in _LATER}
    now |= {attempted(source.id): "done" for source in study.loaded}
    failed = study.log.failed
    study.log.failed = [one for one in failed if now.get(attempted(one.point), one.kind) == one.kind]


def _read_sweep(study: Study, path: Path) -> None:
    record = path / store.SWEEP
    if not record.is_file():
        return
    try:
        content = json.loads(record.read_bytes())
        left_out = [(str(entry["id"]), str(entry["reason"])) for entry in content.get("excluded", [])]
        order = [str(point) for point in content.get("order", [])]
        whys = {str(point): str(why) for point, why in content.get("why_not_started", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        study.note("records_damaged", what=str(record), n=1)
        return
    study.log.failed += [Failure(point, reason, "excluded") for point, reason in left_out]
    known = {attempted(source.id) for source in study.loaded}
    known |= {attempted(failure.point) for failure in study.log.failed}
    running = where_calibrating(path) or any(one.kind == "running" for one in study.log.failed)
    idle = f"unless {QUEUED}, {RESUME}" if content.get("launcher") == "slurm" else RESUME
    usual = "the sweep is running" if running else idle
    study.log.failed += [
        Failure(point, whys.get(point, usual), "not started") for point in order if point not in known
    ]


def _read_calibration(study: Study, path: Path) -> None:
    record = path / store.CALIBRATION
    try:
        study.calibration = store.read_record(record, Calibration)
    except UserError:
        if record.exists():
            study.note("records_damaged", what=str(record), n=1)


# --- folders ------------------------------------------------------------------------------------------


def _add_folder(study: Study, path: Path) -> None:
    """A folder that is no sweep: the one that holds a sweep, or one of the reference's files."""
    jobs = sorted(path.glob(f"*/{JOB}"))
    for record in jobs:
        _add_trace(study, record.parent)
    if jobs:
        return
    sweeps = [folder for folder in _visible(path) if _is_sweep(folder)]
    if len(sweeps) == 1:
        _add_sweep(study, sweeps[0])
        return
    if sweeps:
        names = ", ".join(str(sweep) for sweep in sweeps)
        raise UserError(f"{path} holds {len(sweeps)} sweeps; name one of them: {names}")
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    hidden = {file for file in files if any(part.startswith(".") for part in file.relative_to(path).parts)}
    add_files(study, [file for file in files if file not in hidden])


def first_trace(path: Path) -> tuple[Path, str] | None:
    """The first file that is the trace of a job, and the tool that wrote it; None: there is none."""
    if not path.exists():
        return None
    return next(((file, name) for file in files_of([path]) if (name := _tool_of(file))), None)


def how_to_convert(path: Path) -> str | None:
    """That traces have to be converted first; None: there are none."""
    found = first_trace(path)
    if found is None:
        return None
    held = f"raw traces ({found[1]}: {found[0].name})"
    how = f"python -m profiling.convert {shlex.quote(str(path))} --out DIR"
    return f"{path} holds {held}; convert them first: {how}"


def _tool_of(path: Path) -> str | None:
    try:
        name = recognise(path)
        return name if name is not None and tool(name).facts(path) is not None else None
    except UserError:
        return None


# --- several folders of one program -------------------------------------------------------------------

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
    study = Study(Path(paths[0]), own_peaks=own_peaks, named=True)
    for path, match in zip(paths, sized, strict=True):
        if match is None:
            raise UserError(f"{path}: give each of several folders with its number of ranks: P={path}")
        _add_sized(study, int(match[1]), Path(match[2]))
    return study


def _add_sized(study: Study, ranks: int, path: Path) -> None:
    """What a folder holds of a program on the number of ranks that the user says."""
    found = load(path)
    sources = list(found.of_kind("run")) or [_sized_trace(found, ranks, path)]
    for source in sources:
        if source.kind == "run" and source.world_size != ranks:
            raise UserError(f"{ranks}={path}: its run {source.id} has {source.world_size} ranks")
        if {source.kind} != {other.kind for other in [*study.loaded, source]}:
            raise UserError(f"{path} holds {source.kind}s, the folders before it {study.loaded[0].kind}s")
        named = _named(study, source, ranks, path)
        study.loaded.append(named)
        for finding in found.log.noted:
            if finding.run in (source.id, None):
                study.log.add(finding.of(run=named.id if finding.run else None))
    study.log.failed += found.failed


def _sized_trace(found: Study, ranks: int, path: Path) -> Source:
    traces = found.of_kind("trace")
    if len(traces) != 1 or traces[0].job is None:
        raise UserError(f"{path} holds the traces of {len(traces)} jobs: name the folder of one: {ranks}=DIR")
    job = traces[0].job
    if not job.world_size_from and job.world_size not in (None, ranks):
        raise UserError(f"{ranks}={path}: its traces are of a job of {job.world_size} ranks")
    return replace(traces[0], job=job.model_copy(update={"world_size": ranks}))


def _named(study: Study, source: Source, ranks: int, path: Path) -> Source:
    """A source under a name of its own; runs get the command of the first, being of one program."""
    taken = any(other.id == source.id for other in study.loaded)
    name = f"{path.resolve().name}/{source.id}" if taken and source.path != path else source.id
    name = f"{name} ({ranks})" if any(other.id == name for other in study.loaded) else name
    if source.kind == "trace":
        return replace(source, id=name, fields={**source.fields, "job": name})
    program = (study.loaded or [source])[0].fields.get("program")
    return replace(source, id=name, fields={**source.fields, "program": program})


# --- tables of the reference --------------------------------------------------------------------------

# PyProf kernel tables and TAU tables are known by their columns, whatever they are called; the configuration
# of a PyProf table is what its name says. A run that failed by its name does not count.
_TAU_POINT = {
    "run", "nodes", "gpus_per_node", "workers", "data_loader", "batch_size_per_gpu", "gpu", "thread",
}  # fmt: skip
_TAU_INTERVALS = _TAU_POINT | {"function", "calls", "exc_time", "inc_time"}
_TAU_ATOMICS = _TAU_POINT | {"function", "num_samples", "mean"}


def add_file(study: Study, file: Path) -> None:
    """Add the one file that the user named.

    Raises:
        UserError: it is not a readable table of the reference's; one line that says why.
    """
    if not _is_parquet(file):
        raise UserError(f"{file} is no PyProf or TAU table, and no folder of results (results/<sweep>)")
    columns = _columns(file)
    if not _add_table(study, file, columns):
        raise UserError(_of_another_kind(file, columns))


def add_files(study: Study, files: Sequence[Path]) -> None:
    """Add those of a folder's files that are tables of the reference's; damaged ones are listed as failed."""
    for file in files:
        try:
            if not _is_parquet(file) or _add_table(study, file, columns := _columns(file)):
                continue
            kind = _nearest_kind(columns)
            if len(kind & columns) > len(kind) / 2:  # it was meant to be one
                raise UserError(_of_another_kind(file, columns))
            study.note("parts_unread", what=[_name_in(study, file)])
        except UserError as error:
            _fail(study, _name_in(study, file), str(error).removeprefix(f"{file} "), "unusable")


def _fail(study: Study, point: str, reason: str, kind: FailureKind) -> None:
    study.failed.append(Failure(point, reason, kind))


def _name_in(study: Study, file: Path) -> str:
    return file.name if file == study.path else str(file.relative_to(study.path))


def _is_parquet(file: Path) -> bool:
    """Whether a file is Parquet by its first bytes; one that is not and is named so is an error."""
    try:
        with file.open("rb") as content:
            head = content.read(4)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    if head != b"PAR1" and file.suffix in (".gzip", ".parquet"):
        raise UserError(f"{file} is {'not a Parquet file' if head else 'empty'}")
    return head == b"PAR1"


def _columns(file: Path) -> set[str]:
    try:
        return set(pq.read_schema(file).names)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is damaged or truncated ({str(error).splitlines()[0]})") from None


def _add_table(study: Study, file: Path, columns: set[str]) -> bool:
    if pyprof.is_pyprof(columns):
        source = _pyprof_source(study, file)
        if source.exit_code:
            _fail(study, source.id, f"exit code {source.exit_code}", "failed")
        else:
            study.loaded.append(source)
    elif columns >= _TAU_INTERVALS:
        study.loaded.append(Source(file.name, "tau_intervals", {}, 0, None, file))
    elif columns >= _TAU_ATOMICS:
        study.loaded.append(Source(file.name, "tau_atomics", {}, 0, None, file))
    else:
        return False
    return True


def _nearest_kind(columns: set[str]) -> set[str]:
    kinds = (set(pyprof.NEEDED), _TAU_INTERVALS, _TAU_ATOMICS)
    return max(kinds, key=lambda kind: len(kind & columns) / len(kind))


def _of_another_kind(file: Path, columns: set[str]) -> str:
    kind = _nearest_kind(columns)
    name = "PyProf kernel" if "Kernel" in kind else "TAU"
    return f"{file} is not a {name} table: it lacks {', '.join(sorted(kind - columns))}"


def _pyprof_source(study: Study, file: Path) -> Source:
    # Two folders may hold tables of one name.
    taken = any(source.id == file.name for source in study.loaded)
    named = _name_in(study, file) if taken else file.name
    try:
        run_id = parse_id(file.name.partition(".")[0])
    except UserError:
        study.log.note("configuration_doubtful", named)
        return Source(named, "pyprof", dict.fromkeys(ID_FIELDS), 0, None, file)
    return Source(named, "pyprof", dict(run_id.fields), run_id.repetition, run_id.exit_code, file)
