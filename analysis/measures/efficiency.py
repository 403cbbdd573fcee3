"""Efficiency of the kernels of groups of runs: rates divided by the device's peaks."""

from collections.abc import Sequence

import pandas as pd

from analysis.display.metrics import Metric, fields, names_of
from analysis.display.numbers import in_order
from analysis.display.terminal import Answer
from analysis.frames.kernel_sums import costs, launches_by_name
from analysis.frames.load import no_result
from analysis.frames.measure import measure
from analysis.frames.study import Source, Study, Unusable
from analysis.measures.peaks import bounds, published_bound
from profiling.errors import UserError

METRICS = (
    Metric("compute_efficiency_pct", "time of launches with FLOPs divided by the time of all launches"),
    Metric("tflops_per_s", "FLOPs divided by kernel time"),
    Metric("bandwidth_gb_per_s", "bytes read and written, divided by kernel time"),
    Metric("bandwidth_efficiency_pct", "bandwidth_gb_per_s divided by the datasheet's memory bandwidth"),
    Metric("flops_efficiency_pct", "FLOP rate divided by the datasheet's peak"),
)
CORRECTED_METRICS = (
    Metric("flops_efficiency_of_measured_pct", "FLOP rate divided by the peak measured on this machine"),
    Metric("bandwidth_efficiency_of_measured_pct", "bandwidth over that measured on this machine"),
    Metric("kernel_ms_per_step", "time of the model's kernels per step"),
    Metric("loader_ms_per_step", "time of the loader's kernels per step"),
    Metric("attributed_steps", "number of steps with kernels"),
)
COLUMNS = {
    "Columns: the fields of --group-by, then": METRICS,
    "Additional columns of the corrected method:": CORRECTED_METRICS,
}


@measure(COLUMNS)
def efficiency(study: Study, method: str = "corrected", group_by: Sequence[str] = ()) -> Answer:
    """A row a group.

    Args:
        method: corrected: costs are summed over the runs of a group before ratios are formed; published: as
            the reference computed it, of PyProf tables.
        group_by: fields of runs; by default the batch size and nodes, of traces each.

    Raises:
        UserError: the study holds no kernels (of the kind that the method is for).
    """
    only_traces = all(source.kind == "trace" for source in study.sources)
    names = list(group_by) or (["run"] if only_traces else ["batch", "nodes"])
    values = {source.id: {name: source.value(name) for name in names} for source in study.sources}
    fields_of_runs = pd.DataFrame(values, dtype=object).T
    published = method == "published"
    metrics = [*METRICS, *([] if published else CORRECTED_METRICS)]
    rows = (_published if published else _corrected)(study, fields_of_runs, names)
    rows = in_order(rows[names_of(metrics)].reset_index(), names)
    columns = fields("job" if only_traces and name == "run" else name for name in names)
    return Answer(rows, [*columns, *metrics], title=with_method("Kernel efficiency", study, method))


def _corrected(study: Study, fields_of_runs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    runs = costs(study, study.sources)
    if runs.empty:
        raise study.nothing(
            f"{study.path} holds no kernels with FLOPs: it needs profile: torch, shapes in traces, or PyProf"
        )
    # A run whose tool knows no shapes, and to which no other lent them, did not do nothing.
    peaks = bounds(study, [source for source in study.sources if source.id in runs.index])
    for of, known in (("flops", runs["flops"] > 0), ("bytes", runs["bytes"] > 0)):
        runs[f"{of}_ns"] = runs["kernel_ns"].where(known, 0.0)
        for name in (f"{of}_per_s", f"measured_{of}_per_s"):
            runs[name] = (runs["kernel_ns"] / 1e9 * peaks[name]).where(known, 0.0)
    runs["counted_ns"] = runs["counted_ns"].where(runs["flops"] > 0, 0.0)
    # A peak that is not known of one run is not known of the group.
    groups = fields_of_runs.join(runs, how="inner").groupby(list(by), dropna=False, sort=False)
    total, count = groups.sum(skipna=False), groups.size()
    return pd.DataFrame({
        "compute_efficiency_pct": 100 * total["counted_ns"] / total["flops_ns"],
        "tflops_per_s": total["flops"] / total["flops_ns"] / 1e3,
        "bandwidth_gb_per_s": total["bytes"] / total["bytes_ns"],
        "bandwidth_efficiency_pct": 100 * total["bytes"] / total["bytes_per_s"],
        "flops_efficiency_pct": 100 * total["flops"] / total["flops_per_s"],
        "flops_efficiency_of_measured_pct": 100 * total["flops"] / total["measured_flops_per_s"],
        "bandwidth_efficiency_of_measured_pct": 100 * total["bytes"] / total["measured_bytes_per_s"],
        "kernel_ms_per_step": total["kernel_ns"] / count / 1e6,
        "loader_ms_per_step": total["loader_ns"] / count / 1e6,
        "attributed_steps": total["batches"],
    })  # fmt: skip


def _published(study: Study, fields_of_runs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Plain means over the tables of a group, to the six decimals that were published."""
    sources = study.of_kind("pyprof")
    if not sources:
        raise UserError(f"{study.path} holds no PyProf kernel table, which the published method needs")
    peak_flops, peak_bytes = published_bound(study)
    kernels = launches_by_name(study, sources).groupby(["run", "kernel"])[["ns", "flops", "bytes"]].sum()
    kernels["with_flops_ns"] = kernels["ns"].where(kernels["flops"] != 0, 0.0)
    tables = kernels.groupby("run").sum()
    tables = tables[tables["ns"] > 0]

    def check(source: Source) -> None:
        if source.id not in tables.index:
            raise Unusable(source, "none of its kernels took time")

    for source in sources:
        study.use(source, check)
    if tables.empty:
        raise UserError(no_result(study))
    rates = pd.DataFrame({
        "compute_efficiency_pct": 100 * tables["with_flops_ns"] / tables["ns"],
        "tflops_per_s": tables["flops"] / tables["ns"] / 1e3,
        "bandwidth_gb_per_s": tables["bytes"] / tables["ns"],
        "bandwidth_efficiency_pct": 100e9 * tables["bytes"] / tables["ns"] / peak_bytes,
        "flops_efficiency_pct": 100e9 * tables["flops"] / tables["ns"] / peak_flops,
    })  # fmt: skip
    groups = fields_of_runs.join(rates, how="inner").groupby(list(by), dropna=False, sort=False)
    return groups.mean().round(6)


def with_method(title: str, study: Study, method: str) -> str:
    """A title that names the method where the reference published a result of its own: of its tables."""
    return f"{title}, {method} method" if method == "published" or study.of_kind("pyprof") else title
