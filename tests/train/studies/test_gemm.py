"""Many small products, or one merged: on this CPU."""

import sys

import pytest

from profiling.errors import UserError
from train.studies import gemm


def test_products_that_are_merged_are_the_same(answer_of):
    flags = ("--device", "cpu", "--batch", "4", "--hidden", "32", "--steps", "3", "--repetitions", "6")
    ran = answer_of(gemm.main, *flags)
    assert ran.code == 0
    separate, merged = ran.csv
    assert (separate["way"], merged["way"]) == ("separate", "merged")
    assert (float(separate["products"]), float(merged["products"])) == (12, 3)
    assert separate["same_output"] == merged["same_output"] == "True"
    flops = 2 * 4 * 32 * 32 * 4 * 3
    assert float(merged["flops_per_s"]) == pytest.approx(flops / float(merged["time_ms"]) * 1e3)
    assert float(merged["speedup"]) > 0 and separate["speedup"] == ""


def test_a_layer_reads_an_image_by_its_rows(answer_of):
    flags = ("--device", "cpu", "--batch", "2", "--hidden", "16", "--image-size", "8", "--repetitions", "4")
    ran = answer_of(gemm.main, *flags)
    assert ran.code == 0
    separate, merged = ran.csv
    assert (float(separate["products"]), float(merged["products"])) == (4 * 8, 8)
    assert float(merged["inputs"]) == 3 * 8 and merged["same_output"] == "True"
    flops = 2 * 2 * 24 * 16 * 4 * 8
    assert float(merged["flops_per_s"]) == pytest.approx(flops / float(merged["time_ms"]) * 1e3)


def test_a_size_that_is_none_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["study", "--hidden", "0"])
    with pytest.raises(UserError, match="at least 1"):
        gemm.main()
