"""Which correction moves a figure, and by how much?

One line a correction of docs/methods.md ("what the reference computes differently"), numbered as there, with
what it moved on the data at hand. A correction that these data cannot show says so.
"""

from collections.abc import Callable, Sequence

import numpy as np

from analysis import published, reference
from analysis.batches import all_series
from analysis.costs import APART, Costs, bound_of, costs_of, query
from analysis.study import Source, Study
from analysis.terminal import Rows
from profiling.tools import pyprof

Lines = list[str]
_BY_LAUNCH = "compute efficiency by launch, not by name"


def explain(study: Study, own: Rows) -> Lines:
    """The lines for this study; ``own`` are analysis.scaled's rows of runs of our own, a row a point."""
    lines = ["", "What each correction of the reference's method moves, on these data:"]
    if study.of_kind("pyprof"):
        lines += ["PyProf kernel tables:", *_of_pyprof(study)]
    if study.tau_intervals:
        lines += ["TAU tables:", *_of_tau(study)]
    if study.of_kind("run"):
        lines += ["Our own runs:", *_of_runs(study, own)]
    return lines


def _line(number: str, what: str, moved: str) -> str:
    return f"  {number:>4} {what}: {moved}"


def _span(values: Sequence[float], form: str = "{:.1f}", unit: str = "") -> str:
    """``lowest to highest`` of values, or the one."""
    ends = list(dict.fromkeys(form.format(value) for value in (min(values), max(values))))
    return " to ".join(ends) + unit


def _moves(before: Sequence[float], after: Sequence[float], form: str = "{:.1f}", unit: str = "") -> str:
    """``median before -> median after`` over configurations."""
    text = f"{form.format(float(np.median(before)))}{unit} -> {form.format(float(np.median(after)))}{unit}"
    return text + (f" (medians of {len(before)} tables)" if len(before) > 1 else "")


# --- PyProf -------------------------------------------------------------------------------------------

_WHOLE = f"""
with launches as (
    select filename, "Kernel" as name, "Sil(ns)" as ns, "FLOPs" as flops, "Direction" as direction,
        coalesce("Op", '') in ('', 'na', '-') and not {pyprof.IS_LOADER} as lost,
        "Idx" < second as first_batch
    from read_parquet($paths, filename = true)
    join (select unnest($paths) as path, unnest($seconds) as second) on path = filename
), names as (
    select filename, name, sum(ns) as ns, sum(flops) as flops, sum(ns) filter (flops <> 0) as counted,
        sum(ns) filter (direction = 'fprop') as fprop, sum(ns) filter (direction = 'fprop' and lost) as lost,
        sum(flops) filter (first_batch and direction = 'fprop') as first_flops
    from launches group by all
)
select filename, sum(ns), sum(flops), sum(ns) filter (flops <> 0), sum(counted), sum(fprop), sum(lost),
    sum(first_flops), arg_max(name, lost), max(lost)
from names group by filename
"""


def _of_pyprof(study: Study) -> Lines:
    sources = study.of_kind("pyprof")
    sums, cost = reference.table_sums(study, sources), costs_of(study, sources)
    usable = [source for source in sources if source.id in cost and len(sums[source.id].batches.starts) > 1]
    if not usable:
        return [_line("2-14", "all", "no table has an attributed batch: nothing can be shown")]
    whole = _whole_tables(study, usable, sums)
    return [
        _line("1", "swapped columns", "not shown: scaled efficiencies need durations, which the tables lack"),
        *_counts(usable, sums, whole),
        *_denominators(study, usable, cost, whole),
        _ratios(study, usable, whole),
        _coverage(study, usable),
        _direction(usable, whole),
    ]


def _whole_tables(
    study: Study, sources: Sequence[Source], sums: dict[str, reference.TableSums]
) -> dict[str, tuple]:
    by_path = {str(source.path): source.id for source in sources}
    found = {}
    for some in pyprof.in_portions([source.path for source in sources]):
        paths = [str(path) for path in some]
        seconds = [sums[by_path[path]].batches.starts[1] for path in paths]
        for name, *row in study.connection.execute(_WHOLE, {"paths": paths, "seconds": seconds}).fetchall():
            found[by_path[name]] = tuple(row)
    return found


def _counts(
    sources: Sequence[Source], sums: dict[str, reference.TableSums], whole: dict[str, tuple]
) -> Lines:
    mixed = [whole[source.id][1] / published.PROFILED_BATCHES / 1e12 for source in sources]
    right = [(sums[s.id].fprop_per_batch + sums[s.id].bprop_per_batch) / 1e12 for s in sources]
    steady = []
    for source, total in zip(sources, right, strict=True):
        of_table = sums[source.id]
        trials = float(whole[source.id][6] or 0)
        others = (of_table.fprop_flops - trials) / (of_table.batches.forward - 1)
        steady.append(total + (others - of_table.fprop_per_batch) / 1e12)
    forward = _span([sums[source.id].batches.forward for source in sources], "{:.0f}")
    backward = _span([sums[source.id].batches.backward for source in sources], "{:.0f}")
    text = (
        f"{_moves(mixed, right, '{:.4f}', ' TFLOP')} a batch: {forward} forward, {backward} backward passes"
    )
    return [
        _line("2", "mixed batch counts", f"{text}, where the reference divides the sum by 25"),
        _line("3", "autotuning of batch 0", f"its trials are in that forward mean; without batch 0: "
              f"{_moves(right, steady, '{:.4f}', ' TFLOP')} a batch"),
    ]  # fmt: skip


