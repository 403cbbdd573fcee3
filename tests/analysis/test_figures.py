"""Charts as files for a paper: the image shows the points of the chart, the caption says what they are."""

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from defusedxml.ElementTree import parse

from analysis.frames.load import load
from analysis.report.build import build
from analysis.report.figures import figures_of, write_figures
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
        run_of(gpus_per_node=ranks, loader=loader)
        for ranks in (1, 2, 4)
        for loader in ("synthetic", "pytorch")
    ]
    write_sweep(
        folder, [*runs, run_of(gpus_per_node=1, profile="torch"), run_of(gpus_per_node=4, profile="torch")]
    )
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
    assert set(write_figures(page, folder, "svg")) == set(folder.glob("*.svg"))
    return folder


# --- without a browser ----------------------------------------------------------------------------------


def test_without_a_browser_captions_are_written_and_one_line_says_what_is_missing(no_browser):
    ran, folder = no_browser
    assert ran.code == 2
    line = ran.err.strip().splitlines()[-1]
    assert line.startswith("scaleprof: error: ") and str(folder) in line
    assert {path.suffix for path in folder.iterdir()} == {".txt"}
    assert (folder.parent / "report.html").exists()
    text = (folder / "scaling-throughput.txt").read_text()
    assert text.startswith("Throughput. ") and "x axis: GPUs" in text and "y axis: images/s" in text


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


# --- images ---------------------------------------------------------------------------------------------


def test_each_chart_has_an_image_and_a_caption_of_one_name(drawn, page):
    names = [figure.name for figure in figures_of(page)]
    assert len(set(names)) == len(names)
    assert {"scaling-throughput", "scaling-efficiency", "loss", "anatomy", "kernels"} <= set(names)
    wanted = {f"{name}.{ending}" for name in names for ending in ("svg", "txt")}
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


def test_the_image_shows_the_points_of_the_chart(drawn, page):
    """Height is linear in the value, with no other marker."""
    (chart,) = [one.chart for one in figures_of(page) if one.name == "scaling-efficiency"]
    values = [y for trace in chart.figure["data"] if trace["name"] != "ideal" for y in trace["y"]]
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
