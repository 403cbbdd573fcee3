"""Which profilers, loaders, backends and launchers are there?

    python -m jobs.choices                     all, as tables
    python -m jobs.choices loaders launchers   these
    python -m jobs.choices --write DOCS...     put them into pages of the docs

The docs hold such a table between ``<!-- choices: loaders -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jobs.backends import BACKENDS
from jobs.flags import make_parser
from jobs.launchers import LAUNCHERS
from jobs.loaders import LOADERS, LoaderKind
from jobs.store import write_text
from profiling.errors import EXIT_DONE, UserError, did_you_mean, run_command
from profiling.tools import STARTED, TOOLS, tool

_BLOCK = re.compile(r"(<!-- choices: (?P<kind>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _profilers() -> str:
    rows = [
        (f"`{name}`" if name in STARTED else f"(`{name}`)", tool(name).started, tool(name).reads)
        for name in TOOLS
        if name != "none"
    ]
    return _table(("`profile`", "started as", "read by `python -m profiling.convert`"), rows)


def _loaders() -> str:
    rows = [(f"`{name}`", loader.meaning, _needs(loader)) for name, loader in LOADERS.items()]
    return _table(("`loader`", "what it does", "needs"), rows)


def _needs(loader: LoaderKind) -> str:
    needs = [loader.library.name] if loader.library else []
    needs += ["a GPU"] if loader.needs_gpu else []
    return ", ".join([*needs, *(["`data`"] if loader.reads_data else [])]) or "nothing"


def _backends() -> str:
    rows = [("`auto`", "single for one rank, otherwise ddp")]
    rows += [(f"`{name}`", backend.meaning) for name, backend in BACKENDS.items()]
    return _table(("`backend`", "how gradients are exchanged"), rows)


def _launchers() -> str:
    rows = [(f"`{name}`", launcher.starts, launcher.where) for name, launcher in LAUNCHERS.items()]
    return _table(("`--launcher`", "starts", "where"), rows)


KINDS: dict[str, Callable[[], str]] = {
    "profilers": _profilers,
    "loaders": _loaders,
    "backends": _backends,
    "launchers": _launchers,
}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def with_tables(page: str) -> str:
    """A page of the docs with its tables of choices as they are now.

    Raises:
        UserError: it asks for a table that there is not.
    """

    def filled(block: re.Match[str]) -> str:
        if block["kind"] not in KINDS:
            raise UserError(f"no table of {block['kind']!r}{did_you_mean(block['kind'], KINDS)}")
        return f"{block[1]}{KINDS[block['kind']]()}{block[3]}"

    return _BLOCK.sub(filled, page)


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
        print("\n".join(KINDS[kind]() for kind in arguments.kinds or KINDS), end="")
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
