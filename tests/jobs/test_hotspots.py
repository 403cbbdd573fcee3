"""jobs.hotspots: a cheap run, the hottest kernels, their counters by the first tool that can read them."""

import sys

import pytest

from jobs import hotspots
from jobs.run import make_run
from profiling.errors import UserError
from profiling.permission import check_permission
from profiling.tables import as_table
from profiling.tools import Options, ncu
from tests.analysis.commands import run


def test_the_hottest_kernels_are_the_models():
    table = as_table("kernels", {
        "short_name": ["gemm", "relu", "ncclAllReduce", "gemm", "copy", "relu", "sgd"],
        "class": ["gemm", "pointwise", "communication", "gemm", "memcpy", "pointwise", "optimizer"],
        "duration_ns": [50, 70, 900, 60, 900, 30, 20],
    })  # fmt: skip
    assert hotspots.hottest(table, 2) == ["gemm", "relu"]
    assert hotspots.hottest(table, 9) == ["gemm", "relu", "sgd"]


def test_only_their_functions_are_counted():
    names = ["at::native::vectorized_elementwise_kernel", "sm80_xmma_gemm", "cutlass::Kernel2", "x::Kernel2"]
    assert hotspots.pattern_of(names) == "vectorized_elementwise_kernel|sm80_xmma_gemm|Kernel2"
    assert len(hotspots.pattern_of([f"{'k' * 90}{number}" for number in range(9)])) <= 256
    run_of = hotspots.counted(make_run({"profile": "torch", "batches": 10}), "ncu", names[:1])
    assert (run_of.profile_mode, run_of.profile_kernels) == ("counters", "vectorized_elementwise_kernel")
    assert (run_of.batches, run_of.first_attributed) == (3, 2)
    words = ncu.wrap(["python"], hotspots.Path("raw"), Options("counters", run_of.profile_kernels, 2))
    assert words[words.index("--kernel-name") + 1] == "regex:vectorized_elementwise_kernel"
    assert "sm__inst_executed.avg.per_cycle_active" in words[words.index("--metrics") + 1]


@pytest.mark.parametrize(
    ("on_gpu", "capability", "here", "tools"),
    [
        (True, (9, 0), ("ncu", "nvprof"), ["ncu"]),
        (True, (7, 5), ("ncu", "nvprof"), ["ncu", "nvprof"]),
        (True, (6, 0), ("ncu", "nvprof"), ["nvprof"]),
        (True, None, ("nvprof",), ["nvprof"]),
        (False, None, ("ncu", "vtune"), ["vtune"]),
        (False, None, (), []),
    ],
)
def test_the_tool_is_one_that_serves_the_device_and_is_here(on_gpu, capability, here, tools):
    said = []
    found = hotspots.tools_for(on_gpu, capability, said.append, lambda name: name if name in here else None)
    assert found == tools
    assert bool(said) == (not tools or (capability is None and on_gpu))
    assert all("is not on the PATH (" in line for line in said)


@pytest.mark.parametrize(
    "said",
    [
        "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to "
        "access NVIDIA GPU Performance Counters on the target device 0. For instructions see "
        "https://developer.nvidia.com/ERR_NVGPUCTRPERM\n",
        "==7== Warning: The user does not have permission to profile on the target device. See the following "
        "link for instructions to enable permissions: https://developer.nvidia.com/NVSOLN1000\n",
    ],
)
def test_without_permission_for_counters_the_line_that_grants_it_is_said(said, tmp_path):
    path = tmp_path / "ncu.csv"
    path.write_text(said)
    with pytest.raises(UserError, match="`options nvidia NVreg_RestrictProfilingToAdminUsers=0`") as error:
        check_permission("ncu", [tmp_path / "absent", path])
    assert "\n" not in str(error.value)
    path.write_text('"ID","Process ID"\n')
    check_permission("ncu", [path])


def test_on_this_cpu_for_real(tmp_path, monkeypatch, capsys):
    """Two operators of a small network; no tool that counts is there, so their times are what is left."""
    config = tmp_path / "small.yaml"
    config.write_text(
        "run: {model: alexnet, loader: synthetic, batch: [1, 2], image_size: 64, threads: 1,"
        " gpus_per_node: 2}\n"
    )
    became = []
    monkeypatch.setattr(hotspots, "become", became.append)
    monkeypatch.setattr(hotspots.shutil, "which", lambda name: None)
    flags = ["--top", "2", "--device", "cpu", "--out", str(tmp_path), "--format", "json"]
    monkeypatch.setattr(sys, "argv", ["hotspots", str(config), *flags])
    hotspots.main()
    ((python, _, module, *rest),) = became
    assert (python, module) == (sys.executable, "analysis.hotspots")
    said = " ".join(capsys.readouterr().err.split())
    assert "of 2 points the first, on one rank: P=1 alexnet" in said
    assert "vtune is not on the PATH" in said and "times of operators alone" in said
    answer = run(module, *rest)
    assert answer.code == 0 and len(answer.json) == 2
    first = answer.json[0]
    assert (
        first["kernel"].startswith("aten::") and first["ms_per_batch"] > 0 and first["calls_per_batch"] >= 1
    )
    assert first["roof_of_measured_pct"] > 0 and first["why"]
