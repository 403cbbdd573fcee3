"""Recording from inside a training process: what is written, is it right, and what is left behind?"""

from pathlib import Path
from threading import Thread

import pytest

from profiling.readers.files import Origin
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import read
from profiling.tools import open_capture, tool

torch = pytest.importorskip("torch")
from torch.profiler import record_function  # noqa: E402

BATCHES, FIRST = 3, 10


def train(model, inputs, half=False):
    """The loop that markers are put into, as ``train`` does it: one batch for each of ``inputs``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    for data in inputs:
        target = torch.zeros(len(data), dtype=torch.long)
        with record_function(FORWARD), torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = loss_of(model(data), target)
        with record_function(BACKWARD):
            loss.backward()
        with record_function(UPDATE):
            optimizer.step()
            optimizer.zero_grad()
        with record_function(END_OF_BATCH):
            pass


def small_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, groups=4, padding=1), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(8 * 7 * 7, 10),
    )  # fmt: skip


def record(model, inputs, directory: Path, half=False, keep_raw=False):
    capture = open_capture("torch", directory, rank=5, keep_raw=keep_raw)
    train(model, inputs[:1], half)
    capture.start(model, first_batch=FIRST)
    train(model, inputs, half)
    capture.stop()
    capture.stop()
    return capture.write()


def images(*batches: int, size=32):
    return [torch.randn(batch, 3, size, size) for batch in batches]


def flops_by_direction(kernels):
    return kernels.groupby(["batch_index", "direction"], observed=True)["flops"].sum().unstack()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rank")
    model = small_model()
    return directory, record(model, images(*[2] * BATCHES), directory, keep_raw=True), model


def test_a_recording_has_the_tables_of_its_batches(recorded):
    directory, findings, _ = recorded
    kernels = read(directory, "kernels").to_pandas()
    assert findings == []
    assert sorted(kernels["batch_index"].unique()) == [FIRST, FIRST + 1, FIRST + 2]
    assert set(kernels["rank"]) == {5}
    assert set(kernels["device"]) == {-1}
    assert set(kernels["direction"]) == {"loader", "fprop", "bprop", "update"}  # of labels between batches
    products = kernels[kernels["class"].isin(["convolution", "gemm"]) & (kernels["flops"] > 0)]
    assert set(zip(products["layer"], products["direction"], strict=True)) == {
        (layer, direction) for layer in ("0", "3", "6") for direction in ("fprop", "bprop")
    }
    counts = read(directory, "markers").to_pandas().groupby("name", observed=True).size()
    assert {counts[name] for name in (FORWARD, BACKWARD, UPDATE, END_OF_BATCH)} == {BATCHES}


def test_the_file_that_is_kept_gives_the_same_tables(recorded):
    directory = recorded[0]
    for name, table in tool("torch").read(directory / "raw" / "trace.json.gz", Origin(5)).tables.items():
        again = read(directory, name).to_pandas().astype(object)
        other = table.to_pandas().astype(object)
        if name == "kernels":
            other["batch_index"] += FIRST  # a file does not know where the recording began
        assert again.equals(other), name


def test_a_grouped_and_strided_network_has_its_analytic_flops(recorded):
    directory = recorded[0]
    # By hand; PyTorch's own counter takes no account of groups in a weight's gradient. The first convolution
    # makes no gradient of the images.
    first, grouped, linear = 2 * 2 * 8 * 15 * 15 * 27, 2 * 2 * 8 * 15 * 15 * 18, 2 * 2 * 392 * 10
    forward, backward = first + grouped + linear, first + 2 * grouped + 2 * linear
    flops = flops_by_direction(
        read(directory, "kernels").to_pandas().query("`class` in ('convolution', 'gemm')")
    )
    assert flops["fprop"].to_list() == [forward] * BATCHES
    assert flops["bprop"].to_list() == [backward] * BATCHES


def test_a_networks_flops_are_within_a_percent_of_the_analytic_count(tmp_path):
    """In another layout and precision, over batches of different size."""
    from train.models import build_model, flops_per_image

    model = build_model("alexnet").to(memory_format=torch.channels_last)
    forward, training = flops_per_image(model, 64)
    data = [one.to(memory_format=torch.channels_last) for one in images(1, 2, size=64)]
    record(model, data, tmp_path, half=True)
    kernels = read(tmp_path, "kernels").to_pandas()
    flops = flops_by_direction(kernels).div([1, 2], axis=0)
    assert flops["fprop"].to_list() == pytest.approx([forward] * 2, rel=0.01)
    assert flops["bprop"].to_list() == pytest.approx([training - forward] * 2, rel=0.01)
    assert kernels[["flops", "bytes"]].notna().all(axis=None)
    # At most 0.4 % of the time, of most networks none. One launch that loses the processor takes as long as a
    # thousand of these, so what launches of a name usually take is counted for all of them.
    others = kernels[kernels["class"] == "other"].groupby("name")["duration_ns"]
    usual_ns = others.quantile(0.5, interpolation="lower") * others.size()
    assert usual_ns.sum() < 0.01 * kernels["duration_ns"].sum()


def test_allocations_add_up_to_what_is_allocated(tmp_path):
    model = small_model()
    capture = open_capture("torch", tmp_path, rank=0, mode="memory")
    capture.start(model, first_batch=FIRST)
    train(model, images(2, 4))
    capture.write()
    memory = read(tmp_path, "memory").to_pandas()
    assert set(memory.device) == {-1} and set(memory.batch_index.dropna()) == {FIRST, FIRST + 1}
    assert (memory.bytes < 0).any() and memory.time_ns.is_monotonic_increasing
    assert (memory.allocated_bytes.diff().dropna() == memory.bytes[1:]).all()
    # The input of the first convolution's activations, of 4 images: 4 x 8 x 15 x 15 floats.
    assert (memory.bytes == 4 * 8 * 15 * 15 * 4).any()


# --- several threads --------------------------------------------------------------------------------------


class Replicas(torch.nn.Module):
    """Its model runs in two threads, each on half of the batch, as DataParallel's replicas do."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, data):
        found = {}

        def replica(number, part):
            found[number] = self.model(part)

        threads = [Thread(target=replica, args=each) for each in enumerate(data.chunk(2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat([found[0], found[1]])


def test_forward_passes_in_two_threads_are_both_recorded_when_asked(tmp_path):
    torch.manual_seed(0)
    inner = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, padding=1),
        torch.nn.Flatten(), torch.nn.Linear(8 * 15 * 15, 10),
    )  # fmt: skip
    model = Replicas(inner)
    capture = open_capture("torch", tmp_path, 0, all_threads=True)
    train(model, images(4))
    capture.start(model, first_batch=FIRST)
    train(model, images(4, 4))
    capture.stop()
    assert capture.write() == []
    kernels = read(tmp_path, "kernels").to_pandas()
    forward = kernels[(kernels["class"].isin(["convolution", "gemm"])) & (kernels["direction"] == "fprop")]
    assert set(forward["layer"]) == {"model.0", "model.2", "model.4"}
    # Each layer once in each of two threads, in each of two batches.
    assert (forward.groupby(["batch_index", "layer"], observed=True).size() == 2).all()
    assert forward.groupby("batch_index")["stream"].nunique().eq(2).all()
    per_image = 2 * (3 * 8 * 9 * 15 * 15 + 8 * 8 * 9 * 15 * 15 + 8 * 15 * 15 * 10)
    assert forward.groupby("batch_index")["flops"].sum().to_list() == pytest.approx([4 * per_image] * 2)
    backward = kernels[kernels["class"].isin(["convolution", "gemm"]) & (kernels["direction"] == "bprop")]
    # Each thread numbers its operators from 0: where the main one has the same number, a layer is not told.
    assert set(backward["layer"].dropna()) == {"model.0", "model.2", "model.4"}
