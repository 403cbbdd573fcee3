"""One rank from its start to its report: does it learn, does it repeat itself, what does it leave?"""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from jobs import failures
from jobs.run import model_names
from jobs.store import RANK_REPORT, RankReport, check_run, read_record
from profiling import tables
from profiling.errors import UserError
from train import models, rank
from train.backends import open_backend
from train.models import build_model, check_images, flops_per_image, import_torchvision
from train.rank import run_rank
from train.world import World

from .conftest import run_of

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def do(run, out):
    """What rank 0 of 1 leaves: its report, its batches as columns, and what it said."""
    said: list[str] = []
    finished = run_rank(run, World(), out, keep_raw=False, say=said.append)
    directory = tables.rank_directory(out, 0)
    batches = tables.read(directory, "batches").to_pandas()
    assert read_record(directory / RANK_REPORT, RankReport) == finished.report
    return finished, batches, said


def tiny(data_set, **fields):
    small = {"model": "squeezenet1_1", "batches": 3, "threads": 1, "learning_rate": 0.01}
    return run_of(data_set, **{**small, **fields})


def test_the_loss_falls(data_set, tmp_path):
    learns = {"image_size": 32, "batch": 6, "batches": 60, "learning_rate": 0.005}
    run = tiny(data_set, loader="dali-cpu", workers=1, **learns)
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed (it exists for Linux only)")
    finished, batches, said = do(run, tmp_path)
    # A random model of 1000 scores is at ln(1000) = 6.9, one that knows of 3 classes only at ln(3) = 1.1.
    assert batches.loss[0] > 6
    assert batches.loss[-10:].mean() < 2
    assert finished.wrong == ""
    check_run(run, [finished.report], tmp_path)
    assert said[-1].startswith(f"step 60/60 loss {batches.loss.iloc[-1]:.4f}")


def test_the_report(data_set, tmp_path):
    finished, batches, _ = do(tiny(data_set, model="resnet18", batches=4), tmp_path)
    report, duration = finished.report, batches.end_ns - batches.start_ns
    assert finished.images_per_s == pytest.approx(16 / (duration.sum() / 1e9))
    assert (report.rank, report.world_size, report.backend, report.device) == (0, 1, "single", "cpu")
    assert (report.batches_done, report.images_done) == (4, 16)
    assert report.losses_finite and report.findings == [] and report.threads == 1
    assert report.parameters == 11_689_512 and len(report.parameter_digest) == 64
    assert sum(report.gradient_elements.values()) == 11_689_512
    assert list(report.gradient_elements)[-2:] == ["fc.weight", "fc.bias"]
    assert report.training_flops_per_image == models.flops_per_image(models.build_model("resnet18"), 32)[1]
    assert report.startup_ns > 0 and report.peak_memory_bytes > 1e8
    assert report.metered_s >= (batches.end_ns.max() - batches.start_ns.min()) / 1e9
    # What a machine has no meter for, it says.
    assert report.device_energy_j is None and (report.processors_energy_j is None) == bool(report.unmetered)
    assert report.peak_device_memory_bytes is None and report.versions["torch"] == torch.__version__


def test_ways_to_compute(data_set, tmp_path):
    """The memory layout and the precision change rounding only; waiting after stages changes nothing."""
    ways = {"plain": {}, "channels_last": {"channels_last": True}, "bf16": {"compute": "bf16"},
            "sync": {"sync_stages": True}, "ddp": {"backend": "ddp"}}  # fmt: skip
    losses, backends = {}, {}
    for name, fields in ways.items():
        finished, batches, _ = do(
            tiny(data_set, loader="synthetic", learning_rate=1e-4, **fields), tmp_path / name
        )
        losses[name], backends[name] = batches.loss.to_numpy(), finished.report.backend
    assert (losses["sync"] == losses["plain"]).all()
    assert np.allclose(losses["channels_last"], losses["plain"], rtol=1e-3)
    assert np.allclose(losses["ddp"], losses["plain"], rtol=1e-3)
    assert np.allclose(losses["bf16"], losses["plain"], rtol=0.05)
    assert (losses["bf16"] != losses["plain"]).all()
    assert backends["plain"] == "single" and backends["ddp"] == "ddp/gloo"


@pytest.mark.parametrize(
    ("fields", "attributed"),
    [({"batches": 5, "attribute_from": 3}, [3, 4]), ({"batches": 8, "profile_schedule": "1,1,1,2"}, [2, 5])],
)
def test_a_profiler_attributes_the_batches_that_are_asked_for(data_set, tmp_path, fields, attributed):
    run = tiny(data_set, loader="synthetic", profile="torch", profile_mode="memory", **fields)
    finished, batches, _ = do(run, tmp_path)
    assert np.flatnonzero(batches.attributed).tolist() == attributed
    directory = tables.rank_directory(tmp_path, 0)
    kernels = tables.read(directory, "kernels").to_pandas()
    assert set(kernels.batch_index.dropna()) == set(attributed)
    products = kernels[kernels["class"].isin(["gemm", "convolution"])]
    flops = products.groupby("batch_index").flops.sum() / run.batch
    assert flops.to_numpy() == pytest.approx(finished.report.training_flops_per_image, rel=0.01)
    first = attributed[0]
    within = kernels[kernels.batch_index == first]
    assert within.start_ns.between(batches.start_ns[first], batches.end_ns[first]).all()
    assert tables.read(directory, "memory").num_rows > 52  # each parameter's gradient is allocated


