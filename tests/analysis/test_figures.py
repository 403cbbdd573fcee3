"""Charts as files for a paper: the image shows the points of the CSV, and the caption says what they are."""

import csv
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from defusedxml.ElementTree import parse

from analysis.display.lines import EFFICIENCY, encode, lines
from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.report.build import build
from analysis.report.figures import data_of, figures_of, write_figures
from analysis.report.render import Page
from tests.analysis.chromium import CHROMIUM, NONE
from tests.analysis.commands import Ran, one_line_error, run
from tests.analysis.synthetic import run_of, write_sweep

REPORT = "analysis.report.__main__"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "sweep"
    runs = [
        run_of(gpus_per_node=ranks, profile=profile, loader=loader)
        for ranks in (1, 2, 4)
        for profile in ("none", "torch")
        for loader in ("synthetic", "pytorch")
    ]
    write_sweep(folder, runs, repetitions={"none": 3, "torch": 1})
    return folder


@pytest.fixture(scope="module")
def no_browser(sweep, tmp_path_factory) -> tuple[Ran, Path]:
    """The command's answer where there is no browser, and the folder of the figures."""
    folder = tmp_path_factory.mktemp("words") / "figures"
    words = ("--figures", folder, "--figure-format", "png", "--output", folder.parent / "report.html")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BROWSER_PATH", "/nowhere/chromium")
        ran = run(REPORT, sweep, *words)
    return ran, folder


@pytest.fixture(scope="module")
def page(sweep) -> Page:
    return build(load(sweep))


@pytest.fixture(scope="module")
def drawn(page, tmp_path_factory) -> Path:
    if CHROMIUM is None:
        pytest.skip(NONE)
    folder = tmp_path_factory.mktemp("report") / "figures"
    files = write_figures(page, folder, "svg")
    assert set(files) == set(folder.iterdir())
    return folder


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- without a browser ----------------------------------------------------------------------------------


def test_without_a_browser_captions_and_data_are_written_and_one_line_says_what_is_missing(no_browser):
    ran, folder = no_browser
    assert ran.code == 2
    line = ran.err.strip().splitlines()[-1]
    assert line.startswith("scaleprof: error: ") and str(folder) in line
    endings = {path.suffix for path in folder.iterdir()}
    assert endings == {".csv", ".txt"}
    assert (folder.parent / "report.html").exists()
    text = (folder / "scaling-throughput.txt").read_text()
    assert text.startswith("Throughput. ") and "x axis: GPUs" in text and "y axis: images/s" in text


def test_the_data_are_the_figures_of_the_command_that_computes_them(no_browser, sweep):
    _, folder = no_browser
    wanted = {
        (row["loader"], int(row["world_size"])): row
        for row in run("analysis.scaled", sweep, "--format", "csv", "--all").csv
    }
    shown = [row for row in table(folder, "scaling-throughput") if not row["series"].endswith("ideal")]
    assert len(shown) == len(wanted) == 6
    for row in shown:
        scaled = wanted[row["loader"], int(row["GPUs"])]
        for column, metric in (
            ("images/s", "images_per_s"),
            ("images/s, low", "images_per_s_low"),
            ("images/s, high", "images_per_s_high"),
        ):
            assert float(row[column]) == pytest.approx(float(scaled[metric]), rel=1e-9)


def test_files_are_not_replaced_without_being_asked(sweep, tmp_path):
    mine = tmp_path / "paper"
    mine.mkdir()
    (mine / "scaling-throughput.svg").write_text("drawn by hand")
    report = tmp_path / "report.html"
    error = one_line_error(run(REPORT, sweep, "--figures", mine, "--output", report))
    assert "--overwrite" in error
    assert (mine / "scaling-throughput.svg").read_text() == "drawn by hand"
    assert not report.exists()


@pytest.mark.parametrize("words", [("--overwrite",), ("--figure-format", "png")])
def test_what_is_said_of_figures_needs_some(sweep, words):
    assert "need --figures" in one_line_error(run(REPORT, sweep, *words))


# --- data -----------------------------------------------------------------------------------------------


