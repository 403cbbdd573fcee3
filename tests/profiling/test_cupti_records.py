"""The file of CUPTI's records: read as it was written; what cannot be is one line with its place."""

import threading

import orjson
import pytest

from profiling.errors import UserError
from profiling.readers.cupti import GROUPS, Reading, RecordsWriter, read_records
from profiling.tools import Origin, tool
from tests.profiling.fake_cupti import records_file


def lines_of(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def put(path, lines):
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def test_a_file_is_read_as_it_was_written(tmp_path):
    trace, first_batch = read_records(records_file(tmp_path / "rank0.jsonl"))
    assert first_batch == 5
    (aligned,) = trace.findings
    assert aligned.code == "clock_aligned" and aligned.data["residual_ns"] <= 1_000
    assert trace.whole().device["start_ns"].min() == 1_700_000_000_000_000_020
    assert len(trace.whole().device["name"]) == len(trace.whole().launches["thread"]) == 9
    converted = tool("cupti").read(tmp_path / "rank0.jsonl", Origin(4))
    kernels = converted.tables["kernels"].to_pandas()
    assert sorted(set(kernels["batch_index"])) == [5, 6, 7] and set(kernels["rank"]) == {4}


@pytest.mark.parametrize(("change", "message"), [
    (lambda lines: lines[0].update(version=2), "by another release"),
    (lambda lines: lines[0].update(what="x"), "holds no CUPTI records"),
    (lambda lines: lines[0].update(rank=-1), "line 1"),
    (lambda lines: lines[0].update(clock=[1, 2]), "line 1"),
    (lambda lines: lines[2]["kernel"]["start"].append(1), "line 3"),
    (lambda lines: lines[2]["kernel"].update(end=[1.5] * 9), "line 3"),
    (lambda lines: lines[2]["kernel"].update(end=[True] * 9), "line 3"),
    (lambda lines: lines[2]["kernel"].update(end=[2**63] * 9), "line 3"),
    (lambda lines: lines[2]["kernel"].update(name=[9] * 9), "line 3"),
    (lambda lines: lines[2].update(more={}), "line 3"),
    (lambda lines: lines.insert(2, {"dream": {}}), "line 3"),
    (lambda lines: lines.append({"names": []}), "more follows"),
])  # fmt: skip
def test_what_cannot_be_is_one_line_with_its_place(tmp_path, change, message):
    path = records_file(tmp_path / "r.jsonl")
    lines = lines_of(path)
    change(lines)
    with pytest.raises(UserError, match=f"r.jsonl.*{message}"):
        read_records(put(path, lines))


def test_a_file_without_its_end_keeps_its_records(tmp_path):
    path = records_file(tmp_path / "r.jsonl")
    path.write_bytes(path.read_bytes()[:-30])
    trace, _ = read_records(path)
    assert len(trace.whole().device["name"]) == 9
    assert trace.findings[0].code == "recording_cut_short"
    content = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*content[:2], content[2][:-9], *content[3:]]))
    with pytest.raises(UserError, match=r"r\.jsonl is damaged at line 3"):
        read_records(path)


def test_times_that_cupti_could_not_tell_are_left_out_and_counted(tmp_path):
    path = records_file(tmp_path / "r.jsonl")
    lines = lines_of(path)
    lines[2]["kernel"]["start"][0] = lines[2]["kernel"]["end"][0] = 0
    lines[2]["kernel"]["end"][1] = 1  # ends before it begins
    lines[2]["kernel"]["device"][2] = 2**40
    trace, _ = read_records(put(path, lines))
    assert trace.tables["device"].rows == 6 and trace.malformed == 3


def test_clocks_that_move_apart_are_a_finding_and_an_empty_recording_is_one(tmp_path):
    path = tmp_path / "r.jsonl"
    with path.open("wb") as file:
        writer = RecordsWriter(file, 0, 0, Reading(1000, 5000, 10))
        writer.end(Reading(2000, 2_006_000, 10), 0, [])
    aligned, empty = read_records(path)[0].findings
    assert aligned.data["residual_ns"] == pytest.approx(1e6, rel=0.01)  # they moved 2 ms apart
    assert empty.code == "recording_empty"


def test_threads_of_cupti_may_hand_over_at_once(tmp_path):
    path = tmp_path / "r.jsonl"
    with path.open("wb") as file:
        writer = RecordsWriter(file, 0, 0, Reading(0, 0, 0))

        def add(thread):
            for number in range(50):
                row = (1, 2, 0, 7, number, f"kernel{thread}_{number}", 1, 1, 1, 1, 1, 1)
                writer.add(
                    "kernel", {name: [value] for name, value in zip(GROUPS["kernel"], row, strict=True)}
                )

        threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.end(Reading(0, 0, 0), 0, [])
    events = read_records(path)[0].whole()
    assert len(events.device["name"]) == 200
    assert len({events.names[name] for name in events.device["name"]}) == 200
