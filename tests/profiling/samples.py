"""A small file of every format that is read, made by code."""

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.profiling import inspector_records
from tests.profiling.gpu_databases import Nsys, make_table
from tests.profiling.tau_files import Thread, write_merged, write_snapshots, write_text
from tests.profiling.traces import Trace, training_step

KERNEL = "_Z6kernelIfEvT_"
STAGES = ("Forward Pass", "Backward Pass", "Model Update", "End of Batch")

NSYS_STATS = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,3000,2,1500.0,1500.0,1000,2000,500.0,"void kernel<(int)4>(float *)"
25.0,1000,1,1000.0,1000.0,1000,1000,0.0,volta_sgemm_32x128_tn
"""
NVPROF_SUMMARY = """==7== NVPROF is profiling process 7, command: python main.py
==7== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   75.00%  3.0000ms         2  1.5000ms  1.0000ms  2.0000ms  void kernel<int=4>(float const *)
                   25.00%  1.0000ms         1  1.0000ms  1.0000ms  1.0000ms  [CUDA memcpy HtoD]
      API calls:  100.00%  9.0000ms         3  3.0000ms  1.0000us  8.0000ms  cudaLaunchKernel
"""
NVPROF_METRICS = """==7== NVPROF is profiling process 7, command: python main.py
==7== Profiling result:
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"Tesla P100 (0)","void kernel<int=4>(float*)",4,"achieved_occupancy","Achieved Occupancy",0.1,0.3,0.2
"Tesla P100 (0)","void kernel<int=4>(float*)",4,"dram_utilization","Utilization","Low (1)","Mid (5)","Low (3)"
"Tesla P100 (0)","void kernel<int=4>(float*)",4,"gld_efficiency","Efficiency",50.0%,100.0%,75.0%
"""
NCU_RAW = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Context","Stream","dram__bytes_read.sum","dram__bytes_write.sum",\
"gpu__time_duration.sum","launch__grid_dim_x","launch__grid_dim_y","launch__grid_dim_z",\
"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",\
"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"","","","","","Kbyte","Kbyte","usecond","","","","inst","inst"
"0","7","void kernel<(int)4>(float *)","1","7","2","1","10.5","4","2","1","1,000","2,000"
"1","7","sm80_xmma_gemm_tf32f32","1","7","2","1","1.5","4","2","1","0","0"
"""
NCU_DETAILS = """"ID","Process ID","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg","Section Name","Metric Name",\
"Metric Unit","Metric Value"
"0","7","kernel","1","7","(128, 1, 1)","(4, 2, 1)","1","9.0",\
"7 ""<default domain>:Forward Pass:none:none:none:none:none:none"" ","Speed Of Light","Duration","us","10.5"
"0","7","kernel","1","7","(128, 1, 1)","(4, 2, 1)","1","9.0","","Occupancy","Achieved Occupancy","%","45.5"
"1","7","kernel","1","7","(128, 1, 1)","(4, 2, 1)","1","9.0","","Speed Of Light","Duration","us","9"
"""
VTUNE = """Function,CPU Time,CPU Time:Effective Time,Module,Source File,Start Address
sgemm_kernel,12.5,12.0,libmkl.so,gemm.c,0x1234
_PyEval_EvalFrame,2.5,2.5,python3,ceval.c,0x99
"""
VTUNE_MEMORY = """Function Stack,Allocation Size:Self,Deallocation Size:Self,Allocations:Self,Module
 main,88100000,88100000,21,a.out
  at::empty_cpu,,,,libtorch_cpu.so
   posix_memalign,1800000,0,14,libc.so.6
 free,,1200000,,libc.so.6
  posix_memalign,200000,0,6,libc.so.6
"""
APS = """| Summary information
|--------------------------------------------------------------------
  Application                   : heart_demo
  Report creation date          : 2025-04-02 17:06:52
  OpenMP threads number per Rank: 4
  Frequency                     : 3.00 GHz
|
| Your application might underutilize the available logical CPU cores: 50 of 100.
|
  Elapsed Time:                             171.25 s
  DP GFLOPS:                                  6.63
  MPI Time:                                  65.98 s            38.53% of Elapsed Time
| Your application is MPI bound.
    MPI Imbalance:                            N/A*
    Top 5 MPI functions (avg time):
        MPI_Waitall:                         58.48 s            34.15% of Elapsed Time
  Average Physical Core Utilization:         10.22 out of 16 Physical Cores
  Memory Stalls:                             37.00% of Pipeline Slots
    DRAM Bandwidth
       Peak:                                 33.00 GB/s
       Bound:                               100.00%
 Memory Footprint:
 Resident:
       Per node:
           Peak resident set size    :         1,574.00 MB (node n-5)
       Per rank:
           Peak resident set size    :          156.00 MB (rank 0)

Graphical representation of this data is available in the HTML report: /home/me/aps_report_20250402.html
"""
# Of releases 0.18, 1.3, 3.1 and 3.8, and what stands beside such lines.
ONEDNN = """epoch 1
mkldnn_verbose,exec,convolution,jit:avx512_common,forward_inference,fsrc:nChw16c fwei:OIhw16i16o fbia:undef \
fdst:nChw16c,alg:convolution_direct,mb32_g1ic32oc32_ih256oh256kh3sh1dh0ph1_iw256ow256kw3sw1dw0pw1,9.98193
dnnl_verbose,info,DNNL v1.3.0 (commit d0fc158e98590dfad0165e568ca466876a794597)
dnnl_verbose,exec,cpu,reorder,jit:uni,undef,src_f32::blocked:abcd:f0 dst_f32::blocked:ABc:f0,,,16x16x5x5,3.5
onednn_verbose,info,prim_template:operation,engine,primitive,implementation,prop_kind,memory_descriptors,\
attributes,auxiliary,problem_desc,exec_time
onednn_verbose,1681823859541.5,exec,gpu:1,matmul,jit:gemm:any,undef,src_f16::blocked:ab:f0 \
dst_f16::blocked:ab:f0,attr-scratchpad:user ,,4160x3420:3420x1280,0.732178
[1,0]<stdout>: onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512_core,backward_weights,\
src:f32::blocked:acdb::f0 diff_wei:f32:a:blocked:Acdb64a::f0,attr-scratchpad:user,alg:convolution_direct,\
mb2_ic16oc16_ih7oh7kh5sh1dh0ph2_iw7ow7kw5sw1dw0pw2,0.5
onednn_verbose,v1,primitive,create:cache_miss,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0,,,16x16x5x5,0.7
onednn_verbose,v1,graph,exec,cpu,100006,convolution_post_ops,CONV_0;ELTWISE_1,,,fpm:strict,dnnl_backend,5.44092
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0,,,16x16x5x5,0.25
"""
HOROVOD = """[
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad_1"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1},
{"ph": "X", "name": "0", "ts": 101, "pid": 1, "dur": 0},
{"ph": "X", "name": "1", "ts": 105, "pid": 1, "dur": 0},
{"ph": "E", "ts": 106, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 107, "pid": 1},
{"ph": "B", "name": "MPI_ALLREDUCE", "ts": 108, "pid": 1},
{"ph": "E", "ts": 118, "pid": 1},
{"ph": "E", "ts": 120, "pid": 1, "args": {"dtype": "float32", "shape": "[25, 4]"}},
"""


