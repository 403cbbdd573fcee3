"""What a study's tables say: planted durations and figures come out again."""

from argparse import Namespace
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.display.metrics import records
from analysis.measures import studies
from analysis.measures.studies import load
from analysis.report import build as pages
from analysis.report.render import render
from profiling import tables
from profiling.errors import UserError
from tests.analysis.commands import run
from train.studies.common import Study

MIB = 1 << 20
LAYER = "Linear(4, 2)@8,4"


def study(name, directory, **flags):
    """A study that has measured nothing yet."""
    usual = {"device": "cpu", "threads": None, "seed": 0, "out": directory, "warmup": 5, "repetitions": 10}
    return Study(name, Namespace(**usual | flags))


def layers(directory, **planted):
    """A study of one layer: 2 ms forward and 4 ms backward, 1 GFLOP and 10 MB each."""
    directory.mkdir(parents=True)
    recorder = study("layers", directory, batch=8)
    recorder.quantity("peaks", "cpu", "flops_per_s", planted.get("flops_per_s", 1e12))
    recorder.quantity("peaks", "cpu", "bytes_per_s", planted.get("bytes_per_s", 10e9))
    recorder.quantity("peaks", "cpu", "idle_w", None, "no RAPL")
    recorder.case(LAYER, "cpu", {"forward": np.full(10, 2_000_000)})
    recorder.case(LAYER, "cpu", {"backward": [3_000_000, 5_000_000] * 5})
    for stage in ("forward", "backward"):
        recorder.quantity(LAYER, "cpu", f"{stage}_flops", 1e9)
        recorder.quantity(LAYER, "cpu", f"{stage}_bytes", 10e6)
    recorder.quantity(LAYER, "cpu", "peak_memory_bytes", planted.get("peak", 96))
    recorder.find("not_recorded", what="power and energy: RAPL is not on this machine")
    recorder.write()
    return directory


def test_a_layer_stands_on_the_roofline(tmp_path):
    (row,) = records(studies.studies(load(layers(tmp_path / "one"))[0]).rows)
    assert (row["forward_ms"], row["forward_low_ms"], row["forward_high_ms"]) == (2, 2, 2)
    assert 3 <= row["backward_low_ms"] <= row["backward_ms"] <= row["backward_high_ms"] <= 5
    assert row["forward_intensity_flop_per_byte"] == 100 and row["forward_bound"] == "compute"
    assert row["forward_roof_of_measured_pct"] == pytest.approx(50)  # 1 ms for the arithmetic or the traffic
    assert row["forward_gb_per_s"] == pytest.approx(5) and row["power_w"] is None


def test_the_command_and_the_report(tmp_path):
    told = run("analysis.studies", layers(tmp_path / "studies" / "one"), "--format", "json")
    assert told.code == 0 and [row["layer"] for row in told.json] == ["Linear(4, 2)"]
    assert "RAPL" in told.err
    layers(tmp_path / "studies" / "two")
    page = pages.build_studies(tmp_path / "studies")
    assert [section.heading for section in page.sections] == ["What does a layer cost?"] * 2
    assert "RAPL" in render(page)
    several = run("analysis.studies", tmp_path / "studies")
    assert several.code == 2 and "(one, two)" in several.err


def order(directory, other_ms):
    directory.mkdir()
    recorder = study("order", directory, model="vgg16", repetitions=20)
    for case, durations_ms in {"ReLU, MaxPool2d": [10, 11, 12, 13] * 5, "MaxPool2d, ReLU": other_ms}.items():
        recorder.case(case, "cpu", {"forward": np.array(durations_ms) * 250_000})
        recorder.case(case, "cpu", {"backward": np.array(durations_ms) * 750_000})
        for name, value in {"pairs": 5, "batch": 2, "image_size": 32, "same_output": True}.items():
            recorder.quantity(case, "cpu", name, value)
        recorder.quantity(case, "cpu", "activation_memory_bytes", 3 << 20 if case[0] == "R" else 1 << 20)
        recorder.quantity(case, "cpu", "peak_memory_bytes", 4 << 20)
        recorder.quantity(case, "cpu", "largest_difference", 0)
    recorder.write()
    return load(directory)[0]


