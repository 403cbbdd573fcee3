"""analysis.activities: nvprof's summary from any tool's tables, and what communication and copies take."""

import pytest

from analysis.display.metrics import records
from analysis.measures.activities import of_kernels, of_summary, printed_shares
from analysis.report.ranks import page
from profiling.readers.printed import DURATION, ON_DEVICE
from profiling.tables import as_table
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep
from tests.profiling.writers import DEMANGLED, LAUNCHES, SHORT, SUMMARIES, Kernel

MODULE = "analysis.activities"


def kernels(*rows, ranks=None):
    """A table of (name, class, microseconds, device)."""
    names = ("name", "class", "duration_ns", "device")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns["duration_ns"] = [took * 1000 for took in columns["duration_ns"]]
    columns |= {"rank": ranks or [0] * len(rows), "batch_index": [0] * len(rows)}
    return as_table("kernels", columns)


def test_what_nvprof_would_print_of_a_table():
    table = kernels(
        ("void gemm<float>(float*)", "gemm", 30, 0), ("void gemm<float>(float*)", "gemm", 10, 0),
        ("Memcpy HtoD (Pageable -> Device)", "memcpy", 5, 0),
        ("Memcpy HtoD (Pinned -> Device)", "memcpy", 3, 0),
        ("Memset (Device)", "memset", 2, 0),
    )  # fmt: skip
    rows = records(of_kernels(table))
    assert [(row["name"], row["calls"], round(row["time_pct"], 9)) for row in rows] == [
        ("void gemm<float>(float*)", 2, 80), ("[CUDA memcpy HtoD]", 2, 16), ("[CUDA memset]", 1, 4),
    ]  # fmt: skip
    assert {row["type"] for row in rows} == {"GPU activities"}
    table = kernels(("aten::mm", "gemm", 30, -1), ("aten::mm", "gemm", 10, -1), ranks=[0, 1])
    assert [(row["type"], row["time_pct"]) for row in records(of_kernels(table))] == [("CPU operators", 100)]
    assert of_kernels(table, ["rank"])[["rank", "time_s"]].to_numpy().tolist() == [[0, 30e-6], [1, 10e-6]]
    copies = [rows[1][name] for name in ("time_s", "mean_us", "min_us", "max_us")]
    assert copies == pytest.approx([8e-6, 4, 3, 5])


def test_a_printed_summary_comes_back_as_it_was_printed(shared_data):
    answer = run(MODULE, shared_data / "nvprof/deepspeech_p100/summary_bs32.txt", "--format", "csv")
    rows = answer.csv
    assert answer.code == 0
    on_gpu = [row for row in rows if row["type"] == "GPU activities"]
    # Time(%), Time, Calls, Avg, Min, Max as nvprof printed them.
    printed = (76.95, 50.0125, 186615, 268.00, 101.15, 564.06)
    names = ("time_pct", "time_s", "calls", "mean_us", "min_us", "max_us")
    assert [float(on_gpu[0][name]) for name in names] == pytest.approx(printed, rel=1e-4)
    assert [float(row["time_pct"]) for row in on_gpu[1:4]] == pytest.approx([7.11, 3.72, 2.04], abs=0.01)
    above = run(MODULE, shared_data / "nvprof/deepspeech_p100/summary_bs32.txt", "--format=csv", "--least", 2)
    assert above.csv == [row for row in rows if float(row["time_pct"]) >= 2] != rows
    calls = [row for row in rows if row["type"] == "API calls"]
    assert float(calls[0]["time_pct"]) == pytest.approx(64.24, abs=0.01)  # ranges of NCCL are none


def test_calls_of_the_api_are_no_activities_of_the_gpu_where_their_heading_is_lost():
    names = ["void cuApplyLayerNorm<float>(float*)", "cuCtxSynchronize", "cudaLaunchKernel", "range 1"]
    threads = [ON_DEVICE, ON_DEVICE, ON_DEVICE, 0]
    columns = {"function": names, "thread": threads, "calls": [2.0] * 4, "inclusive_ns": [4e3, 3e3, 1e3, 1e3]}
    rows = of_summary(as_table("intervals", columns | {"rank": [0] * 4}), None)
    types = ["GPU activities", "API calls", "API calls", "ranges"]
    assert dict(zip(rows["name"], rows["type"], strict=True)) == dict(zip(names, types, strict=True))
    assert rows["time_pct"].tolist() == pytest.approx([100, 75, 25, 100])
    assert rows["mean_us"].tolist() == [2, 1.5, 0.5, 0.5]