def threads(ranks: int = 2) -> list[Thread]:
    row = (5.0, 0.0, 10.5, 10.5)
    return [
        Thread(rank, 0, dict.fromkeys(STAGES, row), {"Loss": (5.0, 3.0, 1.0, 2.0, 21.0)})
        for rank in range(ranks)
    ]


def nvprof_database(path: Path) -> Path:
    """Three batches of a stage and a kernel each, as nvprof records them."""
    names = {name: number for number, name in enumerate(["", *STAGES, KERNEL])}
    owner = (7).to_bytes(4, "little") + (9).to_bytes(4, "little") + bytes(4)
    marks, calls, kernels, copies = [], [], [], []

    def mark(flags: int, at: int, number: int, name: str = "") -> None:
        marks.append((None, flags, at, number, 2, owner, names[name], 0))

    for batch in range(3):
        at = 1_700_000_000_000_000_000 + 1000 * batch
        for place, name in enumerate(STAGES[:3]):
            number, begin = 3 * batch + place + 1, at + 100 * place
            mark(2, begin, number, name)
            mark(4, begin + 90, number)
            calls.append((None, 1, begin + 10, 0, 7, 9, number))
            kernels.append((None, begin + 20, begin + 50, 0, 7, number, names[KERNEL], 4, 2, 1, 128, 1, 1))
        mark(1, at + 400, 1000 + batch, STAGES[3])
        copies.append((None, 1, 1, 3, 4096, at + 1, at + 5, 0, 7, 5000 + batch))
    connection = sqlite3.connect(path)
    key, kind = "_id_:integer:primary:key", "CUPTI_ACTIVITY_KIND_"
    texts = [(number, name) for name, number in names.items()]
    make_table(connection, "StringTable", f"{key} value:text", texts)
    columns = f"{key} flags timestamp id objectKind objectId:blob name domain"
    make_table(connection, f"{kind}MARKER", columns, marks)
    columns = f"{key} cbid start end processId threadId correlationId"
    make_table(connection, f"{kind}RUNTIME", columns, calls)
    columns = f"{key} start end deviceId streamId correlationId name gridX gridY gridZ blockX blockY blockZ"
    make_table(connection, f"{kind}CONCURRENT_KERNEL", columns, kernels)
    columns = f"{key} copyKind srcKind dstKind bytes start end deviceId streamId correlationId"
    make_table(connection, f"{kind}MEMCPY", columns, copies)
    connection.commit()
    connection.close()
    return path


