"""The report in a real browser: it works offline, and without a mouse."""

import csv
import io
import re
from pathlib import Path

import pytest
from defusedxml.ElementTree import parse

from analysis.diagnosis.evidence import HEADINGS
from analysis.display.plots import BLACK, ON_DARK
from tests.analysis.commands import run
from tests.analysis.report_page import OF_COLOURS, Watched, violations
from tests.analysis.report_page import browser as browser  # a fixture
from tests.analysis.synthetic import run_of, write_sweep
from tests.analysis.test_report import EVIL, plant_kernel_name

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def report(browser, tmp_path_factory) -> Path:
    """The command's page, with its figures beside it."""
    directory = tmp_path_factory.mktemp("sweep")
    runs = [
        run_of(gpus_per_node=ranks, profile=profile, loader=loader)
        for ranks in (1, 2, 4)
        for profile in ("none", "torch")
        for loader in ("synthetic", "pytorch")
    ]
    write_sweep(directory, runs)
    plant_kernel_name(directory, EVIL)
    file = directory / "report.html"
    ran = run("analysis.report.__main__", directory, "--output", file, "--figures", directory / "figures")
    assert ran.code == 0, ran.err
    return file


@pytest.fixture(scope="module")
def seen(browser, report):
    """One page for all tests that only look at it."""
    opened = Watched(browser, report)
    opened.drawn_first = opened.page.locator(".plot-container").count()
    opened.see_all()
    yield opened
    opened.page.close()


@pytest.fixture(scope="module")
def used(browser, report):
    """One page for all tests that do something with it, and which sections were open at first."""
    opened = Watched(browser, report, opened=False)
    sections = opened.page.locator("details[open] > section:first-of-type").all()
    opened.sections_first = [one.get_attribute("id") for one in sections]
    yield opened
    opened.page.close()


def test_charts_are_written_as_svg(report):
    folder = report.parent / "figures"
    ids = set(re.findall(r'id="chart-([^"]+)"', report.read_text()))
    assert {file.stem for file in folder.iterdir()} == ids
    (throughput,) = folder.glob("*throughput*.svg")
    points = parse(throughput).iter("{http://www.w3.org/2000/svg}path")
    assert sum("point" in point.get("class", "").split() for point in points) == 6  # ranks x loaders


@pytest.fixture
def closed(used):
    used.as_opened()
    return used


def test_it_loads_without_a_message_and_the_network_and_draws_a_chart_when_it_comes_near(seen, report):
    assert seen.messages == []
    # blob: and data: are the page's own.
    assert [url for url in seen.requests if not url.startswith(("blob:", "data:"))] == [report.as_uri()]
    assert 0 < seen.drawn_first < seen.page.locator(".chart").count()
    assert seen.page.locator(".chart").count() >= 7
    assert seen.page.locator(".chart .main-svg").first.is_visible()
    for chart in seen.page.locator(".chart").all():
        assert chart.locator(".plot-container").count() == 1
    assert "synthetic" in seen.lines("throughput") and "ideal" in seen.lines("efficiency")
    # A kernel's name stays text.
    assert seen.page.locator("#kernels-0 td", has_text=EVIL).count() > 0
    assert seen.page.locator("#kernels-0 script").count() == 0


def test_lines_have_their_names_beside_them_where_there_is_room_instead_of_a_legend(closed):
    closed.go("scaling")
    closed.see("#chart-throughput")
    names, legends = "#chart-throughput .annotation text", "#chart-throughput .legend"
    assert {text[2:] for text in closed.page.locator(names).all_text_contents()} == {"synthetic", "pytorch"}
    assert closed.page.locator(legends).count() == 0
    size = closed.page.viewport_size
    closed.page.set_viewport_size({"width": 400, "height": 900})
    closed.settled()
    closed.see("#chart-throughput")
    assert (closed.page.locator(names).count(), closed.page.locator(legends).count()) == (0, 1)
    closed.page.set_viewport_size(size)


def test_a_filter_narrows_charts_and_tables(closed):
    for section in ("scaling", "kernels"):
        closed.go(section)
    before = closed.rows("kernels-0").count()
    closed.page.select_option("select[data-filter=loader]", "pytorch")
    assert 0 < closed.rows("kernels-0").count() < before
    shown = closed.rows("table-0").all_inner_texts()
    assert shown and all("pytorch" in row for row in shown)
    closed.see("#chart-throughput")
    assert "synthetic" not in closed.lines("throughput")


def test_tables_search_and_sort_by_keyboard(closed):
    closed.go("kernels")
    closed.page.fill("input[data-search=kernels-0]", "optimizer sgd")
    shown = closed.rows("kernels-0").all_inner_texts()
    assert shown and all("sgd" in row for row in shown)
    closed.go("table")
    header = closed.page.locator("#table-0 th", has_text="images")
    place = header.evaluate("element => element.cellIndex")

    def values() -> list[float]:
        return [float(row.locator("td").nth(place).get_attribute("data-value"))
                for row in closed.rows("table-0").all()]  # fmt: skip

    header.locator("button").focus()
    closed.page.keyboard.press("Enter")
    assert values() == sorted(values()) and header.get_attribute("aria-sort") == "ascending"
    closed.page.keyboard.press("Enter")
    assert values() == sorted(values(), reverse=True)


def test_the_first_screen_answers_and_the_first_two_charts_are_open(closed):
    assert closed.page.locator(".answer h2").all_inner_texts()[:2] == HEADINGS[:2]
    # Six chapters, the appendix, findings, terms, and how it was made; the first two are open.
    assert closed.page.locator("main details").count() == 10
    assert closed.sections_first == ["scaling", "loss"]
    assert not closed.page.locator("#anatomy table").first.is_visible()


