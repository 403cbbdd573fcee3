"""Every profile is checked as it is read: marks, collectives and clocks, whichever tool recorded them."""

import json

import numpy as np
import pytest

from profiling.attribution.checks import stage_findings
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tools import read
from profiling.tools.cupti import CuptiCapture
from tests.profiling.fake_cupti import records_file
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
    "cupti": (records_file, "cupti.jsonl"),
}


def of_stages_and_clocks(findings):
    codes = ("marks_missing", "stages_out_of_order", "begun_before_launch", "no_collectives")
    return [one for one in findings if one.code in codes]


def silent(findings):
    """Of how many ranks it is said that no collective was recorded."""
    return [one.data["ranks"] for one in findings if one.code == "no_collectives"]


def change_records(path, group, column, made_of):
    """Exchange a column of a file of CUPTI's records."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if group in line:
            line[group][column] = made_of(line[group][column])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def without_a_mark(name, path):
    if name == "nvprof":
        change(path, ["delete from CUPTI_ACTIVITY_KIND_MARKER where id = 1002"])
    elif name == "nsys":
        change(path, ["delete from NVTX_EVENTS where rowid = (select max(rowid) from NVTX_EVENTS)"])
    elif name == "cupti":
        change_records(path, "range", "name", lambda names: [*names[:-1], names[0]])
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
    elif name == "cupti":
        change_records(path, "kernel", "start", lambda starts: [start - 20 for start in starts])
    else:
        kineto(path, shift=-101.0)


@pytest.mark.parametrize("name", FILES)
def test_a_devices_clock_behind_the_hosts_is_a_finding(name, tmp_path):
    write, file = FILES[name]
    path = write(tmp_path / file)
    with_the_clock_back(name, path)
    found = of_stages_and_clocks(read(path, name).findings)
    assert [one.code for one in found] == ["begun_before_launch"] and found[0].data["by_ns"] > 0


def test_cupti_knows_of_how_many_ranks_it_records_one(tmp_path, monkeypatch):
    from tests.profiling.fake_cupti import GEMM, FakeCupti

    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    api = FakeCupti()
    capture = CuptiCapture(tmp_path, 1, True, api, lambda: None)
    capture.start()
    api.run("CONCURRENT_KERNEL", name=GEMM)
    assert silent(capture.write()) == [2]
    # The file says it, too, whoever reads it later and wherever.
    monkeypatch.delenv("WORLD_SIZE")
    assert silent(read(tmp_path / "raw" / "cupti.jsonl").findings) == [2]
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "second").mkdir()
    capture = CuptiCapture(tmp_path / "second", 1, False, api, lambda: None)
    capture.start()
    api.run("CONCURRENT_KERNEL", name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)")
    assert silent(capture.write()) == []