def test_dataparallel_on_a_cpu_runs_the_model_plainly_on_all_gpus_images_and_says_so(data_set, tmp_path):
    run = tiny(data_set, loader="synthetic", backend="dp", gpus_per_node=2, batches=2)
    finished, batches, _ = do(run, tmp_path)
    assert (batches.images == 2 * run.batch).all() and finished.report.images_done == 2 * 2 * run.batch
    assert finished.report.backend == "dp/no device" and finished.wrong == ""
    assert [finding.code for finding in finished.report.findings] == ["option_limited"]
    check_run(run, [finished.report], tmp_path)


def test_dataparallel_drives_all_gpus_and_computes_in_what_the_run_says(data_set, monkeypatch):
    """It switches autocast on in each replica's thread, without a type."""
    wrapped, layer, cuda = Mock(), torch.nn.Linear(2, 2), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.nn, "DataParallel", wrapped)
    backend = open_backend(tiny(data_set, backend="dp", gpus_per_node=2, compute="bf16"), World(), cuda)
    backend.wrap(layer)
    assert wrapped.call_args.kwargs["device_ids"] == [0, 1] and backend.description == "dp/2 GPUs"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(layer, torch.ones(1, 2)).result()
        assert pool.submit(torch.get_autocast_dtype, "cuda").result() == torch.bfloat16
    with pytest.raises(UserError, match="is to drive 4 GPUs, and this process sees 2; the one rank"):
        open_backend(tiny(data_set, backend="dp", gpus_per_node=4), World(), cuda)


# --- what cannot be done is one line ------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be ...", 2),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.distributed.DistBackendError(
            "NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
        ),
    ],
)
def test_running_out_of_memory_is_told_in_any_words_and_not_taken_for_lost_ranks(
    data_set, tmp_path, monkeypatch, error
):
    def full(*_):
        raise error

    monkeypatch.setattr(rank.loop, "train", full)
    with pytest.raises(rank.OutOfMemory, match=r"^not enough memory for batch 4 of 32 x 32 images"):
        do(tiny(data_set, loader="synthetic"), tmp_path)
    # So does the log of a rank that died before it could say so.
    assert failures.explain(1, "", f"RuntimeError: {error}").kind == "out of memory"


@pytest.mark.parametrize("fails", [True, False])
def test_a_rank_that_fails_leaves_without_the_others(data_set, tmp_path, monkeypatch, fails):
    """To destroy NCCL's communicators is a collective, for which the others, who still train, do not come."""
    watched = Mock(wraps=open_backend(tiny(data_set), World(), torch.device("cpu")))
    watched.description, watched.findings = "single", ()
    monkeypatch.setattr(rank, "open_backend", lambda *_: watched)
    if fails:
        monkeypatch.setattr(rank.loop, "train", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            do(tiny(data_set, loader="synthetic"), tmp_path)
    else:
        do(tiny(data_set, loader="synthetic"), tmp_path)
    assert (watched.abandon.called, watched.close.called) == (fails, not fails)


# --- which network is trained, and how much arithmetic one of its images is -----------------------------

# (forward, training) GFLOP an image at 224 x 224. ResNet50's are docs/methods.md's; the others are twice
# the multiply-adds that torchvision states beside its weights, and three times that less the first layer's.
GFLOP = {
    "resnet50": (8.18, 24.3),
    "vgg16": (2 * 15.47, 3 * 2 * 15.47 - 2 * 224 * 224 * 64 * 27 / 1e9),
    "alexnet": (2 * 0.714, 3 * 2 * 0.714 - 2 * 55 * 55 * 64 * 363 / 1e9),
    "resnet18": (2 * 1.814, 3 * 2 * 1.814 - 2 * 112 * 112 * 64 * 147 / 1e9),
}
PARAMETERS = {"resnet50": 25_557_032, "vgg16": 138_357_544, "alexnet": 61_100_840, "resnet18": 11_689_512}


@pytest.mark.parametrize("name", GFLOP)
def test_flops_of_an_image(name):
    with torch.device("meta"):  # no weights are drawn
        model = build_model(name)
    forward, training = flops_per_image(model, 224)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert forward / 1e9 == pytest.approx(GFLOP[name][0], rel=2e-3)
    assert training / 1e9 == pytest.approx(GFLOP[name][1], rel=2e-3)


def test_a_near_miss_is_named():
    with pytest.raises(UserError, match="no torchvision classification model 'vgg_16'; did you mean 'vgg16'"):
        build_model("vgg_16")
    models = import_torchvision().models
    assert model_names() == models.list_models(module=models)


def test_images_that_a_model_cannot_take_are_explained():
    check_images("resnet50", 32, 2)
    for name, size, batch in (("alexnet", 32, 2), ("resnet50", 32, 1), ("vit_b_16", 64, 2)):
        told = f"^{name} does not take batch {batch} of {size} x {size} images: .+"
        with pytest.raises(UserError, match=told):
            check_images(name, size, batch)
