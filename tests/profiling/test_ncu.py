"""Nsight Compute's CSV, raw and details, against real files."""

import math

import pytest

from tests.builders import data_of, tables
from tests.profiling.samples import NCU_DETAILS, NCU_RAW


def test_the_raw_page_of_a_resnet18(shared_data):
    path = shared_data / "ncu/resnet18_a100_raw.csv"
    found, findings = tables(path, "ncu")
    kernels = found["kernels"]
    assert len(kernels) == 235 and kernels["duration_ns"].sum() == 2_497_280
    first = kernels.iloc[0]
    assert (first["short_name"], first["grid"], first["block"]) == (
        "cudnn::ops::nchwToNhwcKernel", "1568,1,1", "256,1,1",
    )  # fmt: skip
    assert (first["flops"], first["bytes"], first["stream"], first["device"]) == (150528, 611712, 7, 0)
    # TF32 convolutions run on tensor cores, whose operations this capture did not count.
    unknown = kernels[kernels["flops"].isna()]
    assert len(unknown) == 34 and set(unknown["class"]) == {"convolution"}
    assert data_of(findings, "flops_missing") == [{"n": 34, "what": "launches on tensor cores"}]
    metrics = found["atomics"]["event"].str.partition(" : ")[0]
    assert "dram__bytes_read.sum (B)" in set(metrics)
    assert not metrics.str.startswith(("device__attribute", "nvlink__", "profiler__")).any()
    durations = found["atomics"][metrics == "gpu__time_duration.sum (ns)"]
    assert (durations["count"] * durations["mean"]).sum() == pytest.approx(2_497_280)


def test_the_long_form_with_ranges_of_nvtx(shared_data):
    path = shared_data / "ncu/resnet50_v100_long.csv"
    found, _ = tables(path, "ncu")
    kernels = found["kernels"]
    assert len(kernels) == 583
    assert kernels["direction"].value_counts().to_dict() == {"bprop": 565, "none": 18}
    operators = kernels["operator"].value_counts()
    # ResNet50 has 53 convolutions and as many normalizations; the first makes no gradient of its input.
    assert operators["aten::cudnn_batch_norm_backward"] == 53
    assert set(found["atomics"]["event"].str.partition(" : ")[0]) == {"lts__t_sector_hit_rate.pct (%)"}
    assert found["atomics"]["count"].sum() == 583


def test_units_of_the_raw_page_are_taken_into_account(tmp_path):
    kernels = tables(tmp_path / "rank2.csv", "ncu", NCU_RAW)[0]["kernels"]
    assert list(kernels["duration_ns"]) == [10_500, 1_500] and set(kernels["rank"]) == {2}
    assert list(kernels["bytes"]) == [3000, 3000]
    assert kernels["flops"][0] == 1000 + 2 * 2000 and math.isnan(kernels["flops"][1])
    assert kernels["name"][0] == "void kernel<4>(float*)"


def test_the_details_page_gathers_a_launchs_sections(tmp_path):
    found, _ = tables(tmp_path / "details.csv", "ncu", NCU_DETAILS)
    kernels = found["kernels"]
    assert list(kernels["duration_ns"]) == [10_500, 9_000] and list(kernels["correlation"]) == [0, 1]
    assert set(kernels["grid"]) == {"4,2,1"} and set(kernels["block"]) == {"128,1,1"}
    assert set(kernels["device"]) == {1} and list(kernels["direction"]) == ["fprop", "none"]
    occupancy = found["atomics"].set_index("event").loc["Achieved Occupancy (%) : kernel"]
    assert (occupancy["count"], occupancy["mean"]) == (1, 45.5)


def with_metrics(names, units, values):
    """The raw page with more metrics; those of the second launch are 0."""
    columns, of_first = (",".join(f'"{one}"' for one in some) for some in (names, values))
    zeros = ",".join('"0"' for _ in names)
    text = NCU_RAW.replace('"gpu__time_duration.sum"', f'"gpu__time_duration.sum",{columns}')
    text = text.replace('"usecond"', '"usecond",' + ",".join(f'"{unit}"' for unit in units))
    return text.replace('"10.5"', f'"10.5",{of_first}').replace('"1.5"', f'"1.5",{zeros}')


