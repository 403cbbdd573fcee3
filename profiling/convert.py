"""python -m profiling.convert PATH... [--tool NAME] [--out DIR]: what a profiler wrote, as tables.

Files are recognised by what is in them; folders are walked. The tables of a file go to a folder named after
it, OUT/<name>/kernels.parquet and so on; without --out beside the file. Exit code 1: some files were not
recognised or could not be read; 2: none could.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from profiling.chunks import read_head, why_unreadable
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.tables import write
from profiling.tools import TOOLS, Converted, tool

_ENDINGS = re.compile(r"(\.(json|gz|gzip|parquet|csv|sqlite|xml|pt|trace|txt))+$", re.IGNORECASE)
# What we write ourselves is not to be converted again.
_OUR_TABLES = re.compile(
    r"^(batches|markers|kernels|intervals|atomics)\.parquet$|^(manifest|rank|sweep|calibration)\.json$|^log\.txt$"
)


def recognise(path: Path) -> str | None:
    """The name of the tool that wrote a file, by what is in it; None if none is known.

    Raises:
        UserError: the file cannot be read, or is damaged beyond recognition.
    """
    head = read_head(path)
    modules = ((name, tool(name)) for name in TOOLS)
    return next(
        (name for name, module in modules if hasattr(module, "recognise") and module.recognise(path, head)),
        None,
    )


def read(path: Path, name: str | None = None) -> Converted:
    """A profiler's file as tables.

    Args:
        name: of the tool; None: recognised.

    Raises:
        UserError: not recognised, or broken.
    """
    name = name or recognise(path)
    if name is None:
        known = f"is of no profiler known here ({', '.join(_readers())}); say which with --tool"
        raise UserError(f"{path} {why_unreadable(path) or known}")
    module = tool(name)
    if not hasattr(module, "read"):
        raise UserError(f"--tool {name} writes no files to read; one of: {', '.join(_readers())}")
    converted: Converted = module.read(path)
    return converted


def _readers() -> list[str]:
    return [name for name in TOOLS if hasattr(tool(name), "read")]


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The files to convert: those named, and those in the folders named, tables of ours left out.

    Raises:
        UserError: a path does not exist.
    """
    for path in paths:
        if path.is_dir():
            inside = sorted(found for found in path.rglob("*") if found.is_file())
            yield from (
                found for found in inside if not _OUR_TABLES.match(found.name) and found.name[0] != "."
            )
        elif path.exists():
            yield path
        else:
            raise UserError(f"{path} does not exist")


def target_of(path: Path, out: Path | None) -> Path:
    """Where the tables of a file go."""
    stem = _ENDINGS.sub("", path.name) or path.name
    folder = (out or path.parent) / stem
    return folder.with_name(stem + ".tables") if folder.is_file() else folder


def convert(paths: Iterable[Path], name: str | None = None, out: Path | None = None) -> tuple[int, int]:
    """Convert files; how many were, and how many were not. Each that was not gets one line on stderr.

    Raises:
        UserError: a path does not exist, or the only file cannot be converted.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    files = list(files_of(paths))
    used: set[Path] = set()
    done = failed = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("convert", total=len(files))
        for path in files:
            progress.update(bar, description=path.name)
            try:
                target, findings = _convert_file(path, name, out, used)
            except UserError as error:
                if len(files) == 1:
                    raise
                print(f"scaleprof: {error}", file=sys.stderr)
                failed += 1
            else:
                for finding in findings:
                    print(f"scaleprof: {finding}", file=sys.stderr)
                print(target)
                done += 1
            progress.advance(bar)
    return done, failed


def _convert_file(path: Path, name: str | None, out: Path | None, used: set[Path]) -> tuple[Path, list[str]]:
    """Write a file's tables; where they are, and what was found on the way."""
    converted = read(path, name)
    target = _unused(target_of(path, out), used)
    try:
        for table, rows in converted.tables.items():
            write(rows, target, table)
    except OSError as error:
        raise UserError(
            f"cannot write to {target}: {error.strerror or error}; free some space or choose another --out"
        ) from None
    return target, converted.findings


def _unused(target: Path, used: set[Path]) -> Path:
    # Two files of one name from different folders must not share a folder of tables.
    number, free = 2, target
    while free in used:
        free = target.with_name(f"{target.name}-{number}")
        number += 1
    used.add(free)
    return free


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the flags)")


def main(arguments: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = _Parser(
        prog="python -m profiling.convert", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    parser.add_argument(
        "--tool", metavar="NAME", help=f"of the profiler, if not to be recognised: {', '.join(TOOLS)}"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the tables go [beside each file]")
    given = parser.parse_args(arguments)
    if given.tool is not None:
        tool(given.tool)
    if given.out is not None and given.out.exists() and not given.out.is_dir():
        raise UserError(f"--out {given.out} is a file; name a folder")
    done, failed = convert(given.paths, given.tool, given.out)
    if not done:
        raise UserError(
            f"nothing was converted: none of {failed} files can be read"
            if failed
            else "nothing to convert: no files there"
        )
    print(f"scaleprof: {done} converted, {failed} not", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
