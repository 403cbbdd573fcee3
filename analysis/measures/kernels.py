"""Kernels of runs: calls, time, FLOPs, bytes and efficiency per step; and the differences between two runs.

The difference of a kernel is split into that from the number of calls and that from the duration per call
(:func:`effects`). The larger part decides which of the :data:`KINDS` it is, so that a kernel that is called
more often does not count as slower; if the launches do not correspond it is neither. The differences by kind
add up to that of all kernels; with overlaps and the time without any kernel, to that of the step.

The published method takes all launches of PyProf's tables, by kernel name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import RUN, Metric, columns, filled, names_of
from analysis.display.numbers import signed
from analysis.display.output import Answer, Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.kernel_sums import DEFAULT_BY, has_kernels, kernel_sums, launches_by_name, query
from analysis.frames.load import no_result
from analysis.frames.measure import measure
from analysis.frames.study import RECORDING, Source, Study
from analysis.measures import anatomy, peaks
from analysis.measures.efficiency import with_method
from analysis.measures.peaks import ABOVE_PCT, BANDWIDTH, COMPUTE, bounds, place, published_bound
from profiling.errors import UserError
from profiling.findings import Finding

TOP, TOP_OF_EACH = 25, 5  # kernels that the terminal shows of one run, of each of several
BY = {
    "kernel": Metric("kernel", "short name", text=True, key=True, longest=48),
    "class": Metric("class", "gemm, convolution, communication, ...", text=True, key=True),
    "operator": Metric("operator", "e.g. aten::convolution", text=True, key=True, longest=48),
    "layer": Metric("layer", "e.g. layer1.0.conv1", text=True, key=True, longest=48),
    "direction": Metric("direction", "fprop, bprop, update, loader or none", text=True, key=True),
}
METRICS = (
    Metric("calls_per_step", "launches per step", "calls/\nstep", places=1, priority=0),
    Metric("ms_per_step", "time per step", "ms/\nstep"),
    Metric("share_pct", "share of the time of all kernels", places=1),
    Metric("min_us", "shortest launch", table=False),
    Metric("mean_us", "mean launch", places=1, priority=0),
    Metric("max_us", "longest launch", table=False),
    Metric("gflop_per_step", "FLOPs per step, 1e9", "GFLOP/\nstep", table=False),
    Metric("mbyte_per_step", "bytes per step, 1e6", "MB/\nstep", table=False),
    Metric("flops_efficiency_pct", "FLOP rate divided by the datasheet's peak", "FLOPS\neff. %", places=2),
    Metric("bandwidth_efficiency_pct", "bandwidth over the datasheet's", table=False),
    Metric("flops_efficiency_of_measured_pct", "FLOP rate divided by the peak measured here",
           "of measured\nFLOPS %", places=2, priority=0),
    Metric("bandwidth_efficiency_of_measured_pct", "bandwidth divided by that measured here", table=False),
    *peaks.METRICS,
)  # fmt: skip


def with_kernels(study: Study) -> list[Source]:
    """The runs and PyProf tables that have kernels."""
    return [source for source in study.sources if has_kernels(source)]


def figures(
    study: Study, sources: Sequence[Source], by: Sequence[str] = DEFAULT_BY, direction: str | None = None
) -> pd.DataFrame:
    """The kernels of runs, largest first; none of a run without, and a finding says why.

    Columns: ``run``, ``by`` (of :data:`BY`; None: not recorded), :data:`METRICS`.
    """
    sums = kernel_sums(study, sources, [*by, *({"direction"} - set(by) if direction else ())])
    whole_ns = sums.groupby("run")["ns"].transform("sum")
    if direction:
        of_it = sums["direction"] == direction
        sums, whole_ns = sums[of_it], whole_ns[of_it]
    of_run = {source.id: source for source in sources}
    for name in by:
        known = sums[name].notna().groupby(sums["run"], sort=False).any()
        for run in known.index[~known]:
            study.note("not_recorded", of_run[run], what=f"{name} of kernels")
    bound = bounds(study, [of_run[run] for run in sums["run"].unique()]).loc[sums["run"]].set_axis(sums.index)
    steps, seconds = sums["steps"], sums["ns"] / 1e9
    # A copy, say, has no FLOPs to be efficient at.
    flops, moved = sums["flops"].where(sums["flops"] > 0), sums["bytes"].where(sums["bytes"] > 0)
    placed = sums[["placed_flops", "placed_bytes", "placed_ns"]].set_axis(["flops", "bytes", "ns"], axis=1)
    return pd.DataFrame({
        "run": sums["run"],
        **{name: sums[name] for name in by},
        "calls_per_step": sums["calls"] / steps,
        "ms_per_step": sums["ns"] / steps / 1e6,
        "share_pct": 100 * sums["ns"] / whole_ns,
        "min_us": sums["least_ns"] / 1e3,
        "mean_us": sums["ns"] / sums["calls"] / 1e3,
        "max_us": sums["most_ns"] / 1e3,
        "gflop_per_step": sums["flops"] / steps / 1e9,
        "mbyte_per_step": sums["bytes"] / steps / 1e6,
        "flops_efficiency_pct": 100 * flops / seconds / bound["flops_per_s"],
        "bandwidth_efficiency_pct": 100 * moved / seconds / bound["bytes_per_s"],
        "flops_efficiency_of_measured_pct": 100 * flops / seconds / bound["measured_flops_per_s"],
        "bandwidth_efficiency_of_measured_pct": 100 * moved / seconds / bound["measured_bytes_per_s"],
        **place(placed, bound),
    }).reset_index(drop=True)  # fmt: skip


_SHARES = {COMPUTE: "flops_efficiency_of_measured_pct", BANDWIDTH: "bandwidth_efficiency_of_measured_pct"}
_OF_WEIGHT_PCT = 1.0  # of the time of all kernels: what is shorter is timed too coarsely to judge a peak by
_UNCACHED_MB = 128.0  # that a launch moves at least to judge the bandwidth: smaller tensors stay in a cache


def exceeded(kernels: pd.DataFrame, by: Sequence[str] = DEFAULT_BY) -> list[Finding]:
    """A finding for each measured peak that kernels (:func:`figures`) exceed: it was measured too low."""
    found = []
    for bound, name in _SHARES.items():
        large = kernels["mbyte_per_step"] >= _UNCACHED_MB * kernels["calls_per_step"]
        judging = kernels[(kernels["share_pct"] >= _OF_WEIGHT_PCT) & (large | (bound == COMPUTE))]
        above = judging[judging[name] > ABOVE_PCT].sort_values(name, ascending=False)
        if len(above):
            longest = above.iloc[0]
            data = {
                "what": ", ".join(longest[list(by)].dropna()), "peak": f"measured {bound}",
                "most_pct": longest[name], "n": len(above), "of": int((judging[name] > 0).sum()),
            }  # fmt: skip
            found.append(Finding("above_peak", data=data))
    return found


SAME = 0.01  # two runs' times of a kernel that differ by less are one; scatter alone makes as much
_SAME_MS = 0.0005  # so are those whose difference is printed as 0
# From so many times the calls on, each of which is so many times shorter, they are of other launches.
_MANY_CALLS, _OTHER_DURATION = 4.0, 2.0
OTHER_CALLS = "other calls"
KINDS = ("slower", "faster", "more calls", "fewer calls", OTHER_CALLS, "new", "gone", "same")
ALL, AT_ONCE, NO_KERNEL, STEP = "all kernels", "run at once", "no kernel runs", "step"
# They add up to difference_ms, but for kernels of other calls.
_EFFECTS = (
    Metric("by_calls_ms", "part due to the number of calls", "by calls\nms", show=signed(3)),
    Metric("by_duration_ms", "part due to the duration per call", "by duration\nms", show=signed(3)),
)
CHANGES = (
    Metric("a_ms_per_step", "time per step in A", "A, ms/\nstep"),
    Metric("b_ms_per_step", "time per step in B", "B, ms/\nstep"),
    Metric("difference_ms", "B minus A", "B - A\nms", show=signed(3)),
    *_EFFECTS,
    Metric("change", "slower, faster, more, fewer or other calls, new, gone, same", text=True),
    Metric("a_calls_per_step", "launches per step in A", "A, calls/\nstep", places=1),
    Metric("b_calls_per_step", "launches per step in B", "B, calls/\nstep", places=1),
)
SUMMARY_METRICS = (
    Metric("change", "kinds of kernels, their sum, and what makes up the step", text=True),
    Metric("kernels", "number of kernels (or of groups by --by)", "number"),
    Metric("a_ms", "time per step in A", "A, ms/\nstep"),
    Metric("b_ms", "time per step in B", "B, ms/\nstep"),
    Metric("difference_ms", "B minus A", "B - A\nms", show=signed(3)),
    *_EFFECTS,
)


@dataclass(frozen=True)
class Side:
    """One of two runs: its kernels; of a step of a rank, in ms, the wall time and that in which any runs."""

    kernels: pd.DataFrame
    wall_ms: float | None = None
    busy_ms: float | None = None


def side_of(
    study: Study, source: Source, direction: str | None = None, by: Sequence[str] = DEFAULT_BY
) -> Side:
    """A run's side; of kernels of one direction, or without a place in time, there is no wall time."""
    kernels = figures(study, [source], by, direction)
    if direction is None and source.tables("batches") and len(kernels):
        steps = anatomy.means(anatomy_frame(study, [source]))
        sql = "select count(*) from read_parquet($kernels) where start_ns is null and duration_ns >= 0"
        unplaced = study.use(source, lambda one: query(study, one, sql, kernels=one.tables("kernels")))
        if len(steps) and unplaced is not None and not unplaced.to_numpy().any():
            wall_ms, idle_ms, waits_ms = steps[["wall_ms", "idle_ms", "loader_wait_ms"]].iloc[0]
            return Side(kernels, wall_ms, wall_ms - idle_ms - waits_ms)
    return Side(kernels)


