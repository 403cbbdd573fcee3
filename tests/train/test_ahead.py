"""Batches for a GPU: a batch ahead, on a stream of their own, and the same pixels as on a CPU."""

from itertools import count, repeat
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from jobs.run import make_run
from train.loaders import dali, pytorch
from train.loaders.ahead import Ahead, memory_format, normaliser
from train.loaders.dataset import find_samples

from .conftest import run_of

CPU = torch.device("cpu")


def copied(number: int) -> list[str]:
    """What is asked for as the copy of a batch is begun."""
    images, labels = f"images_{number}", f"labels_{number}"
    return ["stream", "stream().__enter__", f"{images}.to", "finish", f"{labels}.to", "Event",
            "Event().record", "stream().__exit__"]  # fmt: skip


HANDED_OVER = ["current_stream", "current_stream().wait_event", "finish().record_stream"]


def test_the_next_batch_is_copied_while_this_one_is_computed():
    """CUDA and the tensors are one mock, which notes in which order its parts are called."""
    cuda = MagicMock()
    pairs = ((getattr(cuda, f"images_{n}"), getattr(cuda, f"labels_{n}")) for n in count())
    batches = Ahead(pairs, CPU, cuda.finish, cuda)
    for number, begun in ((0, ["Stream", *copied(0)]), (1, [])):
        _, labels = next(batches)
        after = [f"labels_{number}.to().record_stream", *copied(number + 1)]
        assert [call[0] for call in cuda.mock_calls] == [*begun, *HANDED_OVER, *after]
        assert labels == getattr(cuda, f"labels_{number}").to.return_value
        assert getattr(cuda, f"images_{number + 1}").to.call_args.kwargs == {"non_blocking": True}
        cuda.reset_mock()


@pytest.mark.parametrize("channels_last", [False, True])
def test_bytes_become_the_same_pixels_on_the_device_as_in_a_worker(data_set, channels_last):
    run = run_of(data_set, channels_last=channels_last)
    samples = find_samples(run, 0, 1)
    batch = {}
    for normalised in (True, False):
        torch.manual_seed(3)
        batch[normalised] = torch.stack([pytorch.Images(samples, 32, normalised)[i][0] for i in range(6)])
    assert batch[False].dtype == torch.uint8 and batch[False].nbytes * 4 == batch[True].nbytes
    images = normaliser(run, CPU)(batch[False])
    assert images.dtype == torch.float32 and torch.allclose(images, batch[True], atol=1e-5)
    assert images.is_contiguous(memory_format=memory_format(run))


def test_dali_writes_the_layout_that_the_model_takes_and_the_same_pixels(data_set):
    pytest.importorskip("nvidia.dali", reason="NVIDIA DALI is not installed (it exists for Linux only)")
    batch = {}
    for channels_last, compute in ((False, "fp32"), (True, "bf16")):
        run = run_of(data_set, "dali-cpu", channels_last=channels_last, compute=compute, workers=1)
        loader = dali.build_loader(run, 0, 1, CPU)
        images, labels = next(loader)
        assert images.shape == (4, 3, 32, 32) and labels.dtype == torch.int64
        assert images.is_contiguous(memory_format=memory_format(run))
        batch[channels_last] = images.clone()
        loader.close()
    assert torch.equal(batch[False], batch[True]) and batch[True].dtype == torch.float32
    # What autocast would make of the images, where DALI has that type.
    loader = dali.build_loader(run_of(data_set, "dali-cpu", compute="fp16", workers=1), 0, 1, CPU)
    assert next(loader)[0].dtype == torch.float16
    loader.close()


@pytest.mark.parametrize(("loader", "pins"), [("dali-cpu", True), ("dali-cpu-to-gpu", False)])
def test_a_gpu_copies_what_dali_leaves_on_the_host_from_pinned_memory_one_batch_ahead(
    monkeypatch, loader, pins
):
    """DALI's own memory on the host is pageable: the host would wait for each copy."""
    batch = {"images": torch.zeros(2, 3, 4, 4), "labels": torch.zeros(2, 1, dtype=torch.int32)}
    pinned, ahead = [], []
    library = SimpleNamespace(DALIGenericIterator=lambda *_, **__: repeat([batch]))
    monkeypatch.setattr(dali, "_pipeline", lambda *_: None)
    monkeypatch.setattr(dali, "_dali", lambda _: library)
    monkeypatch.setattr(dali, "Ahead", lambda batches, *_: ahead.append(1) or batches)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.shape) or tensor)
    batches = dali.PipelineBatches(make_run({"loader": loader}), 0, torch.device("cuda", 0), [])
    images, labels = next(batches)
    batches.close()
    assert pinned == ([images.shape, labels.shape] if pins else []) and bool(ahead) is pins
    assert labels.shape == (2,) and labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("capability", "gigabytes", "fields", "load", "preallocates"),
    [((9, 0), 80, {}, 0.8, True), ((9, 0), 80, {"hw_decoder_load": 0.5}, 0.5, True),
     ((8, 0), 80, {}, None, True), ((8, 9), 24, {}, None, False), ((9, 0), 80, {"workers": 32}, 0.8, False)],
)  # fmt: skip
def test_dalis_decoder_is_told_what_the_gpu_has(
    monkeypatch, capability, gigabytes, fields, load, preallocates
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gigabytes * 10**9)
    )
    run = make_run({"loader": "dali-gpu", "workers": 8, **fields})
    options = dali.on_its_engines(run, torch.device("cuda", 0))
    assert options["device"] == "mixed" and options.get("hw_decoder_load") == load
    assert ("preallocate_width_hint" in options) is preallocates
