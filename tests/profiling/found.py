"""Findings by their codes."""

from collections.abc import Iterable
from typing import Any

from profiling.findings import Finding


def codes(findings: Iterable[Finding]) -> list[str]:
    """The codes in their order."""
    return [finding.code for finding in findings]


def data_of(findings: Iterable[Finding], code: str) -> list[dict[str, Any]]:
    """The data of each finding of a code."""
    return [dict(finding.data) for finding in findings if finding.code == code]
