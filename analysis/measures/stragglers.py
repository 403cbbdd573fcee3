"""Stragglers: the lateness of each rank, with its verdict and cause."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import IN_RUN, NODE, OF_A_RUN, RANK, STEP, Metric
from analysis.display.output import Answer
from analysis.frames.anatomy import trace_of
from analysis.frames.matching import CAUSES
from analysis.frames.measure import measure
from analysis.frames.steps import series_of
from analysis.frames.study import UNKNOWN_HOST, Source, Study
from analysis.measures.anatomy import STAGES_SHOWN
from analysis.measures.lateness import (
    BY_COLLECTIVES,
    BY_STAGES,
    CHANCE,
    CLOCK,
    LATE_SHARE,
    NO,
    PARTS,
    STRAGGLER,
    TOO_FEW,
    Lateness,
    judge,
    of_collectives,
    of_stages,
)
from analysis.measures.points import point_fields
from jobs.run_fields import FACTOR, fields_of
from profiling.errors import UserError
from profiling.findings import Finding

METRICS = (
    RANK,
    NODE,
    Metric("told_by", "collectives, or stages (a lower bound)", "measured\nfrom", text=True, priority=0),
    Metric("steady_steps", "steps whose lateness is known, without warmup", "steps", priority=0),
    Metric("step_ms", "median step, no warmup; without steps: per collective", "job's\nstep ms", priority=0),
    Metric("lateness_ms", "others' wait for the rank; negative: it waited", "lateness, ms\nmedian", IN_RUN),
    Metric("mean_lateness_ms", "mean lateness over the steps", "mean\nms", significant=3, priority=2),
    Metric("late_pct", "share of steps in which it was late (2 % of a step or more)", places=0),
    Metric("p_value", "probability that equally fast ranks are late as often", "p", significant=2),
    Metric(
        "verdict",
        "straggler, may be chance, too few steps, short wait, clock, no, not seen",
        text=True,
        priority=2,
    ),
    Metric("cause", "of a straggler: loader, GPU (processor), node, or host", text=True, priority=2),
    Metric("cause_ms", "extra time due to the cause, in steps in which it was late", "longer\nms"),
)
STEP_METRICS = (
    RANK,
    NODE,
    STEP,
    Metric("lateness_ms", "time for which the other ranks waited for this one", "lateness", significant=3),
    Metric("behind_ms", "time by which it was behind, whether others waited or not", "behind", significant=3),
    *(
        Metric(
            f"{name}_longer_ms",
            f"time by which {STAGES_SHOWN[name][1]} took longer than on the other ranks",
            f"{STAGES_SHOWN[name][0]}\nlonger",
            significant=3,
        )
        for name in PARTS
    ),
    Metric(
        "late",
        "whether the others waited for 2 % of a step",
        show=lambda late: "late" if late else "",
        text=True,
    ),
)
COLUMNS = {"Columns: run, the fields of the run, repetition, then": METRICS, "With --by step:": STEP_METRICS}
NOT_SEEN = "not seen"  # as stages do not show all lateness
_CAPTION = "Lateness: how long the other ranks waited for this one; negative: it waited."


@measure(COLUMNS)
def stragglers(study: Study, by: str = "rank") -> Answer:
    """A row for each rank of the runs of several ranks; by ``step`` for each rank and step."""
    runs = of_several_ranks(study)
    if not runs:
        raise UserError(f"{study.path} holds no run of several ranks: a single rank has no stragglers")
    frame, _ = judged(study, runs, by_step=by == "step")
    if frame.empty:
        raise study.nothing(f"{study.path}: {why_unknown(study)}")
    if by != "step":
        return of_ranks(frame)
    title, columns = "Lateness by rank and step, ms", [*OF_A_RUN, *STEP_METRICS]
    shown = frame if len(frame) <= _MOST_STEPS else frame[frame["late"]].nlargest(_MOST_LATE, "lateness_ms")
    return Answer(frame, columns, title=title, caption=_CAPTION, notable=shown.sort_index())


def of_ranks(frame: pd.DataFrame) -> Answer:
    """The answer of ranks' rows."""
    return Answer(
        frame, [*OF_A_RUN, *METRICS], title="Lateness of each rank", caption=_CAPTION,
        verdict=verdict(frame), notable=notable_ranks(frame),
    )  # fmt: skip


def of_several_ranks(study: Study) -> list[Source]:
    return [source for source in study.of_kind("run", "trace") if source.ranks > 1]


class Judged(NamedTuple):
    """Rows with :data:`METRICS` or :data:`STEP_METRICS`, and the lateness of each run."""

    rows: pd.DataFrame
    lateness: dict[str, Lateness]


