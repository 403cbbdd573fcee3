"""Who is slow?"""

from collections.abc import Sequence
from typing import Any

from analysis.display.metrics import Rows
from analysis.measures.anatomy.traces import recorded_only, trace_of
from analysis.measures.batches.series import series_of
from analysis.measures.lateness import causes as late_causes
from analysis.measures.lateness.lateness import STRAGGLER, Lateness, judge, of_collectives, of_stages
from analysis.results.source import UNKNOWN_HOST, Source, no_steps
from analysis.results.study import Study
from analysis.statistics import inside_run
from profiling.errors import UserError
from profiling.tables import rank_of


def runs_of(study: Study) -> list[Source]:
    """The runs of several ranks.

    Raises:
        UserError: there is none.
    """
    runs = [source for source in study.of_kind("run", "trace") if source.ranks > 1]
    if not runs:
        raise UserError(f"{study.path} holds no run of several ranks: a single rank has no stragglers")
    return runs


def lateness_of(study: Study, source: Source) -> Lateness | None:
    """A run's lateness; None, and a note says so, if its tables do not tell.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    if source.without_times:
        study.note(no_steps(source, in_note=True), source)
        return None
    if missing := _lacks_ranks(source):
        study.note(missing, source)
        return None
    if source.without_steps:
        study.note("no markers separate its steps: lateness is not available", source)
        return None
    series = series_of(study, source)
    lateness = None
    if source.fields["profile"] != "none":
        trace = trace_of(study, source)
        for text in trace.unmatched:
            study.note(text, source)
        lateness = of_collectives(trace.calls, trace.matched, series) if trace.matched else None
    lateness = lateness or of_stages(series)
    if lateness is None:
        study.note("no consecutive steps without warmup: lateness is not available", source)
    return lateness


def rows(study: Study, by_step: bool = False) -> Rows:
    """The answer's rows; the columns: :mod:`analysis.measures.lateness.straggler_table`.

    Raises:
        UserError: no run has several ranks with batches.
    """
    answer: Rows = []
    for source, ranks in study.each(runs_of(study), lambda source: _of_run(study, source, by_step)):
        answer += [
            {"run": source.id, **source.fields, "repetition": source.repetition, **row} for row in ranks
        ]
    if not answer:
        raise study.nothing(f"{study.path}: {why_none(study)}")
    return answer


def _lacks_ranks(source: Source) -> str:
    """What is said of a job whose ranks are not all there; empty: they are."""
    there = [path.parent for path in source.tables("batches")]
    if source.job is None or len(there) >= source.ranks:
        return ""
    only = recorded_only([rank_of(directory) for directory in there], source.ranks)
    return f"lateness needs the traces of all ranks, and {only}"


def why_none(study: Study) -> str:
    """Why no run of several ranks shows lateness."""
    runs = [
        source
        for source in study.of_kind("run", "trace")  # not those taken out
        if source.ranks > 1 and not source.without_times
    ]
    lacking = [missing for source in runs if (missing := _lacks_ranks(source))]
    if lacking and len(lacking) == len(runs):
        return lacking[0]
    return "no run of several ranks has steps that show lateness"


def _of_run(study: Study, source: Source, by_step: bool) -> Rows | None:
    lateness = lateness_of(study, source)
    if lateness is None:
        return None
    return rows_by_step(source, lateness) if by_step else rows_by_rank(study, source, lateness)


def rows_by_rank(study: Study, source: Source, lateness: Lateness) -> Rows:
    """A row a rank of a run."""
    judged = judge(lateness, source.hosts)
    # To read the kernels of all ranks takes long: only where a rank is named.
    named = any(verdict == STRAGGLER for verdict, _ in judged)
    kernels = late_causes.kernel_times(study, source) if named else None
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
    kernels: late_causes.KernelTimes | None,
) -> Rows:
    """The same of what was read.

    Args:
        judged: of each rank its verdict, and how probable it is by chance.
        kernels: how the ranks compare in the same kernels; None: not known.
    """
    nodes = source.hosts
    named = [rank for rank, (verdict, _) in enumerate(judged) if verdict == STRAGGLER]
    ranks = []
    for rank, (verdict, probability) in enumerate(judged):
        row = {"rank": rank, "node": _host(nodes[rank]), **_figures(lateness, rank)}
        row |= {"p_value": probability, "verdict": verdict, "cause": None, "evidence": None}
        if verdict == STRAGGLER:
            node = _late_node(rank, nodes, named)
            device = source.device_by_rank.get(rank, "")
            profiled = source.fields["profile"] != "none"
            cause = late_causes.cause_of(rank, lateness, kernels, device, node, nodes[rank], profiled)
            row |= {"cause": cause.cause, "evidence": cause.evidence}
        ranks.append(row)
    return ranks


def _host(name: str) -> str | None:
    """The host's name; None where the traces do not say it."""
    return None if name == UNKNOWN_HOST else name


def _late_node(rank: int, nodes: Sequence[str], named: Sequence[int]) -> list[int]:
    """The ranks of this rank's node, if there are several, all named, and other nodes are there."""
    mates = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    return mates if 1 < len(mates) < len(nodes) and set(mates) <= set(named) else []


def _figures(lateness: Lateness, rank: int) -> dict[str, Any]:
    late = lateness.late_ns[rank] / 1e6
    median = inside_run.of_median(late)
    return {
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
    }
