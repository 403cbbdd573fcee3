"""The report says what the results say, whatever they are; nothing in them can break the page."""

import csv
import io
import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from analysis.display.metrics import NODE, RANK, Metric
from analysis.display.output import Part
from analysis.frames.load import load
from analysis.report import build as build_module
from analysis.report.build import build
from analysis.report.render import Page, Section, render
from jobs import store
from jobs.run_fields import as_text
from profiling import tables
from tests.analysis.commands import run
from tests.analysis.synthetic import Truth, change, run_of, write_run, write_sweep

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A sweep that no test changes."""
    folder = tmp_path_factory.mktemp("sweep") / "planted"
    runs = [
        run_of(gpus_per_node=ranks, profile=profile, grad=grad)
        for ranks in (1, 2, 4)
        for profile in ("none", "torch")
        for grad in (("fp32",) if ranks == 1 else ("fp32", "fp16"))
    ]
    write_sweep(folder, runs, excluded=(("run_0_x", "one rank sends no gradients"),))
    return folder


@pytest.fixture(scope="module")
def built(planted) -> tuple[Page, Counter]:
    """The page, and how often each table of each rank was read for it."""
    counts = Counter()
    read = tables.read

    def counted(directory, name, columns=None):
        counts[directory, name] += 1
        return read(directory, name, columns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "read", counted)
        return build(load(planted)), counts


@pytest.fixture(scope="module")
def page(built) -> Page:
    return built[0]


def test_each_table_of_a_rank_is_read_a_few_times_however_many_questions_ask(planted, built):
    _, counts = built
    # Of profiled runs, whose rank 0 tells more than others, and of the slowest on the most ranks most: its
    # critical path, and its kernels beside the baseline's. Of the rest, steps and the first step are read.
    most = {"kernels": 4, "batches": 9}
    for (rank, name), count in counts.items():
        assert count <= (2 if "_none_" in rank.parent.name else most.get(name, 1)), (rank, name)
    assert {rank.parent for rank, _ in counts} == set(planted.glob("run_*"))


def section_of(page: Page, name: str):
    return next(section for section in page.sections if section.id == name)


def test_each_series_starts_at_its_base_point(page):
    chart = section_of(page, "scaling").charts[1].figure
    lines = {trace["name"]: trace for trace in chart["data"] if trace["name"] != "ideal"}
    assert set(lines) == {"fp32 gradients", "fp16 gradients"}
    for line in lines.values():
        assert line["x"] == [1, 2, 4]
        # 100 ms on one rank; 110 and 125 ms were planted on two and four.
        assert line["y"] == pytest.approx([100, 100 / 1.1, 80], abs=1.0)


def test_filters_offer_what_varies_and_nothing_else(page):
    filters = {one.name: list(one.choices) for one in page.filters}
    assert filters == {"grad": ["fp16", "fp32"], "gpus_per_node": ["1", "2", "4"]}


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on this machine")
def test_the_page_finds_the_level_that_a_filter_names():
    """As the page has them, levels are JSON, and what is chosen is text."""
    levels = ["auto", 0.1, 1e-05, 2.0, 8, True, False]
    cases = [[{"x": fact}, {"x": as_text(level)}, fact is level] for fact in levels for level in levels]
    script = (Path(build_module.__file__).parent / "page" / "filters.js").read_text()
    script += f"console.log(JSON.stringify({json.dumps(cases)}.map(([facts, one]) => passes(facts, one))))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [expected for _, _, expected in cases]


def plant_kernel_name(sweep, name: str) -> None:
    """Give one kernel of each profiled run a name."""
    for path in sweep.glob("run_*_torch_*/rank_*"):
        change(path, "kernels", short_name=lambda names: [name if one == "relu" else one for one in names])


def test_the_command_writes_beside_the_results_and_nothing_in_these_is_markup(tmp_path):
    sweep = tmp_path / "planted"
    write_sweep(sweep, [run_of(profile=profile) for profile in ("none", "torch")])
    plant_kernel_name(sweep, EVIL)
    write_run(sweep, run_of(batch=64), Truth(), exit_code=1, reason="rank 3 was killed")
    ran = run("analysis.report.__main__", sweep)
    assert ran.code == 1 and ran.out.strip() == str(sweep / "report.html")
    html = (sweep / "report.html").read_text()
    assert "rank 3 was killed" in html
    assert EVIL not in html and "&lt;script&gt;alert(1)" in html
    assert not list(sweep.glob("*.partial")) and (sweep / store.SWEEP).is_file()


def test_a_long_table_by_rank_is_a_file_in_the_page():
    columns = [RANK, Metric("step_ms", "its duration", "step, ms", places=1), NODE]
    rows = [{"rank": rank, "step_ms": 0.512345, "node": "a,b"} for rank in range(40)]
    for count, is_file in ((32, False), (40, True)):
        section = Section(tables=[Part("", pd.DataFrame(rows[:count]), columns)], id="cost", heading="Cost")
        html = render(Page("a", "b", [], [section], "", []))
        assert ('<table id="cost-0"' in html) != is_file
        files = [unquote(one) for one in re.findall(r'href="data:text/csv;charset=utf-8,([^"]+)"', html)]
        assert len(files) == is_file
    header, first, *others = csv.reader(io.StringIO(files[0]))
    assert header == ["rank", "step, ms", "node"] and first == ["0", "0.512345", "a,b"]
    assert len(others) == 39


def test_every_heading_of_a_page_has_its_tooltip(page):
    headings = [
        (section.id, column.name)
        for section in page.sections
        for table in section.tables
        for column in table.columns
        if not column.description
    ]
    assert headings == []