@pytest.mark.parametrize("order", [1, -1])
def test_least_and_greatest_are_of_all_rows_of_a_name(order):
    """Two processes in one log, or a row for each grid."""
    both = {"rank": [0, 0], "thread": [ON_DEVICE] * 2}
    rows = {"function": ["k", "k"], "calls": [1.0, 3.0], "inclusive_ns": [4e3, 26e3]}
    took = {"event": [f"{DURATION} : k"] * 2, "min": [4e3, 6e3][::order], "max": [4e3, 12e3][::order]}
    (row,) = of_summary(as_table("intervals", both | rows), as_table("atomics", both | took)).to_dict(
        "records"
    )
    assert [row["mean_us"], row["min_us"], row["max_us"]] == pytest.approx([7.5, 4, 12])


def test_shares_over_gpus_and_batch_size_as_the_printed_tables_have_them(shared_data, tmp_path):
    path = shared_data / "nvprof/alexnet_gpu_activities.csv"
    answer = run(MODULE, path, "--shares", "--chart", tmp_path / "chart.html", "--format", "csv")
    rows = {(int(row["world_size"]), int(row["batch"])): row for row in answer.csv}
    assert sorted(rows) == [(1, 8), (1, 16), (1, 32), (1, 128), (2, 128), (4, 16), (4, 128)]
    assert all(float(rows[1, batch]["communication_pct"]) == 0 for batch in (8, 16, 32, 128))
    assert float(rows[4, 16]["copies_pct"]) == 6.98
    assert float(rows[4, 16]["time_s"]) == pytest.approx(0.3991 / 0.306)
    # On 4 GPUs NCCL's broadcast and reduce take 37 % of GPU time at batch 16 and 20 % at 128: a line a count.
    shares = [float(rows[4, batch]["communication_pct"]) for batch in (16, 128)]
    (chart,) = page(printed_shares(path), "").sections[0].charts
    lines = {trace["name"]: (trace["x"], trace["y"]) for trace in chart.figure["data"]}
    drawn = [([16, 128], pytest.approx(of)) for of in (shares, [30.6 + 6.48, 16.7 + 3.64])]
    assert [lines["4 GPUs, communication"]] * 2 == drawn and (tmp_path / "chart.html").exists()
    assert lines["2 GPUs, copies"] == ([128], [9.62]) and lines["1 GPU, communication"][0] == [8, 16, 32, 128]
    one_line_error(run(MODULE, path, "--chart", tmp_path / "chart.html"))


def test_shares_of_our_runs_and_in_what_those_of_a_row_differ(tmp_path):
    """Of 62, 82 and 102 ms of activities a batch 0, 20 and 40 are NCCL's."""
    for gpus in (1, 2, 4):
        run_of_gpus = run_of(gpus_per_node=gpus, profile="torch")
        write_run(tmp_path / "gpus", run_of_gpus, Truth(communication_ms={1: 0.0, 2: 20.0, 4: 40.0}))
    rows = run(MODULE, tmp_path / "gpus", "--shares", "--format", "json").json
    assert [row["communication_pct"] for row in rows] == pytest.approx([0, 100 * 20 / 82, 100 * 40 / 102])
    write_sweep(tmp_path, [run_of(profile="torch", model=model) for model in ("resnet50", "vgg16")])
    (row,) = run(MODULE, tmp_path, "--shares", "--format", "csv").csv
    assert (row["runs"], row["runs_differ"]) == ("2", "model (resnet50, vgg16)")
    write_sweep(tmp_path / "one", [run_of(profile=profile) for profile in ("torch", "nsys")])
    assert run(MODULE, tmp_path / "one", "--shares", "--format", "csv").csv[0]["runs_differ"] == ""


