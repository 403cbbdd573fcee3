"""The main answers on small planted inputs, as CSV, and their comparison with recorded ones.

Inputs are made by code from fixed seeds, so that no answer depends on the machine. Rows are matched by
their text cells, or in order where those differ; numbers agree to 1e-6, ends of intervals (``*_low``,
``*_high``) to a tenth of the interval. Texts and new columns are free.
"""

import csv
import io
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import planted_sweep
from benchmarks.planted_sweep import Job, Network
from tests.analysis import synthetic
from tests.analysis.commands import run
from tests.analysis.synthetic import Truth, run_of
from tests.profiling.samples import SAMPLES
from tests.profiling.tau_files import Thread, write_merged
from tests.profiling.traced_jobs import Planted, write_job

ANSWERS = Path(__file__).parent / "answers"
TRACED = (
    *("scaled", "batches", "anatomy", "communication", "stragglers", "kernels", "utilization", "activities"),
    "critical_path",
)
SWEEP = (*TRACED, "efficiency", "factors", "expense")
METERED: dict[str, Any] = {"metered_s": 10.0, "device_energy_j": 2560.0, "peak_memory_bytes": 2 * 10**9}


def _jobs(slow: float, bandwidth: float) -> list[Job]:
    network = Network(beta_gb_per_s=bandwidth)
    jobs = [Job(ranks=ranks, network=network, fixed=0.05) for ranks in (1, 2, 4)]
    return [*jobs, Job(ranks=8, nodes=2, network=network, fixed=0.05, slow=(3,), gpu=slow)]


def write_inputs(folder: Path) -> None:
    """Two sweeps that differ, one of factors, a traced job, a file of each format, the reference's."""
    few: dict[str, Any] = {"repetitions": {"none": 3, "torch": 1}, "batches": 24}
    planted_sweep.write_sweep(folder / "sweep", _jobs(0.2, 4.0), seed=1, **few)
    planted_sweep.write_sweep(folder / "changed", _jobs(0.0, 2.0), seed=2, **few)
    for ranks, batch, grad, profile in product((1, 2), (16, 32), ("fp32", "fp16"), ("none", "torch")):
        of = run_of(gpus_per_node=ranks, batch=batch, grad=grad, profile=profile)
        steps = {1: 3.0 * batch, 2: 3.3 * batch + 5.0 * (grad == "fp32")}
        truth = Truth(step_ms=steps, run_noise_ms=0.5, wait_ms={1: 1.0, 2: 4.0}, slowest_extra_ms=2.0)
        for repetition in range(2 if profile == "none" else 1):
            synthetic.write_run(folder / "factors", of, truth, repetition, **METERED)
    synthetic.write_sweep_record(folder / "factors")
    planted = Planted(ranks=4, batches=6, late=((2, 80.0),), head=(200.0,))
    assert run("profiling.convert", write_job(folder / "raw", planted), "--out", folder / "job").code == 0
    for name, (_, write, file) in SAMPLES.items():
        (folder / "samples" / name).mkdir(parents=True)
        raw = write(folder / "samples" / name / file)
        assert run("profiling.convert", raw, "--out", folder / "converted" / name).code == 0, name
    for nodes in (1, 2, 4):
        synthetic.write_pyprof(folder / "published", forward=4, nodes=nodes)
    sizes = {(nodes, 2, batch): [40.0 + nodes + n + batch / 9 for n in range(3)]
             for nodes in (1, 2, 4) for batch in (16, 32)}  # fmt: skip
    synthetic.write_tau(folder / "published" / "tau" / "eth_interval.gzip", sizes)
    timers = {".TAU application": (1.0, 0.0, 1.0, 30e6), "Forward Pass": (41.0, 0.0, 1.0, 4e6),
              "Backward Pass": (41.0, 0.0, 1.0, 8e6)}  # fmt: skip
    (folder / "tau").mkdir()
    write_merged(folder / "tau" / "tauprofile.xml", [Thread(rank, 0, timers) for rank in (0, 1)])


