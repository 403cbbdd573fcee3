"""The columns of all commands' results, with their meanings, as in docs/columns.md.

    python -m analysis.columns

``--columns`` of a command lists its own.
"""

import importlib
from pathlib import Path

from analysis.display.metrics import FIELDS, UNITS
from analysis.frames.measure import Command
from jobs.flags import make_parser
from profiling.errors import run_command

_HEAD = """# Columns

The columns of results in CSV, JSON, Parquet and DataFrames. Each is listed once, below the first command that
has it. `--columns` of a command lists all of its columns, with the kinds of
[intervals](methods.md#intervals-and-their-names).

Names end in their unit (`_pct`: %, `_us`: us, `_gb_per_s`: GB/s, `_mbyte`: MB, `_w`: W ...). ± marks a column
with an interval, from `_low` to `_high`. Rows are identified by `run`, `world_size` (number of ranks),
`repetition` and the fields of a run.

Names may contain these parts:

{parts}"""
# A part of a name, what it is replaced by to give the name of a column that is listed, and what it means.
_PARTS = (
    ("a_", "", "of the first result"),
    ("b_", "", "of the second result"),
    ("b_", "a_", "of the second result"),
    ("base_", "", "of the baseline"),
    ("grew_", "", "growth relative to the baseline"),
    ("loss_", "", "growth of this part, as a part of `loss_pct`"),
    ("mean_", "", "mean of all steps instead of the median"),
    ("forward_", "", "of the forward pass"),
    ("backward_", "forward_", "of the backward pass"),
    ("_longer", "", "how much longer than on the other ranks"),
    ("_of_measured", "", "relative to the peak measured on this machine"),
)


def commands() -> dict[str, Command]:
    """The commands whose answers have columns, by name."""
    names = [path.stem for path in sorted(Path(__file__).parent.glob("[a-z]*.py")) if path.stem != "columns"]
    mains = {name: getattr(importlib.import_module(f"analysis.{name}"), "main", None) for name in names}
    return {name: main for name, main in mains.items() if isinstance(main, Command) and main.measure.columns}


def page() -> str:
    """The page of the docs: each column once."""
    meanings = {part: meaning for part, _, meaning in _PARTS}
    parts = "".join(f"- `{part}`: {meaning}\n" for part, meaning in meanings.items())
    pieces = [_HEAD.format(parts=parts)]
    seen = set(FIELDS)
    for name, command in commands().items():
        lines = []
        for metric in (metric for metrics in command.measure.columns.values() for metric in metrics):
            if metric.name not in seen and not _derived(metric.name, seen):
                lines.append(f"{metric.name + '±' * bool(metric.interval):<32} {metric.meaning}\n")
            seen.add(metric.name)
        if lines:
            pieces.append(f"## {name}\n\n```\n{''.join(lines)}```\n")
    return "\n".join(pieces)


def _derived(name: str, seen: set[str]) -> bool:
    """Whether a name is that of a column seen before, perhaps in another unit, with a part of ``_PARTS``."""
    parts = [part for part in _PARTS if name.startswith(part[0]) or (part[0][0] == "_" and part[0] in name)]
    others = [name.replace(part, instead, 1) for part, instead, _ in parts]
    stems = {_stem(one) for one in seen if _stem(one) != one}
    return any(one in seen or (_stem(one) != one and _stem(one) in stems) for one in others)


def _stem(name: str) -> str:
    """A name without its unit."""
    return name.removesuffix(next((end for end in UNITS if name.endswith(end)), ""))


def main() -> int:
    """The command; see the module's docstring."""
    make_parser("python -m analysis.columns", __doc__).parse_args()
    print(page(), end="")
    return 0


if __name__ == "__main__":
    run_command(main)
