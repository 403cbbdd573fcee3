"""Which of some files are the reference's tables, and of which kind?

PyProf kernel tables and TAU tables are known by their columns, whatever they are called; the configuration of
a PyProf table is what its name says. A run that failed by its name does not count.
"""

from collections.abc import Sequence
from pathlib import Path

import duckdb

from analysis.results.source import Source
from analysis.results.study import Contents
from jobs.run_fields import ID_FIELDS
from jobs.run_id import parse_id
from profiling import database, yaml_text
from profiling.errors import UserError
from profiling.readers import pyprof

_TAU_POINT = {
    "run", "nodes", "gpus_per_node", "workers", "data_loader", "batch_size_per_gpu", "gpu", "thread",
}  # fmt: skip
_TAU_INTERVALS = _TAU_POINT | {"function", "calls", "exc_time", "inc_time"}
_TAU_ATOMICS = _TAU_POINT | {"function", "num_samples", "mean"}

_COLUMNS = "select file_name, name from parquet_schema($paths) where num_children is null"


def add_file(contents: Contents, file: Path) -> None:
    """Add the one file that the user named.

    Raises:
        UserError: it is not a readable table of the reference's; one line that says why.
    """
    if not _is_parquet(file):
        if file.suffix in (".yaml", ".yml"):
            raise UserError(_of_sweep_file(file))
        raise UserError(
            f"{file} is not a Parquet file; expected a PyProf or TAU table, or a folder of results"
        )
    columns = _columns(file)
    if not _add_table(contents, file, columns):
        raise UserError(_of_another_kind(file, columns))


def _of_sweep_file(file: Path) -> str:
    """What to name in the place of a sweep file: the folder in ``results/`` that its sweep writes."""
    try:
        content = yaml_text.read(file, "sweep file").content
    except UserError:
        content = None
    if not (isinstance(content, dict) and "run" in content):
        return f"{file} holds no results; give the folder of a sweep's results"
    results = Path("results") / str(content.get("name", file.stem))
    there = f"did you mean {str(results)!r}?" if results.is_dir() else f"its sweep writes them to {results}"
    return f"{file} is a sweep file, not its results; {there}"


def add_files(contents: Contents, files: Sequence[Path]) -> None:
    """Add those of a folder's files that are tables of the reference's; damaged ones are listed as failed."""
    tables = []
    for file in files:
        try:
            if _is_parquet(file):
                tables.append(file)
        except UserError as error:
            _fail(contents, file, error)
    try:
        known = _columns_of_all(tables) if tables else {}
    except (duckdb.Error, OSError):
        known = {}  # each is read for itself, so that the damaged ones are named
    for file in tables:
        try:
            columns = known[file] if known else _columns(file)
            if _add_table(contents, file, columns):
                continue
            if _nearly(columns):
                raise UserError(_of_another_kind(file, columns))
            name = _name_in(contents, file)
            contents.note(f"{name} is not read: it is neither a PyProf kernel table nor a TAU table")
        except UserError as error:
            _fail(contents, file, error)


def _fail(contents: Contents, file: Path, error: UserError) -> None:
    contents.fail(_name_in(contents, file), str(error).removeprefix(f"{file} "), "unusable")


def _name_in(contents: Contents, file: Path) -> str:
    return file.name if file == contents.path else str(file.relative_to(contents.path))


# --- kinds --------------------------------------------------------------------------------------------


def _is_parquet(file: Path) -> bool:
    """Whether a file is Parquet by its first bytes; one that is not and is named so is an error."""
    try:
        with file.open("rb") as content:
            head = content.read(4)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    if head != b"PAR1" and file.suffix in (".gzip", ".parquet"):
        what = "is not a Parquet file, despite its name" if head else "is empty"
        raise UserError(f"{file} {what}; fetch it again")
    return head == b"PAR1"


def _columns_of_all(files: Sequence[Path]) -> dict[Path, set[str]]:
    """The columns of all files, by one query.

    Raises:
        duckdb.Error, OSError: one of them is damaged.
    """
    columns: dict[Path, set[str]] = {file: set() for file in files}
    with database.connect() as connection:
        rows = connection.execute(_COLUMNS, {"paths": [str(file) for file in files]}).fetchall()
    for name, column in rows:
        columns[Path(name)].add(column)
    return columns


def _columns(file: Path) -> set[str]:
    try:
        return _columns_of_all([file])[file]
    except (duckdb.Error, OSError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{file} is a damaged or truncated Parquet file ({why}); fetch it again") from None


def _add_table(contents: Contents, file: Path, columns: set[str]) -> bool:
    if pyprof.is_pyprof(columns):
        source = _pyprof_source(contents, file)
        if source.exit_code:
            contents.fail(source.id, f"exit code {source.exit_code}", "failed")
        else:
            contents.sources.append(source)
    elif columns >= _TAU_INTERVALS:
        contents.sources.append(Source(file.name, "tau_intervals", {}, 0, None, file))
    elif columns >= _TAU_ATOMICS:
        contents.sources.append(Source(file.name, "tau_atomics", {}, 0, None, file))
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
    return f"{file} is not a {name} table: it lacks {', '.join(sorted(kind - columns))}"


def _pyprof_source(contents: Contents, file: Path) -> Source:
    # Two folders may hold tables of one name.
    taken = any(source.id == file.name for source in contents.sources)
    named = _name_in(contents, file) if taken else file.name
    try:
        run_id = parse_id(file.name.partition(".")[0])
    except UserError:
        contents.note(f"{named} is not named after a run: its configuration is unknown")
        return Source(named, "pyprof", dict.fromkeys(ID_FIELDS), 0, None, file)
    return Source(named, "pyprof", dict(run_id.fields), run_id.repetition, run_id.exit_code, file)
