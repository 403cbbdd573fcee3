"""The report of two results: it says what was planted, with the verdicts of analysis.compare."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from analysis.display import plots
from analysis.measures.scaling.compared import compared
from analysis.report import changed_configurations, changed_steps
from analysis.report.base import Context
from analysis.report.beside import names_of
from analysis.report.build import SECTIONS
from analysis.report.compared import build, verdict
from analysis.report.figures import caption, figures_of
from analysis.report.render import Page, Section, render
from analysis.report.sides import Sides
from analysis.results.load import load
from profiling.errors import UserError
from tests.analysis.commands import one_line_error, run
from tests.analysis.filtering import said_of, with_levels
from tests.analysis.report_page import Watched, assert_fits, violations
from tests.analysis.report_page import browser as browser  # a fixture
from tests.analysis.synthetic import Truth, run_of, write_pyprof, write_sweep
from tests.profiling.test_convert import trace

BEFORE_MS = {1: 100.0, 2: 110.0, 4: 125.0}


def write(folder: Path, factor: float, *, noise_ms: float, loaders=("pytorch", "synthetic"), ranks=(1, 2),
          repetitions: int = 6, kernel_ms: float = 60.0) -> Path:  # fmt: skip
    """A sweep whose steps are ``factor`` times as long as before; other noise makes other runs."""
    truth = Truth(
        step_ms={size: ms * factor for size, ms in BEFORE_MS.items()}, noise_ms=noise_ms, kernel_ms=kernel_ms
    )
    runs = [run_of(gpus_per_node=size, loader=loader, profile=profile, batches=20)
            for size in ranks for loader in loaders for profile in ("none", "torch")]  # fmt: skip
    write_sweep(folder, runs, truth, repetitions={"none": repetitions, "torch": 1})
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """After, steps take 10 % less time, kernels 12 of 60 ms less, and one configuration was not run."""
    root = tmp_path_factory.mktemp("pair")
    before = write(root / "before", 1.0, noise_ms=1.0)
    after = write(root / "after", 0.9, noise_ms=1.5, kernel_ms=48.0, loaders=("synthetic",))
    write(after, 0.9, noise_ms=1.5, kernel_ms=48.0, loaders=("pytorch",), ranks=(1,))
    return before, after


@pytest.fixture(scope="module")
def page(folders) -> Page:
    return build(load(folders[0]), load(folders[1]))


@pytest.fixture(scope="module")
def sides(folders) -> Sides:
    a, b = load(folders[0]), load(folders[1])
    return Sides(Context(a, b), Context(b, a), names_of(*folders), compared(a, b))


def section(page: Page, id: str) -> Section:
    return next(one for one in page.sections if one.id == id)


def test_the_first_sentence_says_better_and_by_how_much(page):
    first = page.opening[0]
    assert first.question == "Better or worse?" and first.drawing is not None
    found = re.fullmatch(
        r"Better: a step of B \(after\) takes ([\d.]+) % \[([\d.]+), ([\d.]+)\] less time than one of "
        r"A \(before\), over all 3 configurations\.",
        first.sentences[0].text,
    )
    assert found and float(found[1]) == pytest.approx(10, abs=0.4)
    assert float(found[2]) < float(found[1]) < float(found[3])
    assert first.sentences[1].text == "Of 3 configurations: 3 faster."


def test_each_configuration_has_the_figures_and_the_verdict_of_analysis_compare(folders, sides):
    rows = changed_configurations.configurations(sides)
    command = run("analysis.compare", *folders, "--format", "csv").csv
    steps = [row for row in command if row["kind"] == "step"]
    assert len(rows) == len(steps) == 3
    for row in rows:
        (same,) = [one for one in steps if one["loader"] == row["loader"]
                   and int(one["gpus_per_node"]) == row["gpus_per_node"]]  # fmt: skip
        for name in ("a", "b", "effect_pct", "effect_pct_low", "effect_pct_high"):
            assert row[name] == pytest.approx(float(same[name])), name
        assert row["verdict"] == same["verdict"] == "faster"
        # A tenth less time for as many images.
        assert row["rate_pct"] == pytest.approx(100 * (1 / 0.9 - 1), abs=0.5)
        assert row["rate_pct_low"] < row["rate_pct"] < row["rate_pct_high"]
        assert row["b_images_per_s"] / row["a_images_per_s"] == pytest.approx(1 / 0.9, rel=0.01)
    (two,) = [row for row in rows if row["gpus_per_node"] == 2]
    assert two["a_efficiency_pct"] == pytest.approx(100 / 1.1, abs=1)
    assert two["efficiency_points"] == pytest.approx(0, abs=1)


def test_what_shrank_is_found_in_the_parts_the_stages_and_the_kernels(sides):
    for row in changed_steps.part_changes(sides):
        assert row["compute_ms"] == pytest.approx(-12, abs=0.1)
        parts = [row[f"{name}_ms"] for name in plots.PART_COLOURS if f"{name}_ms" in row]
        assert sum(parts) == pytest.approx(row["difference_ms"], abs=0.01)
    kernels = [row for row in changed_steps.kernel_changes(sides) if row["quantity"].startswith("conv")]
    assert len(kernels) == 2 * 3 and {row["verdict"].split(":")[0] for row in kernels} == {"too few runs"}
    assert [row["difference_ms"] for row in kernels] == pytest.approx([-3.0] * 6, abs=0.01)


def test_kernels_that_only_one_side_has_are_new_and_gone(sides):
    key, kind, _ = next(of for of in sides.compared.b if of[1] == "kernels")
    with_new = {**sides.compared.b, (key, kind, "fused (fprop)"): [7.0]}
    other = Sides(sides.a, sides.b, sides.names, replace(sides.compared, b=with_new))
    (new,) = [row for row in changed_steps.kernel_changes(other) if row["quantity"] == "fused (fprop)"]
    assert (new["a"], new["b"], new["difference_ms"], new["verdict"]) == (0.0, 7.0, 7.0, "new")


def test_configurations_of_one_side_are_named(page):
    alone = section(page, "not-compared")
    assert alone.notes == ["only in A: before: gpus_per_node=2 loader=pytorch"]
    assert alone.finding == "Configurations on one side: 1 only in A: before."
    assert "Configurations on one side: 1 only in A: before." in [one.text for one in page.summary]


def test_both_reports_stand_side_by_side_below_the_same_filters(page):
    assert {one.name: list(one.choices) for one in page.filters} == {
        "loader": ["pytorch", "synthetic"], "gpus_per_node": ["1", "2"],
    }  # fmt: skip
    both = section(page, "scaling")
    assert [name for name, _ in both.beside] == ["A: before", "B: after"]
    assert [chart.id for chart in both.every_chart] == [
        "a-throughput", "a-efficiency", "b-throughput", "b-efficiency"
    ]  # fmt: skip
    ids = [one.id for section in page.sections for one in section.every_chart]
    assert len(set(ids)) == len(ids)
    assert {kind.id for kind in SECTIONS} >= {one.id for one in page.sections if one.beside} - {
        "both-answers"
    }
    # Of 4 configurations in A and 3 in B, filters know all factors, although loader does not vary on 2 GPUs.
    facts = [row.facts for _, side in section(page, "table").beside for row in side.tables[0].rows]
    assert all(set(one) == {"loader", "gpus_per_node"} for one in facts) and len(facts) == 7


CHOICES = ({"loader": "synthetic"}, {"gpus_per_node": "1"}, {"loader": "pytorch", "gpus_per_node": "1"})
CHANGED = ("change", "changed-scaling", "changed-parts", "changed-stages", "changed-kernels")


@pytest.mark.parametrize("levels", CHOICES, ids=lambda levels: "-".join(levels.values()))
def test_a_choice_says_what_a_report_of_the_runs_that_it_leaves_says(folders, page, tmp_path, levels):
    alone = build(*(load(with_levels(folder, tmp_path / folder.name, **levels)) for folder in folders))
    _, said = said_of(page, **levels)
    findings = {one.id: one.finding for one in alone.sections}
    for id in (*CHANGED, "scaling", "table", "stages", "batches", "anatomy"):
        missing = findings[id].startswith(("Not available", "A: Not available"))
        assert said.findings[id] == findings[id] or (missing and not said.findings[id]), id
    assert said.summary and said.summary[0] == alone.summary[0]
    # A verdict on one of three takes more to be significant than one on a configuration compared alone.
    corrected = [one.text for one in said.summary if "corrected" in one.text]
    single = "This verdict is corrected for all 3 configurations compared (Holm)."
    assert corrected == ([single] if len(levels) == 2 else [])
    assert not [one for one in alone.summary if "corrected" in one.text]
    assert said.drawings == alone.drawings
    lists = dict(zip(said.lists, section(alone, "both-answers").beside, strict=True))
    for id, (_, side) in lists.items():
        assert [one.alone for one in said.lists[id]] == side.notes and side.notes, id


def test_a_choice_that_one_side_lacks_says_that_nothing_is_compared(page):
    _, said = said_of(page, loader="pytorch", gpus_per_node="2")
    assert said.summary and said.summary[0].text.startswith("Not compared: none of the chosen configurations")
    assert [said.findings[id] for id in CHANGED if id != "changed-scaling"] == [""] * 4
    assert said.findings["stages"].startswith("A: ") and " B: " not in said.findings["stages"]
    assert said.lists["answers-a"] and not said.lists["answers-b"] and not said.drawings


def test_files_of_figures_say_which_side_they_show(page):
    figures = {figure.name: figure for figure in figures_of(page)}
    assert len(figures) == len(figures_of(page))
    assert {"change", "changed-scaling-images_per_s", "a-scaling-throughput", "b-scaling-throughput",
            "a-anatomy", "b-anatomy-ranks"} <= set(figures)  # fmt: skip
    for name, figure in figures.items():
        side = {"a": "A: before", "b": "B: after"}.get(name.split("-")[0], "")
        assert figure.side == side and caption(figure, page).startswith(
            f"{side}. " if side else figure.chart.title
        )
    # The text of the side's own section, not the empty one of both.
    assert "Weak scaling" in caption(figures["a-scaling-throughput"], page)


def test_both_are_lines_of_one_chart(page):
    chart = section(page, "changed-scaling").charts[0]
    assert "Colour: results" in chart.caption
    names = {
        trace["name"].split(",")[0] for trace in chart.figure["data"] if trace.get("mode") == "lines+markers"
    }
    assert {"A: before", "B: after"} <= names


@pytest.mark.parametrize(
    ("factors", "repetitions", "said"),
    [
        (
            (0.5, 2.0),
            1,
            "Too few runs to say whether B (after) is better or worse than A (before): the step "
            "changes from -5",
        ),
        ((0.5, 2.0), 3, "Mixed: from A (before) to B (after) the step changes by -49"),
        ((1.03, 1.03), 6, "Worse: a step of B (after) takes 3"),
        ((0.97, 1.03), 6, "Mixed: from A (before) to B (after) the step changes by -3"),
        ((1.0, 1.0), 6, "No difference shown: from A (before) to B (after) the step may have changed by -"),
        ((1.1, 1.1), 2, "Too few runs to say whether B (after) is better or worse than A (before)"),
    ],
)
def test_worse_mixed_no_difference_and_too_few_runs_are_said(tmp_path, factors, repetitions, said):
    for name, of, noise_ms in (("before", (1.0, 1.0), 1.0), ("after", factors, 1.5)):
        for loader, factor in zip(("pytorch", "synthetic"), of, strict=True):
            runs = [run_of(loader=loader, batches=20)]
            truth = Truth(step_ms={1: 100 * factor}, noise_ms=noise_ms, run_noise_ms=0.3)
            write_sweep(tmp_path / name, runs, truth, repetitions={"none": repetitions})
    page = build(load(tmp_path / "before"), load(tmp_path / "after"))
    assert page.summary[0].text.startswith(said), page.summary[0].text
    # Changes of opposite sign are not averaged.
    averaged = "over all" in page.summary[0].text
    assert not averaged or factors[0] == factors[1]
    few = "Too few runs to tell whether a stage changed." in section(page, "changed-stages").finding
    assert few == (repetitions < 6)
    (table,) = section(page, "changed-stages").tables
    assert few == ("at least this many runs per side: 6 for stages." in table.note)
    # Neither side was profiled, which its sections say.
    assert section(page, "changed-parts").text.startswith("Not available")


@pytest.mark.parametrize(
    ("of_whole", "said"),
    [("slower", "Worse: a step of B (b) takes 2.0 % more time"), ("faster", "Better: a step of B (b) takes")],
)
def test_a_change_of_all_names_the_ends_of_changes_of_opposite_sign(of_whole, said):
    def row(kind: str, effect_pct: float, verdict: str) -> dict:
        effect = dict.fromkeys(("effect_pct_low", "effect_pct_high"), math.nan) | {"effect_pct": effect_pct}
        return {"kind": kind, "verdict": verdict, **effect}

    whole = row("combined", 2.0 if of_whole == "slower" else -2.0, of_whole)
    rows = [row("step", 5.0, "no difference"), row("step", -1.0, "no difference"), whole]
    text = verdict(rows, SimpleNamespace(names=("A: a", "B: b")))
    assert text.startswith(said)
    assert text.endswith("over all 2 configurations (from -1.0 % to +5.0 % by configuration).")
    # Where they differ by more than chance there is no mean of them, as in analysis.compare.
    whole |= {"least_effect_pct": -1.0, "most_effect_pct": 5.0}
    changed = "from A (a) to B (b) the step changes by -1.0 to +5.0 %, by configuration."
    assert verdict(rows, SimpleNamespace(names=("A: a", "B: b"))) == f"{said.split(':')[0]}: {changed}"


def test_of_profiled_runs_alone_the_kernels_are_compared_and_no_step_is(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, kernel_ms in ((a, 60.0), (b, 48.0)):
        write_sweep(folder, [run_of(profile="torch", batches=20)], Truth(kernel_ms=kernel_ms))
    sides = Sides(Context(load(a)), Context(load(b)), names_of(a, b), compared(load(a), load(b)))
    with pytest.raises(UserError, match="neither side has unprofiled runs"):
        changed_configurations.changes(sides)
    assert changed_steps.largest_kernel(sides).startswith("Largest change: conv_")


def test_of_many_changes_the_chart_has_those_that_are_largest_either_way():
    ends = {"effect_pct_low": math.nan, "effect_pct_high": math.nan, "judged": "too few runs", "facts": {}}
    rows = [{"configuration": f"of {place}", "effect_pct": float(place - 30), **ends} for place in range(60)]
    chart = changed_configurations.change_chart(rows)
    (bars,) = chart.figure["data"]
    assert sorted(bars["x"]) == [*range(-30, -10), *range(10, 30)]
    assert chart.caption.endswith("Of 60 configurations the 20 that became fastest and the 20 slowest.")


@pytest.fixture(scope="module")
def seen(browser, page, tmp_path_factory):
    """The page, one side's charts beside the other's."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render(page), encoding="utf-8")
    watched = Watched(browser, file, "#scaling&loader=synthetic", opened=False)
    yield watched
    watched.page.close()


