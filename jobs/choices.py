"""Which profilers, loaders, backends and launchers are there?

    python -m jobs.choices                     all, as tables; in a file or a pipe in Markdown
    python -m jobs.choices loaders launchers   these
    python -m jobs.choices --write DOCS...     put them into pages of the docs

The docs hold such a table between ``<!-- choices: loaders -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from jobs.backends import BACKENDS
from jobs.flags import make_parser
from jobs.launchers import LAUNCHERS
from jobs.loaders import LOADERS, LoaderKind
from jobs.shown import Row, show_rows
from jobs.store import write_text
from profiling.errors import EXIT_DONE, UserError, did_you_mean, run_command
from profiling.tools import STARTED, TOOLS, tool

_BLOCK = re.compile(r"(<!-- choices: (?P<kind>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Choices:
    """What there is of a kind, in Markdown: its headings and a row each."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def in_markdown(self) -> str:
        """As a table of the docs."""
        lines = (self.headings, ["---"] * len(self.headings), *self.rows)
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def show(self, kind: str) -> None:
        """As a table on a terminal."""
        head, *rows = [[cell.replace("`", "") for cell in cells] for cells in (self.headings, *self.rows)]
        show_rows(kind, head, [Row(cells) for cells in rows])


def _profilers() -> Choices:
    rows = [
        (f"`{name}`" if name in STARTED else f"(`{name}`)", tool(name).started, tool(name).reads)
        for name in TOOLS
        if name != "none"
    ]
    return Choices(("`profile`", "started as", "read by `python -m profiling.convert`"), rows)


def _loaders() -> Choices:
    rows = [(f"`{name}`", loader.meaning, _needs(loader)) for name, loader in LOADERS.items()]
    return Choices(("`loader`", "what it does", "needs"), rows)


def _needs(loader: LoaderKind) -> str:
    needs = [loader.library.name] if loader.library else []
    needs += ["a GPU"] if loader.needs_gpu else []
    return ", ".join([*needs, *(["`data`"] if loader.reads_data else [])]) or "nothing"


def _backends() -> Choices:
    rows = [("`auto`", "single for one rank, otherwise ddp")]
    rows += [(f"`{name}`", backend.meaning) for name, backend in BACKENDS.items()]
    return Choices(("`backend`", "how gradients are exchanged"), rows)


def _launchers() -> Choices:
    rows = [(f"`{name}`", launcher.starts, launcher.where) for name, launcher in LAUNCHERS.items()]
    return Choices(("`--launcher`", "starts", "where"), rows)


KINDS: dict[str, Callable[[], Choices]] = {
    "profilers": _profilers,
    "loaders": _loaders,
    "backends": _backends,
    "launchers": _launchers,
}


def with_tables(page: str) -> str:
    """A page of the docs with its tables of choices as they are now.

    Raises:
        UserError: it asks for a table that there is not.
    """

    def filled(block: re.Match[str]) -> str:
        if block["kind"] not in KINDS:
            raise UserError(f"no table of {block['kind']!r}{did_you_mean(block['kind'], KINDS)}")
        return f"{block[1]}{KINDS[block['kind']]().in_markdown()}{block[3]}"

    return _BLOCK.sub(filled, page)


def show(kinds: Sequence[str]) -> None:
    """Tables for who reads them; in a file or a pipe, as the docs have them."""
    on_a_terminal = Console().is_terminal
    for number, kind in enumerate(kinds):
        if number:
            print()
        if on_a_terminal:
            KINDS[kind]().show(kind)
        else:
            print(KINDS[kind]().in_markdown(), end="")


def main() -> int:
    parser = make_parser("python -m jobs.choices", __doc__)
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=f"any of {', '.join(KINDS)} [all]")
    add("--write", nargs="+", type=Path, default=[], metavar="FILE", help="documentation pages to update")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        if kind not in KINDS:
            raise UserError(f"no table of {kind!r}{did_you_mean(kind, KINDS)}")
    for path in arguments.write:
        write_text(path, with_tables(path.read_text(encoding="utf-8")))
    if not arguments.write:
        show(arguments.kinds or list(KINDS))
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