def differences(a: pd.DataFrame, b: pd.DataFrame, by: Sequence[str] = DEFAULT_BY) -> pd.DataFrame:
    """A row a kernel (:func:`figures`) of either run, :data:`CHANGES`; those that differ most are first."""
    names = ["ms_per_step", "calls_per_step"]
    sides = [
        side[[*by, *names]].rename(columns={name: f"{of}_{name}" for name in names})
        for of, side in (("a", a), ("b", b))
    ]
    pairs = sides[0].merge(sides[1], "outer", on=list(by))
    one, other = pairs["a_ms_per_step"], pairs["b_ms_per_step"]
    difference = other.fillna(0.0) - one.fillna(0.0)
    both = effects(pairs["a_calls_per_step"], one, pairs["b_calls_per_step"], other)
    alone = one.isna() | other.isna()
    by_calls, by_duration = np.where(alone, difference, both[0]), np.where(alone, 0.0, both[1])
    # The larger of the two has the sign of the difference.
    calls = abs(by_calls) > abs(by_duration)
    kinds = (
        ("new", one.isna()),
        ("gone", other.isna()),
        ("same", abs(difference) <= np.maximum(SAME * one, _SAME_MS)),
        (OTHER_CALLS, np.isnan(by_calls)),
        ("more calls", calls & (by_calls > 0)),
        ("fewer calls", calls),
        ("slower", by_duration > 0),
    )
    pairs = pairs.assign(difference_ms=difference, by_calls_ms=by_calls, by_duration_ms=by_duration)
    pairs["change"] = chosen(kinds, "faster")
    order = abs(difference).sort_values(ascending=False, kind="stable").index
    return pairs.loc[order, [*by, *names_of(CHANGES)]].reset_index(drop=True)