def test_a_mean_says_of_how_many_configurations_it_is_and_what_they_differ_in():
    rows = [
        {"world_size": ranks, "scaling_efficiency_pct": value, "label": f"{loader} {batch}", "sizes": {},
         "facts": {"loader": loader, "batch": batch}}
        for loader, batch, values in (("a", 32, (100, 90)), ("a", 64, (100, 80)), ("b", 32, (100, 60)))
        for ranks, value in zip((1, 2), values, strict=True)
    ]  # fmt: skip
    encoding = encode([row["facts"] for row in rows], ["loader"])
    figure = lines(pd.DataFrame(rows), encoding, EFFICIENCY, lambda factor, level: f"{factor} {level}")
    points = records(data_of(figure))
    y = "% of ideal"
    names = ("loader", "batch", "series", y, f"{y}, low", f"{y}, high", "configurations")
    on_two = [tuple(row[name] for name in names) for row in points
              if row["ranks"] == 2 and row["series"] != "ideal"]  # fmt: skip
    assert on_two == [("a", None, "loader a", 85, 80, 90, 2), ("b", 32, "loader b", 60, None, None, None)]


def test_names_that_plotly_would_read_as_html_are_the_original_ones():
    trace = {"type": "bar", "orientation": "h", "name": "a&amp;b", "x": [1.0], "y": ["f&lt;int&gt;"]}
    figure = {"data": [trace], "layout": {"xaxis": {"title": {"text": "ms per step"}}, "yaxis": {}}}
    assert records(data_of(figure)) == [{"name": "f<int>", "series": "a&b", "ms per step": 1.0}]


# --- images ---------------------------------------------------------------------------------------------


def test_each_chart_has_an_image_a_caption_and_data_of_one_name(drawn, page):
    names = [figure.name for figure in figures_of(page)]
    assert len(set(names)) == len(names)
    assert {"scaling-throughput", "scaling-efficiency", "loss", "anatomy", "kernels"} <= set(names)
    wanted = {f"{name}.{ending}" for name in names for ending in ("svg", "csv", "txt")}
    assert {path.name for path in drawn.iterdir()} == wanted


def test_an_image_has_the_width_of_a_column_a_white_ground_and_its_caption(drawn):
    for path in drawn.glob("*.svg"):
        root = parse(path).getroot()
        assert root.get("width") in ("336", "687"), path.name
        assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
        assert (root[0].tag, root[1].tag) == (f"{SVG}title", f"{SVG}desc")
        assert root[1].text == path.with_suffix(".txt").read_text().strip()
        ground = next(root.iter(f"{SVG}rect"))
        assert "rgb(255, 255, 255)" in ground.get("style")
        text = path.read_text()
        assert not re.search(r"<script|modebar|href=\"http", text), path.name
    assert parse(drawn / "scaling-throughput.svg").getroot().get("width") == "336"


def test_the_image_shows_the_points_of_the_data(drawn):
    """Markers stand where the CSV says: height is linear in the value, with no other marker."""
    rows = [row for row in table(drawn, "scaling-efficiency") if row["series"] != "ideal"]
    values = [float(row["% of ideal"]) for row in rows]
    root = parse(drawn / "scaling-efficiency.svg").getroot()
    markers = [path for path in root.iter(f"{SVG}path") if "point" in path.get("class", "").split()]
    heights = [float(re.match(r"translate\(([^,]+),([^)]+)\)", one.get("transform"))[2]) for one in markers]
    assert len(heights) == len(values) == 6
    slope, offset = np.polyfit(values, heights, 1)
    assert slope < -0.5  # pixels for each per cent
    assert np.allclose(np.polyval((slope, offset), values), heights, atol=0.1)


def test_an_image_of_pixels_has_300_of_them_per_inch(page, drawn, tmp_path):
    scaling = [section for section in page.sections if section.id == "scaling"]
    write_figures(replace(page, sections=scaling), tmp_path, "png")
    image = (tmp_path / "scaling-throughput.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    width, _ = struct.unpack(">II", image[16:24])
    assert width == 1050  # 3.5 in
