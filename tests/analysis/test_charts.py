"""A chart shows the figures of its table, however often runs were repeated."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.display import plots
from analysis.display.metrics import CONFIDENCE, FACTORS, IN_RUN
from analysis.display.output import Part
from analysis.display.plots import CLASS_COLOURS, CONCEPTS, ON_DARK, PALETTE
from analysis.frames.load import load
from analysis.report.base import NAMES
from analysis.report.build import build
from analysis.report.render import Section, in_a_line
from benchmarks.planted_sweep import Job, write_sweep

# Part -> heading of its column; a chart calls it as the opening does.
PARTS = {"compute": "compute", "exposed_loader": "exposed loader", "exposed_copies": "other copies"}
ANATOMY = {0: PARTS, 1: {
    "exposed_transfer": "exposed transfer", "exposed_wait": "wait for ranks",
    "idle_host_bound": "idle, host-bound", "idle_other": "idle, other"}}  # fmt: skip
LOSS = {**PARTS, "exposed_transfer": "of it: transfer", "exposed_wait": "of it: wait",
        "idle_host_bound": "of idle: host-bound", "unattributed": "unattributed"}  # fmt: skip


def drawn_as(part: str) -> str:
    return NAMES.get(part, part)


@pytest.fixture(scope="module")
def sections(tmp_path_factory) -> dict[str, Section]:
    """Of a sweep of 1 and 2 ranks and two batch sizes, each run twice, unprofiled and profiled."""
    folder = tmp_path_factory.mktemp("charts")
    jobs = [Job(ranks=ranks, batch=batch) for ranks in (1, 2) for batch in (32, 64)]
    write_sweep(folder, jobs, 1, repetitions={"none": 2, "torch": 2}, batches=12)
    return {section.id: section for section in build(load(folder)).sections}


def table(section: Section, number: int = 0) -> Part:
    return section.tables[number]


def column(part: Part, header: str) -> list[float]:
    (metric,) = [one for one in part.columns if in_a_line(one.heading) == header]
    return [float(row[metric.name]) for row in part.rows]


def means(part: Part, header: str) -> list[float]:
    """A column of a row a run, as means over the runs of each configuration."""
    of: dict[str, list[float]] = {}
    for row, value in zip(part.rows, column(part, header), strict=True):
        of.setdefault(str([row.get(name) for name in FACTORS]), []).append(value)
    return [float(np.mean(values)) for values in of.values()]


def traces(section: Section, chart: str = "") -> dict[str, dict[str, Any]]:
    found = next(one for one in section.charts if one.id == chart or not chart)
    return {trace["name"]: trace for trace in found.figure["data"]}


def close(expected):
    """Equal to the digits that tables print."""
    return pytest.approx(expected, rel=2e-3, abs=0.06)


def test_every_bar_is_one_row(sections):
    for chart in (chart for section in sections.values() for chart in section.charts):
        for trace in chart.figure["data"]:
            # Of kernels a name is drawn in its parts; of ranks the bars stand.
            if trace.get("type") == "bar" and chart.id != "kernels":
                names = trace["y" if trace.get("orientation") == "h" else "x"]
                assert max(Counter(names).values()) == 1, chart.id


def test_a_point_is_one_bar(sections):
    """Four points, two of several ranks, however often each ran."""
    for id, points in (("stages", 4), ("anatomy", 4), ("loss", 2), ("communication", 2)):
        for chart in (one for one in sections[id].charts if one.id != "anatomy-ranks"):
            assert {len(trace["x"]) for trace in chart.figure["data"]} == {points}, chart.id


@pytest.mark.parametrize(
    ("chart", "header"), [("throughput", "images /s"), ("efficiency", f"scaling eff. % [{CONFIDENCE}]")]
)
def test_throughput_and_efficiency(sections, chart, header):
    drawn = [y for name, trace in traces(sections["scaling"], chart).items()
             if "ideal" not in name for y in trace["y"]]  # fmt: skip
    assert sorted(drawn) == close(sorted(column(table(sections["table"]), header)))


def test_loss(sections):
    view, drawn = table(sections["loss"]), traces(sections["loss"])
    shown = {drawn_as(name): column(view, header) for name, header in LOSS.items()}
    # What is 0 everywhere is a column of the table, and no bar.
    assert set(drawn) == {name for name, values in shown.items() if any(values)} < set(shown)
    for name, trace in drawn.items():
        assert trace["x"] == close(shown[name]), name
    whole = np.sum([trace["x"] for trace in drawn.values()], axis=0)
    assert whole.tolist() == close(column(view, f"lost [{CONFIDENCE}]"))


@pytest.mark.parametrize(
    ("section", "chart", "headers"),
    [
        ("stages", "stages", {name: f"mean {name} ms" for name in ("load", "forward", "backward", "update")}),
        ("communication", "exposed", {"exposed": "exposed ms", "overlapped": "overlapped"}),
        ("communication", "waits", {"transfer": "transfer ms", "wait": "wait ms"}),
    ],
)
def test_stages_and_communication(sections, section, chart, headers):
    drawn = traces(sections[section], chart)
    for name, header in headers.items():
        assert drawn[drawn_as(name)]["x"] == close(means(table(sections[section]), header)), name


def test_anatomy(sections):
    drawn = traces(sections["anatomy"])
    for number, headers in ANATOMY.items():
        for name, header in headers.items():
            assert drawn[drawn_as(name)]["x"] == close(means(table(sections["anatomy"], number), header)), (
                name
            )
    whole = np.sum([trace["x"] for trace in drawn.values()], axis=0)
    assert whole.tolist() == close(means(table(sections["anatomy"]), "wall"))


def test_lateness(sections):
    (trace,) = sections["stragglers"].charts[0].figure["data"]
    drawn = np.median(np.array(trace["z"]), axis=1)
    assert drawn.tolist() == close(column(table(sections["stragglers"]), f"lateness, ms median [{IN_RUN}]"))


def test_kernels(sections):
    view, chart = table(sections["kernels"]), sections["kernels"].charts[0].figure
    name = chart["layout"]["title"]["text"].removeprefix("Top kernels: ")
    rows = [row for row in view.rows if row["configuration"] == name]
    drawn: Counter[str] = Counter()
    listed: Counter[str] = Counter()
    for trace in chart["data"]:
        for kernel, ms in zip(trace["y"], trace["x"], strict=True):
            drawn[kernel] += ms
    for row, ms in zip(view.rows, column(view, "ms/step"), strict=True):
        if row in rows:
            listed[row["kernel"]] += ms
    assert rows and dict(drawn) == close(dict(listed))


def test_factors_and_predictions(sections):
    def drawn(id, axis, wanted=lambda name: True):
        return [one for name, trace in traces(sections[id]).items() if wanted(name) for one in trace[axis]]

    assert sorted(drawn("factors", "x")) == close(sorted(column(table(sections["factors"]), "omega squared")))
    rates = column(table(sections["prediction"]), "images/s [range]")
    ahead = drawn("prediction", "y", lambda name: name != "measured")
    assert ahead and all(any(y == close(rate) for rate in rates) for y in ahead)


ANALYSIS = Path(plots.__file__).parents[1]
COLOUR = re.compile(r"#[0-9A-Fa-f]{6}\b")
LEAST = 3.0  # WCAG 2.2, 1.4.11: graphical objects


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", PALETTE)
def test_the_colour_of_a_line_is_told_from_the_background_in_both_schemes(colour):
    light, dark = re.findall(r"--paper: (#[0-9a-f]{6})", (ANALYSIS / "report/page/style.css").read_text())
    assert contrast(colour, light) >= LEAST
    assert contrast(ON_DARK.get(colour, colour), dark) >= LEAST


@pytest.mark.parametrize("colours", [CONCEPTS, plots.STAGE_COLOURS, plots.PART_COLOURS])
def test_each_concept_has_a_colour_of_its_own_in_both_schemes(colours):
    light = list(colours.values())
    assert len(set(light)) == len(light) == len({ON_DARK.get(colour, colour) for colour in light})


def test_charts_have_no_other_colours():
    assert {*plots.STAGE_COLOURS.values(), *plots.PART_COLOURS.values()} <= set(CONCEPTS.values())
    shared = {"communication": "communication", "copies": "memcpy", "data": "loader", "update": "optimizer"}
    assert all(CONCEPTS[concept] == CLASS_COLOURS[name] for concept, name in shared.items())
    elsewhere = {
        (path.name, colour)
        for folder in ("display", "report")
        for path in (ANALYSIS / folder).glob("*.py")
        if path.name != "plots.py"
        for colour in COLOUR.findall(path.read_text())
    }
    assert not elsewhere