def chosen(rules: Sequence[tuple[str, Any]], otherwise: str) -> np.ndarray:
    """The first name of which the rule (booleans, shape (rows,)) holds."""
    names, masks = zip(*rules, strict=True)
    return np.select([np.asarray(mask, bool) for mask in masks], list(map(np.array, names)), otherwise)


def effects(calls_a: Any, ms_a: Any, calls_b: Any, ms_b: Any) -> tuple[Any, Any]:
    """What other numbers of calls and other durations per call make of a kernel's difference, ms a step.

    Each is weighted by the mean of both sides (Marshall and Edgeworth's index numbers), so that the two add
    up to the difference. NaN: the calls are of other launches.
    """
    each_a, each_b = ms_a / calls_a, ms_b / calls_b
    with np.errstate(divide="ignore", invalid="ignore"):
        calls, each = np.divide(calls_b, calls_a), np.divide(each_b, each_a)
    shorter = (calls >= _MANY_CALLS) & (each <= 1 / _OTHER_DURATION)
    longer = (calls <= 1 / _MANY_CALLS) & (each >= _OTHER_DURATION) & (each_a > 0)
    known = np.where(shorter | longer, np.nan, 0.5)
    by_calls, by_duration = (calls_b - calls_a) * (each_a + each_b), (each_b - each_a) * (calls_a + calls_b)
    return by_calls * known, by_duration * known


