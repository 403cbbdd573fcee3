"""The report of two results: the verdict and rows of analysis.compare."""

import pytest

from analysis.frames.load import load
from analysis.report.build import build_compared, names_compared
from analysis.report.render import render
from profiling.errors import UserError
from tests.analysis.commands import run
from tests.analysis.report_page import Watched, violations
from tests.analysis.report_page import browser as browser  # a fixture
from tests.analysis.synthetic import Truth, run_of, write_sweep


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two sweeps of two configurations: the second one's steps are 20 % shorter on two ranks."""
    root = tmp_path_factory.mktemp("compared")
    runs = [run_of(gpus_per_node=ranks) for ranks in (1, 2)]
    for name, two_ms in (("before", 120.0), ("after", 96.0)):
        truth = Truth(step_ms={1: 100.0, 2: two_ms}, run_noise_ms=0.5)
        write_sweep(root / name, runs, truth, repetitions={"none": 6})
    return root / "before", root / "after"


@pytest.fixture(scope="module")
def page(folders):
    return build_compared(*map(load, folders))


def test_the_page_has_the_verdict_the_rows_and_a_bar_for_each_configuration(page):
    change, findings = page.sections
    assert (change.id, findings.id) == ("change", "findings")
    (bars,) = change.charts
    drawn = sorted(x for trace in bars.figure["data"] for x in trace["x"])
    assert drawn[0] == pytest.approx(-20.0, abs=1.0) and drawn[1] == pytest.approx(0.0, abs=1.0)
    assert {name for trace in bars.figure["data"] for name in trace["y"]} == {"1 GPU", "2 GPUs"}
    assert len(change.tables[0].rows) >= 3
    assert page.summary and all(line.section == "change" for line in page.summary)
    assert {key for key, _ in page.provenance} >= {"results of A", "results of B"}


def test_the_command_writes_beside_the_second_and_refuses_the_same_runs(folders):
    ran = run("analysis.report.__main__", *folders)
    assert ran.code == 0 and (folders[1] / "compared-with-before.html").exists()
    with pytest.raises(UserError, match="same runs"):
        build_compared(load(folders[0]), load(folders[0]))


def test_results_of_one_name_are_told_apart_by_their_paths(tmp_path):
    assert names_compared(tmp_path / "a/x", tmp_path / "b/y") == ("A: x", "B: y")
    a, b = names_compared(tmp_path / "a/x", tmp_path / "b/x")
    assert a.endswith("a/x") and b.endswith("b/x")


def test_the_page_in_a_browser(browser, page, tmp_path):
    file = tmp_path / "r.html"
    file.write_text(render(page))
    watched = Watched(browser, file)
    watched.see_all()
    assert watched.messages == [] and violations(watched.page) == []
    assert watched.page.locator(".plot-container").count() == 1
    watched.page.close()
