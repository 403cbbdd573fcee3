"""analysis.plan on planted sweeps."""

import pytest

from analysis.frames.load import load
from analysis.plan import main
from analysis.prediction.plan import plan
from analysis.report.base import Context
from analysis.report.prediction import plan_section
from benchmarks.planted_sweep import NO_NOISE, Job, Network, step_ms, write_sweep
from profiling.errors import UserError, run_command

SLOW = Network(alpha_us=5.0, beta_gb_per_s=1.0)  # GB/s: scaling is poor


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "sweep"
    jobs = [Job(ranks=ranks, nodes=nodes, network=SLOW) for ranks, nodes in ((1, 1), (4, 1), (8, 2))]
    write_sweep(path, jobs, noise=NO_NOISE)
    return path


@pytest.fixture(scope="module")
def answer(sweep):
    return plan(load(sweep), images=3.6e6, within=2.5)


def test_hours_and_node_hours_follow_from_rates(answer):
    rows = answer.rows[answer.rows["known_by"] == "measured"].set_index("world_size")
    rate = {ranks: 32e3 * ranks / step_ms(Job(ranks=ranks, network=SLOW)) for ranks in (1, 4, 8)}
    for ranks, nodes in ((1, 1), (4, 1), (8, 2)):
        hours = 3.6e6 / rate[ranks] / 3600
        assert rows.loc[ranks, "hours"] == pytest.approx(hours, rel=1e-3)
        assert rows.loc[ranks, "node_hours"] == pytest.approx(nodes * hours, rel=1e-3)
        assert rows.loc[ranks, "within"] == ("yes" if hours < 2.5 else "no")
    added = 100 * (rate[8] - rate[4]) / 4 / rate[1]
    assert rows.loc[8, "added_efficiency_pct"] == pytest.approx(added, rel=1e-3)
    surely = answer.rows[answer.rows["within"] == "yes"]
    assert f"{surely['node_hours'].min():.0f} node-hours" in answer.caption


def test_no_choice_ends_in_time_and_without_rates_nothing_is_planned(sweep, tmp_path):
    found = plan(load(sweep), images=1e12, within=1.0)
    assert set(found.rows["within"]) == {"no"} and f"{found.rows['hours'].min():.1f} hours" in found.caption
    with pytest.raises(UserError):
        plan(load(tmp_path), images=1e6)


def test_epochs_multiply_images_and_other_words_are_refused(sweep, capsys):
    assert main([str(sweep), "--images", "1e6x90", "--within", "24h", "--format=csv", "--ranks", "16"]) == 0
    assert "1,1,measured" in capsys.readouterr().out
    both = ["--images", "1e6", "--tokens", "1e6"]
    for words in (["--images", "1x"], ["--images", "1e6", "--within", "1d"], [], both):
        with pytest.raises(SystemExit) as ended:
            run_command(lambda words=words: main([str(sweep), *words]))
        assert ended.value.code == 2


def test_the_report_draws_the_plan_of_tokens_and_marks_the_choice(sweep, answer):
    rows = answer.rows.set_index("world_size")
    section = plan_section.section(Context(load(sweep), {"tokens": 3.6e6, "within": 2.5}))
    assert plan_section.section(Context(load(sweep))) is None
    for chart, name in zip(section.charts, ("hours", "node_hours"), strict=True):
        *lines, star = chart.figure["data"]
        drawn = {x: y for line in lines for x, y in zip(line["x"], line["y"], strict=True)}
        assert drawn == rows[name].to_dict() and [trace["name"] for trace in lines] == [
            "measured",
            "simulation",
        ]
        choice = rows[rows["within"] == "yes"]["node_hours"].idxmin()
        assert (star["name"], star["x"], star["y"]) == ("chosen", [choice], [rows.loc[choice, name]])


def test_the_choice_is_of_one_configuration_and_nodes_are_those_of_the_prediction(tmp_path):
    jobs = [Job(ranks=ranks, batch=batch) for batch in (16, 32) for ranks in (1, 2, 4)]
    write_sweep(tmp_path / "sweep", jobs, noise=NO_NOISE)
    answer = plan(load(tmp_path / "sweep"), images=3.6e6, within=1000.0)
    ahead = answer.rows[answer.rows["known_by"] != "measured"]
    assert ahead["world_size"].eq(8).all() and ahead["nodes"].eq(1).all() and len(ahead) == 2
    cheapest = answer.rows.loc[answer.rows["node_hours"].idxmin()]
    assert cheapest["nodes"] == 1 and cheapest["batch"] == 32 and "(batch 32)" in answer.caption
