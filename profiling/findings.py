"""Findings: what a reader needs to know about the numbers, as data, and their texts.

A finding has a code. The catalogues (``findings.yaml`` of ``profiling``, ``jobs`` and ``analysis``) define
the severity of each code and its text, a template filled with the finding's data::

    profiles_missing:
      severity: 3
      text: "ranks missing in the recording: {n} of {of} ({ranks:ranks})"

Severity 3: numbers are missing or wrong; 2: they are uncertain, or not comparable; 1: worth knowing. Findings
with the same code are printed as one line: differing numbers as a range, lists joined, and the runs and ranks
concerned. Formats of a field: ``ranks`` (0-2, 8), ``all`` (the whole list), ``ns`` (a duration), ``bytes``,
``pct``, ``ends`` and ``range`` (two numbers, or empty), ``grown`` (one, or empty), or Python's own. Without a
format, numbers have four significant digits, and only the first three items of a list are printed.
"""

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from profiling.errors import printable

Side = Literal["", "A", "B", "both"]
RECORDED = "recorded"  # a sentence of an earlier version, in a manifest
MOST_SHOWN = 5
_MOST_NAMES = 3
_PACKAGES = ("profiling", "jobs", "analysis")


@dataclass(frozen=True)
class Finding:
    """What is known of a run, a rank, a configuration, or of all results."""

    code: str  # its entry in a catalogue
    run: str | None = None  # id of the run, or name of the traced job or file
    rank: int | None = None  # number of the rank in the run
    configuration: str | None = None  # the values in which the configuration differs from the others
    side: Side = ""  # of two results that are compared, the one it is of, or both
    # what the template names, and more for those who read JSON. NumPy scalars become Python's
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", {name: _plain(value) for name, value in self.data.items()})

    def __hash__(self) -> int:
        return hash((self.code, self.run, self.rank, self.configuration, self.side, json.dumps(self.data)))

    def __str__(self) -> str:
        return _line([self])

    @property
    def severity(self) -> int:
        return catalogue().get(self.code, _UNKNOWN).severity

    def of(self, **fields: Any) -> "Finding":
        """The same finding, of this ``run``, ``rank``, ``configuration`` or ``side``."""
        return replace(self, **fields)

    def to_json(self) -> dict[str, Any]:
        """As it stands in manifests and reports of ranks: the code, and the fields that are known."""
        known = {
            name: value
            for name in ("run", "rank", "configuration", "side", "data")
            if (value := getattr(self, name)) not in (None, "", {})
        }
        return {"code": self.code, **known}

    @classmethod
    def from_json(cls, content: "Mapping[str, Any] | str | Finding") -> "Finding":
        """The finding of :meth:`to_json`; a string, as earlier versions wrote, is shown as it is."""
        if isinstance(content, Finding):
            return content
        if isinstance(content, str):
            return cls(RECORDED, data={"text": content})
        names = ("code", "run", "rank", "configuration", "side", "data")
        return cls(**{name: content[name] for name in names if name in content})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(cls.to_json)
        return core_schema.no_info_plain_validator_function(cls.from_json, serialization=written)


class Entry(NamedTuple):
    severity: int
    text: str


_UNKNOWN = Entry(2, "")


@cache
def catalogue() -> dict[str, Entry]:
    root = Path(__file__).resolve().parents[1]
    entries: dict[str, Entry] = {}
    for package in _PACKAGES:
        text = (root / package / "findings.yaml").read_text(encoding="utf-8")
        for code, entry in (yaml.safe_load(text) or {}).items():
            entries[code] = Entry(**entry)
    return entries


