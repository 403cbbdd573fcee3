"""Find stragglers: the lateness of each rank with its verdict and cause, and which ranks a table shows."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from analysis.display.metrics import (
    IN_RUN,
    NODE,
    OF_A_RUN,
    RANK,
    STEP,
    TELLING,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    telling,
)
from analysis.frames.anatomy import trace_of
from analysis.frames.steps import series_of
from analysis.frames.study import UNKNOWN_HOST, Source, Study
from analysis.measures.lateness import (
    BY_COLLECTIVES,
    BY_STAGES,
    CHANCE,
    CLOCK,
    LATE_SHARE,
    PARTS,
    STRAGGLER,
    TOO_FEW,
    KernelTimes,
    Lateness,
    cause_of,
    judge,
    kernel_times,
    of_collectives,
    of_stages,
)
from analysis.statistics import inside_run
from jobs.run_fields import fields_of, own_names
from profiling.errors import UserError
from profiling.findings import Finding

METRICS = (
    RANK,
    NODE,
    Metric("told_by", "collectives, or stages (a lower bound)", "measured\nfrom", text=True, priority=0),
    Metric("steady_steps", "steps whose lateness is known, without warmup", "steps", priority=0),
    Metric("step_ms", "median step duration of the job without warmup", priority=0),
    Metric(
        "lateness_ms", "wait of the others for this rank; negative: it waited", "lateness, ms\nmedian", IN_RUN
    ),
    Metric("mean_lateness_ms", "mean lateness over the steps", "mean\nms", significant=3, priority=2),
    Metric("late_pct", "share of steps in which it was late (2 % of a step or more)", places=0),
    Metric("last_pct", "share of steps in which it came last", places=0, priority=0),
    Metric("held_up_ms", "time per step in which all waited for this rank", "all wait,\nms", significant=3),
    Metric("p_value", "probability that equally fast ranks are late as often", "p", significant=2),
    Metric(
        "verdict", "straggler, may be chance, too few steps, short wait, clock, no", text=True, priority=2
    ),
    Metric("cause", "of a straggler: loader, GPU (processor), node, or host", text=True, priority=2),
    Metric("evidence", "measurements behind the cause", text=True),
)
STEP_METRICS = (
    RANK,
    NODE,
    STEP,
    Metric("lateness_ms", "time for which the other ranks waited for this one", "lateness", significant=3),
    Metric("behind_ms", "time by which it was behind, waited for or not", "behind", significant=3),
    Metric(
        "late",
        "whether the others waited for 2 % of a step",
        show=lambda late: "late" if late else "",
        text=True,
    ),
    *(
        Metric(
            f"{name}_longer_ms",
            f"time by which its {name} stage took longer than on the other ranks",
            f"{name}\nlonger",
            significant=3,
        )
        for name in PARTS
    ),
)
COLUMNS = {"Columns: run, the fields of the run, repetition, then": METRICS, "With --by step:": STEP_METRICS}


def lateness_of(study: Study, source: Source) -> Lateness | None:
    """A run's lateness; None, and a finding, if its tables do not tell."""
    reason, lateness = _reason(source), None
    if not reason:
        series = series_of(study, source)
        if source.fields["profile"] != "none":
            trace = trace_of(study, source)
            trace.note_unmatched(study)
            lateness = of_collectives(trace.calls, trace.matched, series) if trace.matched else None
        lateness = lateness or of_stages(series)
    if lateness is None:
        study.note("stragglers_unknown", source, reason=reason or "no steady steps")
    return lateness


def _reason(source: Source) -> str:
    """Why a source has no lateness; empty: it may have."""
    if source.without_times:
        return "no step times"
    if source.job is not None and len(source.tables("batches")) < source.ranks:
        return "some ranks only"
    return "no step markers" if source.without_steps else ""


def rows(study: Study, by_step: bool = False) -> Rows:
    """A row for each rank (and step) of the runs of several ranks; with :data:`METRICS`.

    Raises:
        UserError: no run has several ranks with batches.
    """
    runs = [source for source in study.of_kind("run", "trace") if source.ranks > 1]
    if not runs:
        raise UserError(f"{study.path} holds no run of several ranks: a single rank has no stragglers")

    def of_run(source: Source) -> Rows | None:
        lateness = lateness_of(study, source)
        if lateness is None:
            return None
        return rows_by_step(source, lateness) if by_step else rows_by_rank(study, source, lateness)

    answer = [
        {"run": source.id, **source.fields, "repetition": source.repetition, **row}
        for source, ranks in study.each(runs, of_run)
        for row in ranks
    ]
    if not answer:
        raise study.nothing(f"{study.path}: {why_none(study)}")
    return answer


