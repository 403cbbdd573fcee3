"""What do the reference's own files say of a batch, and of scaling?

PyProf tables (corrected): batches counted, FLOPs a batch, how much of the arithmetic is credited. TAU tables
(published): epoch durations and what the reference called scaling efficiency. Neither kind holds the duration
of a batch, so neither gives a corrected scaling efficiency.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import costs, peaks, published
from analysis.efficiency import sortable
from analysis.study import Source, Study
from analysis.terminal import Rows
from jobs.run import ID_FIELDS
from profiling.errors import UserError
from profiling.tools import pyprof

PYPROF_COLUMNS = (
    "fprop_batches", "bprop_batches", "tflop_per_batch", "fprop_flop_coverage_pct", "bprop_flop_coverage_pct",
    "kernel_ms", "flops_efficiency_of_kernels_pct", "bandwidth_efficiency_of_kernels_pct",
)  # fmt: skip
TAU_COLUMNS = (
    "repetitions", "repetitions_kept", "application_s", "epoch_duration_s", "base_nodes",
    "scaling_efficiency_pct", "batch_independent_pct",
)  # fmt: skip

# --- PyProf -------------------------------------------------------------------------------------------

_SUMS = """
select filename,
    coalesce(sum("FLOPs") filter ("Direction" = 'fprop'), 0),
    coalesce(sum("FLOPs") filter ("Direction" = 'bprop'), 0)
from read_parquet($paths, filename = true) group by filename
"""


@dataclass(frozen=True)
class TableSums:
    """Sums over one PyProf table: credited FLOPs by PyProf's direction, and its batches."""

    fprop_flops: float
    bprop_flops: float
    batches: pyprof.Batches

    @property
    def fprop_per_batch(self) -> float:
        return self.fprop_flops / self.batches.forward if self.batches.forward else float("nan")

    @property
    def bprop_per_batch(self) -> float:
        return self.bprop_flops / self.batches.backward if self.batches.backward else float("nan")


def table_sums(study: Study, sources: Sequence[Source]) -> dict[str, TableSums]:
    """Sums of each PyProf table, by the source's id."""
    paths = [source.path for source in sources]
    batches = pyprof.find_batches(study.connection, paths)
    by_path = {str(source.path): source for source in sources}
    found = {}
    for some in pyprof.in_portions(paths):
        rows = study.connection.execute(_SUMS, {"paths": [str(path) for path in some]}).fetchall()
        for name, forward, backward in rows:
            source = by_path[name]
            found[source.id] = TableSums(forward, backward, batches[source.path])
    return found


def pyprof_rows(study: Study) -> Rows:
    """A row a PyProf table: Run's fields, then :data:`PYPROF_COLUMNS`.

    ``fprop_batches``, ``bprop_batches``: forward passes and attributed backward passes, as counted.
    ``tflop_per_batch``: credited FLOPs of a batch, forward over its passes plus backward over its own, 1e12.
    ``*_flop_coverage_pct``: credited FLOPs over the analytic count (backward: twice the forward), %.
    ``kernel_ms``: time of the model's kernels in an attributed batch, ms; the efficiencies are over it, %.
    """
    sources = study.of_kind("pyprof")
    sums = table_sums(study, sources)
    cost = costs.costs_of(study, sources)
    rows = []
    for source in sources:
        row = {**_id_fields(source.fields), "world_size": source.world_size}
        rows.append(
            {**row, **_counts(study, source, sums[source.id]), **_kernel_figures(study, source, cost)}
        )
    rows.sort(key=lambda row: sortable([row.get(name) for name in ID_FIELDS]))
    return rows


def _id_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fields.get(name) for name in ID_FIELDS}


