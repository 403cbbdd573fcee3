"""jobs.hotspots: a cheap run, the hottest kernels, their counters by the first tool that can read them."""

import re
import sys

import pytest

from jobs import hotspots, store
from jobs.run import make_run
from profiling.tools import Options, tool
from tests.analysis.commands import run


def test_only_their_functions_are_counted():
    names = ["at::native::vectorized_elementwise_kernel", "sm80_xmma_gemm", "cutlass::Kernel2", "x::Kernel2"]
    assert hotspots.pattern_of(names, whole=False) == "vectorized_elementwise_kernel|sm80_xmma_gemm|Kernel2"
    whole = hotspots.pattern_of(names, whole=True)
    assert whole == "^(vectorized_elementwise_kernel|sm80_xmma_gemm|Kernel2)$"
    assert hotspots.pattern_of(["<lambda>"], whole=True) == ""
    for whole in (False, True):
        longest = hotspots.pattern_of([f"{'k' * 62}{number}" for number in range(9)], whole)
        assert len(longest) <= 256 and longest.count("|") == (2 if whole else 3)
    run_of = hotspots.counted(make_run({"profile": "torch", "batches": 10}), "ncu", names[:1])
    assert (run_of.profile_mode, run_of.profile_kernels) == ("counters", "^(vectorized_elementwise_kernel)$")
    assert (run_of.batches, run_of.first_attributed) == (3, 2)
    assert not re.search(run_of.profile_kernels, "elementwise_kernel")
    words = tool("nvprof").wrap(["python"], hotspots.Path("raw"), Options("metrics", "a|at::b", 2))
    assert words[words.index("--kernels") + 1] == "::a|at..b:"
    words = tool("ncu").wrap(["python"], hotspots.Path("raw"), Options("counters"))
    assert "sm__inst_executed.avg.per_cycle_active" in words[words.index("--metrics") + 1]


@pytest.mark.parametrize(
    ("on_gpu", "capability", "here", "tools"),
    [
        (True, (9, 0), ("ncu", "nvprof"), ["ncu"]),
        (True, (7, 5), ("ncu", "nvprof"), ["ncu"]),
        (True, (7, 2), ("ncu", "nvprof"), ["ncu", "nvprof"]),
        (True, (6, 0), ("ncu", "nvprof"), ["nvprof"]),
        (True, None, ("nvprof",), ["nvprof"]),
        (False, None, ("ncu", "vtune"), ["vtune"]),
        (False, None, (), []),
    ],
)
def test_the_tool_is_one_that_serves_the_device_and_is_here(monkeypatch, on_gpu, capability, here, tools):
    monkeypatch.setattr(hotspots.shutil, "which", lambda name: name if name in here else None)
    assert hotspots.tools_for(on_gpu, capability) == tools


def test_runs_that_only_flags_or_the_sweep_tell_apart_lie_side_by_side(tmp_path, monkeypatch):
    config = tmp_path / "small.yaml"
    config.write_text("run: {model: alexnet, bucket_mb: [25, 50], backend: [ddp, dp], gpus_per_node: 2}\n")
    measured, became = [], []
    monkeypatch.setattr(hotspots, "measure", lambda run, directory, *_: measured.append((run, directory)))
    monkeypatch.setattr("os.execv", lambda _, words: became.append(words))
    asked = [["--output", str(tmp_path / "answer.csv")], ["--batch", "64"], ["--image-size", "32"],
             ["--device", "cpu"], ["--only", "bucket_mb=50"]]  # fmt: skip
    for flags in asked:
        monkeypatch.setattr(sys, "argv", ["hotspots", str(config), "--out", str(tmp_path), *flags])
        hotspots.main()
    assert {directory for _, directory in measured} == {tmp_path / "small-hotspots-5"}
    assert became[0][6:8] == asked[0]
    ids = [run.id for run, _ in measured]
    assert len(set(ids)) == len(asked) and ids[2].endswith("+bucket_mb=25.0+image_size=32")
    assert [words[-2] for words in became] == [f"--run={name}_ret_0" for name in ids]


def test_on_this_cpu_for_real(tmp_path, monkeypatch, capsys):
    """The operators of a small network; no tool that counts is there, so their times are what is left."""
    config = tmp_path / "small.yaml"
    config.write_text(
        "run: {model: squeezenet1_1, loader: synthetic, batch: [1, 2], image_size: 32, threads: 1,"
        " gpus_per_node: 2}\n"
    )
    # Peaks of some machine: what a run needs is not measured once more.
    rates = {"gemm_flops_per_s": {1: 5e10}, "copy_bytes_per_s": {1: 1e10}}
    peaks = store.Calibration(**rates, device="cpu", seconds=1.0)
    directory = tmp_path / "small-hotspots-20"
    directory.mkdir()
    store.write_record(directory / store.CALIBRATION, peaks)
    became = []
    monkeypatch.setattr("os.execv", lambda _, words: became.append(words))
    monkeypatch.setattr(hotspots.shutil, "which", lambda name: None)
    monkeypatch.setitem(hotspots._SHORT, "batches", 4)
    flags = ["--top", "20", "--device", "cpu", "--out", str(tmp_path), "--format", "json"]
    monkeypatch.setattr(sys, "argv", ["hotspots", str(config), *flags])
    hotspots.main()
    ((python, _, module, *rest),) = became
    assert (python, module) == (sys.executable, "analysis.hotspots")
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("1 node x 1 rank, squeezenet1_1") and "vtune missing: " in said
    answer = run(module, *rest)
    assert answer.code == 0 and answer.json
    for row in answer.json:
        assert row["kernel"] and row["ms_per_step"] > 0 and row["calls_per_step"] > 0 and row["why"]
    # Which operator is the hottest depends on the machine; convolutions are among them, and have a roof.
    convolutions = [row for row in answer.json if row["class"] == "convolution"]
    assert convolutions and all(row["roof_of_measured_pct"] > 0 for row in convolutions)