def why_none(study: Study) -> str:
    """Why no run of several ranks shows lateness."""
    reasons = [_reason(source) for source in study.of_kind("run", "trace") if source.ranks > 1]
    return f"no lateness ({next(filter(None, reasons), 'no steady steps')})"


def rows_by_rank(study: Study, source: Source, lateness: Lateness) -> Rows:
    """A row a rank of a run."""
    judged = judge(lateness, source.hosts)
    # To read the kernels of all ranks takes long: only where a rank is named.
    named = any(verdict == STRAGGLER for verdict, _ in judged)
    kernels = kernel_times(study, source) if named else None
    return rows_of(source, lateness, judged, kernels)


def rows_by_step(source: Source, lateness: Lateness) -> Rows:
    """A row for each rank and step of a run."""
    nodes = source.hosts
    return [
        {
            "rank": rank,
            "node": _host(nodes[rank]),
            "step": int(index),
            "lateness_ms": lateness.late_ns[rank, place] / 1e6,
            "behind_ms": lateness.behind_ns[rank, place] / 1e6,
            "late": bool(lateness.late[rank, place]),
            **{f"{name}_longer_ms": over[rank, place] / 1e6 for name, over in lateness.parts_ns.items()},
        }
        for rank in range(len(lateness.late_ns))
        for place, index in enumerate(lateness.batch_index)
    ]


def rows_of(
    source: Source,
    lateness: Lateness,
    judged: Sequence[tuple[str, float | None]],
    kernels: KernelTimes | None,
) -> Rows:
    """The rows of what was read.

    Args:
        judged: of each rank its verdict, and how probable it is by chance.
        kernels: how the ranks compare in the same kernels; None: not known.
    """
    nodes = source.hosts
    named = [rank for rank, (verdict, _) in enumerate(judged) if verdict == STRAGGLER]
    ranks = []
    for rank, (verdict, probability) in enumerate(judged):
        cause = evidence = None
        if verdict == STRAGGLER:
            mates = [other for other, node in enumerate(nodes) if node == nodes[rank]]
            whole = 1 < len(mates) < len(nodes) and set(mates) <= set(named)
            device = source.device_by_rank.get(rank, "")
            cause, evidence = cause_of(rank, lateness, kernels, device, mates if whole else [], nodes[rank])
        late = lateness.late_ns[rank] / 1e6
        median = inside_run.of_median(late)
        ranks.append({
            "rank": rank,
            "node": _host(nodes[rank]),
            "told_by": lateness.told_by,
            "steady_steps": len(late),
            "step_ms": lateness.batch_ns / 1e6,
            "lateness_ms": median.value,
            "lateness_ms_low": median.low,
            "lateness_ms_high": median.high,
            "mean_lateness_ms": float(late.mean()),
            "late_pct": 100 * float(lateness.late[rank].mean()),
            "last_pct": 100 * float(lateness.last[rank].mean()),
            "held_up_ms": float(lateness.alone_ns[rank].mean()) / 1e6,
            "p_value": probability,
            "verdict": verdict,
            "cause": cause,
            "evidence": evidence,
        })  # fmt: skip
    return ranks


def _host(name: str) -> str | None:
    return None if name == UNKNOWN_HOST else name


# --- the verdict --------------------------------------------------------------------------------------

# What two runs' rows of one rank, in one configuration on as many ranks, agree in.
_OF_A_RANK = ("rank", *fields_of("workload", "size"))


def is_late(row: Mapping[str, Any]) -> bool:
    """Whether the others waited for a rank for long enough, in the mean over the steps."""
    return bool(row["mean_lateness_ms"] >= LATE_SHARE * row["step_ms"])


def _share(row: dict[str, Any]) -> float:
    return float(row["mean_lateness_ms"] / row["step_ms"])


def foremost(rows: Rows) -> dict[str, Any] | None:
    """Of several runs' ranks the one to show: a straggler, else the latest; None: nobody is late.

    Of a rank's runs in one configuration that whose collectives tell the whole lateness: stages give a lower
    bound of it, which in a long run may be the larger number.
    """
    ever = [row for row in rows if row["verdict"] in (STRAGGLER, CHANCE, TOO_FEW) and is_late(row)]
    named = [row for row in rows if row["verdict"] == STRAGGLER]
    latest = max(named or ever, key=_share, default=None)
    if latest is None:
        return None
    same = [row for row in ever if _alike(row, latest)]
    return max([row for row in same if row.get("told_by") == BY_COLLECTIVES] or [latest], key=_share)


