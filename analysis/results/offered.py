"""What does the Tab key offer for fields and runs? What the names of the runs in a folder of results say.

Only names are read: who presses Tab does not wait for tables.
"""

from argparse import Action, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs.run import Run
from jobs.run_id import RunId, in_order, parse_id
from profiling.completion import with_answers
from profiling.errors import UserError


def offer_fields(action: Action, others: Sequence[str] = ()) -> None:
    """Let the shell offer fields of a run, with commas between: those that differ between the runs there.

    Args:
        others: that the argument takes, too.
    """
    with_answers(action, lambda given: [*_fields_in(given), *others], several=True)


def offer_runs(action: Action, profiled: bool = False) -> None:
    """Let the shell offer the ids of the runs there that have succeeded; or only of profiled ones."""
    with_answers(action, lambda given: [name for name, run in _runs_in(given) if _is_it(run, profiled)])


def _is_it(run: RunId, profiled: bool) -> bool:
    return run.exit_code == 0 and (not profiled or run.run.profile != "none")


def _fields_in(given: Namespace) -> list[str]:
    """The fields that have several values; all, if none has."""
    values: dict[str, set] = {}
    for _, run in _runs_in(given):
        for name, value in {**run.fields, **(run.factors or {})}.items():
            values.setdefault(name, set()).add(value)
    varied = [name for name, some in values.items() if len(some) > 1]
    return varied or [name for name in Run.model_fields if name != "factors"]


def _runs_in(given: Namespace) -> Iterator[tuple[str, RunId]]:
    path = getattr(given, "path", None)
    inside = path.iterdir() if isinstance(path, Path) and path.is_dir() else ()
    for name in sorted((one.name for one in inside), key=in_order):
        try:
            yield name, parse_id(name)
        except UserError:  # no run's folder
            continue
