"""What does each column of each command mean?

python -m analysis.columns                    all commands, as docs/columns.md has them
python -m analysis.columns batches anatomy    these
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from analysis.display.metrics import CONFIDENCE, FIELDS, IN_RUN, NOMINAL, RANGE, UNITS, Metric
from jobs.flags import make_parser
from profiling.errors import UserError, did_you_mean, run_command

_HEAD = """# Columns

What each column of each command's answers means: of CSV, JSON, Parquet and DataFrames; tables show some of
them under shorter headers. `python -m analysis.columns > docs/columns.md` writes this page from the measures'
own definitions, of which `--help` and the report's tooltips are made, too.

A name ends in its unit ({units}). "(_low, _high)" stands for two more columns, the ends of an interval, which
the brackets behind its meaning name: `{confidence}` holds the truth at least so often, `{nominal}` in 93 to
98 % of cases; `{in_run}` is of the batches of one run and says nothing of other runs; `{range}` is of what
was tried (docs/methods.md says how often each was measured to hold the truth).
"""
_FIELDS = "Where a row is of a run or configuration, these say which:"


def commands() -> dict[str, ModuleType]:
    """The commands whose answers have columns, by name; each says them as ``COLUMNS``."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("[a-z]*.py")), here / "studies/__main__.py"]
    names = [".".join(path.relative_to(here).with_suffix("").parts) for path in files]
    modules = {name: importlib.import_module(f"analysis.{name}") for name in names if name != "columns"}
    return {
        name.removesuffix(".__main__"): one
        for name, one in modules.items()
        if isinstance(getattr(one, "COLUMNS", None), dict)
    }


def page(wanted: Sequence[str] = ()) -> str:
    """The page of some commands; of all, with the fields of a run before them, without any."""
    modules = commands()
    for name in wanted:
        if name not in modules:
            raise UserError(f"no command {name!r} answers in columns{did_you_mean(name, modules)}")
    pieces = [_section(name, modules[name]) for name in wanted or modules]
    if not wanted:
        units = ", ".join(f"`{end}` {unit}" for end, unit in UNITS.items())
        of_a_run = f"## Fields of a run\n\n{_FIELDS}\n\n{_table(tuple(FIELDS.values()))}"
        pieces = [
            _HEAD.format(units=units, confidence=CONFIDENCE, nominal=NOMINAL, in_run=IN_RUN, range=RANGE),
            of_a_run,
            *pieces,
        ]
    return "\n".join(pieces)


def _section(name: str, command: ModuleType) -> str:
    question = (command.__doc__ or "").partition("\n")[0]
    groups: Mapping[str, Sequence[Metric]] = command.COLUMNS
    tables = (f"{said}\n\n{_table(metrics)}" for said, metrics in groups.items())
    return "\n".join([f"## analysis.{name}: {question}\n", *tables])


def _table(metrics: Sequence[Metric]) -> str:
    lines = (f"| `{one.label}` | {one.description.replace('|', chr(92) + '|')} |\n" for one in metrics)
    return f"| column | means |\n| --- | --- |\n{''.join(lines)}"


def main() -> int:
    """The command; see the module's docstring."""
    parser = make_parser("python -m analysis.columns", __doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="e.g. batches [all]")
    print(page(parser.parse_args().commands), end="")
    return 0


if __name__ == "__main__":
    run_command(main)