def _alike(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(row.get(name) == other.get(name) for name in (*_OF_A_RANK, *own_names(row, other)))


def verdict(rows: Rows, name: Callable[[dict[str, Any]], str] = itemgetter("run")) -> list[Finding]:
    """A finding for each straggler; else one that none was found, in how many of the runs.

    Args:
        name: what a row's run is called.
    """
    stragglers = [row for row in rows if row["verdict"] == STRAGGLER]
    if not stragglers:
        runs = {row["run"] for row in rows}
        few = {row["run"]: row["steady_steps"] for row in rows if row["verdict"] == TOO_FEW}
        told = runs - few.keys() - {row["run"] for row in rows if row["verdict"] == CLOCK}
        most = max(row["mean_lateness_ms"] for row in rows)
        data = {"n": len(told), "of": len(runs), "mean_lateness_ms": most}
        if len(few) == len(runs):
            data |= {"reason": "too few steps", "steps": max(few.values())}
            return [Finding("stragglers_unknown", data=data)]
        return [Finding("no_stragglers", data=data)]
    found = []
    for row in stragglers:
        same = [
            one
            for one in rows
            if one["verdict"] not in (TOO_FEW, CLOCK)
            and _alike(one, row)
            and one.get("profile") == row.get("profile")
        ]
        data = {name: row[name] for name in ("node", "mean_lateness_ms", "late_pct", "cause", "evidence")}
        data |= {"n": sum(one["verdict"] == STRAGGLER for one in same), "of": len(same)}
        found.append(Finding("straggler", run=name(row), rank=row["rank"], data=data))
    return found


# --- the table ----------------------------------------------------------------------------------------

_LATENESS = "Lateness: how long the other ranks waited for this one; negative: it waited."
_LOWER_BOUND = f"{_LATENESS} Measured from stages it is a lower bound."
_MOST_RANKS = 24  # of all runs, all of which a table shows
_LATEST, _EARLIEST = 8, 3  # of more ranks
_MOST_STEPS = 200  # rows by rank and step, all of which a table shows
_MOST_LATE = 50  # of more rows


def caption(rows: Rows) -> str:
    """What lateness is, where its sign or its source needs it."""
    return _LOWER_BOUND if any(row.get("told_by") == BY_STAGES for row in rows) else _LATENESS


def columns_of(by_step: bool = False) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*OF_A_RUN, *(STEP_METRICS if by_step else METRICS)]


def shown(rows: Rows, by_step: bool = False) -> list[Column]:
    """The tables' columns: nobody has a cause or a p where no rank is late."""
    if by_step:
        wanted = sorted(STEP_METRICS, key=lambda metric: metric.name == "late")
    else:
        wanted = [metric for metric in METRICS if metric.name != "evidence"]
    return filled(columns([*fields(telling(rows)), *wanted]), rows)


def notable_ranks(rows: Rows, all_by: str = "--wide") -> tuple[Rows, str]:
    """Of many ranks those that a reader looks for: late ones, the latest of each configuration, the extremes.

    Args:
        all_by: what shows all ranks.

    Returns:
        (their rows in order, how many others there are; empty: there are none).
    """
    if len(rows) <= _MOST_RANKS:
        return rows, ""
    order = sorted(rows, key=lambda row: -row["mean_lateness_ms"])
    late = [row for row in order if is_late(row)][:_MOST_RANKS]
    some = [row for row in rows if row["verdict"] == STRAGGLER] + late
    if len({row["run"] for row in rows}) == 1:
        some += [*order[:_LATEST], *order[-_EARLIEST:]]
    apart = telling(rows, TELLING)
    first = {str([row.get(name) for name in apart]): row for row in reversed(order)}
    return _kept(rows, [*some, *first.values()], all_by)


def latest_steps(rows: Rows) -> tuple[Rows, str]:
    """Of many rows by rank and step, those in which a rank was latest."""
    if len(rows) <= _MOST_STEPS:
        return rows, ""
    late = sorted((row for row in rows if row["late"]), key=lambda row: -row["lateness_ms"])
    return _kept(rows, late[:_MOST_LATE])


def _kept(rows: Rows, some: Rows, all_by: str = "--wide") -> tuple[Rows, str]:
    there = {id(row) for row in some}
    kept = [row for row in rows if id(row) in there]
    left = len(rows) - len(kept)
    return kept, f"{left:,} of {len(rows):,} rows not shown ({all_by})." if left else ""
