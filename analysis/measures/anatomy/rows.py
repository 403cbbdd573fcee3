"""Where does a batch go?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import (
    BATCH,
    OF_A_RUN,
    RANK,
    RUNS,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    picked,
    telling,
)
from analysis.display.numbers import digits
from analysis.display.terminal import Part
from analysis.measures.anatomy.divide import (
    BESIDE,
    EVERY,
    PARTS,
    STAGES,
    WITHIN,
    transfer_and_wait,
    windows_of,
)
from analysis.measures.anatomy.traces import RankTrace, RunTrace, trace_of
from analysis.measures.batches.overlap import NOTHING, Intervals
from analysis.results.query import note_left_out
from analysis.results.study import Source, Study

LEVELS = {
    "rank": RANK,
    "batch_index": BATCH,
    "stage": Metric(
        "stage", "load, forward, backward, update or end (from the update's end to the batch's)",
        text=True, key=True,
    ),
}  # fmt: skip
# A name of divide.EVERY -> header and meaning.
_PARTS = {
    "compute": ("compute", "kernels of the model run (of the host, on a CPU)"),
    "exposed_communication": (
        "exposed\ncomm.",
        "collectives run and no model kernel does; made of the next two; empty: of several ranks, and none "
        "was recorded, so that what they took is in idle",
    ),
    "exposed_transfer": ("exposed\ntransfer", "of it: since the last rank had come to the collective"),
    "exposed_wait": ("wait for\nranks", "of it: before that; this rank waits for a later one"),
    "exposed_loader": (
        "exposed\nloader",
        "the loader's kernels and copies run, or the next batch is waited for; made of the next three",
    ),
    "loader_kernels": ("loader's\nkernels", "of it: the loader's kernels"),
    "loader_copies": ("loader's\ncopies", "of it: the loader's copies"),
    "loader_wait": ("wait for\nthe loader", "of it: the wait for the next batch"),
    "exposed_copies": ("other\ncopies", "other copies and memory sets run"),
    "idle": ("idle", "nothing runs; on a GPU made of the next two"),
    "idle_host_bound": (
        "idle,\nhost-bound", "of it: nothing was launched that had not begun; the next launch was late"
    ),
    "idle_other": ("idle,\nother", "of it: something was; dependency, synchronisation, latency"),
    "overlapped_communication": (
        "overlapped\ncomm.", "beside the parts: collectives run, and kernels of the model do too"
    ),
    "overlapped_loader": (
        "overlapped\nloader", "beside the parts: the loader's kernels and copies run, and the model's do too"
    ),
}  # fmt: skip
METRICS = (
    Metric("attributed_batches", "how many batches (of all its ranks) a row is the mean of", "batches"),
    Metric("wall_ms", "the sum of the parts", "wall"),
    *(Metric(f"{name}_ms", meaning, head) for name, (head, meaning) in _PARTS.items()),
)
COLUMNS = {
    "Columns: id, the fields of the run, repetition, what --by names, then these. Where two things happen at "
    "once the first in this order has the time:": (*LEVELS.values(), *METRICS)
}
_COMMUNICATION = ("exposed_communication", "overlapped_communication")
# Idle time before kernels of unknown launches is not the host's: from so many on, that is said.
_UNKNOWN_SHARE = 0.01


def rows(study: Study, by: Sequence[str] = ()) -> Rows:
    """The answer's rows; with :data:`METRICS`.

    Raises:
        UserError: no run has attributed batches with kernels that have a place in time.
    """
    profiled = study.recorded
    answer: Rows = []
    for source, ranks in study.each(profiled, lambda source: anatomy_of(study, source)):
        if "stage" in by and not all(one.staged for one in trace_of(study, source).ranks):
            study.note("what of a batch is forward, backward and update is not known: no row a stage", source)
            continue
        answer += means(source, ranks, by)
    if not answer:
        raise study.nothing(
            f"{study.path} holds no attributed batch whose kernels have a place in time: "
            "it needs a run under a profiler (profile: torch)"
        )
    return answer


def anatomy_of(study: Study, source: Source) -> list[dict[str, Any]]:
    """Of each rank of a run its number and :func:`divided`; none where no attributed batch has kernels.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    trace = trace_of(study, source)
    _note(study, source, trace)
    recorded = [one for one in trace.ranks if len(one.batch_index)]
    transfers = transfers_of(trace, alone=source.ranks == 1)
    ranks: list[dict[str, Any]] = [
        {"rank": one.calls.rank, **divided(one, transfers.get(one.calls.rank))} for one in recorded
    ]
    if source.ranks > 1 and not any(one[f"{name}_ns"].any() for one in ranks for name in _COMMUNICATION):
        # Not 0 ms: the profiler did not see them, and what they took counts as idle.
        unseen = [f"{name}_ns" for name in _COMMUNICATION]
        return [{name: of for name, of in one.items() if name not in unseen} for one in ranks]
    return ranks


def transfers_of(trace: RunTrace, alone: bool) -> dict[int, Intervals]:
    """When each rank's collectives moved data: since the last rank had come; empty: not known of all.

    Args:
        alone: the run had one rank, which has no collective to make.
    """
    if not trace.has_collectives:
        return {one.rank: NOTHING for one in trace.calls if alone}  # else they were not recorded
    lasted = [np.asarray(one, float) for one in trace.matched.transfer_ns] if trace.matched else []
    if not lasted or any(np.isnan(one).any() for one in lasted):
        return {}
    return {
        one.rank: (one.end_ns - np.rint(ns).astype(np.int64), one.end_ns)
        for one, ns in zip(trace.calls, lasted, strict=True)
    }