def _counts(study: Study, source: Source, sums: TableSums) -> dict[str, Any]:
    total = sums.fprop_per_batch + sums.bprop_per_batch
    row: dict[str, Any] = {
        "fprop_batches": sums.batches.forward or None,
        "bprop_batches": sums.batches.backward,
        "tflop_per_batch": total / 1e12,
    }
    analytic = analytic_forward_flops(source)
    if analytic is None:
        study.find(f"{source.id}: the analytic FLOPs of {source.fields.get('model')} are not known")
        return row
    # Each forward product has two in the backward pass.
    row["fprop_flop_coverage_pct"] = 100 * sums.fprop_per_batch / analytic
    row["bprop_flop_coverage_pct"] = 100 * sums.bprop_per_batch / (2 * analytic)
    return row


def analytic_forward_flops(source: Source) -> float | None:
    """Analytic FLOPs of the forward pass of a batch at 224 x 224; None if the model is not known."""
    per_image = peaks.forward_flops_per_image(source.fields.get("model") or "")
    batch = source.fields.get("batch")
    return per_image * batch if per_image and batch else None


def _kernel_figures(study: Study, source: Source, cost: dict[str, costs.Costs]) -> dict[str, Any]:
    if source.id not in cost:
        return {}
    of_batch, bound = cost[source.id], costs.bound_of(study, source)
    time_s = of_batch.kernel_ns / 1e9
    return {
        "kernel_ms": time_s * 1e3,
        "flops_efficiency_of_kernels_pct": _over(of_batch.flops, time_s, bound.flops_per_s),
        "bandwidth_efficiency_of_kernels_pct": _over(of_batch.bytes, time_s, bound.bytes_per_s),
    }


def _over(total: float, time_s: float, peak: float | None) -> float | None:
    return 100 * total / time_s / peak if peak and time_s else None


# --- TAU ----------------------------------------------------------------------------------------------

_APPLICATION = """
select nodes::int as nodes, gpus_per_node::int as gpus_per_node, network_backend::varchar as network,
    'tau' as profile, workers::int as workers, neural_network::varchar as model,
    data_loader::varchar as loader, batch_size_per_gpu::int as batch, grad_precision::varchar as grad,
    compute_precision::varchar as compute, run, max(inc_time) / 1e6 as application_s
from read_parquet($path) where function = '.tau application' group by all order by all
"""


def applications(study: Study, path: Path) -> dict[tuple, np.ndarray]:
    """Application times of a TAU table in s, one a repetition (max over ranks), by the values of ID_FIELDS.

    Raises:
        UserError: the table is damaged, or holds no `.tau application`.
    """
    import duckdb

    try:
        rows = study.connection.execute(_APPLICATION, {"path": str(path)}).fetchall()
    except (duckdb.Error, OSError) as error:
        raise UserError(f"{path} is not a readable TAU table ({str(error).splitlines()[0]})") from None
    if not rows:
        raise UserError(f"{path} holds no timer '.tau application', so it says nothing of a run's duration")
    found: dict[tuple, list[float]] = {}
    for *key, _run, seconds in rows:
        found.setdefault(tuple(key), []).append(seconds)
    return {key: np.array(values) for key, values in found.items()}


def tau_rows(study: Study) -> Rows:
    """A row a configuration of the TAU tables of timed runs: Run's fields, then :data:`TAU_COLUMNS`.

    ``application_s``: median over the kept repetitions of the application time, s, start-up included.
    ``epoch_duration_s``: that scaled to 1e6 images, s. ``scaling_efficiency_pct``: over the fewest nodes
    (``base_nodes``) with the same GPUs a node. ``batch_independent_pct``: the part of the application time
    that a line through the batch sizes leaves at batch size 0, %; not the reference's.
    """
    rows: Rows = []
    for path in study.tau_intervals:
        batches = published.batches_of_tau_table(path)
        if batches == 1:
            study.find(f"{path.name}: 1-batch runs measure start-up; they give no epoch duration")
            continue
        for key, seconds in applications(study, path).items():
            rows.append(_tau_row(dict(zip(ID_FIELDS, key, strict=True)), seconds, batches))
    for row in rows:
        _add_scaling(row, rows)
        _add_batch_independent(row, rows)
    rows.sort(key=lambda row: sortable([row[name] for name in (*ID_FIELDS[2:], "gpus_per_node", "nodes")]))
    return rows


