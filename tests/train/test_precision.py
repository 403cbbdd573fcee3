"""In which precision the arithmetic is done, and what a device cannot do."""

import pytest
import torch

from jobs.run import make_run
from profiling.errors import UserError
from train.step import Precision

CPU = torch.device("cpu")


def run_of(compute):
    return make_run({"compute": compute, "device": "cpu"})


@pytest.fixture(autouse=True)
def flags_as_before():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def one_step(compute):
    """A layer's scores, the loss, and its weights before and after a step."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    precision = Precision(run_of(compute), CPU)
    with precision.forward():
        scores = layer(torch.randn(16, 8))
        loss = torch.nn.functional.cross_entropy(scores, torch.zeros(16, dtype=torch.long))
    precision.backward(loss)
    gradient = layer.weight.grad.clone()
    precision.step(optimizer)
    return scores, loss, before, gradient, layer.weight.detach()


def test_bf16_multiplies_in_bf16_and_keeps_weights_and_loss_in_fp32():
    scores, loss, before, gradient, after = one_step("bf16")
    assert scores.dtype == torch.bfloat16 and loss.dtype == gradient.dtype == after.dtype == torch.float32
    exact, exact_loss, *_ = one_step("fp32")
    assert not torch.equal(scores.float(), exact)
    assert torch.allclose(scores.float(), exact, atol=0.05) and torch.allclose(loss, exact_loss, atol=0.02)
    assert torch.allclose(after, before - 0.1 * gradient, atol=1e-7)


@pytest.mark.parametrize("compute", ["tf32", "fp16"])
def test_what_a_cpu_cannot_do_is_one_line(compute):
    with pytest.raises(UserError, match=f"^compute {compute} needs a GPU; on a CPU use fp32 or bf16$"):
        Precision(run_of(compute), CPU)


@pytest.mark.parametrize(
    ("compute", "capability", "emulated"),
    [("tf32", (7, 5), True), ("bf16", (7, 0), True), ("bf16", (8, 0), False), ("fp32", (7, 0), False)],
)
def test_fp32_products_use_tf32_only_where_it_is_asked_and_emulation_is_said(
    compute, capability, emulated, monkeypatch
):
    """A library's default would give TF32 under the name of fp32."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    torch.backends.cudnn.allow_tf32 = True
    findings = Precision(make_run({"compute": compute}), torch.device("cuda")).findings
    allowed = compute == "tf32"
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is allowed
    assert [finding.code for finding in findings] == ["option_limited"] * emulated
