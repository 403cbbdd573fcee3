"""Profilers, loaders, backends and launchers, as tables for the docs.

    python -m jobs.choices                     all, as tables in Markdown
    python -m jobs.choices loaders launchers   these
    python -m jobs.choices --write DOCS...     put them into pages of the docs

The docs hold such a table between ``<!-- choices: loaders -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from jobs.flags import make_parser
from jobs.launchers import LAUNCHERS
from jobs.loaders import LOADERS
from jobs.run import BACKENDS
from jobs.store import write_text
from profiling.errors import EXIT_DONE, UserError, did_you_mean, run_command
from profiling.tools import STARTED, TOOLS, tool

_BLOCK = re.compile(r"(<!-- choices: (?P<kind>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEADINGS = {
    "profilers": ("`profile`", "started as", "read by `python -m profiling.convert`"),
    "loaders": ("`loader`", "what it does", "needs"),
    "backends": ("`backend`", "how gradients are exchanged"),
    "launchers": ("`--launcher`", "starts", "where"),
}


def _rows(kind: str) -> list[Sequence[str]]:
    if kind == "profilers":
        names = [name for name in TOOLS if name != "none"]
        shown = {name: f"`{name}`" if name in STARTED else f"(`{name}`)" for name in names}
        return [(shown[name], tool(name).started, tool(name).reads) for name in names]
    if kind == "loaders":
        rows: list[Sequence[str]] = []
        for name, loader in LOADERS.items():
            library = loader.library.name if loader.library else ""
            needs = [library, "a GPU" if loader.on_cpu else "", "`data`" if loader.reads_data else ""]
            rows.append((f"`{name}`", loader.meaning, ", ".join(filter(None, needs)) or "nothing"))
        return rows
    if kind == "backends":
        auto = ("`auto`", "single for one rank, otherwise ddp")
        return [auto, *((f"`{name}`", backend.meaning) for name, backend in BACKENDS.items())]
    return [(f"`{name}`", launcher.starts, launcher.where) for name, launcher in LAUNCHERS.items()]


def table(kind: str) -> str:
    """A table of the docs, in Markdown."""
    if kind not in HEADINGS:
        raise UserError(f"no table of {kind!r}{did_you_mean(kind, HEADINGS)}")
    lines = (HEADINGS[kind], ["---"] * len(HEADINGS[kind]), *_rows(kind))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def with_tables(page: str) -> str:
    """A page of the docs with its tables of choices as they are now."""
    return _BLOCK.sub(lambda block: block[1] + table(block["kind"]) + block[3], page)


def main() -> int:
    parser = make_parser("python -m jobs.choices", __doc__)
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(HEADINGS)} [all]")
    add("--write", nargs="+", type=Path, default=[], metavar="FILE", help="documentation pages to update")
    arguments = parser.parse_args()
    tables = [table(kind) for kind in arguments.kinds or HEADINGS]
    for path in arguments.write:
        write_text(path, with_tables(path.read_text(encoding="utf-8")))
    if not arguments.write:
        print("\n".join(tables), end="")
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