@pytest.mark.long
def test_one_filter_acts_on_both_sides_whose_axes_are_the_same(seen):
    seen.page.click("#table summary")
    for side, configurations in (("a", 2), ("b", 2)):
        assert seen.rows(f"{side}-table-0").count() == configurations
    seen.see("#chart-b-efficiency")
    ranges = "document.getElementById('chart-{}-efficiency').layout.{}.range"
    for axis in ("xaxis", "yaxis"):
        of_a, of_b = (seen.page.evaluate(ranges.format(side, axis)) for side in "ab")
        assert of_a == of_b and len(of_a) == 2
    assert seen.lines("b-throughput")
    assert seen.messages == []


@pytest.mark.long
def test_what_is_said_of_both_follows_the_filter(seen, page):
    _, said = said_of(page, loader="synthetic")
    assert (
        seen.page.locator("#change summary p").inner_text()
        == said.findings["change"]
        == "Of 2 configurations: 2 faster."
    )
    assert said.summary[0].text in seen.page.locator("#answers").inner_text()
    for list in ("answers-a", "answers-b"):
        assert seen.page.locator(f"[data-list={list}] li").all_text_contents() == [
            one.alone for one in said.lists[list]
        ]
    assert not [one for one in said.lists["answers-a"] if "pytorch" in one.text]
    assert seen.messages == []