HMMA = "sm__inst_executed_pipe_tensor_op_hmma.sum"
PIPE, CYCLES = "sm__inst_executed_pipe_tensor.sum", "sm__pipe_tensor_cycles_active.sum"
XMMA = (
    "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1"
)


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        (with_metrics([HMMA], ["inst"], ["64"]), math.nan),
        # A GPU that names tensor instructions otherwise tells them by their cycles.
        (with_metrics([PIPE, CYCLES], ["inst", "cycle"], ["n/a", "640"]), math.nan),
        (with_metrics([PIPE, CYCLES], ["inst", "cycle"], ["n/a", "0"]), 1000 + 2 * 2000),
        # Names of Hopper's kernels say that they use tensor cores.
        *((NCU_RAW.replace("void kernel<(int)4>(float *)", name), math.nan)
          for name in ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", XMMA)),
    ],
)  # fmt: skip
def test_the_use_of_tensor_cores_leaves_flops_open(tmp_path, text, flops):
    found, findings = tables(tmp_path / "tensor.csv", "ncu", text)
    assert found["kernels"]["flops"][0] == pytest.approx(flops, nan_ok=True)
    open_flops = int(found["kernels"]["flops"].isna().sum())
    assert [one["n"] for one in data_of(findings, "flops_missing")] == [open_flops]


def test_the_use_of_tensor_cores_is_an_event(tmp_path):
    used = (
        tables(tmp_path / "tensor.csv", "ncu", with_metrics([HMMA], ["inst"], ["64"]))[0]["atomics"]
        .set_index("event")
        .loc[f"{HMMA} (inst) : void kernel<4>(float*)"]
    )
    assert used["mean"] == 64


RULED = """"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule"
"0","7","kernel","Duration","us","10.5","",""
"0","7","kernel","","","","Bottleneck","Look at ""L2"", which is:
  1. busy, ""very""
==PROF== is no head here

  2. slow"
"1","7","kernel","Duration","us","9","",""
"""


def test_a_rules_text_may_have_line_breaks(tmp_path):
    path = tmp_path / "ruled.csv"
    found, findings = tables(path, "ncu", RULED)
    assert list(found["kernels"]["duration_ns"]) == [10_500, 9_000]
    assert data_of(findings, "records_damaged") == []


def test_metrics_of_one_name_in_several_sections_or_units_are_all_kept(tmp_path):
    path = tmp_path / "details.csv"
    rows = [
        ("Speed Of Light", "Duration", "us", 10), ("Speed Of Light", "DRAM Throughput", "%", 60),
        ("Speed Of Light", "Memory Throughput", "%", 75), ("Memory", "Memory Throughput", "Gbyte/s", 900),
        ("Memory", "DRAM Throughput", "%", 65), ("Memory", "L2 Traffic", "%", 5),
        ("Memory", "L2 Traffic", "byte", 64),
    ]  # fmt: skip
    head = "ID,Process ID,Kernel Name,Section Name,Metric Name,Metric Unit,Metric Value"
    lines = [head, *(f"{launch},7,k,{','.join(map(str, row))}" for launch in (0, 1) for row in rows)]
    path.write_text("".join('"{}"\n'.format(line.replace(",", '","')) for line in lines))
    events = tables(path, "ncu")[0]["atomics"].set_index("event")
    assert events["mean"].to_dict() == {
        "Duration (ns) : k": 10_000, "DRAM Throughput (%) : k": 60, "Memory Throughput (%) : k": 75,
        "Memory Throughput [Memory] (B/s) : k": 900e9, "DRAM Throughput [Memory] (%) : k": 65,
        "L2 Traffic (%) : k": 5, "L2 Traffic [byte] (B) : k": 64,
    }  # fmt: skip
    assert set(events["count"]) == {2}


