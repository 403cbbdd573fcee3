"""What the page says of a choice of filters is what a report of the runs that it leaves would say."""

from pathlib import Path

import pytest
from jinja2 import DictLoader, Environment

from analysis.report.build import build
from analysis.report.choices import Coverage, Filter, choices_of
from analysis.report.pieces import ALSO, NOTHING, Pieces, answers
from analysis.report.render import Page
from analysis.report.sentences import SCALES, Sentence
from analysis.results.load import load
from tests.analysis.filtering import said_of, with_levels
from tests.analysis.synthetic import Truth, run_of, write_sweep, write_tau


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Two loaders, two batch sizes, two gradients, on 1, 2 and 4 ranks; profiled runs of one batch size."""
    folder = tmp_path_factory.mktemp("sweep") / "planted"
    for loader, batch in (("pytorch", 32), ("pytorch", 64), ("synthetic", 32), ("synthetic", 64)):
        factor = (1.4 if loader == "pytorch" else 1.0) * batch / 32
        ms = {1: 100.0 * factor, 2: 115.0 * factor, 4: (150.0 if loader == "pytorch" else 130.0) * factor}
        truth = Truth(
            step_ms=ms, wait_ms={1: 1.0, 2: 6.0, 4: 20.0} if loader == "pytorch" else {}, kernel_ms=60.0
        )
        runs = [
            run_of(gpus_per_node=ranks, loader=loader, batch=batch, grad=grad, profile=profile)
            for ranks in (1, 2, 4)
            for grad in (("fp32",) if ranks == 1 else ("fp32", "fp16"))
            for profile in (("none", "torch") if batch == 32 else ("none",))
        ]
        write_sweep(folder, runs, truth)
    return folder


@pytest.fixture(scope="module")
def page(sweep) -> Page:
    return build(load(sweep))


CHOICES = (
    {"loader": "pytorch"},
    {"loader": "synthetic", "batch": "32"},
    {"batch": "64"},
    {"grad": "fp32", "loader": "pytorch"},
    {"gpus_per_node": "4"},
    {"gpus_per_node": "1", "batch": "32"},
    {"gpus_per_node": "2", "loader": "pytorch", "grad": "fp16", "batch": "32"},
)


@pytest.mark.parametrize("levels", CHOICES, ids=lambda levels: "-".join(levels.values()))
def test_a_choice_says_what_a_report_of_the_runs_that_it_leaves_says(sweep, page, tmp_path, levels):
    alone = build(load(with_levels(sweep, tmp_path / "alone", **levels)))
    _, said = said_of(page, **levels)
    assert said.summary == alone.summary and len(alone.summary) > 1
    assert said.drawings == alone.drawings
    # That the other sections are of a run that is left out, or of the whole sweep, is theirs to say.
    findings = {section.id: section.finding for section in alone.sections}
    for id in ("scaling", "table", "loss", "stages", "batches", "anatomy", "stragglers", "cost"):
        if findings.get(id, "").startswith("Not available"):  # for a reason that names the report's folder
            assert said.findings[id] == ""
        else:
            assert said.findings[id] == findings.get(id, ""), id


def test_a_choice_without_the_baseline_keeps_the_efficiency_of_the_pages_tables(page):
    """One rank has fp32 gradients only: what fp16 is compared with, no filter changes."""
    _, said = said_of(page, grad="fp16", loader="synthetic", batch="32")
    (text, *_) = [
        one.text for one in said.summary if one.text.startswith("Scaling efficiency on 4 ranks: 77 %")
    ]
    assert "relative to 1 node x 1 GPU" in text
    (table,) = [section.tables[0] for section in page.sections if section.id == "table"]
    assert any(row.facts["grad"] == "fp16" for row in table.rows)


def test_one_world_size_says_nothing_of_scaling(page):
    _, said = said_of(page, gpus_per_node="4")
    texts = [one.text for one in said.summary]
    assert texts[0].startswith("Fastest configuration: ")
    assert "Not enough data to say how training scales: there is only one world size." in texts
    assert not any("efficiency" in text or "Gain" in text for text in texts)
    assert said.findings["scaling"] == "There is only one world size: only throughput can be shown."
    assert said.findings["prediction"] == ""


def test_nothing_is_said_of_a_configuration_that_is_left_out(page):
    for level, other in (({"batch": "64"}, "batch 32"), ({"loader": "synthetic"}, "pytorch")):
        _, said = said_of(page, **level)
        texts = [*(one.text for one in said.summary or []), *said.findings.values()]
        assert [text for text in texts if other in text] == []
    # The runs that these sections show are of batch 32.
    _, said = said_of(page, batch="64")
    assert [said.findings[id] for id in ("critical-path", "roofline", "kernel-change")] == [""] * 3


def test_what_is_of_the_whole_sweep_does_not_follow(page):
    assert {section.id for section in page.sections if not section.follows} == {"factors", "left-out"}


def test_every_choice_is_there_and_counts_its_configurations(page):
    assert page.filtered is not None and page.filtered.depth == len(page.filters) == 4
    assert page.filtered.configurations == 20
    assert said_of(page, loader="pytorch")[0] == 10
    assert said_of(page, gpus_per_node="1", loader="pytorch")[0] == 2
    # No choice leaves nothing: one rank has fp32 gradients only.
    with pytest.raises(KeyError):
        said_of(page, gpus_per_node="1", grad="fp16")


def test_of_many_factors_the_choices_of_few_filters_are_listed():
    names = "abcdef"
    rows = [{name: number >> place & 1 for place, name in enumerate(names)} for number in range(64)]
    filters = [Filter(name, ["0", "1"]) for name in names]
    coverage = Coverage(names, rows)
    assert choices_of(filters, coverage).depth == 6
    some = choices_of(filters, coverage, most=100)
    assert some.depth == 2 and len(some.left) == 12 + 15 * 4
    assert choices_of(filters, coverage, most=5).depth == 1  # the single ones always


def test_a_row_that_names_no_number_of_ranks_is_left_with_all_of_them():
    rows = [{"loader": loader, "nodes": nodes} for loader in "ab" for nodes in (1, 2)]
    coverage = Coverage(("loader", "nodes"), rows)
    assert coverage.of({"loader": "a"}) == {("a", "1"), ("a", "2")}
    assert coverage.of({"loader": "c", "nodes": 1}) == frozenset()


def test_texts_are_held_once(page):
    of_sentence = "{% macro sentence(one, all) %}{{ one.text }}{{ all }}{% endmacro %}"
    others = "{% macro NAME(one, all) %}{{ one }}{% endmacro %}"
    macros = of_sentence + "".join(
        others.replace("NAME", name) for name in ("question", "drawing", "finding")
    )
    made = Pieces(Environment(loader=DictLoader({"opening.html.j2": macros}))).of_choices(page.filtered)
    assert len(set(made["pieces"])) == len(made["pieces"])
    assert set(made["of"].values()) == set(range(len(made["said"])))
    assert NOTHING in made["pieces"]


def test_published_tables_are_filtered_by_their_own_levels(tmp_path):
    """The range of published efficiencies is of what is left, and of one it is no range."""
    seconds = {
        (nodes, 2, batch): [60.0 + nodes * (batch == 64)] * 3 for nodes in (1, 2, 4) for batch in (32, 64)
    }
    write_tau(tmp_path / "interval.gzip", seconds)
    page = build(load(tmp_path))
    assert [one.name for one in page.filters] == ["batch", "nodes"]
    assert page.summary[0].text == "Published scaling efficiency on 8 ranks: 95 to 100 %."
    _, said = said_of(page, batch="32")
    assert said.summary is not None
    assert said.summary[0].text == "Published scaling efficiency on 8 ranks: 100 %."


def test_what_answers_no_question_stands_below_a_heading_of_its_own():
    asked, other = Sentence("It scales.", answers=SCALES), Sentence("Kernels are slow.")
    assert [one.question for one in answers([other, asked], {})] == [SCALES, ALSO]
    assert [one.question for one in answers([other], {})] == [""]
