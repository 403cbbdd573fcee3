"""Files as tools of all releases, settings and languages print them give the tables recorded beside them.

``printed/TOOL/NAME.txt`` is a file, ``NAME.expected`` what is read of it and of each ``NAME.WAY.txt``.
After a change on purpose, ``python -m tests.profiling.test_printed`` records anew.
"""

import json
from pathlib import Path

import pytest

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


if __name__ == "__main__":
    for file in FILES:
        expected(file).write_text(shown(file))
