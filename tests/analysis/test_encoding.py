"""Charts show the factors of a sweep, the one that matters most best; what they cannot show they average."""

import itertools
import json

import pandas as pd
import pytest
from plotly.graph_objects import Figure

from analysis.display import plots
from analysis.display.lines import (
    EFFICIENCY,
    THROUGHPUT,
    Encoding,
    encode,
    lines,
    spread,
    stacked,
)
from analysis.frames.load import load
from analysis.report import base
from analysis.report.base import Context, with_lines
from tests.analysis.frames import section_of
from tests.analysis.synthetic import Truth, run_of, write_sweep

FACTORS = {"loader": ["dali", "pytorch"], "grad": ["fp16", "fp32"], "batch": [32, 64], "workers": [2, 4, 8],
           "threads": [1, 2]}  # fmt: skip


def crossed(**factors) -> list[dict]:
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({}, Encoding()),
        ({"loader": ["a"], "grad": ["x", "y"]}, Encoding("grad")),  # what does not vary takes no channel
        ({"workers": [2, 4, 8], "batch": [32, 64], "grad": ["x", "y"]},
         Encoding("workers", "batch", "grad")),
        (FACTORS, Encoding("loader", "grad", "batch", "workers", ("threads",))),
        # No channel has nine levels.
        ({"batch": range(9), "workers": range(5), "loader": ["a", "b"], "grad": ["x", "y"]},
         Encoding("workers", "loader", "grad", "", ("batch",))),
    ],
)  # fmt: skip
def test_factors_take_the_first_channel_that_has_enough_levels(factors, expected):
    assert encode(crossed(**factors), list(factors)) == expected


def test_colours_of_stacked_bars_are_their_parts():
    found = encode(crossed(**FACTORS), list(FACTORS), are_bars=True)
    assert found == Encoding("", "", "loader", "grad", ("batch", "workers", "threads"))


# --- lines ----------------------------------------------------------------------------------------------


def rate(facts: dict, ranks: int) -> float:
    slower = {"dali": 1.0, "pytorch": 0.5}[facts["loader"]]
    return 100 * slower * facts["workers"] * ranks


def drawn(names: list[str], axes=THROUGHPUT) -> dict:
    facts = crossed(**{name: FACTORS[name] for name in names})
    points = [
        {"world_size": ranks, "images_per_s": rate({"workers": 1} | one, ranks), "facts": one,
         "scaling_efficiency_pct": 100.0 / ranks, "label": str(one), "sizes": {"nodes": ranks}}
        for one in facts for ranks in (1, 2, 4)
    ]  # fmt: skip
    figure = lines(pd.DataFrame(points), encode(facts, names), axes, lambda name, level: str(level))
    Figure(figure)  # plotly accepts it: notebooks have it, too
    return figure


def solid(figure: dict) -> list[dict]:
    ideal = [trace for trace in figure["data"] if "ideal" in str(trace["name"])]
    return [trace for trace in figure["data"] if trace not in ideal]


def test_a_line_is_a_level_of_each_factor_shown():
    traces = solid(drawn(["loader", "grad", "batch"]))
    whole = [trace["hovertemplate"].partition("<br>")[0] for trace in traces]
    assert set(whole) == {
        ", ".join(map(str, levels)) for levels in itertools.product(*list(FACTORS.values())[:3])
    }
    assert all(name.startswith(f"{trace['name']}, ") for name, trace in zip(whole, traces, strict=True))
    # What panels share is once in the legend.
    entries = [trace["name"] for trace in traces if trace["showlegend"]]
    assert sorted(entries) == sorted({trace["name"] for trace in traces})
    assert {(trace["line"]["color"], trace["name"].split(", ")[0]) for trace in traces} == {
        (plots.PALETTE[0], "dali"), (plots.PALETTE[1], "pytorch"),
    }  # fmt: skip
    assert {(trace["line"]["dash"], trace["name"].split(", ")[1]) for trace in traces} == {
        ("solid", "fp16"), ("dash", "fp32"),
    }  # fmt: skip
    batches = [name.rpartition(", ")[2] for name in whole]
    assert set(zip((trace["xaxis"] for trace in traces), batches, strict=True)) == {("x", "32"), ("x2", "64")}
    assert traces[0]["customdata"] == [{"nodes": ranks} for ranks in (1, 2, 4)]