def commands(folder: Path) -> Iterator[tuple[str, list]]:
    """Name of a case, and the command's module and words."""
    for name in SWEEP:
        yield f"sweep.{name}", [f"analysis.{name}", folder / "sweep"]
    for name in ("scaled", "factors", "expense", "efficiency"):
        yield f"factors.{name}", [f"analysis.{name}", folder / "factors"]
    for name in TRACED:
        yield f"job.{name}", [f"analysis.{name}", folder / "job"]
    sweep = folder / "sweep"
    yield "sweep.scaled_strong", ["analysis.scaled", sweep, "--scaling", "strong"]
    yield "factors.scaled_by", ["analysis.scaled", folder / "factors", "--group-by", "grad,world_size"]
    yield "sweep.kernels_by_layer", ["analysis.kernels", sweep, "--by", "layer"]
    yield "sweep.predict", ["analysis.predict", sweep, "--ranks", "16,64"]
    yield "sweep.predict_what_if", ["analysis.predict", sweep, "--ranks", "16", "--what-if", "network=2x"]
    yield "compare", ["analysis.compare", sweep, folder / "changed"]
    run_of_four = "run_0_config_1_4_eth_torch_2_resnet50_pytorch_32_fp32_fp32_ret_0"
    yield "kernels_compared", ["analysis.kernels", sweep / run_of_four, folder / "changed" / run_of_four]
    for method in ("published", "corrected"):
        words = [folder / "published", "--method", method]
        yield f"published.scaled_{method}", ["analysis.scaled", *words]
        yield f"published.efficiency_{method}", ["analysis.efficiency", *words, "--group-by", "batch,nodes"]
    yield "published.kernels", ["analysis.kernels", folder / "published"]
    yield "tau_batches", ["analysis.tau_batches", folder / "tau" / "tauprofile.xml"]


def answers(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and CSV of each answer; inputs are written to the folder."""
    write_inputs(folder)
    for name, words in commands(folder):
        ran = run(*words, "--format", "csv", "--all")
        assert ran.code < 2, (name, ran.err)
        yield name, ran.out
    yield "convert.tables", _tables(folder / "converted")


def _tables(folder: Path) -> str:
    """How many values each column of the tables below a folder has, and the sum of its numbers."""
    lines = ["file,column,values,sum"]
    for path in sorted(folder.rglob("*.parquet")):
        table = pq.read_table(path)
        place = f"{path.relative_to(folder).parts[0]}/{path.parent.name}/{path.name}"
        for name, column in zip(table.column_names, table.columns, strict=True):
            numeric = str(column.type).startswith(("int", "uint", "float", "double"))
            total = pc.sum(column.cast("float64", safe=False)).as_py() or 0.0 if numeric else ""
            lines.append(f"{place},{name},{len(column) - column.null_count},{total}")
    return "\n".join(lines) + "\n"


# --- comparison ---------------------------------------------------------------------------------------

Row = dict[str, str]


def differences(recorded: str, computed: str) -> list[str]:
    """What differs in numbers, rows and columns."""
    want, got = (list(csv.DictReader(io.StringIO(text))) for text in (recorded, computed))
    if len(want) != len(got):
        return [f"rows: {len(want)} recorded, {len(got)} computed"]
    if not want:
        return []
    found = [f"column gone: {name}" for name in want[0] if name not in got[0]]
    names = [name for name in want[0] if name in got[0]]
    texts = [name for name in names if all(_number(row[name]) is None for row in (*want, *got))]

    def key(row: Row) -> list[str]:
        return [row[name] for name in texts]

    if sorted(map(key, want)) == sorted(map(key, got)):
        want.sort(key=key)
        got.sort(key=key)
    for name in names:
        pairs = ((a[name], b[name], _slack(a, name)) for a, b in zip(want, got, strict=True))
        wrong = [f"{a!r} recorded, {b!r} computed" for a, b, slack in pairs if not _alike(a, b, slack)]
        if wrong:
            found.append(f"{name}, {len(wrong)} of {len(want)} rows: {wrong[0]}")
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _slack(row: Row, name: str) -> float:
    """A tenth of the interval that the column is an end of; 0 if it is none."""
    stem = name.removesuffix("_low").removesuffix("_high")
    low, high = (_number(row.get(stem + end, "")) for end in ("_low", "_high"))
    if stem == name or low is None or high is None:
        return 0.0
    return 0.1 * (high - low)


def _alike(recorded: str, computed: str, slack: float) -> bool:
    a, b = _number(recorded), _number(computed)
    if a is None or b is None:
        return a is b  # texts are free
    same = a == b or (math.isnan(a) and math.isnan(b))
    return same or abs(a - b) <= max(slack, 1e-6 * max(abs(a), abs(b), 1e-9))
