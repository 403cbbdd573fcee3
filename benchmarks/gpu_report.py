"""What benchmarks.gpu has found, as files: gpu.json, and gpu.md for people.

Nothing but the standard library is needed, as in benchmarks.gpu.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.tables import whole_file


def left_out(why: str) -> dict[str, Any]:
    """The result of a part that was not done."""
    return {"status": "left out", "why": why}


def is_bad(part: Mapping[str, Any]) -> bool:
    """Whether a part failed, or found what is not right."""
    return part["status"] == "failed" or bool(part.get("wrong"))


def write(report: Mapping[str, Any], out: Path) -> None:
    """Both files, each whole or as it was."""
    for name, text in (("gpu.json", json.dumps(report, indent=1) + "\n"), ("gpu.md", as_markdown(report))):
        with whole_file(out / name) as file:
            file.write(text.encode())


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report for people: first what is not right, then each part."""
    lines = [
        "# scaleprof on this GPU",
        "",
        f"    {report['command']}",
        "",
        f"Started {report['started']}.",
        "",
    ]
    lines += [f"Not installed from the wheels: {name}: {why}" for name, why in report["wheels"].items()]
    lines += [*_summary(report["parts"]), ""]
    for name, part in report["parts"].items():
        lines += [f"## {name}: {part['question']}", ""]
        if part["status"] != "done":
            lines += [f"{part['status']}: {part['why']}", ""]
        for table in part.get("tables", []):
            lines += [*_table(table), ""]
        lines += [f"- {note}" for note in part.get("notes", [])]
        lines += [f"- left out: {what}: {why}" for what, why in part.get("left_out", {}).items()]
        lines += [f"- **not right**: {what}" for what in part.get("wrong", [])]
        lines += [f"- took {part['seconds']:.0f} s", ""] if "seconds" in part else [""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    done = [name for name, part in parts.items() if part["status"] == "done"]
    bad = [name for name, part in parts.items() if is_bad(part)]
    left = [name for name, part in parts.items() if _needs_more_time(part)]
    lines = [f"- {len(done)} of {len(parts)} parts done"]
    lines += [f"- failed, or with results that are not right: {', '.join(bad)}"] if bad else []
    return [*lines, *([f"- the time was too short for: --parts {','.join(left)}"] if left else [])]


def _needs_more_time(part: Mapping[str, Any]) -> bool:
    """Whether a part, or something of it, was left out for lack of time."""
    reasons = [part.get("why", ""), *part.get("left_out", {}).values()]
    return any("the time was up" in why or "took more than" in why for why in reasons)


def _table(table: Mapping[str, Any]) -> list[str]:
    rows = [[_cell(value) for value in row] for row in table["rows"]]
    head = [f"| {' | '.join(table['columns'])} |", f"|{' --- |' * len(table['columns'])}"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)
