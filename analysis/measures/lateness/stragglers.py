"""Who is slow?

The columns are explained in analysis/stragglers.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.display.terminal import Column, Rows, digits, with_interval
from analysis.measures.anatomy.collectives import matched_of, ranks_of
from analysis.measures.batches.series import series_of
from analysis.measures.lateness import causes as late_causes
from analysis.measures.lateness.lateness import (
    BY_STAGES,
    LATE_SHARE,
    PARTS,
    Lateness,
    of_collectives,
    of_stages,
)
from analysis.measures.lateness.verdicts import CHANCE, STRAGGLER, TOO_FEW, judge
from analysis.results.clocks import Calls
from analysis.results.study import Source, Study
from analysis.statistics import estimates
from jobs.run import Run
from profiling.errors import UserError

COLUMNS = (
    "rank", "node", "told_by", "judged_batches", "batch_ms", "lateness_ms", "lateness_ms_low",
    "lateness_ms_high", "mean_lateness_ms", "late_pct", "last_pct", "held_up_ms", "chance", "verdict",
    "cause", "evidence",
)  # fmt: skip
BATCH_COLUMNS = (
    "rank", "node", "batch_index", "lateness_ms", "behind_ms", "late",
    *(f"{name}_longer_ms" for name in PARTS),
)  # fmt: skip


def runs_of(study: Study) -> list[Source]:
    """The runs of several ranks.

    Raises:
        UserError: there is none.
    """
    found = [source for source in study.of_kind("run") if source.ranks > 1]
    if not found:
        raise UserError(f"{study.path} holds no run of several ranks: nobody can be late where one works")
    return found


def lateness_of(study: Study, source: Source) -> Lateness | None:
    """A run's lateness; None, and a note says so, if its tables do not tell.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    series = series_of(study, source)
    found = None
    if source.fields["profile"] != "none":
        calls: list[Calls] = ranks_of(study, source)
        if any(len(one.kind) for one in calls):
            matched = matched_of(study, source, calls)
            found = of_collectives(calls, matched, series) if matched is not None else None
    found = found or of_stages(series)
    if found is None:
        study.note("no steady batch after another, so who was late is not known", source)
    return found


def rows(study: Study, by_batch: bool = False) -> Rows:
    """The answer's rows; the columns: analysis/stragglers.py.

    Raises:
        UserError: no run has several ranks with batches.
    """
    made: Rows = []

    def rows_of_run(source: Source) -> Rows | None:
        lateness = lateness_of(study, source)
        if lateness is None:
            return None
        return rows_by_batch(source, lateness) if by_batch else rows_of(study, source, lateness)

    for source, ranks in study.each(runs_of(study), rows_of_run):
        made += [{"id": source.id, **source.fields, "repetition": source.repetition, **row} for row in ranks]
    if not made:
        raise study.nothing(f"{study.path} holds no run of several ranks whose batches tell who was late")
    return made


def rows_by_batch(source: Source, lateness: Lateness) -> Rows:
    """A row a rank and batch of a run, with :data:`BATCH_COLUMNS`."""
    nodes = source.hosts
    return [
        {
            "rank": rank,
            "node": nodes[rank],
            "batch_index": int(index),
            "lateness_ms": lateness.late_ns[rank, place] / 1e6,
            "behind_ms": lateness.behind_ns[rank, place] / 1e6,
            "late": bool(lateness.late[rank, place]),
            **{f"{name}_longer_ms": over[rank, place] / 1e6 for name, over in lateness.parts_ns.items()},
        }
        for rank in range(len(lateness.late_ns))
        for place, index in enumerate(lateness.batch_index)
    ]


def rows_of(study: Study, source: Source, lateness: Lateness) -> Rows:
    """A row a rank of a run, with :data:`COLUMNS`."""
    nodes = source.hosts
    judged = judge(lateness, nodes)
    named = [rank for rank, (verdict, _) in enumerate(judged) if verdict == STRAGGLER]
    kernels = late_causes.kernel_times(study, source) if named else None
    devices = [report.device for report in source.manifest.ranks] if source.manifest else []
    made = []
    for rank, (verdict, probability) in enumerate(judged):
        row = {"rank": rank, "node": nodes[rank], **_figures(lateness, rank)}
        row |= {"chance": probability, "verdict": verdict, "cause": None, "evidence": None}
        if verdict == STRAGGLER:
            node = _late_node(rank, nodes, named)
            device = devices[rank] if rank < len(devices) else ""
            cause = late_causes.cause_of(rank, lateness, kernels, device, node, nodes[rank])
            row |= {"cause": cause.cause, "evidence": cause.evidence}
        made.append(row)
    return made


