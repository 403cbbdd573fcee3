"""Files as tools of all releases, settings and languages print them give the tables recorded beside them.

``printed/TOOL/NAME.txt`` is a file, ``NAME.expected`` what is read of it and of each ``NAME.WAY.txt``.
After a change on purpose, ``python -m tests.profiling.test_printed`` records anew.
"""

import json
from pathlib import Path

import pytest

from profiling.readers.printed import has_decimal_commas, number_and_unit
from profiling.tools import read, recognise

PRINTED = Path(__file__).parent / "printed"
FILES = sorted(PRINTED.glob("*/*.txt"))


def expected(path: Path) -> Path:
    return path.with_name(path.name.partition(".")[0] + ".expected")


def shown(path: Path) -> str:
    """What is read from a file: its findings, and the columns of its tables that are not empty."""
    converted = read(path)
    text = [f"{finding.code} {json.dumps(finding.data)}\n" for finding in converted.findings]
    for name, table in sorted(converted.tables.items()):
        rows = table.to_pandas().dropna(axis=1, how="all")
        text.append(f"[{name}]\n{rows.to_csv(index=False, float_format='%.12g', lineterminator=chr(10))}")
    return "".join(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_printed_file_gives_the_recorded_tables(path):
    assert recognise(path) == path.parent.name
    assert shown(path) == expected(path).read_text()


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1,234.56", "us", 1_234_560), ("1.234,56", "us", 1_234_560), ("1\u202f234,56", "us", 1_234_560),
        ("1'234.56", "us", 1_234_560), ("1,234,567", "", 1_234_567), ("1.234.567", "", 1_234_567),
        ("2,50", "ms", 2_500_000), ("1,512", "ns", 1512), ("1.512", "us", 1512), ("12,5s", "", 12.5e9),
        ("1 234 567 B", "", 1_234_567), ("-5.5e-3", "s", -5_500_000), (".5", "", 0.5),
        ("0,250", "us", 250), ("-0,250", "", -0.25), ("0,000", "", 0),
    ],
)  # fmt: skip
def test_a_number_in_any_language(text, unit, value):
    assert number_and_unit(text, unit)[0] == pytest.approx(value)


@pytest.mark.parametrize(
    ("numbers", "has"),
    [
        (["kernel", "8.0", "1.234,5"], True), (["2,50"], True), (["0,250"], True), (["1.234,5s"], True),
        (["2,5 %"], True), (["1,234", "1,234.5", "(256, 1, 1)", "8.0"], False),
        (["1,234s", "1,234.5 Gbyte/s", "0.250", "1,5-dimethyl"], False),
    ],
)  # fmt: skip
def test_where_one_number_can_only_have_a_decimal_comma_all_have(numbers, has):
    assert has_decimal_commas(numbers) is has
    assert number_and_unit("1,512", decimal_comma=has)[0] == (1.512 if has else 1512)


if __name__ == "__main__":
    for file in FILES:
        expected(file).write_text(shown(file))