@pytest.mark.long
@pytest.mark.parametrize("width", [360, 768, 1400])
def test_both_sides_fit_any_width(seen, width):
    assert_fits(seen, width)
    assert seen.messages == []


@pytest.mark.long
@pytest.mark.wide
def test_axe_finds_nothing_that_keeps_anyone_out_of_both_sides(seen):
    seen.page.click("#open-all")
    seen.settled()
    assert violations(seen.page) == []
    assert seen.messages == []


# --- which paths are compared -----------------------------------------------------------------------------


def test_two_results_are_compared_in_a_file_of_their_own(folders):
    before, after = folders
    ran = run("analysis.report.__main__", before, after)
    assert ran.code == 0 and ran.out.strip() == str(after / "compared-with-before.html")
    html = (after / "compared-with-before.html").read_text()
    assert "<h1>after compared with before</h1>" in html and 'id="chart-b-efficiency"' in html


def test_fields_in_which_they_may_differ_are_named(folders, tmp_path):
    other = tmp_path / "other"
    write_sweep(other, [run_of(loader="synthetic", batches=20, network="ib")], repetitions={"none": 6})
    ran = run("analysis.report.__main__", folders[0], other)
    assert "the nearest differ in network" in one_line_error(ran)
    assert "--across network" in ran.err
    ran = run(
        "analysis.report.__main__", folders[0], other, "--across", "network", "--output", tmp_path / "r.html"
    )
    assert ran.code == 0 and 'data-filter="network"' not in (tmp_path / "r.html").read_text()


