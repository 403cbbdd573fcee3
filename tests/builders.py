"""What tests of several packages build and look up: programs, ended runs, findings, tables."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs.store import MANIFEST
from profiling.findings import Finding
from profiling.tools import read, recognise


def put_programs(folder: Path, **scripts: str) -> None:
    """Put shell scripts where programs are looked for."""
    for name, text in scripts.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)


def a_folder(path: Path) -> None:
    """Put a folder in a file's place."""
    path.unlink()
    path.mkdir()


def ended_runs(sweep: Path) -> list[Path]:
    """The directories of the ended runs of a sweep, by name."""
    return [path.parent for path in sorted(sweep.glob(f"run_*_ret_*/{MANIFEST}"))]


def codes(findings: Iterable[Finding]) -> list[str]:
    """The codes in their order."""
    return [finding.code for finding in findings]


def data_of(findings: Iterable[Finding], code: str) -> list[dict[str, Any]]:
    """The data of each finding of a code."""
    return [dict(finding.data) for finding in findings if finding.code == code]


def tables(path: Path, tool: str, text: str = "") -> tuple[dict[str, Any], list[Finding]]:
    """The tables of a file as DataFrames, and its findings; it must be recognised as the tool's.

    Args:
        text: what is written there first, if anything.
    """
    if text:
        path.write_text(text)
    assert recognise(path) == tool
    converted = read(path)
    return {name: table.to_pandas() for name, table in converted.tables.items()}, converted.findings
