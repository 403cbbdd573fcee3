"""Every profile is checked as it is read: marks, collectives and clocks, whichever tool recorded them."""

import numpy as np
import pytest

from profiling.attribution.checks import stage_findings
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tools import read
from tests.profiling.gpu_databases import change
from tests.profiling.samples import nsys_database, nvprof_database
from tests.profiling.traces import Trace, training_step

STAGES = (FORWARD, BACKWARD, UPDATE, END_OF_BATCH)


def test_stages_out_of_order_are_a_clock_that_went_back():
    times = np.arange(12)
    times[7] = 0  # the second batch ends before it has begun
    (finding,) = stage_findings(0, STAGES * 3, times)
    assert finding.code == "stages_out_of_order" and finding.data["of"] == 12


# --- the same, from the file of each tool --------------------------------------------------------------


def kineto(path, shift=0.0):
    trace = Trace(distributedInfo={"rank": 0, "world_size": 1})
    at = 0.0
    for batch in range(3):
        at = training_step(trace, at, batch)
    for event in trace.events:
        if event["cat"] == "kernel":
            event["ts"] += shift
    return trace.write(path)


FILES = {
    "torch": (kineto, "trace.json"),
    "nvprof": (nvprof_database, "nvprof.sql"),
    "nsys": (nsys_database, "nsys.sqlite"),
}


def of_stages_and_clocks(findings):
    codes = ("marks_missing", "stages_out_of_order", "begun_before_launch", "no_collectives")
    return [one for one in findings if one.code in codes]


def without_a_mark(name, path):
    if name == "nvprof":
        change(path, ["delete from CUPTI_ACTIVITY_KIND_MARKER where id = 1002"])
    elif name == "nsys":
        change(path, ["delete from NVTX_EVENTS where rowid = (select max(rowid) from NVTX_EVENTS)"])
    else:
        text = path.read_text()
        path.write_text("End of batch".join(text.rsplit(END_OF_BATCH, 1)))


@pytest.mark.parametrize("name", FILES)
def test_a_batch_without_its_end_is_a_finding(name, tmp_path):
    write, file = FILES[name]
    path = write(tmp_path / file)
    without_a_mark(name, path)
    found = of_stages_and_clocks(read(path, name).findings)
    assert END_OF_BATCH in [one.data["stage"] for one in found if one.code == "marks_missing"], found


def with_the_clock_back(name, path):
    if name == "nvprof":
        change(path, ["update CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL set start = start - 30, end = end - 30"])
    elif name == "nsys":
        change(path, ["update CUPTI_ACTIVITY_KIND_KERNEL set start = start - 60, end = end - 60"])
    else:
        kineto(path, shift=-101.0)


@pytest.mark.parametrize("name", FILES)
def test_a_devices_clock_behind_the_hosts_is_a_finding(name, tmp_path):
    write, file = FILES[name]
    path = write(tmp_path / file)
    with_the_clock_back(name, path)
    found = of_stages_and_clocks(read(path, name).findings)
    assert [one.code for one in found] == ["begun_before_launch"] and found[0].data["by_ns"] > 0