def merged(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings of one code, side, and subject (``what``, or a recorded text), the most severe first."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in dict.fromkeys(findings):
        subject = str(finding.data.get("what", "")) + str(finding.data.get("text", ""))
        groups.setdefault((finding.code, finding.side, subject), []).append(finding)
    return sorted(groups.values(), key=lambda group: -group[0].severity)


def lines(findings: Iterable[Finding], most: int | None = None) -> list[str]:
    """Each code in a line, the most severe first; ``most``: so many lines, and one that counts the rest."""
    groups = merged(findings)
    shown = [_line(group) for group in groups[:most]]
    rest = len(groups) - len(shown)
    return [*shown, *([f"further findings: {rest} (--notes)"] if rest else [])]


def as_data(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings for JSON, the most severe first: code, severity, what it is of, data, and the text."""
    ordered = [finding for group in merged(findings) for finding in group]
    return [{**one.to_json(), "severity": one.severity, "text": text_of([one])} for one in ordered]


def text_of(findings: Sequence[Finding]) -> str:
    """The text of findings of one code, without what they are of."""
    data: dict[str, Any] = {name: None for finding in findings for name in finding.data}
    for name in data:
        data[name] = _joined([finding.data[name] for finding in findings if name in finding.data])
    entry = catalogue().get(findings[0].code)
    try:
        if entry:
            return _FORMAT.vformat(entry.text, (), {**data, "count": len(findings)})
    except (KeyError, ValueError):
        entry = None  # written by another version: its data are shown as they are
    return " ".join([findings[0].code, *(f"{name}={value}" for name, value in data.items())])


def _line(findings: Sequence[Finding]) -> str:
    subjects = []
    for kind in ("configuration", "run"):
        if names := list(dict.fromkeys(str(of) for one in findings if (of := getattr(one, kind)))):
            subjects.append(names[0] if len(names) == 1 else f"{len(names)} {kind}s")
    if ranks := {one.rank for one in findings if one.rank is not None}:
        subjects.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {listed(ranks)}")
    side = f"{findings[0].side}: " if findings[0].side in ("A", "B") else ""
    text = f"{side}{text_of(findings)}" + (f" ({', '.join(subjects)})" if subjects else "")
    return printable(text)


def ranges(numbers: Iterable[int]) -> list[str]:
    """{0, 1, 2, 8} -> ["0-2", "8"], in ascending order."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(low) if low == high else f"{low}-{high}" for low, high in runs]


def listed(numbers: Iterable[int], most: int = 8) -> str:
    """Numbers in a line, of which at most so many ranges: ``0-2, 8``."""
    texts = ranges(numbers)
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


class _Span(NamedTuple):
    low: Any
    high: Any


def _joined(values: Sequence[Any]) -> Any:
    """The values of one field in several findings: one, a range of numbers, or a list of what differs."""
    first = values[0]
    if all(value == first for value in values):
        return first
    if all(isinstance(value, Real) for value in values):
        return _Span(min(values), max(values))
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return list(dict.fromkeys(flat))


class _Format(string.Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, _Span):
            low, high = self.format_field(value.low, spec), self.format_field(value.high, spec)
            return low if low == high else f"{low} to {high}"
        if isinstance(value, list):
            return _LISTS.get(spec, _names)(value)
        if isinstance(value, bool) or not isinstance(value, Real):
            return str(value)
        if as_text := _NUMBERS.get(spec):
            return as_text(float(value))
        return format(float(value), spec) if spec else _figure(float(value))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 or value % 1 == 0 else f"{value:.4g}"


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    size, unit = next((one for one in units if abs(value) >= one[0]), units[-1])
    return f"{value / size:.3g} {unit}"


_NUMBERS = {
    "ns": lambda value: _scaled(value, [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")]),
    "bytes": lambda value: _scaled(value, [(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")]),
    "pct": lambda value: f"{value:.3g} %",
    "ranks": lambda value: f"{value:.0f}",
}
_LISTS: dict[str, Callable[[Sequence[Any]], str]] = {
    "ranks": listed,
    "all": "; ".join,
    "ends": lambda ends: f" [{ends[0]:.1f}, {ends[1]:.1f}]" if ends else "",
    "grown": lambda of: f" (grew by {of[0]:.1f})" if of else "",
    "range": lambda ends: f" (range {ends[0]:+.1f} to {ends[1]:+.1f} %)" if ends else "",
}
_FORMAT = _Format()


def _names(values: Sequence[Any]) -> str:
    named = [_figure(value) if isinstance(value, float) else str(value) for value in values]
    between = "; " if any(", " in name for name in named) else ", "
    return between.join(named[:_MOST_NAMES]) + (f"{between}..." if len(named) > _MOST_NAMES else "")


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(_plain(one) for one in value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value