def test_what_has_no_channel_is_averaged_and_its_spread_is_a_band():
    points = [
        {"world_size": ranks, "images_per_s": rate(one, ranks), "facts": one, "label": str(one), "sizes": {}}
        for one in crossed(loader=FACTORS["loader"], workers=FACTORS["workers"])
        for ranks in (1, 2)
    ]
    encoding = Encoding("loader", averaged=("workers",))
    figure = lines(pd.DataFrame(points), encoding, THROUGHPUT, lambda name, level: level)
    band, line = (trace for trace in figure["data"] if trace["name"] == "dali")
    # 2, 4 and 8 workers: 200, 400 and 800 images/s on one rank.
    assert line["y"] == pytest.approx([1400 / 3, 2800 / 3])
    assert (band["x"], band["y"]) == ([1, 2, 2, 1], [800, 1600, 400, 200])
    assert [member["facts"]["workers"] for member in line["meta"]["members"]] == [2, 4, 8]
    assert "customdata" not in line["meta"]["members"][0]
    Figure(figure)


def test_a_mean_is_of_the_configurations_that_were_measured_there():
    a, b = {"x": [1, 2], "y": [10.0, None]}, {"x": [1, 2, 4], "y": [20.0, 40.0, 80.0]}
    assert spread([a, b]) == ([1, 2, 4], [15.0, 40.0, 80.0], [10.0, 40.0, 80.0], [20.0, 40.0, 80.0])


@pytest.mark.parametrize(("factor", "others"), [("colour", ""), ("colour", "grad"), ("columns", "")])
def test_a_level_that_looks_like_markup_stays_text(factor, others):
    points = [
        {"world_size": 1, "images_per_s": 1.0 + len(str(one)), "facts": one, "label": str(one), "sizes": {}}
        for one in crossed(lr=["<b>0</b>", "a" * 12], grad=FACTORS["grad"])
    ]
    encoding = Encoding(**{factor: "lr"}, dash=others)
    figure = lines(pd.DataFrame(points), encoding, THROUGHPUT, lambda name, level: level)
    assert "dtick" not in figure["layout"]["yaxis"]  # which is of images/s
    said = json.dumps(figure)
    # Plotly reads tags.
    assert "&lt;b&gt;0&lt;/b&gt;" in said and "<b>" not in json.dumps([one["name"] for one in figure["data"]])


def test_a_configuration_of_one_size_is_no_line():
    points = pd.DataFrame({"label": ["a", "b", "b"], "nodes": [1, 1, 2]})
    assert list(with_lines(points, "nodes").index) == [1, 2]
    assert len(with_lines(points[:2], "nodes")) == 2


# --- bars -----------------------------------------------------------------------------------------------


def test_bars_of_many_configurations_are_means_by_ranks_in_panels():
    points = pd.DataFrame([
        {"ranks": ranks, "load": 10.0 * ranks, "update": 1.0 * one["workers"], "facts": one}
        for one in crossed(loader=FACTORS["loader"], workers=FACTORS["workers"])
        for ranks in (4, 1)
    ])  # fmt: skip
    colours = {"load": "#111111", "absent": "#222222", "update": "#333333"}
    encoding = Encoding(columns="loader", averaged=("workers",))
    figure = stacked(points, encoding, colours, "Stages", "ms", lambda name, level: level)
    *bars, total, _ = figure["data"]
    load, update, *others = bars
    assert [trace["name"] for trace in bars] == ["load", "update"] * 2
    assert (load["x"], load["y"]) == ([1, 4], [10.0, 40.0])
    assert update["y"] == pytest.approx([14 / 3, 14 / 3])  # of 2, 4 and 8 workers
    assert [member["y"] for member in update["meta"]["members"][:2]] == [[2.0], [2.0]]
    assert [trace["showlegend"] for trace in figure["data"]] == [True, True, False, False, True, False]
    # From 2 to 8 workers, of which the mean is 14/3.
    assert total["y"] == pytest.approx([10 + 14 / 3, 40 + 14 / 3])
    assert total["error_y"]["array"] == pytest.approx([8 - 14 / 3] * 2)
    assert total["error_y"]["arrayminus"] == pytest.approx([14 / 3 - 2] * 2)
    assert {trace["xaxis"] for trace in others} == {"x2"}
    assert figure["layout"]["xaxis"]["categoryarray"] == [1, 4]
    Figure(figure)


