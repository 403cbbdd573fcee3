"""configs/gpt.py, watched: every form of parallelism trains the same model, and its collectives are told."""

import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures.communication import communication
from tests.profiling.watching import ROOT, Forks, batches_of, report_of

pytestmark = pytest.mark.long

LAYERS, WIDTH, HIDDEN, VOCABULARY, TOKENS = 2, 128, 320, 256, 256
_SIZES = f"--layers={LAYERS} --width={WIDTH} --vocabulary={VOCABULARY} --length=64 --steps=11 --lr=3e-3"
# Parameters of a block (its attention, its three matrices, two norms) and of what is around the blocks.
BLOCK, AROUND = 4 * WIDTH**2 + 3 * WIDTH * HIDDEN + 2 * WIDTH, 2 * VOCABULARY * WIDTH + WIDTH


def train(forks: Forks, out: Path, *words: str, ranks: int = 2, tokens: int = TOKENS) -> list[float]:
    program = (ROOT / "configs/gpt.py", *_SIZES.split(), "--tokens", tokens, "--dtype=fp32", *words)
    printed = forks.watch("--out", out, "--samples", tokens, "--profile=torch", *program, ranks=ranks)
    return [float(loss) for loss in re.findall(r"loss (\S+)", printed)]


def told(out: Path) -> dict[str, dict]:
    return {row["collective"]: row for row in records(communication(load(out)).rows)}


def test_ddp_fsdp_and_tensor_parallelism_train_the_same_model(forks, tmp_path):
    """Four ranks in two groups with the tokens of two ranks; losses are of the first group's tokens."""
    of_ddp = train(forks, tmp_path / "ddp")
    of_fsdp = train(forks, tmp_path / "fsdp", "--parallel=fsdp")
    words = ("--parallel=fsdp", "--tensor-parallel=2")
    of_both = train(forks, tmp_path / "both", *words, ranks=4, tokens=TOKENS // 2)
    assert len(of_ddp) == 2 and of_ddp[1] < of_ddp[0] - 1
    assert of_fsdp == pytest.approx(of_ddp, abs=2e-3) and of_both == pytest.approx(of_ddp, abs=2e-3)
    assert [report_of(tmp_path / name).backend for name in ("ddp", "fsdp")] == ["ddp/gloo", "fsdp2/gloo"]
    # Tokens are the samples: of four ranks together as many as of two.
    assert sum(batches_of(tmp_path / "both", rank).images.iloc[0] for rank in range(4)) == 2 * TOKENS

    # DDP sums the gradients; FSDP2 gathers blocks twice and the rest once, and scatters the sums. Gloo does
    # a reduce-scatter as an allreduce. One more is of the norms of gradients: a block has 9 tensors.
    ddp, fsdp = told(tmp_path / "ddp"), told(tmp_path / "fsdp")
    mbyte = 4e-6 * (LAYERS * BLOCK + AROUND)
    assert set(ddp) == {"allreduce"} and ddp["allreduce"]["mbyte_per_step"] == pytest.approx(mbyte)
    assert set(fsdp) == {"allreduce", "allgather"}
    assert fsdp["allreduce"]["mbyte_per_step"] == pytest.approx(mbyte + 4e-6 * (9 * LAYERS + 3))
    assert fsdp["allgather"]["mbyte_per_step"] == pytest.approx(mbyte + 4e-6 * LAYERS * BLOCK)
    assert (fsdp["allgather"]["calls_per_step"], fsdp["allreduce"]["calls_per_step"]) == (
        2 * LAYERS + 1, LAYERS + 2,
    )  # fmt: skip
    # Of several groups Gloo's records do not say which made a call.
    both = told(tmp_path / "both")
    assert set(both) == {"allreduce", "allgather"}
    assert pd.isna([row["group_size"] for row in both.values()]).all()
    assert both["allgather"]["calls_per_step"] > fsdp["allgather"]["calls_per_step"]