def summary(pairs: pd.DataFrame, a: Side, b: Side) -> pd.DataFrame:
    """:data:`SUMMARY_METRICS` of the kinds, which add up to all kernels; and of these, to the step."""
    sides = {"a_ms": pairs["a_ms_per_step"].fillna(0.0), "b_ms": pairs["b_ms_per_step"].fillna(0.0)}
    every = pairs[["difference_ms", "by_calls_ms", "by_duration_ms"]].assign(kernels=1, **sides)
    kinds = every.groupby(pairs["change"]).sum(min_count=1)
    rows = {kind: kinds.loc[kind] for kind in KINDS if kind in kinds.index}
    rows[ALL] = every.sum(min_count=min(len(every), 1))
    wall, busy = (np.array([getattr(one, name) for one in (a, b)], float) for name in ("wall_ms", "busy_ms"))
    if np.isfinite(wall).all():
        at_once = busy - rows[ALL][["a_ms", "b_ms"]].to_numpy()
        for name, (one, other) in ((AT_ONCE, at_once), (NO_KERNEL, wall - busy), (STEP, wall)):
            rows[name] = pd.Series({"a_ms": one, "b_ms": other, "difference_ms": other - one})
    frame = pd.DataFrame(rows).T.rename_axis("change").reset_index()
    return frame.astype({"kernels": "Int64"})[names_of(SUMMARY_METRICS)]


# --- as the reference counted them --------------------------------------------------------------------

_KERNEL = Metric("kernel", "kernel name, as in PyProf", text=True, key=True, longest=48)
_DURATIONS = (
    _KERNEL,
    Metric("a_s", "sum of Sil(ns) over all launches with that direction in PyProf", "A\ns"),
    Metric("b_s", "the same in B, joined by name", "B\ns"),
)
_RATES = (
    _KERNEL,
    Metric("duration_ns", "sum of Sil(ns)"),
    Metric("flops", "sum of FLOPs"),
    Metric("flops_per_s", "flops divided by duration"),
    Metric("flops_efficiency_pct", "flops_per_s divided by the datasheet's peak"),
)


def _published(
    study: Study, other: Study | None, direction: str | None, durations: bool, top: int | None, title: str
) -> Answer:
    """Sums of ``Sil(ns)`` by name, of two tables joined on it; or FLOPS efficiencies of one table."""
    if durations:
        sides = [_by_name(one, direction)["ns"] / 1e9 for one in (study, other) if one is not None]
        frame = pd.concat(sides, axis=1, join="inner", keys=["a_s", "b_s"][: len(sides)]).round(6)
        metrics = _DURATIONS[: 1 + len(sides)]
    else:
        peak, _ = published_bound(study)
        names = _by_name(study, direction)
        names = names[names["ns"] > 0]
        rate = names["flops"] / names["ns"] * 1e9
        frame, metrics = pd.DataFrame({
            "duration_ns": names["ns"].astype(int),
            # To the digits that were published.
            "flops": [float(f"{value:.7g}") for value in names["flops"]],
            "flops_per_s": [float(f"{value:.7g}") for value in rate],
            "flops_efficiency_pct": (100 * rate / peak).round(6),
        }), _RATES  # fmt: skip
        frame = frame.assign(order=-rate).sort_values(["order", "kernel"])
    caption = f"A: {study.path.name}; B: {other.path.name}" if other is not None else ""
    frame = frame.reset_index()[names_of(metrics)]
    return Answer(frame.head(top or len(frame)), metrics, [_table(title, frame, metrics, top, caption)])


def _by_name(study: Study, direction: str | None) -> pd.DataFrame:
    source = _only(study)
    if source.kind != "pyprof":
        raise UserError(f"{study.path} is not a PyProf kernel table, which the published method needs")
    if direction not in (None, "fprop", "bprop"):
        raise UserError(f"PyProf has no direction {direction}; the published method has fprop and bprop")
    names = launches_by_name(study, [source])
    names = names[names["direction"] == direction] if direction else names
    if names.empty:
        raise study.nothing(f"{study.path} holds no kernel with direction {direction or 'known'}")
    sums = names.groupby("kernel")[["ns", "flops"]].sum()
    return sums.sort_values(["ns", "kernel"], ascending=[False, True])


COLUMNS = {
    "Columns: run, if there are several; kernel, class and direction, or the fields of --by; then:":
    (RUN, *BY.values(), *METRICS),
    "For two runs: the fields of --by, then (largest difference first):": CHANGES,
    "With --summary:": SUMMARY_METRICS,
    "Published method:": _DURATIONS,
    "Published method, --metric flops-efficiency, one file:": _RATES,
}  # fmt: skip