def _late_node(rank: int, nodes: Sequence[str], named: Sequence[int]) -> list[int]:
    """The ranks of this rank's node, if there are several, all named, and other nodes are there."""
    mates = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    return mates if 1 < len(mates) < len(nodes) and set(mates) <= set(named) else []


def _figures(lateness: Lateness, rank: int) -> dict[str, Any]:
    late = lateness.late_ns[rank] / 1e6
    median = estimates.inside_run(late)
    return {
        "told_by": lateness.told_by,
        "judged_batches": len(late),
        "batch_ms": lateness.batch_ns / 1e6,
        "lateness_ms": median.value,
        "lateness_ms_low": median.low,
        "lateness_ms_high": median.high,
        "mean_lateness_ms": float(late.mean()),
        "late_pct": 100 * float(lateness.late[rank].mean()),
        # Where ranks come together none is last.
        "last_pct": 100 * float((late > np.delete(lateness.late_ns, rank, axis=0).max(axis=0) / 1e6).mean()),
        "held_up_ms": float(lateness.alone_ns[rank].mean()) / 1e6,
    }


def sentences(made: Rows) -> list[str]:
    """The named ranks in words, a line each; one line if there is none, and what speaks against late ones."""
    named = [row for row in made if row["verdict"] == STRAGGLER]
    if not named:
        late = [row for row in made if row["verdict"] in (CHANCE, TOO_FEW)]
        if not late:
            return ["No rank is named: none was late by its own doing and again and again."]
        most = max(late, key=lambda row: row["mean_lateness_ms"] / row["batch_ms"])
        why = (
            "so few batches do not show that it repeats"
            if most["verdict"] == TOO_FEW
            else "equal ranks are late as often by chance"
        )
        return [
            f"No rank is named. {most['id']}: rank {most['rank']} ({most['node']}) was late by "
            f"{digits(most['mean_lateness_ms'], 3)} ms a batch (mean of {most['judged_batches']}), but {why}."
        ]
    return [
        f"{row['id']}: rank {row['rank']} ({row['node']}) is late by "
        f"{'at least ' if row['told_by'] == BY_STAGES else ''}{digits(row['mean_lateness_ms'], 3)} ms "
        f"a batch, in {row['late_pct']:.0f} % of the batches. "
        f"Likely cause: {row['cause']}: {row['evidence']}."
        for row in named
    ]


CAPTION = (
    "Lateness: how long the others (their median) waited for the rank; below 0: it waited. Alone: how long\n"
    f"all others waited for this rank only. Late: by {100 * LATE_SHARE:g} % of a batch or more. Told by "
    "collectives where a\nprofiler recorded them, else by the stages of the batches (where a slow backward "
    "pass is not seen)."
)


def keys(made: Rows) -> list[Column]:
    def get(name: str) -> Any:
        return lambda row: row.get(name)

    names = [
        name for name in (*Run.model_fields, "repetition") if len({str(row.get(name)) for row in made}) > 1
    ]
    return [
        *(Column(name, get(name), left=isinstance(made[0][name], str), key=True) for name in names),
        Column("rank", get("rank"), key=True),
        Column("node", get("node"), left=True, key=True),
    ]


def shown(made: Rows) -> list[Column]:
    """The terminal's columns."""

    def get(name: str) -> Any:
        return lambda row: row.get(name)

    return [
        *keys(made),
        Column("told by", get("told_by"), left=True),
        Column("batches", get("judged_batches")),
        Column("batch\nms", get("batch_ms")),
        Column(
            "lateness, ms\nmedian [95 %]",
            lambda row: with_interval(row["lateness_ms"], row["lateness_ms_low"], row["lateness_ms_high"]),
        ),
        Column("mean\nms", lambda row: digits(row["mean_lateness_ms"], 3)),
        Column("late\n%", lambda row: f"{row['late_pct']:.0f}"),
        Column("last\n%", lambda row: f"{row['last_pct']:.0f}"),
        Column("alone\nms", lambda row: digits(row["held_up_ms"], 3)),
        Column("chance", lambda row: digits(row["chance"], 2)),
        Column("verdict", get("verdict"), left=True),
        Column("cause", get("cause"), left=True),
    ]