def test_means_of_parts_that_some_configurations_split_add_up_to_the_mean_of_the_totals():
    """One configuration's idle time is split, another's is not known any closer."""
    known = [{"idle_other": 2.0, "idle_host_bound": 6.0}, {"idle": 4.0}, {}]
    points = pd.DataFrame([
        {"ranks": 2, "compute": 10.0 if parts else None, **parts, "facts": {"batch": number}}
        for number, parts in enumerate(known)
    ])  # fmt: skip
    encoding = Encoding(averaged=("batch",))
    *parts, total = stacked(points, encoding, plots.PART_COLOURS, "", "ms", lambda *_: "")["data"]
    means = {trace["name"]: trace["y"] for trace in parts}
    assert means == {"compute": [10.0], "idle host bound": [3.0], "idle other": [1.0], "idle": [2.0]}
    assert total["y"] == [sum(y for (y,) in means.values())] == [16.0]
    assert (total["error_y"]["array"], total["error_y"]["arrayminus"]) == ([2.0], [2.0])
    assert [len(trace["meta"]["members"]) for trace in (*parts, total)] == [2] * 5


# --- of a sweep -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "panels"), [((32, 64), False), (tuple(range(8, 56, 8)), True)])
def test_few_configurations_are_bars_by_name_and_many_are_panels(tmp_path, batches, panels):
    runs = [
        run_of(gpus_per_node=ranks, batch=batch, workers=workers, profile=profile)
        for ranks in (1, 2)
        for batch in batches
        for workers in (2, 4)
        for profile in ("none", "torch")
    ]
    write_sweep(tmp_path, runs, repetitions={"none": 1, "torch": 1})
    study = load(tmp_path)
    sections = {id: section_of(study, id) for id in ("stages", "anatomy")}
    for id in ("stages", "anatomy"):
        chart = sections[id].charts[0]
        members = [trace for trace in chart.figure["data"] if "members" in str(trace.get("meta"))]
        assert bool(members) == panels and ("Columns: workers" in chart.caption) == panels
    drawn = [
        trace for trace in sections["anatomy"].charts[0].figure["data"] if trace["name"] == "computation"
    ]
    values = [ms for trace in drawn for ms in trace["y" if panels else "x"]]
    assert values == pytest.approx([60.0] * len(values), rel=0.02)  # as planted


def test_the_factor_that_matters_most_gets_the_colour(tmp_path, monkeypatch):
    for workers, ms in ((2, 100.0), (4, 101.0)):
        for batch, longer in ((32, 1.0), (64, 2.8)):
            truth = Truth(step_ms={1: ms * longer, 2: ms * longer * 1.1}, run_noise_ms=0.1)
            runs = [run_of(gpus_per_node=ranks, workers=workers, batch=batch) for ranks in (1, 2)]
            write_sweep(tmp_path, runs, truth)
    context = Context(load(tmp_path))
    assert context.by_effect(["workers", "batch"]) == ["batch", "workers"]
    assert context.by_effect(["unknown", "workers", "batch"]) == ["batch", "workers", "unknown"]
    # Of a program's own factors too, which effects name as the sweep file does.
    monkeypatch.setattr(base, "effects", lambda context: pd.DataFrame({"factor": ["lr", "batch"]}))
    assert context.by_effect(["batch", "factors.lr"]) == ["factors.lr", "batch"]


def noisy(high: float) -> dict:
    points = [
        {"world_size": ranks, "images_per_s": 10.0 * ranks, "facts": {"loader": "dali"}, "sizes": {},
         "scaling_efficiency_pct": 20.0 * ranks, "scaling_efficiency_pct_low": 0.0,
         "scaling_efficiency_pct_high": high, "label": "dali"}
        for ranks in (1, 2)
    ]  # fmt: skip
    return lines(pd.DataFrame(points), Encoding("loader"), EFFICIENCY, lambda name, level: str(level))


def test_error_bars_far_above_all_points_do_not_stretch_the_axis():
    assert noisy(15528.0)["layout"]["yaxis"]["range"] == pytest.approx([0, 220])  # ideal is at 100
    assert noisy(150.0)["layout"]["yaxis"]["range"] == pytest.approx([0, 165])


def test_a_part_that_is_0_everywhere_is_in_no_legend():
    stages = {"load_ms": [0.0, 0.0], "forward_ms": [0.0, 2.0], "update_ms": [None, 1.0]}
    bars = pd.DataFrame({"label": ["a", "b"], "facts": [{}, {}], **stages})
    figure = plots.parts(bars, plots.STAGE_COLOURS, "Stages")
    assert [trace["name"] for trace in figure["data"]] == ["forward", "update"]
    by_ranks = pd.DataFrame({"load": [0.0, 0.0], "forward": [0.0, 2.0], "ranks": [1, 2], "facts": [{}, {}]})
    figure = stacked(by_ranks, Encoding(), plots.STAGE_COLOURS, "Stages", "ms", lambda name, level: level)
    assert [trace["name"] for trace in figure["data"]] == ["forward"]