@measure(COLUMNS)
def kernels(
    study: Study, other: Study | None = None, by: Sequence[str] = (), direction: str | None = None,
    method: str = "corrected", metric: str = "duration", summary: bool = False, top: int | None = None,
) -> Answer:  # fmt: skip
    """The kernels of each run, or of two runs beside each other.

    ``other``: the study of B; both then hold one run. ``by``: of :data:`BY`; by default kernel, class and
    direction. ``metric``: duration, or flops-efficiency, by which they are ordered or compared; ``summary``:
    of two runs what their difference consists of; ``top``: so many rows of each run.
    """
    durations, published = metric == "duration", method == "published"
    if by and published:
        raise UserError("the published method groups kernels by name: omit --by")
    if summary and (other is None or published):
        raise UserError("--summary needs two runs, A and B, and the corrected method")
    if other is not None and not durations:
        raise UserError(f"--metric {metric} takes one run or table: omit B")
    title = with_method("Kernels", study, method) + (f", {direction}" if direction else "")
    by = list(by) or list(DEFAULT_BY)
    if published:
        answer = _published(study, other, direction, durations, top, title)
    elif other is None:
        answer = _of_each(study, by, direction, durations, top, title)
    else:
        answer = _of_two(study, other, by, direction, top, title)
    if other is not None:
        study.join(other)
    if summary and answer.parts:
        return Answer(answer.parts[0].table, SUMMARY_METRICS, answer.parts[:1])
    return answer


def _of_each(
    study: Study, by: Sequence[str], direction: str | None, durations: bool, top: int | None, title: str
) -> Answer:
    sources = with_kernels(study)
    if not sources:
        raise UserError(f"{study.path} has no kernels: needed is profile: torch, or a trace")
    frame = figures(study, sources, by, direction)
    if frame.empty:
        raise _nothing(study, direction)
    for finding in exceeded(frame, by):
        study.add(finding)
    if not durations:
        rate = frame["flops_efficiency_pct"].fillna(frame["flops_efficiency_of_measured_pct"]).fillna(0.0)
        place = frame.groupby("run", sort=False).ngroup()
        frame = frame.assign(place=place, rate=-rate).sort_values(["place", "rate"], kind="stable")
    runs, shown = frame.groupby("run", sort=False), [*(BY[name] for name in by), *METRICS]
    several, whole, parts = len(runs) > 1, study.without_steps(), []
    for run, of_run in runs:
        name = str(run) if several else title
        name += f" of {RECORDING}, as one step" if run in whole else ""
        parts.append(_table(name, of_run, shown, top or (TOP_OF_EACH if several else TOP)))
    return Answer(runs.head(top or len(frame)), [RUN, *shown] if len(sources) > 1 else shown, parts)


def _of_two(
    study: Study, other: Study, by: Sequence[str], direction: str | None, top: int | None, title: str
) -> Answer:
    one, two = _only(study), _only(other)
    a, b = side_of(study, one, direction, by), side_of(other, two, direction, by)
    for each, side in ((study, a), (other, b)):
        # A run without any kernel is not one of which all are gone; of a direction it may have none.
        if side.kernels.empty and (direction is None or (a.kernels.empty and b.kernels.empty)):
            raise _nothing(each, direction)
    fields = {name: (of, two.fields.get(name)) for name, of in one.fields.items()}
    fields["device"] = ", ".join(one.devices), ", ".join(two.devices)
    differ = ", ".join(f"{name} ({of_a}, {of_b})" for name, (of_a, of_b) in fields.items() if of_a != of_b)
    caption = f"A: {study.path.name}; B: {other.path.name}" + (f"\ndifferent: {differ}" if differ else "")
    pairs, metrics = differences(a.kernels, b.kernels, by), [*(BY[name] for name in by), *CHANGES]
    parts = [
        Part(f"{title}: the difference", summary(pairs, a, b), columns(SUMMARY_METRICS), caption),
        _table("Largest differences", pairs.head(top or TOP), metrics),
    ]
    return Answer(pairs.head(top or len(pairs)), metrics, parts)


def _only(study: Study) -> Source:
    sources = with_kernels(study)
    if len(sources) != 1:
        examples = ", ".join(source.id for source in sources[:3])
        raise UserError(f"runs with kernels in {study.path}: {len(sources)}; name one run ({examples})")
    return sources[0]


def _nothing(study: Study, direction: str | None) -> UserError:
    if not with_kernels(study):
        return UserError(no_result(study))
    which = f"of direction {direction}" if direction else "in profiled steps"
    why = "".join(f" ({note})" for note in study.notes()[:1])
    return UserError(f"{study.path} has no kernels {which}{why}")


def _table(
    title: str, rows: pd.DataFrame, metrics: Sequence[Metric], top: int | None = None, caption: str = ""
) -> Part:
    """The first rows, of the metrics that tables show and that are known of any."""
    first = rows.head(top or TOP)
    if len(first) < len(rows):
        caption = "\n".join(filter(None, [f"rows: {len(first)} of {len(rows)} (--top N)", caption]))
    return Part(title, first, filled([one for one in metrics if one.table], first), caption)
