"""Horovod's timeline, against a real one."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import tables


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