@pytest.mark.parametrize(
    ("factors", "difference", "ratio"),
    [
        ([0.5] * 20, "significant", 0.5), ([1.2] * 20, "significant", 1.2),
        ([0.9, 1.1] * 10, "not significant", 1.0),
    ],
)  # fmt: skip
def test_orders_are_compared_turn_by_turn(tmp_path, factors, difference, ratio):
    made = studies.studies(order(tmp_path / "one", np.array([10, 11, 12, 13] * 5) * factors))
    (compared,) = made.verdict
    assert compared.data["difference"] == difference and compared.data["value"] == pytest.approx(ratio)
    assert [row["order"] for row in records(made.rows)] == ["ReLU, MaxPool2d", "MaxPool2d, ReLU"]
    assert [row["activation_memory_bytes"] for row in records(made.rows)] == [3 * MIB, MIB]
    assert records(made.rows)[0]["step_ms"] == pytest.approx(11.5)


def test_damage_names_the_file_and_a_result_is_not_written_over(tmp_path):
    directory = layers(tmp_path / "one")
    with pytest.raises(UserError, match="already contains a result"):
        study("layers", directory)
    manifest = directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"study": "layers"', '"study": "layer"'))
    with pytest.raises(UserError, match="did you mean 'layers'"):
        studies.studies(load(directory)[0])
    (directory / "durations.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"durations\.parquet is not a readable"):
        load(directory)
    with pytest.raises(UserError, match="holds no study"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("flops_per_s", "bytes_per_s", "peaks"),
    [(1e12, 10e9, []), (1e12, 1e9, ["bandwidth roof's"]), (0.1e12, 10e9, ["compute roof's"])],
)
def test_a_layer_above_its_roof_is_a_finding(tmp_path, flops_per_s, bytes_per_s, peaks):
    result = load(layers(tmp_path / "one", flops_per_s=flops_per_s, bytes_per_s=bytes_per_s))[0]
    found = studies.studies(result).verdict
    assert [peak for one in found for peak in one.data["peak"]] == peaks
    assert all(one.data["n"] == 2 and one.data["most_pct"] == pytest.approx(500) for one in found)


def gemm(directory, merged_ms=2.0, repetitions=10, peak=None):
    """Products of 4 gates in 16 steps: 3 ms separate, 2 ms merged."""
    recorder = study("gemm", directory, repetitions=repetitions)
    for way, ms, products in (("separate", 3.0, 64), ("merged", merged_ms, 16)):
        recorder.case(f"512 {way}", "cpu", {"forward": np.full(repetitions, round(ms * 1e6))})
        figures = {"hidden": 512, "inputs": 512, "batch": 64, "gates": 4, "time_steps": 16, "flops": 4e9}
        figures |= {"products": products, "same_output": 1, "largest_difference": 0}
        for name, value in figures.items():
            recorder.quantity(f"512 {way}", "cpu", name, value)
    if peak:
        recorder.quantity("peaks", "cpu", "flops_per_s", peak)
    recorder.write()
    return directory


def test_the_gain_of_merged_products_is_the_ratio_of_times(tmp_path):
    made = studies.studies(load(gemm(tmp_path / "gemm"))[0])
    separate, merged = records(made.rows)
    assert (separate["speedup"], merged["speedup"], merged["speedup_low"]) == (None, 1.5, 1.5)
    assert (separate["time_ms"], merged["flops_per_s"]) == (3, 2e12)
    assert [finding.data["difference"] for finding in made.verdict] == ["significant"]
    found, above = studies.studies(load(gemm(tmp_path / "few", 1.5, repetitions=3, peak=1e12))[0]).verdict
    assert (found.data["difference"], found.data["value"]) == ("too few repetitions", 2.0)
    assert above.data["what"] == ["512 separate", "512 merged"]
    assert above.data["peak"] == ["cpu's measured"]
    assert above.data["most_pct"] == pytest.approx(4e9 / 1.5e-3 / 1e12 * 100)


def capacity(directory, fits=(False, True, True), more=()):
    """3 layers fit in 100 MiB, of which 40 are taken before; 4 do not, and are laid over two devices."""
    directory.mkdir()
    recorder = study("capacity", directory, balance="memory")

    def tried(case, device, own, fits, peak_mib, **more):
        for name, value in zip(("convolutions", "linears"), own, strict=True):
            recorder.quantity(case, device, name, value)
        recorder.quantity(case, device, "fits", fits, "" if fits else "can't allocate memory")
        for name, mib in {"limit": 100, "base": 40, "peak_memory": peak_mib, "held": 0}.items():
            recorder.quantity(case, device, f"{name}_bytes", mib * MIB if mib is not None else None)
        for stage in ("receive", "forward", "exchange", "backward", "send") if fits else ():
            recorder.case(case, device, {stage: [more.get(stage, 1) * 1_000_000] * 10})
        if "chosen" in more:
            recorder.quantity(case, device, "chosen", more["chosen"])

    tried("2+2", "cpu", (2, 2), fits[0], None)
    tried("1+2", "cpu", (1, 2), fits[1], 94, forward=3)
    tried("1+1", "cpu", (1, 1), fits[2], 80)
    tried("2+2 split after 1", "cpu, device 0", (1, 0), True, 60, chosen=True, exchange=20)
    tried("2+2 split after 1", "cpu, device 1", (1, 2), True, 90, chosen=True)
    for case, sides in more:
        for number, fit in enumerate(sides):
            tried(case, f"cpu, device {number}", (1, 2), fit, 90 if fit else None, chosen=False)
    recorder.write()
    return load(directory)[0]


def test_the_boundary_has_a_time_on_both_sides(tmp_path):
    made = studies.studies(capacity(tmp_path / "one"))
    networks = {row["layers"]: row for row in records(made.rows) if row["devices"] == 1}
    assert list(networks) == ["1+1", "1+2", "2+2"]  # by size, not as they were tried
    assert networks["1+2"]["boundary"] == "largest that fits" and networks["1+2"]["step_ms"] == 7
    assert networks["2+2"]["boundary"] == studies.SMALLEST and networks["2+2"]["step_ms"] == 24
    assert [networks[name]["step_on_devices"] for name in networks] == [1, 1, 2]
    assert {row["step_on_devices"] for row in records(made.rows) if row["devices"] == 2} == {2}
    assert networks["2+2"]["reason"] == "can't allocate memory" and networks["2+2"]["free_bytes"] is None
    (limit,) = made.verdict
    assert limit.code == "study_limit" and (limit.data["fits"], limit.data["fails"]) == ("1+2", "2+2")
    first, second = (row for row in records(made.rows) if row["chosen"])
    assert (first["free_bytes"], second["free_bytes"]) == (40 * MIB, 10 * MIB) and first["own_ms"] == 2


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ([("3+3 split after 3", (False, True))], ("2+2", "3+3")),
        ([("3+3 split after 3", (True, True)), ("3+4 split after 3", (True, False))], ("3+3", "3+4")),
    ],
)
def test_the_largest_network_on_two_devices_is_told(tmp_path, more, limit):
    one, two = studies.studies(capacity(tmp_path / "one", more=more)).verdict
    assert (one.data["devices"], two.data["devices"]) == ("one device", "two devices")
    assert two.code == "study_limit" and (two.data["fits"], two.data["fails"]) == limit


