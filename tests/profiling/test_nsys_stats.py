"""Tables of ``nsys stats``, as several releases print them, and as the one that is here does."""

import shutil
import subprocess
from pathlib import Path

import pytest

from profiling.errors import UserError
from profiling.tools import recognise, tool

read = tool("nsys").read


@pytest.fixture(scope="module")
def nsys(shared_data):
    return shared_data / "nsys"


def test_a_kernel_summary_of_nsys_stats(nsys):
    path = nsys / "resnet18_cuda_gpu_kern_sum.csv"
    assert recognise(path) == "nsys"
    found = {name: table.to_pandas() for name, table in read(path).tables.items()}
    rows = found["intervals"]
    assert len(rows) == 36 and set(rows["thread"]) == {-1}
    assert (rows["calls"].iloc[0], rows["inclusive_ns"].iloc[0]) == (408, 116_192_450)
    took = found["atomics"].iloc[0]
    assert (took["count"], took["mean"], took["min"], took["max"]) == (408, 284785.4, 34912, 1358302)
    assert took["std"] == 141110.9


STATS = """
Processing [rep.sqlite] with [cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

Time (%),Total Time (us),Instances,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name
100.0,30,2,15.0,15.0,10,20,5.0,"void kernel<(int)4>(float *)"

Time (%),Total Time (us),Num Calls,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name
100.0,8,4,2.0,2.0,1,3,1.0,cudaLaunchKernel

Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation
3.0,2,1.5,1.5,1.0,2.0,0.5,[CUDA memcpy Host-to-Device]

Start (us),Duration (us),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),\
DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
10,20,7,4,2,1,128,1,1,16,0,0,,,,,NVIDIA H100 (1),1,,7,"void kernel<(int)4>(float *)"
40,1,8,,,,,,,,,,2.0,100,Pinned,Device,NVIDIA H100 (1),1,,7,[CUDA memcpy Host-to-Device]
"""


def test_all_tables_of_nsys_stats_in_one_text(tmp_path):
    path = tmp_path / "stats.csv"
    path.write_text(STATS)
    assert recognise(path) == "nsys"
    found = {name: table.to_pandas() for name, table in read(path).tables.items()}
    assert list(found["intervals"]["function"]) == ["void kernel<4>(float*)", "cudaLaunchKernel"]
    assert list(found["intervals"]["inclusive_ns"]) == [30000, 8000]
    assert list(found["intervals"]["thread"]) == [-1, 0]
    sizes = found["atomics"].set_index("event").loc["Size (B) : [CUDA memcpy Host-to-Device]"]
    assert (sizes["count"], sizes["mean"], sizes["max"]) == (2, 1.5e6, 2e6)
    kernels = found["kernels"]
    assert list(kernels["class"]) == ["other", "memcpy"] and list(kernels["start_ns"]) == [10000, 40000]
    assert kernels["grid"][0] == "4,2,1" and kernels["grid"].isna()[1] and list(kernels["device"]) == [1, 1]
    assert list(kernels["bytes"])[1] == 2e6 and list(kernels["stream"]) == [7, 7]


HEADS = {  # table -> its columns, a row, and what becomes of it: name, thread, calls, total
    "nvtx_gpu_proj_sum": (
        "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Proj Med (ns),"
        "Proj Min (ns),Proj Max (ns),Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,Avg Range Lvl,Avg Num Child",
        ":Forward Pass,PushPop,900,700,3,300.0,300.0,200,400,81.6,30,10.0,0.0,2.0",
        ("Forward Pass (on the GPU)", 0, 3, 900),
    ),
    "nvtx_gpu_proj_trace": (
        "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),Style,PID,TID,"
        "NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack",
        "Forward Pass,10,400,1,5,PushPop,7,7,10,0,0,6,None,:6\n"
        "Forward Pass,500,200,410,5,PushPop,7,7,10,0,0,7,None,:7",
        ("Forward Pass (on the GPU)", 0, 2, 600),
    ),
    "nvtx_kern_sum": (
        "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),"
        "StdDev (ns),Kernel Name",
        ':Forward Pass,PushPop,7,7,5,10,900,90.0,90.0,80,100,5.0,"void kernel<(int)4>(float *)"',
        ("Forward Pass => void kernel<4>(float*)", 0, 10, 900),
    ),
    "cuda_api_gpu_sum": (
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),"
        "Category,Operation",
        "60.0,60,6,10.0,10.0,5,20,4.0,CUDA_API,cudaLaunchKernel",
        ("cudaLaunchKernel", 0, 6, 60),
    ),
    "a kernel summary of 2020, quoted": (
        '"Time(%)","Total Time","Instances","Average","Minimum","Maximum","Name"',
        '100.0,200,4,50.0,40,60,"kernel(float *)"',
        ("kernel(float*)", -1, 4, 200),
    ),
}  # fmt: skip