def judged(study: Study, runs: Sequence[Source], by_step: bool = False) -> Judged:
    """The rows of these runs."""

    def of_run(source: Source) -> tuple[Lateness, pd.DataFrame] | None:
        lateness = _lateness(study, source)
        if lateness is None:
            return None
        return lateness, _by_step(source, lateness) if by_step else _by_rank(study, source, lateness)

    known = {source.id: of for source, of in study.each(runs, of_run)}
    rows = pd.concat([frame for _, frame in known.values()] or [pd.DataFrame({"run": []}, dtype=object)])
    return Judged(study.with_fields(rows), {run: lateness for run, (lateness, _) in known.items()})


def _lateness(study: Study, source: Source) -> Lateness | None:
    """A run's lateness; None, and a finding, if its tables do not show it."""
    reason, lateness = _reason(source), None
    if not reason:
        series = None if source.without_steps else series_of(study, source)
        if source.fields["profile"] != "none":
            trace = trace_of(study, source)
            trace.note_unmatched(study)
            lateness = of_collectives(trace.matched, series) if trace.matched else None
        lateness = lateness or (of_stages(series) if series else None)
    if lateness is None:
        study.note("stragglers_unknown", source, reason=reason or _unsteady(source))
    return lateness


def _reason(source: Source) -> str:
    """Why a source has no lateness; empty: it may have."""
    if source.without_times:
        return "no step times"
    some = source.job is not None and len(source.tables("batches")) < source.ranks
    return "some ranks only" if some else ""


def _unsteady(source: Source) -> str:
    return "no step markers, nor collectives of all ranks" if source.without_steps else "no steady steps"


def why_unknown(study: Study) -> str:
    """Why no run of several ranks shows lateness."""
    sources = of_several_ranks(study)
    return f"no lateness ({next(filter(None, map(_reason, sources)), '') or _unsteady(sources[0])})"


def _by_step(source: Source, lateness: Lateness) -> pd.DataFrame:
    ranks, steps = lateness.late_ns.shape
    longer = {f"{name}_longer_ms": ns.ravel() / 1e6 for name, ns in lateness.parts_ns.items()}
    return pd.DataFrame({
        "run": source.id,
        "rank": np.repeat(np.arange(ranks), steps),
        "node": np.repeat(_nodes(source), steps),
        "step": np.tile(lateness.steps, ranks),
        "lateness_ms": lateness.late_ns.ravel() / 1e6,
        "behind_ms": lateness.behind_ns.ravel() / 1e6,
        "late": lateness.late.ravel(),
        **longer,
    })  # fmt: skip


def _by_rank(study: Study, source: Source, lateness: Lateness) -> pd.DataFrame:
    verdicts, p_values = judge(lateness, source.hosts)
    late_ms = lateness.late_ns / 1e6
    medians = np.array([estimates.median_in_run(of_rank) for of_rank in late_ms]).T
    frame = pd.DataFrame({
        "run": source.id,
        "rank": np.arange(len(late_ms)),
        "node": _nodes(source),
        "told_by": lateness.measured_from,
        "steady_steps": late_ms.shape[1],
        "step_ms": lateness.step_ns / 1e6,
        **dict(zip(("lateness_ms", "lateness_ms_low", "lateness_ms_high"), medians, strict=True)),
        "mean_lateness_ms": late_ms.mean(axis=1),
        "late_pct": 100 * lateness.late.mean(axis=1),
        "p_value": p_values,
        "verdict": verdicts,
    })  # fmt: skip
    named = np.flatnonzero(verdicts == STRAGGLER).tolist()
    if lateness.measured_from == BY_STAGES:  # in which a slow backward pass does not show
        frame["verdict"] = frame["verdict"].replace(NO, NOT_SEEN)
    # To read the kernels of all ranks takes long: only where a rank is named.
    caused_ns = caused_by_ranks(study, source) if named else None
    causes: list[tuple[str | None, float]] = [(None, np.nan)] * len(late_ms)
    for rank in named:
        device = "processor" if source.device_by_rank.get(rank, "") == "cpu" else "GPU"
        cause, ms = cause_of_rank(rank, lateness, caused_ns, device)
        mates = [other for other, name in enumerate(source.hosts) if name == source.hosts[rank]]
        of_node = 1 < len(mates) < source.ranks and set(mates) <= set(named)
        causes[rank] = "node" if of_node else cause, ms
    return frame.join(pd.DataFrame(causes, columns=["cause", "cause_ms"]))


def _nodes(source: Source) -> np.ndarray:
    return np.array([None if name == UNKNOWN_HOST else name for name in source.hosts], object)


# --- the cause ----------------------------------------------------------------------------------------

# A part is the cause if it makes up this share of the lateness or more.
MOST = 0.5


