"""What tools store of a process's environment and command line is in nothing that is converted or said."""

import json

import pyarrow.parquet as pq
import pytest

from profiling.convert import Counts, convert
from tests.profiling.gpu_databases import change
from tests.profiling.samples import SAMPLES

SECRET = "hunter2-do-not-write-me"


def into_torch(path):
    trace = json.loads(path.read_text())
    trace |= {"env": {"TOKEN": SECRET}, "cmdline": f"python train.py --token {SECRET}", "hostname": SECRET}
    label = {"ph": "M", "pid": 9, "tid": 0, "ts": 0, "args": {"name": f"python --token {SECRET}"}}
    trace["traceEvents"] += [{**label, "name": name} for name in ("process_name", "process_labels")]
    record = {"ph": "X", "cat": "Trace", "name": "Record", "ts": 1, "dur": 1, "args": {"Env": SECRET}}
    trace["traceEvents"].append(record)
    for event in trace["traceEvents"]:
        event.setdefault("args", {})["Environment"] = SECRET
    path.write_text(json.dumps(trace))


def into_nvprof(path):
    change(path, [
        "create table CUPTI_ACTIVITY_KIND_ENVIRONMENT (name text, value text)",
        f"insert into CUPTI_ACTIVITY_KIND_ENVIRONMENT values ('TOKEN', '{SECRET}')",
        f"insert into StringTable (value) values ('python train.py --token {SECRET}')",
    ])  # fmt: skip


def into_nsys(path):
    change(path, [
        "create table TARGET_INFO_SYSTEM_ENV (globalVid integer, devStateName text, name text, value text)",
        f"insert into TARGET_INFO_SYSTEM_ENV values (1, 'x', 'TOKEN', '{SECRET}')",
        f"insert into StringIds values (9001, 'python train.py --token {SECRET}')",
        "create table PROCESSES (globalPid integer, pid integer, name text)",
        f"insert into PROCESSES values ({7 << 24}, 7, '{SECRET}')",
        f"insert into META_DATA_EXPORT values ('CAPTURE_COMMAND_LINE', '{SECRET}')",
    ])  # fmt: skip


def exchange(old, new):
    def into(path):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return into


ATTRIBUTE = f"<attribute><name>TOKEN</name><value>{SECRET}</value></attribute>"
PLANTED = {
    "torch": into_torch,
    "nvprof database": into_nvprof,
    "nvprof summary": exchange("python main.py", f"python main.py --token {SECRET}"),
    "nvprof metrics": exchange("python main.py", f"python main.py --token {SECRET}"),
    "nsys export": into_nsys,
    "nsys stats": exchange("Time (%)", f"Processing [/home/{SECRET}.sqlite] with [sum.py]...\nTime (%)"),
    "TAU text": exchange("<metadata></metadata>", f"<metadata>{ATTRIBUTE}</metadata>"),
    "TAU merged": exchange("<attribute><name>CWD</name><value>/x</value></attribute>", ATTRIBUTE),
    "TAU snapshot": exchange("</thread>", f"<metadata>{ATTRIBUTE}</metadata></thread>"),
    "ncu raw": exchange("Connected to process 7", f"Connected to process 7 (python --token {SECRET})"),
    "ncu details": exchange('"ID",', f'==PROF== Connected to process 7 (python --token {SECRET})\n"ID",'),
    "vtune": exchange("Function,", f"vtune: Executing python --token {SECRET}\nFunction,"),
    "vtune memory": exchange("Function", f"vtune: Executing python --token {SECRET}\nFunction"),
    "aps": exchange("heart_demo", f"python --token {SECRET}"),
    "onednn": exchange("epoch 1", f"token: {SECRET}"),
    "inspector": exchange('"comm_name": "unknown"', f'"comm_name": "{SECRET}"'),
    "horovod": exchange('"args": {"name": "grad_1"', f'"args": {{"env": "{SECRET}", "name": "grad_1"'),
}


@pytest.mark.parametrize("name", sorted(SAMPLES.keys() - {"pyprof"}))  # that is not converted
def test_no_word_of_it_is_converted_or_said(name, tmp_path, capfd):
    _, write, file = SAMPLES[name]
    (tmp_path / "raw").mkdir()
    path = write(tmp_path / "raw" / file)
    PLANTED[name](path)
    assert convert([path], out=tmp_path / "out") == Counts(1)
    written = [found for found in (tmp_path / "out").rglob("*") if found.is_file()]
    assert written
    for table in written:
        if table.suffix != ".parquet":  # what a trace says of its job, and its path
            assert SECRET not in table.read_text()
            continue
        # Read, too: compressed text would not be seen in the bytes.
        words = str(pq.read_table(table).to_pydict()) + str(pq.read_schema(table).metadata)
        assert SECRET not in words and SECRET.encode() not in table.read_bytes(), table
    assert SECRET not in "".join(capfd.readouterr())


def test_vtunes_summary_of_its_command_line_is_no_number_and_left_out(tmp_path, capfd):
    path = tmp_path / "summary.csv"
    path.write_text(
        "Hierarchy Level\tMetric Name\tMetric Value\n0\tElapsed Time\t1.5\n"
        f"1\tApplication Command Line\tpython --token {SECRET}\n1\tEnvironment Variables\tTOKEN={SECRET}\n"
    )
    assert convert([path], out=tmp_path / "out") == Counts(1)
    events = pq.read_table(tmp_path / "out/summary/atomics.parquet")["event"].to_pylist()
    assert events == ["Elapsed Time"] and SECRET not in "".join(capfd.readouterr())
