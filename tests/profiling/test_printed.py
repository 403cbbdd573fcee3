"""Numbers and texts of printed tables, in any language."""

import pytest

from profiling.readers.printed import has_decimal_commas, number_and_unit
from tests.builders import tables
from tests.profiling.samples import HOROVOD, NCU_DETAILS, VTUNE


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


def test_where_one_number_can_only_have_a_decimal_comma_all_have():
    assert has_decimal_commas(["kernel", "8.0", "1.234,5"]) and has_decimal_commas(["2,50"])
    assert not has_decimal_commas(["1,234", "1,234.5", "(256, 1, 1)", "8.0"])
    assert (
        has_decimal_commas(["0,250"]) and has_decimal_commas(["1.234,5s"]) and has_decimal_commas(["2,5 %"])
    )
    assert not has_decimal_commas(["1,234s", "1,234.5 Gbyte/s", "0.250", "1,5-dimethyl"])
    assert number_and_unit("1,512", decimal_comma=True)[0] == 1.512
    assert number_and_unit("1.512", decimal_comma=True)[0] == 1512


SUMMED = "Time(%),Time,Calls,Avg,Min,Max,Name\n%,us,,us,us,us,\n60.00,30.5,2,15.25,10,20.5,k\n"
TEXTS = {"horovod": HOROVOD, "ncu": NCU_DETAILS, "vtune": VTUNE, "nvprof": SUMMED}


@pytest.mark.parametrize("tool", TEXTS)
def test_a_byte_order_mark_before_a_text_changes_nothing(tool, tmp_path):
    path = tmp_path / "printed.txt"
    plain, said = tables(path, tool, TEXTS[tool])
    marked, findings = tables(path, tool, "\ufeff" + TEXTS[tool])
    assert all(marked[name].equals(plain[name]) for name in plain | marked) and findings == said
