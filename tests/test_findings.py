"""Findings are data: each code has a template and is raised, and alike ones are one line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from profiling.findings import Finding, as_data, catalogue, lines

ROOT = Path(__file__).resolve().parents[1]
MOST_CODES = 100


def source_text() -> str:
    return "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("jobs", "train", "profiling", "analysis")
        for path in sorted((ROOT / package).rglob("*.py"))
    )


def test_every_code_is_raised_somewhere_and_they_are_few():
    text = source_text()
    assert not [code for code in catalogue() if not re.search(rf"[\"']{code}[\"']", text)]
    assert len(catalogue()) <= MOST_CODES
    assert {entry.severity for entry in catalogue().values()} <= {1, 2, 3}


def test_every_raised_code_is_in_a_catalogue():
    raised = set(re.findall(r"(?:\bFinding|\.note|\.find)\(\s*\"([^\"]*)\"", source_text()))
    assert {code for code in raised if re.fullmatch(r"[a-z0-9_]+", code)} <= set(catalogue())


def test_a_code_is_in_one_catalogue_alone():
    texts = [(ROOT / package / "findings.yaml").read_text() for package in ("profiling", "jobs", "analysis")]
    codes = re.findall(r"^(\w+):", "\n".join(texts), re.MULTILINE)
    assert len(codes) == len(set(codes)) == len(catalogue())


def ranks_missing(run: str, *ranks: int, of: int = 8) -> Finding:
    return Finding("profiles_missing", run, data={"n": len(ranks), "of": of, "ranks": ranks})


def test_findings_of_one_code_are_one_line():
    (alone,) = lines([ranks_missing("a", 3)])
    assert alone.endswith("1 of 8 (3) (a)")
    (both,) = lines([ranks_missing("a", 3), ranks_missing("b", 0, 1, of=4), ranks_missing("a", 3)])
    assert both.endswith("1 to 2 of 4 to 8 (0-1, 3) (2 runs)")
    (ranks,) = lines([Finding("recorded", rank=rank, data={"text": "late"}) for rank in (0, 1, 2, 7)])
    assert ranks == "late (ranks 0-2, 7)"


def test_the_most_severe_come_first_and_the_rest_is_counted():
    found = [Finding("recorded", data={"text": f"sentence {n}"}) for n in range(6)] + [ranks_missing("a", 1)]
    shown = lines(found, 5)
    assert len(shown) == 6 and "2" in shown[-1]
    assert shown[0] == lines([found[-1]])[0]
    assert [one["severity"] for one in as_data(found)] == [3] + [1] * 6
    assert len(lines(found)) == 7


def test_sides_are_apart():
    a, b = (ranks_missing("x", 1).of(side=side) for side in ("A", "B"))
    assert [line[:3] for line in lines([a, b])] == ["A: ", "B: "]


class Record(BaseModel):
    findings: list[Finding] = []


def test_manifests_of_earlier_versions_are_read():
    record = Record.model_validate_json('{"findings": ["the clock is late", {"code": "x", "rank": 1}]}')
    assert lines(record.findings[:1]) == ["the clock is late"]
    written = json.loads(record.model_dump_json())["findings"]
    assert [Finding.from_json(one) for one in written] == record.findings


def test_data_of_another_version_is_shown_as_it_is():
    assert lines([Finding("not_known_here", "a", data={"n": 3})]) == ["not_known_here n=3 (a)"]
    assert "n=3" in lines([Finding("profiles_missing", data={"n": 3})])[0]


@pytest.mark.parametrize("value", [np.int64(3), np.float64(3.0), {3}, (3,), Path("3")])
def test_data_is_plain_json(value):
    assert json.loads(json.dumps(Finding("recorded", data={"text": value}).to_json()))


def test_no_control_character_gets_out():
    assert lines([Finding("recorded", "a\nb", data={"text": "\x1b[31mred"})]) == ["?[31mred (a?b)"]
