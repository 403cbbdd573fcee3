"""The first screen: each question with its sentences and a small drawing that shows the same figures."""

import json
import re

import pytest

from analysis.display.plots import GREY
from analysis.measures.scaling import expense
from analysis.measures.scaling.certainty import sizes_without_result
from analysis.report import small
from analysis.report.advice import against, held_up
from analysis.report.build import build
from analysis.report.causes import Late
from analysis.report.render import Page
from analysis.report.sentences import LOST, SCALES, TRY, Sentence, first_sentence
from analysis.results.load import load
from jobs import store
from jobs.claims import claim
from jobs.owner import this_owner
from jobs.run_id import format_id
from tests.analysis.commands import found, run
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    folder = tmp_path_factory.mktemp("sweep") / "planted"
    runs = [
        run_of(gpus_per_node=ranks, profile=profile) for ranks in (1, 2, 4) for profile in ("none", "torch")
    ]
    write_sweep(folder, runs)
    return build(load(folder))


def test_sentences_stand_below_the_question_that_they_answer(page):
    opening = page.opening
    assert [answer.question for answer in opening][:2] == [SCALES, LOST]
    assert [one for answer in opening for one in answer.sentences if one not in page.summary] == []
    assert sum(len(answer.sentences) for answer in opening) == len(page.summary)


@pytest.mark.parametrize(
    ("sentence", "question"),
    [
        (Sentence("80 %.", "scaling"), SCALES),
        (Sentence("Rank 3 is late.", "stragglers"), LOST),
        (Sentence("Another GPU.", "stragglers", answers=TRY), TRY),
        (Sentence("Two runs failed.", "left-out"), ""),
    ],
)
def test_a_section_says_which_question_its_sentences_answer(sentence, question):
    assert sentence.question == question


def test_advice_does_not_repeat_the_question_that_stands_above_it():
    gained = {"network=2x": {"world_size": 4, "what_if": "network=2x", "gain_pct": 9.0}}
    late = Late((3,), "node1", 20.0, 12.0, True, 3, 3, "GPU")
    sentences = [*against("loader", {}), *against("transfer", gained), *held_up(late)]
    advice = [one for one in sentences if one.question == TRY]
    assert len(advice) == 3
    for one in advice:
        assert not one.text.lower().startswith("what to try") and one.text[0].isupper()
        # In a list without questions they stand by themselves.
        assert one.alone == f"What to try? {one.text}"
    assert sentences[-2].alone == sentences[-2].text  # the straggler


def test_the_drawings_show_the_figures_of_the_sections(page):
    answers = {answer.question: answer for answer in page.opening}
    scaling = str(answers[SCALES].drawing.svg)
    assert re.findall(r">([\d.]+)</text>", scaling) == ["0", "1", "2", "4"]
    # 100 ms on one rank, 110 and 125 ms were planted on two and four: 100, 91 and 80 % from the top.
    (points,) = re.findall(r'<polyline points="([^"]+)"', scaling)
    heights = [float(point.split(",")[1]) for point in points.split()]
    drop = (heights[2] - heights[0]) / (heights[1] - heights[0])
    assert drop == pytest.approx(20 / (100 - 100 / 1.1), rel=0.1)
    lost = str(answers[LOST].drawing.svg)
    assert "idle host bound" in lost and "points" in lost


def test_the_drawing_of_what_is_lost_is_of_the_configuration_that_the_sentences_explain(tmp_path):
    """29 points are lost on 2 ranks, and 26 on 4, which matter more."""
    runs = [run_of(gpus_per_node=ranks, profile=name) for ranks in (1, 2, 4) for name in ("none", "torch")]
    write_sweep(tmp_path, runs, Truth({1: 100.0, 2: 140.0, 4: 135.0}), calibration=False)
    answers = {answer.question: answer for answer in build(load(tmp_path)).opening}
    assert "on 4 ranks" in answers[LOST].sentences[0].text
    assert "points of scaling efficiency lost on 4 ranks" in answers[LOST].drawing.caption


def test_a_number_of_ranks_on_several_numbers_of_nodes_is_a_point_of_a_line_each(tmp_path):
    """1 x 4 and 2 x 2 are four ranks both."""
    ms = {(1, 1): 100.0, (1, 2): 105.0, (1, 4): 110.0, (2, 2): 160.0, (4, 1): 200.0}
    for (nodes, gpus), step_ms in ms.items():
        run = run_of(nodes=nodes, gpus_per_node=gpus)
        write_sweep(tmp_path, [run], Truth(step_ms={run.world_size: step_ms}), calibration=False)
    page = build(load(tmp_path))
    svg = str(page.opening[0].drawing.svg)
    assert "4 per node" in svg and "1 per node" in svg  # the best and the worst on 4 ranks
    (section,) = [section for section in page.sections if section.id == "scaling"]
    lines = {trace["name"]: trace for trace in section.charts[1].figure["data"] if trace["name"] != "ideal"}
    assert {name: line["x"] for name, line in lines.items()} == {
        "1 per node": [1, 4], "2 per node": [1, 2, 4], "4 per node": [1, 4],
    }  # fmt: skip
    assert lines["2 per node"]["y"] == pytest.approx([100, 100 / 1.05, 100 / 1.6], abs=1)


