"""The report in a real browser, of one run to many, on a phone, a tablet and a screen: what a user does."""

import itertools
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from analysis.frames.load import load
from analysis.report.build import build
from analysis.report.render import render
from tests.analysis.report_page import LEGENDS, Watched, assert_fits
from tests.analysis.report_page import browser as browser  # a fixture
from tests.analysis.synthetic import Truth, run_of, write_sweep

pytestmark = pytest.mark.long

SIZES = (1, 2, 18)  # runs
# To make the results of 320 runs takes as long as many a file of tests: `make test-wide` does.
LARGE = pytest.param(320, marks=pytest.mark.wide)
MOST_BYTES = 3_000_000


def plant(folder: Path, runs: int) -> None:
    """Results of so many runs: of one, of it and its profiled twin, of a small sweep, of a large one."""
    if runs <= 2:
        write_sweep(
            folder, [run_of(profile=name) for name in ("none", "torch")[:runs]], repetitions={"none": 1}
        )
        return
    if runs == 18:
        options = {"loader": ("pytorch", "synthetic"), "profile": ("none", "torch")}
        write_sweep(folder, _sweep(options), _truth({}))
        return
    options = {
        "loader": ("pytorch", "synthetic"), "grad": ("fp16", "fp32"), "workers": (2, 4),
        "network": ("eth", "ib"), "batch": (32, 64),
    }  # fmt: skip
    for levels in itertools.product(*options.values()):
        one = dict(zip(options, levels, strict=True))
        planned = [run for run in _sweep({name: (level,) for name, level in one.items()})
                   if run.world_size > 1 or one["grad"] == "fp32"]  # fmt: skip
        profiled = [run.model_copy(update={"profile": "torch"}) for run in planned if one["workers"] == 4]
        profiled = profiled if one["network"] == "ib" and one["batch"] == 64 else []
        write_sweep(folder, [*planned, *profiled], _truth(one), {"none": 4 - bool(profiled), "torch": 1})


def _sweep(options):
    levels = itertools.product((1, 2, 4), *options.values())
    return [run_of(gpus_per_node=ranks, batches=20, **dict(zip(options, rest, strict=True)))
            for ranks, *rest in levels]  # fmt: skip


def _truth(levels) -> Truth:
    slower = {"pytorch": 1.5, "fp32": 1.3, 2: 1.2, "eth": 1.1}
    factor = math.prod(slower.get(level, 1.0) for level in levels.values())
    return Truth(step_ms={ranks: 100 * factor * (1 + 0.05 * (ranks - 1)) for ranks in (1, 2, 4)})


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[int], Path]:
    """The report of so many runs, made once, in whichever order tests ask."""

    @cache
    def report_of(runs: int) -> Path:
        folder = tmp_path_factory.mktemp("runs") / str(runs)
        plant(folder, runs)
        study = load(folder)
        assert len(study.sources) == runs
        file = folder / "report.html"
        file.write_text(render(build(study)), encoding="utf-8")
        return file

    return report_of


@pytest.fixture(scope="module", params=[*SIZES, LARGE])
def report(request, made) -> Path:
    return made(request.param)


@pytest.fixture(scope="module")
def opened(browser, report):
    """One page of each size for all tests, with all its sections open; a test leaves it as it was."""
    watched = Watched(browser, report, viewport={"width": 1400, "height": 900})
    yield watched
    watched.page.close()


# Charts that are not as wide as their place, among those that are drawn near the view.
MISFITS = """[...document.querySelectorAll('.chart')].filter((chart) => drawnIn.get(chart) === view).map(
  (chart) => [chart.id, chart.querySelector('.main-svg').clientWidth - chart.clientWidth]
).filter(([_, wider]) => Math.abs(wider) > 1)"""

DRAWN = "[...document.querySelectorAll('.chart')].filter((chart) => drawnIn.get(chart) === view).length"

