"""The report's page in a real browser, as its tests use it, and what of it is measured."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser; without Chromium the test is skipped."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        opened = playwright.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For the tests of a module, which import it."""
    with chromium() as opened:
        yield opened


class Watched:
    """A page, with every message of its console and every request that it made.

    Args:
        address: what follows the file's name: a section, filters.
        opened: with all its sections open.
    """

    def __init__(self, browser, path: Path, address: str = "", opened: bool = True, **options) -> None:
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(60_000)  # of a machine that has much else to do
        self.drawn_first = 0
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.messages.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri() + address)
        self.page.wait_for_selector("body[data-ready]")
        if opened:
            self.page.click("#open-all")
            self.page.wait_for_selector("details[open] #methods")
        self.drawn()

    def drawn(self) -> None:
        """Wait until every chart near the view stands."""
        self.page.wait_for_selector("body[data-drawn]", timeout=60_000)

    def settled(self) -> None:
        """After what the page hears of a moment later: a new width, a filter, what came into view."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.drawn()

    def see(self, selector: str):
        """Scroll there; the first element."""
        element = self.page.locator(selector).first
        element.scroll_into_view_if_needed()
        self.settled()
        return element

    def see_all(self) -> None:
        """Scroll to every chart of an open section: a chart is drawn when it comes near the view."""
        for chart in self.page.locator("details[open] .chart").all():
            chart.scroll_into_view_if_needed()
            self.settled()

    def as_opened(self) -> None:
        """Sections folded, nothing chosen, at the top of the page."""
        self.page.evaluate(
            """() => {
              for (const details of folded()) details.open = false;
              for (const box of document.querySelectorAll("input[type=search]")) box.value = "";
              history.replaceState(null, "", "#");
              followAddress();
              scrollTo(0, 0);
            }"""
        )
        self.settled()

    def go(self, address: str) -> None:
        """Follow a link of this page: a section, filters."""
        self.page.evaluate("(address) => { location.hash = address; }", address)
        self.settled()

    def rows(self, table: str):
        """The rows that are seen, once the table is in view: before, none is laid out."""
        self.see(f"#{table}")
        return self.page.locator(f"#{table} tbody tr:visible")

    def lines(self, chart: str) -> list[str]:
        """The names of the traces that a chart shows."""
        return self.page.evaluate(f"document.getElementById('chart-{chart}').data.map((t) => t.name)")


LEGENDS = """[...document.querySelectorAll('.chart')].map((chart) => [
  chart.id, chart.clientHeight,
  [...chart.querySelectorAll('.legend')].reduce((sum, one) => sum + one.getBBox().height, 0)])"""
# Of the names in legends and above panels, pairs that lie on each other, and those that leave their chart.
OVERPRINTED = """[...document.querySelectorAll('.chart')].flatMap((chart) => {
  const texts = [...chart.querySelectorAll('.legend text, .annotation text')];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const whole = chart.getBoundingClientRect();
  return boxes.flatMap(([name, box], number) => {
    const others = boxes.slice(number + 1).filter((other) => meet(box, other[1]));
    const leaves = box.left < whole.left - 1 || box.right > whole.right + 1;
    return [...(leaves ? [[chart.id, name]] : []), ...others.map((other) => [chart.id, name, other[0]])];
  });
})"""
# By how much the contents, which stay in view, cover the heading of a section that a link opened.
COVERED = """(() => {
  openSection('table');
  const [bar, section] = ['nav', '#table'].map((one) => document.querySelector(one).getBoundingClientRect());
  return bar.right <= section.left ? 0 : bar.bottom - section.top;
})()"""


def assert_fits(watched: Watched, width: int) -> None:
    """No legend takes more than a fifth of its chart, no name lies on another one, no heading is covered."""
    watched.page.set_viewport_size({"width": width, "height": 900})
    watched.settled()
    watched.see_all()
    charts = watched.page.evaluate(LEGENDS)
    assert charts and [(id, legend) for id, height, legend in charts if legend > height / 5] == []
    assert watched.page.evaluate(OVERPRINTED) == []
    assert watched.page.evaluate(COVERED) < 1
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width


OF_COLOURS = ("color-contrast", "link-in-text-block")  # axe's rules that a scheme of colours can break


def violations(page, *rules: str) -> list[tuple[str, str]]:
    """What axe finds, of all rules or these: the rule, and the first element that breaks it."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = Axe().run(page, options=options).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]
