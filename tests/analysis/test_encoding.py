"""Charts show the factors of a sweep, the one that matters most best; what they cannot show they average."""

import itertools

import pandas as pd
import pytest
from plotly.graph_objects import Figure

from analysis.display import plots
from analysis.display.numbers import label_of
from analysis.display.plots import EFFICIENCY, THROUGHPUT, Encoding, encode, lines
from analysis.frames.load import load
from analysis.report import base
from analysis.report.base import Context
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
        ({"loader": ["a"], "grad": ["x", "y"]}, Encoding("grad")),  # what does not vary has none
        ({"workers": [2, 4, 8], "batch": [32, 64], "grad": ["x", "y"]},
         Encoding("workers", "batch", ("grad",))),
        (FACTORS, Encoding("loader", "grad", ("batch", "workers", "threads"))),
        # No channel has nine levels.
        ({"batch": range(9), "workers": range(5), "loader": ["a", "b"], "grad": ["x", "y"]},
         Encoding("workers", "loader", ("batch", "grad"))),
    ],
)  # fmt: skip
def test_factors_take_the_first_channel_that_has_enough_levels(factors, expected):
    assert encode(crossed(**factors), list(factors)) == expected


def drawn(facts: list[dict], encoding: Encoding) -> list[dict]:
    """The traces of points of 1, 2 and 4 ranks that scale ideally, without the ideal lines."""
    points = [
        {"world_size": ranks, "facts": one, "label": str(one), "sizes": {"nodes": ranks},
         "images_per_s": {"dali": 100, "pytorch": 50}[one["loader"]] * one.get("workers", 1) * ranks}
        for one in facts for ranks in (1, 2, 4)
    ]  # fmt: skip
    figure = lines(pd.DataFrame(points), encoding, THROUGHPUT)
    Figure(figure)  # plotly accepts it: notebooks have it, too
    return [trace for trace in figure["data"] if "ideal" not in str(trace["name"])]


def test_a_line_is_a_level_of_each_factor_shown():
    names = ["loader", "grad"]
    facts = crossed(**{name: FACTORS[name] for name in names})
    traces = drawn(facts, encode(facts, names))
    whole = [trace["hovertemplate"].partition("<br>")[0] for trace in traces]
    assert set(whole) == {label_of(one, one) for one in facts}
    assert whole == [trace["name"] for trace in traces if trace["showlegend"]]
    shown = {(*trace["name"].split(", "), trace["line"]["color"], trace["line"]["dash"]) for trace in traces}
    colours, dashes = plots.PALETTE[:2], ("solid", "dash")
    assert shown == {
        (loader, f"{grad} gradients", colours[a], dashes[b])
        for (a, loader), (b, grad) in itertools.product(*(enumerate(FACTORS[one]) for one in names))
    }
    assert traces[0]["customdata"] == [{"nodes": ranks} for ranks in (1, 2, 4)]


def test_what_has_no_channel_is_averaged_and_its_spread_is_a_band():
    facts = crossed(loader=FACTORS["loader"], workers=FACTORS["workers"])
    band, line, *_ = drawn(facts, Encoding("loader", averaged=("workers",)))
    # 2, 4 and 8 workers: 200, 400 and 800 images/s on one rank.
    assert line["y"] == pytest.approx([1400 / 3, 2800 / 3, 5600 / 3])
    assert (band["x"], band["y"]) == ([1, 2, 4, 4, 2, 1], [800, 1600, 3200, 800, 400, 200])
    assert [member["facts"]["workers"] for member in line["meta"]["members"]] == [2, 4, 8]


def test_of_many_configurations_those_on_the_most_ranks_have_bars(tmp_path, monkeypatch):
    runs = [
        run_of(gpus_per_node=ranks, workers=workers, profile=profile)
        for ranks in (1, 2)
        for workers in (2, 4)
        for profile in ("none", "torch")
    ]
    write_sweep(tmp_path, runs, repetitions={"none": 1, "torch": 1})
    monkeypatch.setattr(base, "MOST_BARS", 3)
    for id in ("stages", "anatomy"):
        chart = section_of(load(tmp_path), id).charts[0]
        (labels,) = {tuple(trace["y"]) for trace in chart.figure["data"]}
        assert len(labels) == 3 and sum("2 GPUs" in label for label in labels) == 2
        assert chart.caption.startswith("3 of 4 configurations")
    (ms,) = [trace["x"] for trace in chart.figure["data"] if trace["name"] == "computation"]
    assert ms == pytest.approx([60.0] * 3, rel=0.02)  # as planted


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
    assert lines(points, Encoding(), EFFICIENCY)["layout"]["yaxis"]["range"] == pytest.approx([0, top])