def test_a_result_of_an_earlier_version_reads_as_before(tmp_path):
    earlier = {new: old for old, new in studies._RENAMED.items()}
    for result in (capacity(tmp_path / "one"), load(gemm(tmp_path / "two"))[0]):
        old = result.quantities.query("quantity != 'inputs'").replace({"quantity": earlier})
        tables.write(tables.as_table("quantities", old.to_dict("list")), result.path, "quantities")
        now, before = (studies.studies(one).rows for one in (result, load(result.path)[0]))
        pd.testing.assert_frame_equal(now, before[now.columns])


def test_a_boundary_that_was_not_found_is_said(tmp_path):
    result = capacity(tmp_path / "one")
    durations, quantities = (table.query("case == '1+1'") for table in (result.durations, result.quantities))
    one = replace(result, durations=durations, quantities=quantities)
    assert studies.studies(one).verdict[0].code == "uncertain"
    (failed,) = studies.studies(capacity(tmp_path / "two", fits=(False, True, False))).verdict
    assert failed.code == "uncertain" and failed.data["why"].startswith("1+1 fails, 1+2 fits")


def test_the_charts_of_a_study_show_its_figures(tmp_path):
    layers(tmp_path / "1-layers", peak=96 * MIB)
    order(tmp_path / "2-order", [5] * 20)
    capacity(tmp_path / "3-capacity")
    drawn = {
        chart.id: {trace["name"]: trace["x"] for trace in chart.figure["data"]}
        for section in pages.build_studies(tmp_path).sections
        for chart in section.charts
    }
    assert drawn == {  # no power: it is not known
        "study-1-time": {"forward": [2], "backward": [4]},
        "study-1-memory": {"more at the peak": [96]},
        "study-2-time": {"forward": [2.875, 1.25], "backward": [8.625, 3.75]},
        "study-2-memory": {"activations": [3, 1], "more at the peak": [1, 3]},
        "study-3-memory": {
            "before the network": [40] * 4, "network": [40, 54, 20, 50], "free": [20, 6, 40, 10],
        },
    }  # fmt: skip