@pytest.mark.parametrize("form", [*LAUNCHES, *SUMMARIES])
def test_the_summary_of_any_tools_file(form, tmp_path):
    tool, write = ({**LAUNCHES, **SUMMARIES}[form])[:2]
    made = [Kernel(start, took) for start, took in ((5, 1000), (2000, 3000), (6000, 2000))]
    ran = run(MODULE, write(tmp_path, made), "--format", "json")
    assert ran.code == 0, ran.err
    (row,) = ran.json
    assert row["type"] == "GPU activities" and row["time_pct"] == 100 and row["class"] == "pointwise"
    assert row["name"] == (SHORT if tool == "pyprof" else DEMANGLED) and row["calls"] == 3
    assert [row[name] for name in ("time_s", "mean_us", "min_us", "max_us")] == pytest.approx([6e-6, 2, 1, 3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"gpus,batch,time_pct,time_s,calls,avg_s,min_s,max_s,kernel\n1,8,x,1,1,1,1,1,k\n", "damaged"),
        (b"gpus,batch\n", "unrecognised format"),
    ],
)
def test_what_is_no_profile_is_one_line(tmp_path, content, message):
    path = tmp_path / "file.csv"
    path.write_bytes(content)
    assert message in one_line_error(run(MODULE, path, "--shares"))


LOG = """==7== NVPROF is profiling process 7, command: python main.py -a alexnet{}
==7== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   60.00%  6.0000ms         2  3.0000ms  1.0000ms  5.0000ms  sgemm
                   30.00%  3.0000ms         1  3.0000ms  3.0000ms  3.0000ms  ncclBroadcastKernel
                   10.00%  1.0000ms         1  1.0000ms  1.0000ms  1.0000ms  [CUDA memcpy HtoD]
"""


@pytest.mark.parametrize(
    ("name", "words", "options"),
    [
        ("{gpus}gpus/run_{batch}.txt", " -b {batch}", ()), ("gpu{gpus}_b{batch}.txt", " --gpu 0", ()),
        ("{gpus}/{batch}.txt", " --batch-size={batch} --gpus {gpus}", ()),
        ("n{gpus}_b{batch}.log", "", ("--field", r"gpus=n(\d+)_")),
    ],
)  # fmt: skip
def test_a_folder_of_logs_gives_the_shares_by_gpus_and_batch(tmp_path, name, words, options):
    cells = [(1, 8), (1, 16), (4, 8), (4, 16)]
    for gpus, batch in cells:
        path = tmp_path / name.format(gpus=gpus, batch=batch)
        path.parent.mkdir(exist_ok=True)
        path.write_text(LOG.format(words.format(gpus=gpus, batch=batch)))
    (tmp_path / "notes.txt").write_text("of April")
    rows = run(MODULE, tmp_path, "--shares", "--format", "csv", *options).csv
    assert [(int(row["world_size"]), int(row["batch"])) for row in rows] == cells
    shares = [float(rows[0][f"{one}_pct"]) for one in ("compute", "communication", "copies")]
    assert shares == pytest.approx([60, 30, 10])
    assert len(run(MODULE, tmp_path, "--format", "csv").csv) == 12


def test_what_conversion_wrote_is_read_by_the_name_of_its_folder(tmp_path):
    (tmp_path / "log.txt").write_text(LOG.format(""))
    assert run("profiling.convert", tmp_path / "log.txt", "--out", tmp_path / "out").code == 0
    rows = run(MODULE, tmp_path / "out", "--format", "csv").csv
    assert [(row["name"], int(row["calls"])) for row in rows][:1] == [("sgemm", 2)]


def test_shares_are_of_all_activities(tmp_path):
    (tmp_path / "log.txt").write_text(LOG.format(""))
    for option in (("--least", "2"), ("--top", "3")):
        assert "shares are of all" in one_line_error(run(MODULE, tmp_path / "log.txt", "--shares", *option))


def test_a_summary_that_was_cut_keeps_its_printed_shares(tmp_path):
    (tmp_path / "log.txt").write_text("\n".join(LOG.format("").splitlines()[:-1]))
    (row,) = run(MODULE, tmp_path / "log.txt", "--shares", "--format", "csv").csv
    shares = [float(row[f"{one}_pct"]) for one in ("compute", "communication", "copies")]
    assert shares == pytest.approx([70, 30, 0]) and float(row["time_s"]) == pytest.approx(0.01)
