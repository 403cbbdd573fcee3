"""Charts show the factors of a sweep, the one that matters most best; what they cannot show they average."""

import itertools

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
    stacked,
)
from analysis.frames.load import load
from analysis.report import base
from analysis.report.base import Context
from tests.analysis.synthetic import Truth, run_of, write_sweep

FACTORS = {"loader": ["dali", "pytorch"], "grad": ["fp16", "fp32"], "batch": [32, 64], "workers": [2, 4, 8],
           "threads": [1, 2]}  # fmt: skip


def crossed(**factors) -> list[dict]:
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


@pytest.mark.parametrize(
    ("factors", "are_bars", "expected"),
    [
        ({}, False, Encoding()),
        ({"loader": ["a"], "grad": ["x", "y"]}, False, Encoding("grad")),  # what does not vary has none
        ({"workers": [2, 4, 8], "batch": [32, 64], "grad": ["x", "y"]}, False,
         Encoding("workers", "batch", "grad")),
        (FACTORS, False, Encoding("loader", "grad", "batch", "workers", ("threads",))),
        # Colours of stacked bars are their parts.
        (FACTORS, True, Encoding("", "", "loader", "grad", ("batch", "workers", "threads"))),
        # No channel has nine levels.
        ({"batch": range(9), "workers": range(5), "loader": ["a", "b"], "grad": ["x", "y"]}, False,
         Encoding("workers", "loader", "grad", "", ("batch",))),
    ],
)  # fmt: skip
def test_factors_take_the_first_channel_that_has_enough_levels(factors, are_bars, expected):
    assert encode(crossed(**factors), list(factors), are_bars=are_bars) == expected


# --- lines ----------------------------------------------------------------------------------------------


def drawn(facts: list[dict], encoding: Encoding) -> list[dict]:
    """The traces of points of 1, 2 and 4 ranks that scale ideally, without the ideal lines."""
    points = [
        {"world_size": ranks, "facts": one, "label": str(one), "sizes": {"nodes": ranks},
         "images_per_s": {"dali": 100, "pytorch": 50}[one["loader"]] * one.get("workers", 1) * ranks}
        for one in facts for ranks in (1, 2, 4)
    ]  # fmt: skip
    figure = lines(pd.DataFrame(points), encoding, THROUGHPUT, lambda name, level: str(level))
    Figure(figure)  # plotly accepts it: notebooks have it, too
    return [trace for trace in figure["data"] if "ideal" not in str(trace["name"])]


def test_a_line_is_a_level_of_each_factor_shown():
    names = ["loader", "grad", "batch"]
    facts = crossed(**{name: FACTORS[name] for name in names})
    traces = drawn(facts, encode(facts, names))
    whole = [trace["hovertemplate"].partition("<br>")[0] for trace in traces]
    assert set(whole) == {", ".join(map(str, one.values())) for one in facts}
    assert all(name.startswith(f"{trace['name']}, ") for name, trace in zip(whole, traces, strict=True))
    # What panels share is once in the legend.
    entries = [trace["name"] for trace in traces if trace["showlegend"]]
    assert sorted(entries) == sorted({trace["name"] for trace in traces})
    shown = {
        (*name.split(", "), trace["line"]["color"], trace["line"]["dash"], trace["xaxis"])
        for name, trace in zip(whole, traces, strict=True)
    }
    colours, dashes, panels = plots.PALETTE[:2], ("solid", "dash"), ("x", "x2")
    assert shown == {
        (loader, grad, str(batch), colours[a], dashes[b], panels[c])
        for (a, loader), (b, grad), (c, batch) in itertools.product(
            *(enumerate(FACTORS[one]) for one in names)
        )
    }
    assert traces[0]["customdata"] == [{"nodes": ranks} for ranks in (1, 2, 4)]


def test_what_has_no_channel_is_averaged_and_its_spread_is_a_band():
    facts = crossed(loader=FACTORS["loader"], workers=FACTORS["workers"])
    band, line, *_ = drawn(facts, Encoding("loader", averaged=("workers",)))
    # 2, 4 and 8 workers: 200, 400 and 800 images/s on one rank.
    assert line["y"] == pytest.approx([1400 / 3, 2800 / 3, 5600 / 3])
    assert (band["x"], band["y"]) == ([1, 2, 4, 4, 2, 1], [800, 1600, 3200, 800, 400, 200])
    assert [member["facts"]["workers"] for member in line["meta"]["members"]] == [2, 4, 8]


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


@pytest.mark.parametrize(("high", "top"), [(15528.0, 220), (150.0, 165)])  # ideal is at 100
def test_error_bars_far_above_all_points_do_not_stretch_the_axis(high, top):
    points = pd.DataFrame({
        "world_size": [1, 2], "scaling_efficiency_pct": [20.0, 40.0], "scaling_efficiency_pct_low": 0.0,
        "scaling_efficiency_pct_high": high, "label": "dali", "facts": [{}, {}], "sizes": [{}, {}],
    })  # fmt: skip
    figure = lines(points, Encoding(), EFFICIENCY, lambda name, level: str(level))
    assert figure["layout"]["yaxis"]["range"] == pytest.approx([0, top])


def test_a_part_that_is_0_everywhere_is_in_no_legend():
    stages = {"load_ms": [0.0, 0.0], "forward_ms": [0.0, 2.0], "update_ms": [None, 1.0]}
    bars = pd.DataFrame({"label": ["a", "b"], "facts": [{}, {}], **stages})
    figure = plots.parts(bars, plots.STAGE_COLOURS, "Stages")
    assert [trace["name"] for trace in figure["data"]] == ["forward", "update"]
    by_ranks = pd.DataFrame({"load": [0.0, 0.0], "forward": [0.0, 2.0], "ranks": [1, 2], "facts": [{}, {}]})
    figure = stacked(by_ranks, Encoding(), plots.STAGE_COLOURS, "Stages", "ms", lambda name, level: level)
    assert [trace["name"] for trace in figure["data"]] == ["forward"]