# Each number of runs at one width, and each width; the most runs at all of them.
FITS = [
    *((1, (360,)), (2, (768,)), (18, (1400, 360, 1400))),
    pytest.param(320, (1400, 768, 360), marks=pytest.mark.wide),
]


@pytest.mark.parametrize(("report", "widths"), FITS, indirect=["report"], scope="module")
def test_the_page_fits_any_width(opened, widths, request):
    many = request.node.callspec.params["report"] == 320
    for width in widths:
        assert_fits(opened, width)
        assert any(legend for _, _, legend in opened.page.evaluate(LEGENDS)) or not many
        assert opened.page.evaluate(DRAWN) == opened.page.locator(".chart").count()
        assert opened.page.evaluate(MISFITS) == []
    assert opened.messages == []


@pytest.mark.parametrize("report", [1, LARGE], indirect=True, scope="module")
def test_paper_gets_all_of_every_chart(opened):
    """A sheet of A4 is narrower than a screen."""
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.page.emulate_media(media="print")
    wide = "[...document.querySelectorAll('.chart .main-svg')].map((one) => one.clientWidth)"
    assert max(opened.page.evaluate(wide)) <= 700
    assert opened.page.locator("nav:visible, select:visible").count() == 0
    opened.page.emulate_media(media="screen")
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.settled()
    assert opened.page.evaluate(f"{DRAWN} > 0") and opened.page.evaluate(MISFITS) == []


@pytest.mark.parametrize("report", [LARGE], indirect=True, scope="module")
def test_a_filter_forms_the_means_again(opened):
    opened.as_opened()
    opened.go("scaling")
    opened.see_all()
    lines = (
        "document.getElementById('chart-throughput').data.filter((t) => t.mode === 'lines+markers' && t.x[0])"
    )
    whole = opened.page.evaluate(f"{lines}.map((t) => [t.name, t.meta.members.length, t.y[0]])")
    assert len(whole) == 4 and {members for _, members, _ in whole} == {8}
    opened.page.select_option("select[data-filter=network]", "ib")
    opened.see("#chart-throughput")
    left = opened.page.evaluate(f"{lines}.map((t) => [t.name, t.y[0]])")
    assert [name for name, _ in left] == [name for name, _, _ in whole]
    # A batch takes 1.1 times as long over eth.
    ratios = [of_ib / mean for (_, of_ib), (_, _, mean) in zip(left, whole, strict=True)]
    assert ratios == pytest.approx([2 / (1 + 1 / 1.1)] * 4, rel=0.02)
    for name, level in (("grad", "fp16"), ("workers", "2")):
        opened.page.select_option(f"select[data-filter={name}]", level)
    opened.see("#chart-throughput")
    facts = opened.page.evaluate(f"{lines}.map((t) => [t.facts.network, t.facts.grad, t.facts.workers])")
    assert facts == [["ib", "fp16", 2]] * 4
    opened.page.select_option("select[data-filter=gpus_per_node]", "2")
    opened.see("#chart-throughput")
    assert {tuple(x) for x in opened.page.evaluate(f"{lines}.map((t) => t.x)")} <= {(2,), (1, 2)}
    titles = opened.page.locator("#scaling .title span").all_inner_texts()
    assert titles == ["Throughput", "Scaling efficiency"]


@pytest.mark.parametrize("report", [2], indirect=True)
def test_a_browser_that_cannot_unpack_the_chart_library_says_so(browser, report):
    page = browser.new_page()
    page.add_init_script("delete globalThis.DecompressionStream")
    page.goto(report.as_uri() + "#table")
    page.wait_for_selector("#no-charts:visible")
    assert page.locator("#no-charts").is_visible()
    assert page.locator("figure:visible").count() == 0
    assert page.locator("#table-0 tbody tr:visible").count() == 1
    page.close()


def test_the_file_stays_small(report):
    assert report.stat().st_size < MOST_BYTES