def divided(one: RankTrace, transfers: Intervals | None = None) -> dict[str, np.ndarray]:
    """The anatomy of each stage of each recorded batch of one rank, as columns.

    Columns: ``batch_index, stage, wall_ns``, and ``<part>_ns`` of :data:`EVERY` that is known; five rows a
    batch.

    Args:
        transfers: see :func:`divide.transfer_and_wait`; None: not known.
    """
    begin, end = windows = windows_of(one.edges_ns)
    parts = dict(one.parts_ns)
    if transfers is not None:
        parts |= transfer_and_wait(windows, one.exposed, transfers)
    return {
        "batch_index": np.repeat(one.batch_index, len(STAGES)),
        "stage": np.tile(np.array(STAGES), len(one.batch_index)),
        "wall_ns": end - begin,
        **{f"{name}_ns": value for name, value in parts.items()},
    }


def means(source: Source, ranks: Sequence[Mapping[str, Any]], by: Sequence[str]) -> Rows:
    """The rows of a run: the mean of its batches, by rank, batch or stage where these are asked for."""
    import pandas as pd

    if not ranks:
        return []
    every = pd.concat([pd.DataFrame(columns) for columns in ranks], ignore_index=True)
    groups = every.groupby(list(by), sort=False, observed=True) if by else [((), every)]
    rows = []
    for values, group in groups:
        # What one of its ranks does not know is not known of the run.
        row = group.sum(numeric_only=True, skipna=False)
        # A batch has a window a stage.
        count = len(group) / (1 if "stage" in by else len(STAGES))
        rows.append({
            "id": source.id,
            **source.fields,
            "repetition": source.repetition,
            **dict(zip(by, values, strict=True)),
            "attributed_batches": round(count),
            "wall_ms": row["wall_ns"] / count / 1e6,
            **{f"{name}_ms": row.get(f"{name}_ns", math.nan) / count / 1e6 for name in EVERY},
        })  # fmt: skip
    return rows


def _note(study: Study, source: Source, trace: RunTrace) -> None:
    """Say what of a run's anatomy is not known, and of which batches none is."""
    ranks = [one for one in trace.ranks if len(one.batch_index)]
    if not trace.has_collectives and trace.ranks and source.ranks > 1:
        study.note(f"its trace of {source.world_size} ranks holds no collective", source)
    for text in trace.unmatched:
        study.note(text, source)
    if not ranks:
        study.note("no attributed batch with kernels", source)
    attributed = sum(one.attributed for one in trace.ranks)
    note_left_out(study, source, attributed - sum(len(one.batch_index) for one in ranks), attributed)
    silent = [one for one in ranks if one.activities and one.unknown_launches == one.activities]
    if silent:
        study.note(
            f"when kernels were launched is not recorded on {len(silent)} of {len(ranks)} "
            "ranks: its idle time is not split into host-bound and other",
            source,
        )
    count, unknown = (sum(getattr(one, name) for one in ranks) for name in ("activities", "unknown_launches"))
    if not silent and unknown > _UNKNOWN_SHARE * count:
        study.note(
            f"{unknown} of {count} activities have no launch that is known: idle time before "
            "these counts as other, not host-bound",
            source,
        )


def columns_of(by: Sequence[str] = ()) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*OF_A_RUN, *(LEVELS[name] for name in by), *METRICS]


def parts(rows: Rows, by: Sequence[str] = ()) -> list[Part]:
    """The terminal's tables: the parts of a batch, and what some of them are made of."""
    keys = [*columns(fields(telling(rows))), *(LEVELS[name].column() for name in by)]
    runs = [RUNS.column()] if any(row.get("runs", 1) > 1 for row in rows) else []
    whole = columns(METRICS, "attributed_batches", "wall_ms")
    beside = columns(METRICS, *(f"{name}_ms" for name in BESIDE))
    within = _shares(name for names in WITHIN.values() for name in names)
    whole_columns = [*keys, *runs, *whole, *_shares(PARTS), *beside]
    made_of = "What communication, loader and idle time are made of, ms"
    return [
        Part("Anatomy of a batch, ms (mean of attributed batches)", rows, whole_columns, _CAPTION),
        Part(made_of, rows, [*keys, *within], _caption(rows)),
    ]


def _shares(names: Iterable[str]) -> list[Column]:
    """Columns of parts, each beside its share of the wall time: ``12.34 (10 %)``."""

    def of(metric: Metric) -> Column:
        def printed(row: Mapping[str, Any]) -> str:
            took, wall = row[metric.name], row["wall_ms"]
            if not wall or took is None or math.isnan(took):
                return "-"
            shown = f"{took:.2f}" if wall >= 1 else digits(took, 3)
            return f"{shown} ({100 * took / wall:.0f} %)"

        return metric.column(printed=printed)

    return [of(metric) for metric in picked(METRICS, *(f"{name}_ms" for name in names))]


_CAPTION = (
    "Parts add up to the wall time of a batch while the profiler records it; overlapped ones are beside it."
)


def _caption(rows: Rows) -> str:
    text = (
        "Transfer: since the last rank had come to the collective; wait: before that, for later ranks.\n"
        "Host-bound: all that was launched had begun, so the next launch was late. Other: some had not."
    )
    if any(math.isnan(row["idle_host_bound_ms"] or math.nan) for row in rows):
        text += (
            "\n- : not known. On a CPU nothing is launched, so host-bound means nothing there; on a GPU the "
            "notes say why."
        )
    return text
