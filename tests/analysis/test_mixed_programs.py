"""One folder holds runs of a program without factors of its own, and others with them."""

import pandas as pd
import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures import anatomy, communication
from analysis.prediction import configurations
from analysis.prediction.predict import curves
from analysis.report.base import Context, by_configuration
from tests.analysis.commands import run as run_command
from tests.analysis.frames import scaled_rows
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep_record

WIDE = Truth({1: 100.0, 2: 190.0})


def test_runs_without_a_factor_have_an_empty_level_of_it(tmp_path):
    for ranks in (1, 2):
        for command, factors in (("mine.py", {}), ("mine.py --lr {lr}", {"lr": 0.1})):
            run = run_of(gpus_per_node=ranks, program=command, factors=factors)
            write_run(tmp_path, run, WIDE, outside=tuple(factors))
    write_sweep_record(tmp_path)
    study = load(tmp_path)
    levels = [row["factors.lr"] for row in scaled_rows(study, group_by=["factors.lr", "gpus_per_node"])]
    assert sorted(map(str, levels)) == ["0.1", "0.1", "None", "None"]
    reasons = [finding for one in configurations.of_study(study) for finding in curves(one, [8])[1]]
    assert sorted(str(reason.configuration) for reason in reasons) == ["mine.py", "mine.py --lr {lr}, lr 0.1"]


def test_what_is_compared_with_nothing_is_called_by_what_it_has(tmp_path):
    """A folder with and without a factor against one with it, and the other way round."""
    with_lr = run_of(program="mine.py --lr {lr}", factors={"lr": 0.1})
    for name, runs in (("both", (run_of(program="mine.py"), with_lr)), ("one", (with_lr,))):
        for run in runs:
            write_run(tmp_path / name, run, WIDE, outside=tuple(run.factors))
        write_sweep_record(tmp_path / name)
    other = run_of(program="mine.py --lr {lr}", factors={"lr": 0.2})
    write_run(tmp_path / "one", other, WIDE, outside=("lr",))
    answer = run_command(
        "analysis.compare", tmp_path / "both", tmp_path / "one", "--format", "json", "--notes"
    ).json
    alone = {one["side"]: one["data"]["what"] for one in answer["findings"] if one["code"] == "not_compared"}
    assert alone == {"A": ["program=mine.py"], "B": ["program=mine.py --lr {lr} lr=0.2"]}


def test_the_report_averages_no_runs_that_differ_in_a_factor_of_a_programs_own(tmp_path):
    """Two widths, two profiled runs each: of both, the report's steps are as long as the command's."""
    for width, ms in ((64, 100.0), (512, 300.0)):
        truth = Truth({1: ms, 2: 1.2 * ms}, wait_ms={1: 1.0, 2: ms / 50}, kernel_ms=60.0)
        for ranks in (1, 2):
            for repetition in (0, 1):
                run = run_of(
                    gpus_per_node=ranks, program="mine.py --width {width}", factors={"width": width},
                    profile="torch",
                )  # fmt: skip
                write_run(tmp_path, run, truth, outside=("width",), repetition=repetition)
    write_sweep_record(tmp_path)
    context = Context(load(tmp_path))
    names = ["factors.width", "gpus_per_node"]
    for measure, figure in ((anatomy.anatomy, "wall_ms"), (communication.communication, "wait_ms")):
        of_runs = records(measure(context.study).rows)
        bars = by_configuration(pd.DataFrame(of_runs), [figure], context.factors).set_index(names)[figure]
        assert len(bars) == len({tuple(row[name] for name in names) for row in of_runs}) > 1
        for row in of_runs:
            assert bars[tuple(row[name] for name in names)] == pytest.approx(row[figure], rel=0.05)
