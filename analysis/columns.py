"""The columns of all commands' results, with their meanings, as in docs/columns.md.

    python -m analysis.columns

COMMAND --columns lists those of one command.
"""

import importlib
from pathlib import Path

from analysis.display.metrics import FIELDS
from analysis.frames.measure import Command
from jobs.run_fields import make_parser
from profiling.errors import run_command

_HEAD = """# Columns

The columns of results in CSV, JSON and Parquet. Each is listed once, below the first command that has it.
`--columns` of a command lists all of its columns, also those of `--all`, with the kinds of
[intervals](methods.md#intervals-and-their-names).

Names end in their unit (`_pct`: %, `_us`: us, `_gb_per_s`: GB/s, `_mbyte`: MB, `_w`: W ...). ± marks a column
with an interval, from `_low` to `_high`. Rows are identified by `run`, `world_size` (number of ranks),
`repetition` and the fields of a run.
"""


def commands() -> dict[str, Command]:
    """The commands whose answers have columns, by name."""
    names = [path.stem for path in sorted(Path(__file__).parent.glob("[a-z]*.py")) if path.stem != "columns"]
    mains = {name: getattr(importlib.import_module(f"analysis.{name}"), "main", None) for name in names}
    return {name: main for name, main in mains.items() if isinstance(main, Command) and main.measure.columns}


def page() -> str:
    """The page of the docs: each column once."""
    pieces = [_HEAD]
    seen = set(FIELDS)
    for name, command in commands().items():
        lines = []
        for metric in (metric for metrics in command.measure.columns.values() for metric in metrics):
            if metric.name not in seen and not metric.detail:
                lines.append(f"{metric.name + '±' * bool(metric.interval):<32} {metric.meaning}\n")
            seen.add(metric.name)
        if lines:
            pieces.append(f"## {name}\n\n```\n{''.join(lines)}```\n")
    return "\n".join(pieces)


def main() -> int:
    make_parser("python -m analysis.columns", __doc__).parse_args()
    print(page(), end="")
    return 0


if __name__ == "__main__":
    run_command(main)
