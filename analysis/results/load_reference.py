"""Which of some files are the reference's tables, and of which kind?

PyProf kernel tables and TAU tables are known by their columns, whatever they are called; the configuration of
a PyProf table is what its name says. A run that failed by its name does not count.
"""

from collections.abc import Sequence
from pathlib import Path

from analysis.results.study import Failure, Source, Study
from jobs.run import ID_FIELDS, parse_id
from profiling.errors import UserError
from profiling.tools import pyprof

_TAU_POINT = {
    "run", "nodes", "gpus_per_node", "workers", "data_loader", "batch_size_per_gpu", "gpu", "thread",
}  # fmt: skip
_TAU_INTERVALS = _TAU_POINT | {"function", "calls", "exc_time", "inc_time"}
_TAU_ATOMICS = _TAU_POINT | {"function", "num_samples", "mean"}

_COLUMNS = "select file_name, name from parquet_schema($paths) where num_children is null"


def add_file(study: Study, file: Path) -> None:
    """Add the one file that the user named.

    Raises:
        UserError: it is not a readable table of the reference's; one line that says why.
    """
    if not _is_parquet(file):
        raise UserError(f"{file} is no Parquet file; give a PyProf or TAU table, or a folder of results")
    columns = _columns(study, file)
    if not _add_table(study, file, columns):
        raise UserError(_of_another_kind(file, columns))


def add_files(study: Study, files: Sequence[Path]) -> None:
    """Add those of a folder's files that are tables of the reference's; damaged ones are listed as failed."""
    tables = []
    for file in files:
        try:
            if _is_parquet(file):
                tables.append(file)
        except UserError as error:
            _fail(study, file, error)
    known = _columns_of_all(study, tables)
    for file in tables:
        try:
            columns = known[file] if known else _columns(study, file)
            if _add_table(study, file, columns):
                continue
            if _nearly(columns):
                raise UserError(_of_another_kind(file, columns))
            study.find(f"{_name_in(study, file)} is not read: it is no PyProf kernel table and no TAU table")
        except UserError as error:
            _fail(study, file, error)


def _fail(study: Study, file: Path, error: UserError) -> None:
    study.failed.append(Failure(_name_in(study, file), str(error).removeprefix(f"{file} "), "unreadable"))


def _name_in(study: Study, file: Path) -> str:
    return file.name if file == study.path else str(file.relative_to(study.path))


# --- kinds --------------------------------------------------------------------------------------------


def _is_parquet(file: Path) -> bool:
    """Whether a file is Parquet by its first bytes; one that is not and is named so is an error."""
    try:
        with file.open("rb") as content:
            head = content.read(4)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    if head != b"PAR1" and file.suffix in (".gzip", ".parquet"):
        what = "is no Parquet file, though its name says so" if head else "is empty"
        raise UserError(f"{file} {what}; fetch it again")
    return head == b"PAR1"


def _columns_of_all(study: Study, files: Sequence[Path]) -> dict[Path, set[str]]:
    """The columns of all files, by one query; nothing if one of them is damaged."""
    import duckdb

    if not files:
        return {}
    found: dict[Path, set[str]] = {file: set() for file in files}
    try:
        rows = study.connection.execute(_COLUMNS, {"paths": [str(file) for file in files]}).fetchall()
    except (duckdb.Error, OSError):
        return {}
    for name, column in rows:
        found[Path(name)].add(column)
    return found


def _columns(study: Study, file: Path) -> set[str]:
    import duckdb

    try:
        rows = study.connection.execute(_COLUMNS, {"paths": [str(file)]}).fetchall()
    except (duckdb.Error, OSError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{file} is a damaged or truncated Parquet file ({why}); fetch it again") from None
    return {column for _, column in rows}


def _add_table(study: Study, file: Path, columns: set[str]) -> bool:
    if pyprof.is_pyprof(columns):
        source = _pyprof_source(study, file)
        if source.exit_code:
            study.failed.append(Failure(source.id, f"exit code {source.exit_code}", "failed"))
        else:
            study.sources.append(source)
    elif columns >= _TAU_INTERVALS:
        study.tau_intervals.append(file)
    elif columns >= _TAU_ATOMICS:
        study.tau_atomics.append(file)
    else:
        return False
    return True


def _nearest_kind(columns: set[str]) -> set[str]:
    kinds = (set(pyprof.NEEDED), _TAU_INTERVALS, _TAU_ATOMICS)
    return max(kinds, key=lambda kind: len(kind & columns) / len(kind))


def _nearly(columns: set[str]) -> bool:
    """Whether a table has most of the columns of a known kind, so that it was meant to be one."""
    kind = _nearest_kind(columns)
    return len(kind & columns) > len(kind) / 2


def _of_another_kind(file: Path, columns: set[str]) -> str:
    kind = _nearest_kind(columns)
    name = "PyProf kernel" if "Kernel" in kind else "TAU"
    return f"{file} is no {name} table: it lacks {', '.join(sorted(kind - columns))}"


def _pyprof_source(study: Study, file: Path) -> Source:
    # Two folders may hold tables of one name.
    taken = any(source.id == file.name for source in study.sources)
    named = _name_in(study, file) if taken else file.name
    try:
        run_id = parse_id(file.name.partition(".")[0])
    except UserError:
        study.find(f"{named} is not named after a run: its configuration is not known")
        return Source(named, "pyprof", dict.fromkeys(ID_FIELDS), 0, None, file)
    return Source(named, "pyprof", dict(run_id.fields), run_id.repetition, run_id.exit_code, file)