def caused_by_ranks(study: Study, source: Source) -> np.ndarray | None:
    """What each rank of a run made the others wait, by cause, ns a step, (ranks, causes).

    Of an unprofiled run that of a profiled one of its point; None: nobody recorded it.
    """
    if source.fields["profile"] != "none":
        return trace_of(study, source).caused_ns
    twins = [
        other
        for other in study.of_kind("run")
        if other.fields["profile"] != "none" and point_fields(other.fields) == point_fields(source.fields)
    ]
    of_twins = [trace.caused_ns for _, trace in study.each(twins, partial(trace_of, study))]
    return next((caused for caused in of_twins if caused is not None), None)


def cause_of_rank(
    rank: int, lateness: Lateness, caused_ns: np.ndarray | None, device: str
) -> tuple[str, float]:
    """The cause as far as one rank shows it, and by how much it took longer for that, ms.

    Args:
        caused_ns: what each rank made the others wait, by cause; None: not known.
        device: what it is called where it is the cause.
    """
    late_ns, when = lateness.late_ns[rank], lateness.late[rank]
    parts = {name: float(longer[rank, when].mean()) for name, longer in lateness.parts_ns.items()}
    if parts["load"] >= MOST * late_ns[when].mean():
        return "loader", parts["load"] / 1e6
    names = {"data": "loader", "compute": device, "host": "host", "copies": "copies"}
    of_rank = np.zeros(len(CAUSES)) if caused_ns is None else caused_ns[rank]
    largest = CAUSES[int(of_rank.argmax())]
    if largest in names and of_rank.sum() >= MOST * late_ns.mean():
        return names[largest], float(of_rank.max()) / 1e6
    if np.isnan(parts["load"]):  # without steps
        return f"{device} or host", float(late_ns[when].mean()) / 1e6
    longest = max(parts, key=lambda name: parts[name])
    return "host" if longest == "other" else f"{device} or host", parts[longest] / 1e6


# --- the verdict, and what tables show ------------------------------------------------------------------

# What the rows of a rank in several runs of one configuration, on as many ranks, agree in.
_OF_A_RANK = ("rank", *fields_of("workload", "size"))
LATE_RANKS = "late ranks"  # the cause that is no part of a step
_LATE_RUNS_SHARE = 0.5  # of the runs: a rank that is named in no more is not what slows the job
_MOST_NODES = 2  # that are named
_FEWEST_STEPS = 12  # of fewer no lateness can be shown to repeat
_MOST_RANKS = 24  # of all runs, all of which a table shows
_MOST_STEPS = 200  # rows by rank and step, all of which a table shows
_MOST_LATE = 50  # of more rows


def is_late(rows: Any) -> Any:
    """Of a row, or a frame of rows: whether the mean lateness of the rank is enough to count."""
    return rows["mean_lateness_ms"] >= LATE_SHARE * rows["step_ms"]


def _same(frame: pd.DataFrame, fields: Sequence[str] = _OF_A_RANK) -> pd.Series:
    """A number for all rows of a rank in one configuration (or by ``fields``), whichever run they are of."""
    names: list[Any] = [name for name in map(str, frame) if name in fields or name.startswith(FACTOR)]
    return frame.groupby(names or [np.zeros(len(frame))], dropna=False, sort=False).ngroup()


def foremost(frame: pd.DataFrame) -> Any:
    """The label of the row to show: a straggler's, else that of the latest rank; None: nobody is late.

    Of a rank's runs in one configuration, one with collectives: stages give a lower bound of the lateness,
    which in a long run may be the larger number.
    """
    share = frame["mean_lateness_ms"] / frame["step_ms"]
    late = frame["verdict"].isin((STRAGGLER, CHANCE, TOO_FEW)) & is_late(frame)
    named = frame["verdict"] == STRAGGLER
    candidates = named if named.any() else late
    if not candidates.any():
        return None
    first: Any = share[candidates].idxmax()
    rank = _same(frame)
    exact = late & (rank == rank[first]) & (frame["told_by"] == BY_COLLECTIVES)
    return share[exact].idxmax() if exact.any() else first


def verdict(frame: pd.DataFrame) -> list[Finding]:
    """The stragglers of each configuration, or suspects; else that there are none, or why that is unknown."""
    found = [late_ranks(of) for _, of in frame.groupby(_same(frame, _OF_A_RANK[1:]), sort=False)]
    if any(found) or (unsure := suspected(frame)):
        return [one for one in found if one] or unsure
    unclear = frame["verdict"].isin((TOO_FEW, CLOCK, NOT_SEEN)).groupby(frame["run"]).any()
    few = frame[frame["verdict"] == TOO_FEW]
    data = {"n": (~unclear).sum(), "of": len(unclear), "mean_lateness_ms": frame["mean_lateness_ms"].max()}
    if few["run"].nunique() == len(unclear):
        short = few["steady_steps"].max() < _FEWEST_STEPS
        data["reason"] = TOO_FEW if short else "lateness varies too much between steps"
    elif not (frame["told_by"] == BY_COLLECTIVES).any():  # stages do not show a slow backward pass
        data["reason"] = "slow backward passes show in profiled runs alone (--profile torch)"
    return [Finding("stragglers_unknown" if "reason" in data else "no_stragglers", data=data)]