def test_durations_alone_of_a_language_with_decimal_commas(tmp_path):
    path = tmp_path / "de.csv"
    head = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    rows = [
        f'"{n}","7","k","gpu__time_duration.sum","ns","{value}"'
        for n, value in enumerate(("204.800", "18.432"))
    ]
    path.write_text("\n".join([head, *rows]) + "\n")
    assert list(tables(path, "ncu")[0]["kernels"]["duration_ns"]) == [204_800, 18_432]


DETAILS = """epoch 1, loss 0.3
==PROF== Connected to process 7 (/usr/bin/python3.10)
==PROF== Profiling "add" - 0: 0%....50%....100% - 8 passes
"this line", "is the program's"
==PROF== Disconnected from process 7
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",\
"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Description"
"0","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","Duration","us",\
"{long}","",""
"0","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","","","","Rule",\
"Low, at 60.0% of the peak"
"0","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","DRAM Frequency",\
"Ghz","{three}","",""
"1","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","Duration","ms",\
"{short}","",""
"""
LANGUAGES = {
    "English": {"long": "1,234.56", "three": "1.512", "short": "2.50"},
    "German": {"long": "1.234,56", "three": "1,512", "short": "2,50"},
    "French": {"long": "1\u202f234,56", "three": "1,512", "short": "2,50"},
    "Swiss": {"long": "1\u2019234.56", "three": "1.512", "short": "2.50"},
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_details_among_a_programs_words_in_any_language(tmp_path, language):
    found, findings = tables(tmp_path / "ncu.csv", "ncu", DETAILS.format(**LANGUAGES[language]))
    kernels = found["kernels"]
    assert list(kernels["duration_ns"]) == [1_234_560, 2_500_000]  # two kernels of one name are two launches
    assert set(kernels["grid"]) == {"1024,1,1"} and set(kernels["device"]) == {0}
    metrics = found["atomics"].set_index("event")
    assert metrics.loc["DRAM Frequency (Ghz) : add(float*)"]["mean"] == 1.512
    assert metrics.loc["Duration (ns) : add(float*)"]["count"] == 2
    assert len(metrics) == 2 and findings == []  # what a rule says is no metric


def test_processes_whose_launches_have_the_same_number_are_told_apart(tmp_path):
    head = '"ID","Process ID","Kernel Name","Context","Stream","Metric Name","Metric Unit","Metric Value"\r\n'
    rows = [(0, 5, "nsecond", "1,568"), (0, 6, "usecond", "3.2"), (1, 6, "msecond", "1")]
    text = head + "".join(
        f'"{number}","{process}","k","1","7","gpu__time_duration.sum","{unit}","{value}"\r\n'
        for number, process, unit, value in rows
    )
    found, _ = tables(tmp_path / "old.csv", "ncu", text)
    assert list(found["kernels"]["duration_ns"]) == [1568, 3200, 1_000_000]


def test_a_summary_over_the_launches_of_each_kernel(tmp_path):
    text = """==PROF== Disconnected from process 1
"Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",\
"CC","Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum","Average"
"1","a","h","k(float *)","1","7","(32, 1, 1)","(8, 1, 1)","0","8.0","3","S","Duration","us","1.5","2.5","2"
"1","a","h","k(float *)","1","7","(32, 1, 1)","(8, 1, 1)","0","8.0","3","Occ","Occupancy","%","15","25","20"
"""
    found, _ = tables(tmp_path / "summary.csv", "ncu", text)
    row = found["intervals"].iloc[0]
    assert (row["function"], row["calls"], row["inclusive_ns"], row["thread"]) == ("k(float*)", 3, 6000, -1)
    took = found["atomics"].set_index("event")
    assert list(took.loc["Duration (ns) : k(float*)"][["min", "max", "mean"]]) == [1500, 2500, 2000]
    assert list(took.loc["Occupancy (%) : k(float*)"][["count", "min", "max", "mean"]]) == [3, 15, 25, 20]
