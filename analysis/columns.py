"""The meaning of each column of each command.

python -m analysis.columns                    all commands, as in docs/columns.md
python -m analysis.columns batches anatomy    only these commands
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from analysis.display.metrics import CONFIDENCE, FIELDS, IN_RUN, NOMINAL, RANGE, UNITS, Metric
from analysis.frames.measure import columns_of
from jobs.flags import make_parser
from profiling.errors import UserError, did_you_mean, run_command

_HEAD = """# Columns

The columns of each command's results in CSV, JSON, Parquet and DataFrames. A command's `--columns` also
gives the headings of its tables. `python -m analysis.columns > docs/columns.md` writes this page.

Names end in their unit ({units}).

`(_low, _high)` stands for two more columns: the ends of an interval. The brackets give its kind
(docs/methods.md has the measured coverage of each):

- `{confidence}`: 95 % confidence interval; it contains the true value in 95 % of cases or more
- `{nominal}`: 95 % confidence interval; it contains the true value in 93 to 98 % of cases
- `{in_run}`: interval over the steps of one run; it does not cover differences between runs
- `{range}`: lowest and highest of the variants tried, or of the measurements
"""
_FIELDS = "These columns identify a run or configuration:"


def commands() -> dict[str, ModuleType]:
    """The commands whose answers have columns, by name; each says them as ``COLUMNS``."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("[a-z]*.py")), here / "studies/__main__.py"]
    names = [".".join(path.relative_to(here).with_suffix("").parts) for path in files]
    modules = {name: importlib.import_module(f"analysis.{name}") for name in names if name != "columns"}
    return {name.removesuffix(".__main__"): one for name, one in modules.items() if columns_of(one)}


def page(wanted: Sequence[str] = ()) -> str:
    """The page of some commands; of all, with the fields of a run before them, without any."""
    modules = commands()
    for name in wanted:
        if name not in modules:
            raise UserError(f"no command {name!r} with columns{did_you_mean(name, modules)}")
    pieces = [_section(name, modules[name]) for name in wanted or modules]
    if not wanted:
        units = ", ".join(f"`{end}` {unit}" for end, unit in UNITS.items())
        of_a_run = f"## Fields of a run\n\n{_FIELDS}\n\n{_list(tuple(FIELDS.values()))}"
        pieces = [
            _HEAD.format(units=units, confidence=CONFIDENCE, nominal=NOMINAL, in_run=IN_RUN, range=RANGE),
            of_a_run,
            *pieces,
        ]
    return "\n".join(pieces)


def _section(name: str, command: ModuleType) -> str:
    question = (command.__doc__ or "").partition("\n")[0]
    lists = (f"{said}\n\n{_list(metrics)}" for said, metrics in columns_of(command).items())
    return "\n".join([f"## analysis.{name}: {question}\n", *lists])


def _list(metrics: Sequence[Metric]) -> str:
    return "".join(f"- `{one.label}`: {one.description}\n" for one in metrics)


def main() -> int:
    """The command; see the module's docstring."""
    parser = make_parser("python -m analysis.columns", __doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="e.g. batches [all]")
    print(page(parser.parse_args().commands), end="")
    return 0


if __name__ == "__main__":
    run_command(main)