def nsys_database(path: Path) -> Path:
    database = Nsys(path)
    database.batches(3)
    return database.close()


def text(content: str):
    def write(path: Path) -> Path:
        path.write_text(content)
        return path

    return write


def kineto(path: Path) -> Path:
    trace, at = Trace(), 0.0
    for batch in range(2):
        at = training_step(trace, at, batch)
    return trace.write(path)


def pyprof(path: Path, *changes: dict[str, Any]) -> Path:
    """Two batches of a forward kernel, a loss and a backward kernel, as PyProf tables them.

    With changes, a row for each of them.
    """
    row = {
        "TId": 1, "Layer": "conv1", "Module": "torch.nn.functional", "Params": "", "TC": "-", "Device": 0,
        "Stream": 7, "Grid": "1,1,1", "Block": "1,1,1", "FLOPs": 10.0, "Bytes": 20.0, "Sil(ns)": 1000,
    }  # fmt: skip
    launches = [("fprop", "conv2d", "sgemm"), ("fprop", "nll_loss", "nll"), ("bprop", "conv2d", "wgrad")] * 2
    made = [dict(zip(("Direction", "Op", "Kernel"), launch, strict=True)) for launch in launches]
    rows = [{**row, **made[0], "Idx": number, **one} for number, one in enumerate(changes or made)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def inspector(path: Path) -> Path:
    records = [inspector_records.record(0, inspector_records.NOW_US + 100 * at, 50) for at in range(3)]
    return inspector_records.write(path, records)


# name -> (tool, what writes it, the file's name)
SAMPLES = {
    "torch": ("torch", kineto, "trace.json"),
    "pyprof": ("pyprof", pyprof, "table.parquet"),
    "nvprof database": ("nvprof", nvprof_database, "net.sql"),
    "nvprof summary": ("nvprof", text(NVPROF_SUMMARY), "summary.txt"),
    "nvprof metrics": ("nvprof", text(NVPROF_METRICS), "metrics.csv"),
    "nsys export": ("nsys", nsys_database, "rep.sqlite"),
    "nsys stats": ("nsys", text(NSYS_STATS), "stats.csv"),
    "TAU text": ("tau", lambda path: write_text(path.parent, threads(1)) / path.name, "profile.0.0.0"),
    "TAU merged": ("tau", lambda path: write_merged(path, threads(3)), "tauprofile.xml"),
    "TAU snapshot": (
        "tau", lambda path: write_snapshots(path.parent, threads(1), snapshots=2) / path.name,
        "snapshot.0.0.0",
    ),
    "ncu raw": ("ncu", text(NCU_RAW), "raw.csv"),
    "ncu details": ("ncu", text(NCU_DETAILS), "details.csv"),
    "vtune": ("vtune", text(VTUNE), "hotspots.csv"),
    "vtune memory": ("vtune", text(VTUNE_MEMORY), "memory.csv"),
    "aps": ("vtune", text(APS), "aps.txt"),
    "onednn": ("onednn", text(ONEDNN), "log.out"),
    "horovod": ("horovod", text(HOROVOD), "timeline.json"),
    "inspector": ("inspector", inspector, "host-pid7.log"),
}  # fmt: skip
