"""Which correction moves a figure of the reference's own tables, and by how much? See explain.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.display.metrics import Rows
from analysis.measures.kernels.costs import costs_of, published_bound
from analysis.measures.tau import applications
from analysis.measures.tau import applications as tau
from analysis.published import reference
from analysis.published.scaled_published import scaled_rows
from analysis.results.attributed import Costs
from analysis.results.pyprof_tables import TableSums, table_sums
from analysis.results.source import Source
from analysis.results.study import Study

# --- how a line is written: its number in docs/methods.md, the correction, what it moved ----------------

Lines = list[str]
BY_LAUNCH = "compute efficiency by launch, not by name"


def line(number: str, what: str, moved: str) -> str:
    """One line: ``number`` as in docs/methods.md."""
    return f"  {number:>4} {what}: {moved}"


def span(values: Sequence[float], form: str = "{:.1f}", unit: str = "") -> str:
    """``lowest to highest`` of values, or the one."""
    ends = list(dict.fromkeys(form.format(value) for value in (min(values), max(values))))
    return " to ".join(ends) + unit


def moves(before: Sequence[float], after: Sequence[float], form: str = "{:.1f}", unit: str = "") -> str:
    """``median before -> median after`` over configurations."""
    text = f"{form.format(float(np.median(before)))}{unit} -> {form.format(float(np.median(after)))}{unit}"
    return text + (f" (medians of {len(before)})" if len(before) > 1 else "")


# --- PyProf -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """A table with all that the lines need of it."""

    source: Source
    sums: TableSums
    cost: Costs

    def published_pct(self, peak: float) -> float:
        """FLOPS efficiency of all launches, as the published method takes it."""
        return applications.efficiency_pct(applications.rate_per_s(self.sums.flops, self.sums.ns), peak)


def of_pyprof(study: Study) -> Lines:
    """The lines of PyProf tables."""
    tables = _tables(study)
    if not tables:
        return [line("2-14", "all", "no table has two steps, one of them attributed: nothing can be shown")]
    peak, _ = published_bound(study)
    return [
        _swapped(study),
        *_counts(tables),
        *_denominators(tables, peak),
        _ratios(tables, peak),
        _coverage(tables),
        _direction(tables),
        line("others", "not shown", "the tables hold no durations (5, 6, 7, 8), one repetition (9), and "
             "nothing on the loader's shards (12), synchronisation (13) and lost runs (15)"),
    ]  # fmt: skip


def _swapped(study: Study) -> str:
    rows = scaled_rows(study)
    if not rows:
        return line(
            "1", "swapped columns", "not shown: scaled efficiencies need durations, which the tables lack"
        )
    flops, bandwidth = (rows[0][f"{what}_efficiency_of_step_pct"] for what in ("flops", "bandwidth"))
    text = f"{flops:.2f} % FLOPS and {bandwidth:.2f} % bandwidth of the first table would change places"
    return line("1", "swapped columns", text)


def _tables(study: Study) -> list[_Table]:
    sums = table_sums(study, study.of_kind("pyprof"))
    cost = costs_of(study, study.of_kind("pyprof"))
    return [
        _Table(source, sums[source.id], cost[source.id])
        for source in study.of_kind("pyprof")
        if source.id in cost
        and cost[source.id].kernel_ns
        and sums[source.id].fprop_ns
        and sums[source.id].batches.forward > 1
        and len(sums[source.id].batches.starts) > 1
    ]


def _counts(tables: Sequence[_Table]) -> Lines:
    mixed = [table.sums.flops / applications.PROFILED_BATCHES / 1e12 for table in tables]
    right = [(table.sums.fprop_per_batch + table.sums.bprop_per_batch) / 1e12 for table in tables]
    steady = []
    for table, total in zip(tables, right, strict=True):
        later = (table.sums.fprop_flops - table.sums.first_flops) / (table.sums.batches.forward - 1)
        steady.append(total + (later - table.sums.fprop_per_batch) / 1e12)
    forward = span([table.sums.batches.forward for table in tables], "{:.0f}")
    backward = span([table.sums.batches.backward for table in tables], "{:.0f}")
    text = (
        f"{moves(mixed, right, '{:.4f}', ' TFLOP')} per step: {forward} forward, {backward} backward passes"
    )
    return [
        line("2", "mixed step counts", f"{text}; the reference divides the sum by 25"),
        line("3", "autotuning of step 0", "that forward mean includes its trials; without step 0: "
             f"{moves(right, steady, '{:.4f}', ' TFLOP')} per step"),
    ]  # fmt: skip


def _denominators(tables: Sequence[_Table], peak: float) -> Lines:
    before = [table.published_pct(peak) for table in tables]
    after = [100 * table.cost.flops / table.cost.kernel_ns * 1e9 / peak for table in tables]
    by_name = [100 * table.sums.named_ns / table.sums.ns for table in tables]
    by_launch = [100 * table.sums.launched_ns / table.sums.ns for table in tables]
    attributed = [100 * table.cost.counted_ns / table.cost.kernel_ns for table in tables]
    return [
        line("3", "denominators", f"FLOPS efficiency of kernels {moves(before, after, '{:.2f}', ' %')}: "
             "only profiled steps, without the loader's kernels"),
        line("4", BY_LAUNCH, f"{moves(by_name, by_launch, '{:.1f}', ' %')}; "
             f"in profiled steps {np.median(attributed):.1f} %"),
    ]  # fmt: skip


def _ratios(tables: Sequence[_Table], peak: float) -> str:
    mean = np.mean([table.published_pct(peak) for table in tables])
    flops = sum(table.sums.flops for table in tables)
    pooled = applications.efficiency_pct(
        applications.rate_per_s(flops, sum(table.sums.ns for table in tables)), peak
    )
    text = f"FLOPS efficiency over all {len(tables)} tables {mean:.3f} % -> {pooled:.3f} %"
    return line("10", "costs summed first, ratios last", text)


def _coverage(tables: Sequence[_Table]) -> str:
    known = [(table.sums, reference.analytic_forward_flops(table.source)) for table in tables]
    forward = [100 * sums.fprop_per_batch / needed for sums, needed in known if needed]
    backward = [100 * sums.bprop_per_batch / (2 * needed) for sums, needed in known if needed]
    if not forward:
        return line("11", "FLOP coverage", "not shown: the analytic FLOPs of the model are unknown")
    text = (
        f"PyProf counts {span(forward, '{:.0f}', ' %')} of the forward and {span(backward, '{:.0f}', ' %')} "
        "of the backward FLOPs"
    )
    return line("11", "FLOP coverage", f"{text}; FLOPS efficiencies are too low by the same factor")


def _direction(tables: Sequence[_Table]) -> str:
    shares = [100 * table.sums.lost_ns / table.sums.fprop_ns for table in tables]
    largest = max((table.sums for table in tables), key=lambda sums: sums.largest_lost_ns)
    text = f"{span(shares, '{:.0f}', ' %')} of what the published tables call fprop is unattributed"
    if largest.largest_lost_ns:
        text += f" ({largest.largest_lost} accounts for {largest.largest_lost_ns / 1e9:.1f} s)"
    return line("14", "direction", f"{text}; it has a direction of its own")


# --- TAU ----------------------------------------------------------------------------------------------


def of_tau(study: Study) -> Lines:
    """The lines of TAU tables."""
    rows = tau.tau_rows(study)
    if not rows:
        return [_not_50(study), line("7", "startup", "not shown: no table of timed runs")]
    cut = sum(row["runs"] - row["runs_kept"] for row in rows)
    every = sum(row["runs"] for row in rows)
    bases = sorted({row["base_nodes"] * row["gpus_per_node"] for row in rows})
    return [
        _not_50(study),
        *_startup(rows),
        line("8", "baseline", f"{' and '.join(map(str, bases))} GPUs, given by column base_nodes"),
        line("9", "2-sigma cut", f"{cut} of {every} repetitions are cut; the corrected method cuts none "
             "and resamples runs instead"),
        line("others", "not shown", "the tables hold no kernels (1 to 4, 10, 11, 14), no markers (6, 13), "
             "and nothing on the loader's shards (12) and lost runs (15)"),
    ]  # fmt: skip


def _not_50(study: Study) -> str:
    """What dividing by the 49 batches that the runs differ in moves, and comparing like with like."""
    timed, started = tau.timed_and_started(study, rank_0_only=True)
    both = [key for key in timed if key in started]
    if not both:
        return line("5", "49, not 50", "not shown: no configuration has both 50-batch and 1-batch runs")
    before = [1e3 * applications.tau_step_duration_s(list(timed[key]), list(started[key])) for key in both]
    after = [
        1e3 * float(np.median(timed[key]) - np.median(started[key])) / (applications.BATCHES - 1)
        for key in both
    ]
    return line("5", "49, not 50", f"step {moves(before, after, '{:.1f}', ' ms')}, medians of both")


def _startup(rows: Rows) -> Lines:
    parts = [row["batch_independent_pct"] for row in rows if row["batch_independent_pct"] is not None]
    if not parts:
        return [line("7", "startup", "not shown: it needs two batch sizes of one configuration")]
    text = (
        f"{np.median(parts):.1f} % of the duration (median of {len(parts)} configurations) does not depend "
        "on the batch size (intercept of a line through the batch sizes). It does not scale with the work, "
        "so this scaling efficiency says little about training"
    )
    return [line("7", "startup", text), *_grown(rows)]


def _grown(rows: Rows) -> Lines:
    """By world size: what a larger batch adds to the duration."""
    lines = []
    for ranks in sorted({row["world_size"] for row in rows}):
        some = [
            row for row in rows if row["world_size"] == ranks and row["batch_independent_pct"] is not None
        ]
        if not some:
            continue
        small, large = min(row["batch"] for row in some), max(row["batch"] for row in some)
        of_small = np.median([row["application_s"] for row in some if row["batch"] == small])
        of_large = np.median([row["application_s"] for row in some if row["batch"] == large])
        part = np.median([row["batch_independent_pct"] for row in some])
        lines.append(
            f"       {ranks:>3} GPUs: {of_small:.1f} s at batch {small}, {of_large:.1f} s at batch {large}; "
            f"{part:.1f} % does not depend on the batch size"
        )
    return lines