def late_ranks(frame: pd.DataFrame, least_pct: float = 100 * LATE_SHARE) -> Finding | None:
    """The finding on ranks that are named in most of the runs that tell; None: there are none.

    Collectives tell by how much a rank is late, stages a lower bound of it. So either may name a rank, and
    where collectives were recorded they say by how much. Ranks are those of one cause, the latest first.

    Args:
        frame: rows of :mod:`analysis.stragglers`, of runs of one configuration and world size.
        least_pct: of a step, from which on a rank is late.
    """
    if frame.empty:
        return None
    exact = frame["told_by"] == BY_COLLECTIVES
    named = _often(frame[exact])
    named = _often(frame[~exact]) if named.empty else named
    # Stages show late batches, too: a rank whose loader is late in no run of theirs is late by chance.
    if not (by_stages := frame[~exact]).empty:
        seen = by_stages["rank"][by_stages["verdict"] == STRAGGLER]
        named = named[(named["cause"] != "loader") | named["rank"].isin(seen)]
    recorded = frame[exact & frame["rank"].isin(named["rank"])]
    measured = pd.concat([recorded, named[~named["rank"].isin(recorded["rank"])]])
    of_ranks = measured["rank"]
    shares_pct = (100 * measured["mean_lateness_ms"] / measured["step_ms"]).groupby(of_ranks).median()
    shares_pct = shares_pct[shares_pct >= least_pct].sort_values(ascending=False, kind="stable")
    if shares_pct.empty:
        return None
    causes = named.groupby("rank")["cause"].agg(lambda of: Counter(of).most_common(1)[0][0])
    first = shares_pct.index[0]
    wait_ms = float(measured["mean_lateness_ms"][of_ranks == first].median())
    in_runs = frame["run"][(frame["verdict"] == STRAGGLER) & (frame["rank"] == first)]
    # "GPU or host" goes with either.
    known = {rank: set(causes[rank].split(" or ")) for rank in shares_pct.index}
    alike = [rank for rank in shares_pct.index if known[rank] & known[first]]
    why = set.intersection(*(known[rank] for rank in alike)) or known[first]
    hosts = named[["rank", "node"]][named["rank"].isin(alike)].dropna().drop_duplicates()
    nodes: Any = [] if hosts["rank"].duplicated().any() else hosts["node"].unique()
    data = {
        "kind": LATE_RANKS, "cause": "straggler", "why": " or ".join(sorted(why)),
        "stragglers": [int(rank) for rank in alike],
        "node": ", ".join(nodes) if len(nodes) <= _MOST_NODES else "",
        "n": int(in_runs.nunique()), "of": int(frame["run"].nunique()),
        "wait_ns": 1e6 * wait_ms, "cost_ms": wait_ms, "cost_pct": float(shares_pct[first]),
        "from": "collectives" if first in set(recorded["rank"]) else "stages, at least",
    }  # fmt: skip
    return Finding("straggler_costs", data=data)


def _often(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that name a straggler, of ranks that are named in most of the runs."""
    named = frame[frame["verdict"] == STRAGGLER]
    times = named.groupby("rank")["rank"].transform("size")
    return named[times > _LATE_RUNS_SHARE * frame["run"].nunique()]


def suspected(frame: pd.DataFrame) -> list[Finding]:
    """Ranks that came late by enough in a traced run, or are named in few runs, which may be chance."""
    if frame.empty:
        return []
    may_be = (frame["told_by"] == BY_COLLECTIVES) & frame["verdict"].isin((CHANCE, TOO_FEW))
    unsure = frame[(may_be | (frame["verdict"] == STRAGGLER)) & is_late(frame)]
    data = {
        "suspects": sorted(set(unsure["rank"].tolist())), "n": unsure["run"].nunique(),
        "of": frame["run"].nunique(), "wait_ns": 1e6 * float(unsure["mean_lateness_ms"].max()),
    }  # fmt: skip
    return [Finding("straggler_suspected", data=data)] if len(unsure) else []


def notable_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """Of many ranks the stragglers, and as many of the latest as a table shows."""
    latest = frame.nlargest(_MOST_RANKS, "mean_lateness_ms").index
    return frame[(frame["verdict"] == STRAGGLER) | frame.index.isin(latest)]
