"""Horovod's timeline, against a real one."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import codes, data_of, tables
from tests.profiling.samples import HOROVOD


def test_a_timeline_as_written_without_its_closing_bracket(shared_data):
    path = shared_data / "horovod/timeline_4ranks_cpu.json.gz"
    found, findings = tables(path, "horovod")
    kernels, markers = found["kernels"], found["markers"]
    assert findings == []
    assert kernels["name"].value_counts().to_dict() == {"hvd:allreduce": 660, "hvd:broadcast": 13}
    assert set(kernels["class"]) == {"communication"} and (kernels["duration_ns"] > 0).all()
    # 4096 x 1001 weights in float32
    assert kernels["bytes"].max() >= 4096 * 1001 * 4
    assert kernels[kernels["name"] == "hvd:allreduce"].groupby("layer")["bytes"].nunique().eq(1).all()
    assert markers["name"].value_counts()["NEGOTIATE_ALLREDUCE"] == 660
    assert markers["name"].value_counts()["MPI_ALLREDUCE"] == 660
    assert (markers["end_ns"] >= markers["start_ns"]).all()


def test_what_is_wrong_is_said(tmp_path):
    path = tmp_path / "rank3.json"
    text = HOROVOD.replace('"name": "1", "ts": 105', '"name": "2", "ts": 105')
    found, findings = tables(path, "horovod", text)
    assert data_of(findings, "profiles_missing") == [{"n": 1, "of": 3, "ranks": [1]}] and len(findings) == 1
    kernel = found["kernels"].iloc[0]
    assert (kernel["start_ns"], kernel["duration_ns"], kernel["bytes"]) == (107_000, 13_000, 400)
    assert (kernel["layer"], kernel["rank"]) == ("grad_1", 3)
    text = HOROVOD.replace('"ts": 118', '"ts": 50') + '{"ph": "B", "name": "ALLREDUCE", "ts": 200, "pi'
    findings = tables(path, "horovod", text)[1]
    assert codes(findings) == ["recording_cut_short", "records_damaged", "records_damaged"]
    assert [(one["n"], one["what"]) for one in data_of(findings, "records_damaged")] == [
        (1, "events"), (1, "ranges"),
    ]  # fmt: skip


reductions = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 100)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=30, deadline=None)
@given(made=reductions, lines=st.booleans())
def test_whatever_is_written_is_read_back(made, lines, tmp_path_factory):
    events = []
    for tensor, start, took, size in made:
        events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": start, "pid": tensor})
        events.append({"ph": "E", "ts": start, "pid": tensor})
        events.append({"ph": "B", "name": "ALLREDUCE", "ts": start, "pid": tensor})
        args = {"dtype": "float32", "shape": f"[{size}, 3]"}
        events.append({"ph": "E", "ts": start + took, "pid": tensor, "args": args})
    path = tmp_path_factory.mktemp("timeline") / "timeline.json"
    text = ",\n".join(map(json.dumps, events))
    path.write_text(f"[\n{text},\n" if lines else json.dumps(events))
    kernels = tables(path, "horovod")[0]["kernels"]
    read_back = zip(
        kernels["stream"], kernels["start_ns"], kernels["duration_ns"], kernels["bytes"], strict=True
    )
    assert list(read_back) == [
        (tensor, start * 1000, took * 1000, size * 12) for tensor, start, took, size in made
    ]


def test_times_count_from_the_date_that_newer_releases_write(tmp_path):
    path = tmp_path / "timeline.json"
    begun = '{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":%s}},'
    path.write_text(HOROVOD.replace("[\n", f"[\n{begun % 1795279432144422}\n", 1))
    found, findings = tables(path, "horovod")
    assert findings == []
    assert found["kernels"]["start_ns"].to_list() == [1795279432144422000 + 107_000]
    path.write_text(HOROVOD.replace("[\n", f"[\n{begun % '9e99'}\n", 1))
    found, findings = tables(path, "horovod")
    assert found["kernels"]["start_ns"].to_list() == [107_000]
    assert data_of(findings, "records_damaged") == [{"n": 1, "what": "events"}] and len(findings) == 1