@pytest.mark.parametrize("table", HEADS)
def test_tables_of_nsys_stats_by_their_columns(table, tmp_path):
    head, row, (name, thread, calls, total) = HEADS[table]
    path = tmp_path / "stats.csv"
    path.write_text(f"{head}\n{row}\n")
    assert recognise(path) == "nsys"
    converted = read(path)
    (found,) = converted.tables["intervals"].to_pylist()
    assert (found["function"], found["thread"], found["calls"], found["inclusive_ns"]) == (
        name, thread, calls, total,
    )  # fmt: skip
    (took,) = converted.tables["atomics"].to_pylist()
    assert took["event"] == f"Duration (ns) : {name}" and took["mean"] == total / calls
    assert converted.findings == []


def test_sizes_of_copies_before_2021_are_in_kib(tmp_path):
    path = tmp_path / "stats.csv"
    path.write_text(
        "Total,Operations,Average,Minimum,Maximum,Operation\n524288.000,8,65536.000,65536.000,65536.000,"
        "[CUDA memcpy DtoH]\n"
    )
    assert recognise(path) == "nsys"
    (row,) = read(path).tables["atomics"].to_pylist()
    assert row["event"] == "Size (B) : [CUDA memcpy DtoH]"
    assert (row["count"], row["mean"], row["max"]) == (8, 2**26, 2**26)


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_what_the_real_nsys_stats_prints_agrees_with_the_database_it_printed(nsys, tmp_path):
    database = shutil.copy(nsys / "saxpy_mpi_cuda_2.9.sqlite", tmp_path)
    reports = "gpukernsum,nvtxgpuproj,nvtxkernsum,nvtxsum,cudaapisum,gpumemsizesum,gputrace"
    path = tmp_path / "stats.csv"
    with path.open("w") as file:
        command = ["nsys", "stats", "-q", "-r", reports, "-f", "csv", "-o", "-", database]
        subprocess.run(command, stdout=file, timeout=600, check=True)
    converted = read(path)
    rows = {row["function"]: row for row in converted.tables["intervals"].to_pylist()}
    kernel = "saxpy(double*, double*, double*, double, int)"
    kernels = read(Path(database)).tables["kernels"].to_pandas()
    took = int(kernels[kernels["name"] == kernel]["duration_ns"].sum())
    # In the range named after it nothing but this kernel is launched.
    for name in (kernel, "saxpy (on the GPU)"):
        assert (rows[name]["calls"], rows[name]["inclusive_ns"]) == (5, took)
    assert rows[f"saxpy => {kernel}"]["calls"] == 5
    assert rows["MPI:MPI_Send"]["calls"] == 10 and "cudaMemcpy" in rows
    assert converted.tables["kernels"].num_rows == len(kernels)
    copied = {row["event"]: row for row in converted.tables["atomics"].to_pylist()}
    assert copied["Size (B) : [CUDA memcpy HtoD]"]["mean"] == 262.144e6
    assert converted.findings == []


def test_a_trace_of_ranges_is_said_to_hold_nothing_that_is_read(tmp_path):
    path = tmp_path / "nvtx.csv"
    path.write_text("Start (ns),End (ns),Duration (ns),Name,PID,TID\n10,30,20,Forward Pass,7,7\n")
    assert recognise(path) == "nsys"
    converted = read(path)
    assert converted.tables == {} and converted.findings[0].code == "parts_unread"


TRACE = """Start{0},Duration{0},CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Device,Ctx,Strm,Name
3,2,1,1,1,1,1,1,1,0,1,7,k
"""
UNITS = {
    "(nsec)": 1, " (nsec)": 1, " (ns)": 1, "(usec)": 1e3, " (us)": 1e3, " (\u00b5s)": 1e3, " (\u03bcs)": 1e3,
    "(msec)": 1e6, " (ms)": 1e6, " (milliseconds)": 1e6, "(sec)": 1e9, " (s)": 1e9,
}  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_times_in_any_unit_of_nsys_stats(unit, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE.format(unit))
    assert recognise(path) == "nsys"
    (kernel,) = read(path).tables["kernels"].to_pylist()
    assert (kernel["start_ns"], kernel["duration_ns"]) == (3 * UNITS[unit], 2 * UNITS[unit])


def test_a_unit_that_is_not_known_is_said_with_its_column(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE.format(" (ns)").replace("Duration (ns)", "Duration (ticks)"))
    (finding,) = read(path).findings
    assert (finding.code, finding.data["what"]) == ("parts_unread", ["Duration in ticks"])


OTHER_FORMATS = {
    "table": """ ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)      Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  -------------
     60.0            1,600          3     200.0     200.0       100       300          1.5  kernel(int *)
""",
    "tsv": "Time (%)\tTotal Time (ns)\tInstances\tName\n60.0\t600\t3\tkernel(int *)\n",
    "json": '[\n  {\n    "Time (%)": 60.0,\n    "Total Time (ns)": 600,\n    "Name": "k(int *)"\n  }\n]\n',
    "json of a trace": '[{"Start (ns)":10,"Duration (ns)":20,"CorrId":1,"Name":"kernel(int *)"}]',
}


@pytest.mark.parametrize("form", OTHER_FORMATS)
def test_what_to_write_in_place_of_another_format_is_said(form, tmp_path):
    path = tmp_path / "stats.txt"
    path.write_text(OTHER_FORMATS[form])
    assert recognise(path) == "nsys"
    with pytest.raises(UserError, match=r"write it again \(nsys stats --format csv\)"):
        read(path)