def test_the_attachment_stands_alone(seen):
    """It explains its terms, and names commands and files of this project where it says how it was made."""
    assert seen.page.locator("#terms dt").count() > 14
    texts = seen.page.locator("section:not(#methods)").all_inner_texts()
    texts += seen.page.evaluate("[...document.querySelectorAll('[title]')].map((one) => one.title)")
    assert not [text for text in texts if re.search(r"docs/|python -m|analysis\.[a-z]|--[a-z]", text)]


def test_the_contents_lead_by_keyboard_to_a_section_and_stay_in_view(closed):
    closed.page.locator("nav a", has_text="Appendix").focus()
    closed.page.keyboard.press("Enter")
    assert closed.page.locator("details[open] #cost").count() == 1
    assert closed.page.evaluate("document.activeElement.textContent.trim()") == "Appendix"
    assert closed.page.url.endswith("#cost")
    assert 0 <= closed.page.locator("nav").bounding_box()["y"] < 30 and closed.page.evaluate("scrollY") > 0


def test_the_address_keeps_section_and_filters(browser, report):
    watched = Watched(browser, report, "#table&loader=pytorch&no_such=1&gpus_per_node=77", opened=False)
    ignored = watched.page.locator("#ignored")
    assert ignored.inner_text().endswith(": no_such=1, gpus_per_node=77.")
    assert watched.page.url.endswith("#table&loader=pytorch")
    assert watched.page.input_value("select[data-filter=loader]") == "pytorch"
    assert watched.page.locator("details[open] #table").count() == 1
    shown = watched.rows("table-0").all_inner_texts()
    assert shown and all("pytorch" in row for row in shown)
    watched.page.select_option("select[data-filter=gpus_per_node]", "2")
    assert watched.page.url.endswith("#table&loader=pytorch&gpus_per_node=2")
    assert not ignored.is_visible()
    watched.page.select_option("select[data-filter=loader]", "")
    watched.page.click("nav a[href^='#cost']")
    assert watched.page.url.endswith("#cost&gpus_per_node=2")
    watched.page.go_back()
    assert watched.page.url.endswith("#table&gpus_per_node=2")
    watched.page.close()


def test_a_chart_and_a_table_of_one_run_go_with_it(closed):
    closed.go("roofline&loader=pytorch&gpus_per_node=1")
    closed.see("#chart-roofline")
    assert closed.lines("roofline") == []
    text = closed.page.locator("#chart-roofline").inner_text()
    assert "nothing is drawn" in text
    assert closed.rows("roofline-0").count() == 0


def test_a_table_is_copied_as_csv_with_the_rows_that_are_shown(closed):
    closed.go("table&loader=pytorch")
    closed.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    closed.page.click("button[data-copy=table-0]")
    closed.page.wait_for_selector("#table [role=status]:text-is('copied')")
    header, *rows = csv.reader(io.StringIO(closed.page.evaluate("navigator.clipboard.readText()")))
    place = next(n for n, name in enumerate(header) if name.startswith("images"))
    shown = closed.rows("table-0").all()
    assert [row[place] for row in rows] == [
        row.locator("td").nth(place).get_attribute("data-value") for row in shown
    ]


# Of a chart, the colour of a class and that of its text.
COLOURS = """(name) => {
  const chart = document.getElementById('chart-loss');
  return [chart.data.find((one) => one.name === name).marker.color, chart.layout.font.color];
}"""


def test_a_chart_has_other_colours_on_a_dark_screen_and_those_of_paper_in_print(closed):
    closed.go("loss")
    closed.see("#chart-loss")
    light = closed.page.evaluate(COLOURS, "unattributed")
    assert light == [BLACK, "#1b1f24"]
    closed.page.emulate_media(color_scheme="dark")
    closed.settled()
    assert closed.page.evaluate(COLOURS, "unattributed") == [ON_DARK[BLACK], "#e6edf3"]
    closed.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert closed.page.evaluate(COLOURS, "unattributed") == light
    closed.page.evaluate("dispatchEvent(new Event('afterprint'))")
    closed.page.emulate_media(color_scheme="light")


def test_axe_finds_nothing_that_keeps_anyone_out(seen):
    assert violations(seen.page) == []
    seen.page.emulate_media(color_scheme="dark")
    seen.settled()
    assert violations(seen.page, *OF_COLOURS) == []  # nothing else differs
    seen.page.emulate_media(color_scheme="light")


def test_a_chart_is_saved_as_vectors(closed):
    closed.go("scaling")
    closed.see("#chart-throughput")
    assert closed.page.locator(".modebar-btn").count() == 0  # nothing lies over a chart on a touch screen
    with closed.page.expect_download() as saved:
        closed.page.click("button[data-save=chart-throughput]")
    assert saved.value.suggested_filename == "chart-throughput.svg"


@pytest.mark.parametrize("part", ["8 nodes", pytest.param("lisa", marks=pytest.mark.wide)])
def test_the_reference_files_too(browser, shared_data, tmp_path, part):
    folder = shared_data / "surfboard"
    if part == "lisa":
        source = folder / "tau" / "lisa_interval.gzip"
    else:
        source = next(folder.rglob("run_*config_8_2_ib*dali-gpu_32_fp16*"))
    ran = run("analysis.report.__main__", source, "--output", tmp_path / "r.html")
    assert ran.code == 0, ran.err
    watched = Watched(browser, tmp_path / "r.html")
    watched.see_all()
    assert watched.messages == []
    assert watched.page.locator(".chart .main-svg").count() > 0
    watched.page.close()
