"""What a profiler's output became: tables by name, and findings."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from profiling.findings import Finding


@dataclass
class Converted:
    """What a tool's output became: tables by name, and findings."""

    tables: "dict[str, pa.Table]"
    findings: list[Finding] = field(default_factory=list)


def collect(pieces: "Iterable[tuple[str, pa.Table]]", findings: list[Finding]) -> Converted:
    """Pieces of tables as whole tables; tables may be absent."""
    by_name: dict[str, list[pa.Table]] = {}
    for name, piece in pieces:
        by_name.setdefault(name, []).append(piece)
    tables = {name: pa.concat_tables(some).unify_dictionaries() for name, some in by_name.items()}
    return Converted(tables, findings)
