"""What does the user of a sweep see while it runs?"""

import io
import re
import time

import pytest
from rich.console import Console

from jobs.progress import Bar, speed_of
from jobs.run import Run
from jobs.sweep_file import SweepRun
from profiling import tables


def test_a_line_a_run_says_how_long_the_rest_takes_once_one_is_done(monkeypatch):
    now, shown, run = [100.0], Console(file=io.StringIO(), width=300), SweepRun(Run(), 0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Bar(shown, total=5, done=1) as bar:
        for seconds in (300, 7000, 0):
            bar.show(run)
            now[0] += seconds
            bar.ended()
    left = [re.findall(r"about (.*) left", line) for line in shown.file.getvalue().splitlines()]
    assert left[:3] == [[], ["15 min"], ["2.0 h"]]  # of one run that took 300 s three more; then of two


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        # One step of the four was slow: its mean, 250 ms, says nothing of the others.
        (0, "100 ms/step, 160 images/s (median of 4)"),
        (3, "100 ms/step, 160 images/s (median of 3)"),
        (7, "900 ms/step, 17.8 images/s (median of 1)"),
        (8, "100 ms/step, 160 images/s (median of 4)"),
    ],
)
def test_a_runs_speed_is_one_median_and_says_of_which_steps(tmp_path, recorded, said):
    steps_ms = [900, 900, 900, 100, 100, 100, 100, 700]
    starts_ms = [sum(steps_ms[:index]) for index in range(8)]
    rows = {
        "rank": [0] * 8, "batch_index": range(8), "attributed": [index >= 8 - recorded for index in range(8)],
        "start_ns": [start * 10**6 for start in starts_ms],
        "end_ns": [(start + took) * 10**6 for start, took in zip(starts_ms, steps_ms, strict=True)],
    }  # fmt: skip
    tables.write(tables.as_table("batches", rows), tmp_path / "rank_0000", "batches")
    assert speed_of(tmp_path, Run(batches=8, batch=8, nodes=2)) == said