def _tau_row(fields: dict[str, Any], seconds: np.ndarray, batches: int) -> dict[str, Any]:
    kept = published.two_sigma_cut(seconds)
    ranks = fields["nodes"] * fields["gpus_per_node"]
    return {
        **fields,
        "world_size": ranks,
        "repetitions": len(seconds),
        "repetitions_kept": len(kept),
        "application_s": float(np.median(kept)),
        "epoch_duration_s": published.epoch_duration_s(seconds, fields["batch"], ranks, batches),
    }


def _like(row: Mapping[str, Any], rows: Rows, varying: str) -> Rows:
    """The rows that differ from ``row`` in one field at most."""
    return [other for other in rows if all(other[n] == row[n] for n in ID_FIELDS if n != varying)]


def _add_scaling(row: dict[str, Any], rows: Rows) -> None:
    base = min(_like(row, rows, "nodes"), key=lambda other: other["nodes"])
    row["base_nodes"] = base["nodes"]
    row["scaling_efficiency_pct"] = published.scaling_efficiency_pct(
        base["epoch_duration_s"], base["world_size"], row["epoch_duration_s"], row["world_size"]
    )


def _add_batch_independent(row: dict[str, Any], rows: Rows) -> None:
    others = _like(row, rows, "batch")
    smallest = min(others, key=lambda other: other["batch"])
    largest = max(others, key=lambda other: other["batch"])
    row["batch_independent_pct"] = None
    if smallest is not largest:
        fixed = published.batch_independent_s(
            smallest["application_s"], largest["application_s"], smallest["batch"], largest["batch"]
        )
        row["batch_independent_pct"] = 100 * fixed / row["application_s"]


# --- our own runs, by the published definitions -----------------------------------------------------------


def run_rows(study: Study) -> Rows:
    """A row a configuration of our own runs, timed as the reference timed its own: whole wall time.

    Columns as :func:`tau_rows`; the application time is that of the unprofiled runs, start-up included.
    """
    seconds: dict[tuple, list[float]] = {}
    batches: dict[tuple, int] = {}
    sources = study.of_kind("run")
    unprofiled = [source for source in sources if source.fields["profile"] == "none"] or sources
    for source in unprofiled:
        assert source.manifest is not None
        key = tuple(source.fields[name] for name in ID_FIELDS)
        seconds.setdefault(key, []).append(source.manifest.seconds)
        batches[key] = source.fields["batches"]
    rows = [
        _tau_row(dict(zip(ID_FIELDS, key, strict=True)), np.array(values), batches[key])
        for key, values in seconds.items()
    ]
    for row in rows:
        _add_scaling(row, rows)
        _add_batch_independent(row, rows)
    rows.sort(key=lambda row: sortable([row[name] for name in (*ID_FIELDS[2:], "gpus_per_node", "nodes")]))
    return rows


def grouped(rows: Rows, group_by: Sequence[str]) -> Rows:
    """Rows of reference files by fields: plain means of figures over a group, as the reference formed them.

    Counts (batches, repetitions) are summed.
    """
    if not group_by:
        return rows
    groups: dict[tuple, Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in group_by), []).append(row)
    made = []
    for key in sorted(groups, key=sortable):
        members = groups[key]
        group: dict[str, Any] = dict(zip(group_by, key, strict=True))
        for name in dict.fromkeys(name for member in members for name in member):
            if name in ID_FIELDS:
                continue
            values = [member[name] for member in members if member.get(name) is not None]
            if name in ("world_size", "base_nodes"):
                group[name] = values[0] if len(set(values)) == 1 else None
            elif values:
                group[name] = sum(values) if isinstance(values[0], int) else sum(values) / len(values)
        made.append(group)
    return made