def _denominators(
    study: Study, sources: Sequence[Source], cost: dict[str, Costs], whole: dict[str, tuple]
) -> Lines:
    peak = [bound_of(study, source).flops_per_s or float("nan") for source in sources]
    before = [100 * whole[s.id][1] / whole[s.id][0] * 1e9 / p for s, p in zip(sources, peak, strict=True)]
    after = [
        100 * cost[s.id].flops / cost[s.id].kernel_ns * 1e9 / p for s, p in zip(sources, peak, strict=True)
    ]
    by_name = [100 * whole[source.id][2] / whole[source.id][0] for source in sources]
    by_launch = [100 * whole[source.id][3] / whole[source.id][0] for source in sources]
    attributed = [100 * cost[source.id].counted_ns / cost[source.id].kernel_ns for source in sources]
    return [
        _line("3", "denominators", f"FLOPS efficiency of kernels {_moves(before, after, '{:.2f}', ' %')}: "
              "attributed batches only, the loader's kernels apart"),
        _line("4", _BY_LAUNCH, f"{_moves(by_name, by_launch, '{:.1f}', ' %')}; "
              f"in attributed batches {np.median(attributed):.1f} %"),
    ]  # fmt: skip


def _ratios(study: Study, sources: Sequence[Source], whole: dict[str, tuple]) -> str:
    peak = bound_of(study, sources[0]).flops_per_s or float("nan")
    mean = np.mean([100 * whole[source.id][1] / whole[source.id][0] * 1e9 / peak for source in sources])
    flops = sum(whole[source.id][1] for source in sources)
    time = sum(whole[source.id][0] for source in sources)
    pooled = 100 * flops / time * 1e9 / peak
    text = f"FLOPS efficiency over all {len(sources)} tables {mean:.3f} % -> {pooled:.3f} %"
    return _line("10", "costs summed first, ratios last", text)


def _coverage(study: Study, sources: Sequence[Source]) -> str:
    rows = [row for row in reference.pyprof_rows(study) if row.get("fprop_flop_coverage_pct")]
    if not rows:
        return _line("11", "FLOP coverage", "not shown: the analytic FLOPs of the model are not known")
    forward = _span([row["fprop_flop_coverage_pct"] for row in rows], "{:.0f}", " %")
    backward = _span([row["bprop_flop_coverage_pct"] for row in rows], "{:.0f}", " %")
    text = f"PyProf credits {forward} of the forward and {backward} of the backward arithmetic"
    return _line("11", "FLOP coverage", f"{text}; FLOPS efficiencies are too low by as much")


def _direction(sources: Sequence[Source], whole: dict[str, tuple]) -> str:
    shares = [100 * (whole[source.id][5] or 0) / whole[source.id][4] for source in sources]
    largest = max(sources, key=lambda source: whole[source.id][8] or 0)
    name, time = whole[largest.id][7], (whole[largest.id][8] or 0) / 1e9
    text = f"{_span(shares, '{:.0f}', ' %')} of what the published tables call fprop is un-attributed"
    return _line(
        "14", "direction", f"{text} ({name} with {time:.1f} s among it); it has a direction of its own"
    )


# --- TAU ----------------------------------------------------------------------------------------------


def _of_tau(study: Study) -> Lines:
    rows = reference.tau_rows(study)
    parts = [row["batch_independent_pct"] for row in rows if row["batch_independent_pct"] is not None]
    cut = sum(row["repetitions"] - row["repetitions_kept"] for row in rows)
    every = sum(row["repetitions"] for row in rows)
    lines = []
    if parts:
        text = (
            f"{np.median(parts):.1f} % of the duration (median of {len(parts)} points) does not depend "
            "on the batch size: a line through the batch sizes leaves it at batch size 0. It does not "
            "scale with work, so the scaling efficiency says little of training"
        )
        lines += [_line("7", "start-up", text), *_grown(rows)]
    elif rows:
        lines.append(_line("7", "start-up", "not shown: it needs two batch sizes of one configuration"))
    if rows:
        lines.append(
            _line("9", "2-sigma cut", f"{cut} of {every} repetitions are cut; the "
                  " corrected method cuts none and resamples runs instead")
        )  # fmt: skip
    return lines or [_line("7", "start-up", "not shown: no table of timed runs")]


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


# --- our own runs -------------------------------------------------------------------------------------


def _of_runs(study: Study, rows: Rows) -> Lines:
    cost = costs_of(study, study.of_kind("run"))
    parts: Sequence[Callable[[], Lines]] = (
        lambda: _swapped(rows),
        lambda: _denominators_of_runs(study, cost),
        lambda: _by_name_of_runs(study, cost),
        lambda: _estimators(study, rows),
        lambda: _startup(study, rows),
        lambda: _coverage_of_runs(rows),
    )
    lines = [line for part in parts for line in part()]
    synchronised = sum(bool(source.fields.get("sync_stages")) for source in study.of_kind("run"))
    text = f"{synchronised} runs synchronise the device after stages, as the reference did"
    return [*lines, _line("13", "serialised stages", text)]