def test_two_results_of_one_world_size_have_no_scaling_efficiency_and_say_in_what_they_differ(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, batch, noise_ms in ((a, 32, 1.0), (b, 64, 1.5)):
        runs = [run_of(gpus_per_node=2, batches=20, batch=batch)]
        write_sweep(folder, runs, Truth(noise_ms=noise_ms), repetitions={"none": 2})
    page = build(load(a), load(b), ["batch", "network"])
    same = "Both results have the same configurations, apart from batch (A: 32; B: 64)."
    assert section(page, "not-compared").finding == same
    assert section(page, "changed-scaling").finding.startswith(
        "Not available: no configuration has a baseline"
    )
    assert not [one.text for one in page.summary if "caling efficiency" in one.text]
    # As long a step of twice as many images.
    (table,) = section(page, "change").tables
    (rate,) = [cell.value for column, cell in zip(table.columns, table.rows[0].cells, strict=True)
               if column.header.startswith("change of images/s")]  # fmt: skip
    assert rate == pytest.approx(100, abs=5)


def test_efficiencies_of_baselines_of_different_ranks_are_not_compared(tmp_path):
    a = write(tmp_path / "a", 1.0, noise_ms=1.0, ranks=(1, 2, 4), loaders=("pytorch",), repetitions=4)
    b = write(tmp_path / "b", 0.97, noise_ms=1.5, ranks=(2, 4), loaders=("pytorch",), repetitions=4)
    page = build(load(a), load(b))
    # 80 % of one rank's rate in A, 88 % of two ranks' in B: the same scaling.
    assert not any("Scaling efficiency" in one.text for one in page.summary)
    found = {section.id: section for section in page.sections}
    assert found["changed-scaling"].finding.startswith("Not available: no configuration has a baseline")
    html = render(page)
    assert "where the baselines in A and B have different numbers of ranks" in html
    both = Sides(Context(load(a), load(b)), Context(load(b), load(a)), ("a", "b"), compared(load(a), load(b)))
    rows = changed_configurations.configurations(both)
    assert len(rows) == 2 and all(math.isnan(row["efficiency_points"]) for row in rows)


def test_what_only_a_single_configuration_has_is_left_empty_of_several(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, batches in ((a, (32, 64)), (b, (64,))):
        write_sweep(folder, [run_of(batches=20, batch=batch) for batch in batches], repetitions={"none": 2})
    across = ["batch"]
    found = compared(load(a), load(b), across)
    both = Sides(Context(load(a), load(b), across), Context(load(b), load(a), across), names_of(a, b), found)
    (row,) = changed_configurations.configurations(both)
    assert row["a_images_per_s"] is None and row["b_images_per_s"] == pytest.approx(640, rel=0.05)
    assert math.isnan(row["rate_pct"]) and row["effect_pct"] == pytest.approx(0, abs=5)


def test_what_cannot_be_compared_is_one_line(folders, tmp_path):
    before, after = folders
    report = "analysis.report.__main__"
    raw = trace(tmp_path / "rank0.json")
    assert "convert the traces first: python -m profiling.convert" in one_line_error(run(report, before, raw))
    assert "does not exist" in one_line_error(run(report, before, tmp_path / "no"))
    # Neither exists: nor are they traces to be converted.
    absent = one_line_error(run(report, tmp_path / "results/a", tmp_path / "results/b"))
    assert f"{tmp_path / 'results/a'} does not exist" in absent
    assert "3 sets of results: give one, or two" in one_line_error(run(report, before, after, before))
    assert "A and B are the same runs" in one_line_error(run(report, before, before))
    assert "--trace needs one set of results" in one_line_error(run(report, before, after, "--trace"))
    assert "--across" in one_line_error(run(report, before, "--across", "network"))
    write_pyprof(tmp_path / "tables")
    assert "holds no run to compare" in one_line_error(run(report, before, tmp_path / "tables"))
