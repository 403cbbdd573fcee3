"""Real programs, unchanged, under profiling.watch: of each library what its users write."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures.communication import communication
from jobs.run import has_horovod
from tests.profiling.watching import PROGRAMS, ROOT, Forks, batches_of, gaps, manifest_of, report_of, watch

pytestmark = pytest.mark.long

STAGES = ["load_ns", "forward_ns", "backward_ns", "update_ns"]


def need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (pip install -e '.[watch-test]')")


def found(out: Path) -> dict[str, dict]:
    """What the findings of rank 0 say, by their codes."""
    return {one.code: dict(one.data) for one in report_of(out).findings}


@pytest.mark.parametrize(
    ("arguments", "steps", "more"),
    [
        # Two updates are skipped by the program itself: these steps are of the next.
        ([], 10, {"n": 2, "of": 10, "usual": 4}),
        (["--scaler"], 12, None),  # skipped updates end steps, too
    ],
)
def test_accumulated_gradients_and_skipped_updates(tmp_path, forks, arguments, steps, more):
    forks.watch("--out", tmp_path / "run", PROGRAMS / "accumulation.py", *arguments)
    assert found(tmp_path / "run").get("more_passes") == more
    rows = batches_of(tmp_path / "run")
    assert len(rows) == steps and rows.images.sum() == 96
    assert (rows[STAGES] > 0).all(axis=None)


def test_a_model_divided_by_fully_shard(tmp_path, forks):
    forks.watch("--out", tmp_path / "run", "--batches", 6, PROGRAMS / "fsdp2.py", ranks=2)
    for rank in (0, 1):
        rows = batches_of(tmp_path / "run", rank)
        assert len(rows) == 6 and (rows[STAGES] > 0).all(axis=None) and (rows.images == 4).all()
    assert report_of(tmp_path / "run").backend == "fsdp2/gloo"
    assert report_of(tmp_path / "run").model == "Sequential"


@pytest.mark.wide  # ranks of our own run Horovod under mpirun in `make test`
def test_horovod_under_mpirun(tmp_path):
    mpirun = Path(sys.executable).parent / "mpirun"
    if not has_horovod() or not mpirun.is_file():
        pytest.skip("no Horovod, or no mpirun beside this Python (make horovod)")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    launcher = [str(mpirun), *root, "-np", "2", "--oversubscribe", "--bind-to", "none", "-x", "PYTHONPATH"]
    watch("--out", tmp_path / "run", PROGRAMS / "with_horovod.py", launcher=[*launcher, sys.executable])
    assert report_of(tmp_path / "run").backend == "horovod"
    for rank in (0, 1):
        rows = batches_of(tmp_path / "run", rank)
        assert len(rows) == 10 and (rows[STAGES] > 0).all(axis=None)


def test_hugging_faces_trainer(tmp_path, forks):
    need("transformers")
    forks.watch("--out", tmp_path / "run", PROGRAMS / "with_trainer.py", tmp_path / "output")
    rows = batches_of(tmp_path / "run")
    assert len(rows) == 10 and (rows[STAGES] > 0).all(axis=None)
    # Evaluations after the fourth and the eighth step; each step has two batches of two.
    assert gaps(tmp_path / "run") == [3, 7] and rows.images.iloc[1:-1].tolist() == [4] * 8
    assert manifest_of(tmp_path / "run").run.model == "gpt2lmheadmodel"


def test_accelerate(tmp_path, forks):
    need("accelerate")
    forks.watch("--out", tmp_path / "run", PROGRAMS / "with_accelerate.py")
    rows = batches_of(tmp_path / "run")
    assert len(rows) == 10 and (rows[STAGES] > 0).all(axis=None)
    # It loads a batch ahead.
    assert rows.images.sum() == 120


def test_lightning_on_two_ranks(tmp_path, forks):
    need("lightning")
    program = (PROGRAMS / "with_lightning.py", tmp_path / "output", 2, "ddp")
    forks.watch("--out", tmp_path / "run", "--batches", 15, *program, ranks=2)
    for rank in (0, 1):
        rows = batches_of(tmp_path / "run", rank)
        assert len(rows) == 15 and (rows[STAGES] > 0).all(axis=None)
    # Its validation after the first epoch.
    assert gaps(tmp_path / "run") == [9] and report_of(tmp_path / "run").backend == "ddp/gloo"


def test_a_loop_that_hides_everything_and_marks_its_stages(tmp_path, forks):
    printed = forks.watch("--out", tmp_path / "run", "--batches", 8, "--samples", 8, PROGRAMS / "marked.py")
    assert "trained" not in printed
    rows = batches_of(tmp_path / "run")
    assert len(rows) == 8 and (rows[STAGES] > 0).all(axis=None)
    assert (rows.forward_ns > rows.load_ns).sum() > 4 and rows.images.tolist() == [8] * 8


def test_compiled_models_are_compiled_as_without_us(tmp_path, forks_before_the_compiler):
    printed = forks_before_the_compiler.watch("--out", tmp_path / "run", PROGRAMS / "compiled.py", "module")
    assert "1 graphs compiled" in printed
    rows = batches_of(tmp_path / "run")
    assert len(rows) == 10 and (rows.backward_ns > 0).all() and (rows.load_ns > 0).all()
    assert (rows.forward_ns > 0).all()
    assert "stages_unseen" not in found(tmp_path / "run")


# --- configs/gpt.py: every form of parallelism trains the same model, and its collectives are told -------

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

    # DDP sums the gradients; FSDP2 gathers blocks twice and the rest once, and scatters the sums.
    # One allreduce is of the norms of gradients: a block has 9 tensors.
    ddp, fsdp = told(tmp_path / "ddp"), told(tmp_path / "fsdp")
    mbyte = 4e-6 * (LAYERS * BLOCK + AROUND)
    assert set(ddp) == {"allreduce"} and ddp["allreduce"]["mbyte_per_step"] == pytest.approx(mbyte)
    assert set(fsdp) == {"allreduce", "allgather", "reducescatter"}
    assert fsdp["reducescatter"]["mbyte_per_step"] == pytest.approx(mbyte)
    assert fsdp["allreduce"]["mbyte_per_step"] == pytest.approx(4e-6 * (9 * LAYERS + 3))
    assert fsdp["allgather"]["mbyte_per_step"] == pytest.approx(mbyte + 4e-6 * LAYERS * BLOCK)
    calls = {"allgather": 2 * LAYERS + 1, "reducescatter": LAYERS + 1, "allreduce": 1}
    assert {name: row["calls_per_step"] for name, row in fsdp.items()} == calls
    # Of two groups each: FSDP2 gathers half as many parameters; tensor parallelism moves activations.
    both = communication(load(tmp_path / "both")).rows
    assert set(both["group_ranks"]) == {"0,2 | 1,3", "0,1 | 2,3"}
    assert set(both["group_size"]) == {2} and both["transfer_ms"].notna().all()
    kinds = both.set_index(["group_ranks", "collective"])["calls_per_step"].unstack()
    assert (kinds > 0).all(axis=None) and set(kinds) == {"allreduce", "allgather", "reducescatter"}
    assert kinds.loc["0,2 | 1,3", "allgather"] == fsdp["allgather"]["calls_per_step"]
    assert kinds.loc["0,2 | 1,3", "reducescatter"] == fsdp["reducescatter"]["calls_per_step"]