def _swapped(rows: Rows) -> Lines:
    known = [row for row in rows if row.get("flops_efficiency_of_batch_pct")]
    if not known:
        return [_line("1", "swapped columns", "not shown: no run has kernels and a datasheet peak")]
    row = known[0]
    flops, bandwidth = row["flops_efficiency_of_batch_pct"], row["bandwidth_efficiency_of_batch_pct"]
    text = f"{flops:.2f} % FLOPS and {bandwidth:.2f} % bandwidth of a batch would change places"
    return [_line("1", "swapped columns", text)]


def _denominators_of_runs(study: Study, cost: dict[str, Costs]) -> Lines:
    if not cost:
        return [_line("3", "denominators", "not shown: no run has kernels")]
    apart = [
        100 * (c.loader_ns + c.communication_ns + c.copy_ns)
        / (c.kernel_ns + c.loader_ns + c.communication_ns + c.copy_ns)
        for c in cost.values()
    ]  # fmt: skip
    text = f"{_span(apart, '{:.1f}', ' %')} of kernel time is loader, collectives and copies: left out"
    return [_line("3", "denominators", text)]


def _by_name_of_runs(study: Study, cost: dict[str, Costs]) -> Lines:
    before, after = [], []
    for source in [source for source in study.of_kind("run") if source.id in cost]:
        found = query(study, source, _NAMES, kernels=source.tables("kernels"))
        if found and found[0][1]:
            before.append(100 * float(found[0][0] or 0) / float(found[0][1]))
            after.append(100 * cost[source.id].counted_ns / cost[source.id].kernel_ns)
    if not before:
        return []
    return [_line("4", _BY_LAUNCH, _moves(before, after, "{:.1f}", " %"))]


_NAMES = f"""
with names as (
    select name::varchar as name, sum(duration_ns) as ns, sum(coalesce(flops, 0)) as flops
    from read_parquet($kernels) where "class"::varchar not in {APART!r} group by all
)
select sum(ns) filter (flops <> 0), sum(ns) from names
"""


def _estimators(study: Study, rows: Rows) -> Lines:
    """The reference's batch durations of profiled runs against the corrected ones."""
    series = all_series(study)
    least = []
    for source in study.of_kind("run"):
        one = series.get(source.id)
        if one is None or source.fields["profile"] == "none" or not one.attributed.any():
            continue
        ends = np.concatenate([[0], np.cumsum(one.step_ns)])
        estimates = [published.nvprof_batch_duration_s(ends)]
        if one.attributed.sum() > 1:
            estimates.append(published.pyprof_batch_duration_s(ends, int(np.argmax(one.attributed))))
        twin = [row for row in rows if _same_point(row, source)]
        if twin:
            least.append(100 * (1e3 * published.batch_duration_s(estimates) / twin[0]["batch_ms"] - 1))
    if not least:
        return [_line("5, 6", "estimators of the batch", "not shown: no profiled run with a timed twin")]
    text = f"the least of the profiled estimates is {_span(least, '{:+.1f}', ' %')} off the unprofiled twin"
    return [_line("5, 6", "estimators of the batch", text)]


def _same_point(row: dict, source: Source) -> bool:
    without = ("profile", "attribute_from", "seed")
    return all(row.get(name) == value for name, value in source.fields.items() if name not in without)


def _startup(study: Study, rows: Rows) -> Lines:
    shares = []
    for source in study.of_kind("run"):
        if source.manifest is not None and source.manifest.seconds > 0:
            starts = max(rank.startup_ns for rank in source.manifest.ranks) / 1e9
            shares.append(100 * min(1.0, starts / source.manifest.seconds))
    names = ("nodes", "gpus_per_node", "workers", "loader", "batch", "grad", "compute")
    measured = {tuple(row[name] for name in names): row for row in rows}
    pairs = []
    for row in reference.run_rows(study):
        same = measured.get(tuple(row[name] for name in names))
        if same and row["nodes"] > row["base_nodes"]:
            pairs.append((row["scaling_efficiency_pct"], same["scaling_efficiency_pct"]))
    text = f"{_span(shares, '{:.0f}', ' %')} of a run's wall time is before its first batch"
    if pairs:
        text += f"; scaling efficiency {_moves([a for a, _ in pairs], [b for _, b in pairs], '{:.1f}', ' %')}"
    return [_line("7", "start-up", text)]


def _coverage_of_runs(rows: Rows) -> Lines:
    values = [row["flop_coverage_pct"] for row in rows if row.get("flop_coverage_pct")]
    if not values:
        return [_line("11", "FLOP coverage", "not shown: no run has kernels and an analytic count")]
    return [
        _line("11", "FLOP coverage", f"{_span(values, '{:.1f}', ' %')} of the analytic count is credited")
    ]