def test_the_drawing_of_scaling_ranks_no_lines_that_begin_on_other_numbers_of_ranks(tmp_path):
    for batch, ms in ((32, {1: 100.0, 2: 110.0, 4: 125.0}), (64, {2: 200.0, 4: 210.0})):
        runs = [run_of(gpus_per_node=ranks, batch=batch) for ranks in ms]
        write_sweep(tmp_path, runs, Truth(step_ms=ms), calibration=False)
    page = build(load(tmp_path))
    svg = str(page.opening[0].drawing.svg)
    assert "batch 32" in svg and "batch 64" not in svg
    assert "with batch 64, relative to 2 ranks." in page.opening[0].sentences[1].text


def test_every_section_has_a_finding_of_one_paragraph(page):
    without = [section.id for section in page.sections if not section.finding]
    assert without == []
    assert all("\n" not in section.finding for section in page.sections)


def test_the_names_of_lines_stand_whole_below_each_other_and_fit_the_drawing():
    """At 12 px a letter takes 7.3 of its units on average."""
    names = ("dali-cpu-to-gpu, batch 64, fp32 gradients, channels_last", "dali-gpu, batch 64", "x" * 300)
    drawn = str(small.lines([(name, [(1, 100.0), (2, 90.0)]) for name in names[:2]], "%", "label").svg)
    texts = re.findall(r'<text x="(\d+)" y="([\d.]+)">([^<]+)</text>', drawn)
    assert " ".join(text for _, _, text in texts) == " ".join(names[:2])
    assert all(int(x) + 7.3 * len(text) <= 320 for x, _, text in texts)
    height = int(re.search(r'viewBox="0 0 320 (\d+)"', drawn)[1])
    places = [float(y) for _, y, _ in texts]
    assert len(set(places)) == 3 and max(places) < height
    assert "…" in str(small.lines([(names[2], [(1, 100.0), (2, 90.0)])], "%", "label").svg)


def interval_of(drawn: str) -> list[tuple[str, ...]]:
    return re.findall(r'class="interval" points="(\S+),(\S+) (\S+),(\S+)"', drawn)


@pytest.mark.parametrize(
    ("highest", "top", "cut"), [(900.0, 200.0, True), (193.0, 193.0, False), (60.0, 100.0, False)]
)
def test_an_interval_is_drawn_at_its_point_up_to_twice_the_highest_value(highest, top, cut):
    drawing = small.lines([("a", [(1, 100.0), (2, 50.0)])], "%", "label", {"a": {2: (20.0, highest)}})
    drawn = str(drawing.svg)
    ((x, low, same_x, high),) = interval_of(drawn)
    point = re.search(r'<polyline points="\S+ (\S+),(\S+)"', drawn)
    assert x == same_x == point[1] and float(high) < float(point[2]) < float(low)
    at = [10 + 100 * (1 - min(y, top) / top) for y in (20.0, highest)]
    assert "nan" not in drawn and [float(low), float(high)] == pytest.approx(at, abs=0.06)
    # A bar that ends at the edge would be taken for the whole interval.
    assert ('class="cut"' in drawn) == ("arrow: the interval reaches higher" in drawing.caption) == cut
    assert f">{top:.3g} %<" in drawn and ">100 %<" in drawn


def test_intervals_of_two_lines_at_one_number_of_ranks_stand_beside_each_other():
    series = [(name, [(1, 100.0), (2, 50.0)]) for name in ("a", "b")]
    drawn = str(small.lines(series, "%", "label", {name: {2: (20.0, 90.0)} for name in ("a", "b")}).svg)
    (one, *_), (other, *_) = interval_of(drawn)
    assert float(other) - float(one) >= 6 and float(other) <= 320 - 4


def test_the_label_of_the_longest_bar_fits_the_drawing():
    """At 12 px a character takes 8 of its units at most."""
    drawn = str(small.differences([("one", 28.8), ("two", -28.8)], "%", "label").svg)
    right, left = (float(x) for x in re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="\w+">[+-]', drawn))
    assert right + 8 * len("+28.8 %") <= 320 and left - 8 * len("-28.8 %") >= 150
    # Changes of one sign have the whole width.
    one = str(small.differences([("one", 28.8)], "%", "label").svg)
    assert float(re.findall(r'width="([\d.]+)"', one)[0]) > 90


def test_a_drawing_escapes_names_and_cuts_long_ones():
    sure, unsure = (small.bars([("a", 2.0)], "ms", "x", names) for names in ((), ("a",)))
    assert GREY in str(unsure.svg) and GREY not in str(sure.svg)
    assert unsure.caption == "x; grey: the interval holds 0" and sure.caption == "x"
    drawn = str(small.bars([("<b>&" + "x" * 40, 2.0), ("none", 0.0)], "ms", 'a "label"').svg)
    assert "&lt;b&gt;&amp;" in drawn and "<b>" not in drawn and "x" * 30 not in drawn
    assert 'aria-label="a &#34;label&#34;"' in drawn and 'width="0.0"' in drawn


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("From 1 to 4 ranks. They differ.", "From 1 to 4 ranks."),
        ("28.5 % of it. The rest", "28.5 % of it."),
        ("No full stop", "No full stop"),
    ],
)
def test_the_first_sentence_of_a_text(text, first):
    assert first_sentence(text) == first


@pytest.fixture
def running(tmp_path):
    """A sweep of which one run is going on, and one is waiting."""
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks) for ranks in (1, 2)])
    waiting = [format_id(run_of(gpus_per_node=4), repetition) for repetition in (0, 1)]
    record = json.loads((tmp_path / store.SWEEP).read_text())
    (tmp_path / store.SWEEP).write_text(json.dumps(record | {"order": waiting}))
    claim(tmp_path / waiting[0], this_owner({}))
    return tmp_path


def test_the_report_of_a_sweep_that_still_runs_says_so_first_and_calls_no_run_failed(running):
    page = build(load(running))
    first = page.summary[0]
    assert first.text.startswith("The sweep is not complete (of 6 runs: 1 running, 1 not started), so all")
    assert page.opening[0].sentences[0] == first
    (left_out,) = (section for section in page.sections if section.id == "left-out")
    assert left_out.finding.startswith("1 run running, 1 not started; ")


def test_where_all_runs_on_the_most_ranks_failed_report_and_table_say_so_first_with_the_reason(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks) for ranks in (1, 2)])
    truth = Truth(step_ms=dict.fromkeys((2, 4, 8), 110.0))
    why = "out of memory: rank 3: CUDA out of memory.\nTried to allocate 2 GiB"
    write_run(tmp_path, run_of(nodes=2), truth, exit_code=1, reason="no result of 2 ranks")
    for size in (4, 8):
        for n in (0, 1):
            write_run(tmp_path, run_of(nodes=size), truth, n, 1, why)
    (missing,) = sizes_without_result(load(tmp_path))
    reason = "out of memory: rank 3: CUDA out of memory."
    assert missing.data == {"ranks": [4, 8], "n": 4, "reason": reason} and missing.configuration is None
    page = build(load(tmp_path))
    first, second, *_ = page.summary
    assert first.text == str(missing) and page.opening[0].sentences[0] == first and first.of_all
    assert second.text.startswith("Scaling efficiency on 2 ranks")
    (left_out,) = (section for section in page.sections if section.id == "left-out")
    assert left_out.text.endswith("The log of a run is log.txt in its folder.")
    ran = run("analysis.scaled", tmp_path, "--format", "csv")
    assert f"{missing}\n" in ran.err
    # One run on 4 ranks is a result, and another reason is not that of all.
    write_run(tmp_path, run_of(nodes=4), truth, 2)
    write_run(tmp_path, run_of(nodes=8), truth, 2, 1, "hang: no step for 60 s")
    # A configuration that fails where another does not is none of the most ranks.
    for nodes in (2, 4):
        write_run(tmp_path, run_of(nodes=nodes, loader="dali-gpu"), truth, 0, 1, "hang.")
    write_run(tmp_path, run_of(loader="dali-gpu"), Truth(step_ms={1: 100.0}))
    largest, of_dali = sizes_without_result(load(tmp_path))
    assert largest.data["ranks"] == [8] and largest.data["n"] == 3
    assert of_dali.data["ranks"] == [2, 4] and of_dali.configuration == "dali-gpu"


def test_a_configuration_that_fails_on_few_numbers_of_ranks_is_not_named_and_several_are_named_together(
    tmp_path,
):
    truth = Truth(step_ms=dict.fromkeys((1, 2, 4), 110.0))
    write_sweep(tmp_path, [run_of(nodes=nodes) for nodes in (1, 2, 4)], truth, {"none": 1})
    for loader, fails_on in (("dali-cpu", (2, 4)), ("dali-gpu", (4,)), ("pytorch", (1, 2, 4))):
        for nodes in (1, 2, 4):
            code = int(nodes in fails_on)
            write_run(tmp_path, run_of(nodes=nodes, loader=loader), truth, 0, code, "hang" if code else "")
    found = sizes_without_result(load(tmp_path))
    assert {one.configuration: one.data["n"] for one in found} == {"dali-cpu": 2, "pytorch": 3}


def test_the_reason_is_of_a_run_that_failed_not_of_one_that_was_interrupted(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks) for ranks in (1, 2)])
    interrupted = tmp_path / format_id(run_of(nodes=8), 0)
    interrupted.mkdir()
    (interrupted / store.LOG).write_text("begun")
    write_run(tmp_path, run_of(nodes=8), Truth(step_ms={8: 110.0}), 1, 1, "out of memory")
    data = found("analysis.scaled", tmp_path)["size_without_result"]
    assert data == {"ranks": [8], "n": 1, "reason": "out of memory"}


def test_a_run_that_ends_while_the_report_is_built_is_not_costed_as_failed(running):
    study = load(running)
    write_run(running, run_of(gpus_per_node=4), Truth(), repetition=1)
    assert all(run.counts for run in expense.spent(study))
