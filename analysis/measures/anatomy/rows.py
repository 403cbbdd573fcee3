"""Where does a batch go?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

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
from analysis.measures.anatomy.collectives import matched_of, ranks_of
from analysis.measures.anatomy.divide import (
    BESIDE,
    EVERY,
    NOTHING,
    PARTS,
    STAGES,
    WITHIN,
    edges_of,
    launch_known,
    of_rank,
)
from analysis.measures.batches import recorded
from analysis.measures.batches.overlap import Intervals
from analysis.results.query import note_untimed, note_without_kernels, reading
from analysis.results.study import Source, Study
from profiling import tables

if TYPE_CHECKING:
    import pandas as pd

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
_KERNEL_COLUMNS = ["start_ns", "duration_ns", "class", "direction", "device", "launch_ns"]
# Idle time before kernels of unknown launches is not the host's: from so many on, that is said.
_UNKNOWN_SHARE = 0.01


def frame(study: Study) -> "pd.DataFrame":
    """The anatomy of every attributed batch: columns of ``divide.of_rank``, with ``id`` and ``rank``, in ns.

    Raises:
        UserError: no run has attributed batches with kernels that have a place in time.
    """
    import pandas as pd

    profiled = [source for source in study.of_kind("run") if source.fields["profile"] != "none"]
    windows = [
        {"id": source.id, **columns}
        for source, ranks in study.each(profiled, lambda source: of_source(study, source))
        for columns in ranks
    ]
    if not windows:
        raise study.nothing(
            f"{study.path} holds no attributed batch whose kernels have a place in time: "
            "it needs a run under a profiler (profile: torch)"
        )
    return pd.concat([pd.DataFrame(columns) for columns in windows], ignore_index=True)


def of_source(study: Study, source: Source) -> list[dict[str, Any]]:
    """The same of one run, a rank each; none, and a note says so, where it has no attributed kernels.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    kept: dict[str, list[dict[str, Any]]] = study.kept("anatomies")
    if source.id not in kept:
        with reading(source):
            kept[source.id] = _of_run(study, source)
    return kept[source.id]


def _of_run(study: Study, source: Source) -> list[dict[str, Any]]:
    ranks: list[dict[str, Any]] = []
    launches = []
    transfers = _transfers(study, source)
    without = everything = 0
    for directory in sorted(source.path.glob("rank_*")):
        if not tables.table_path(directory, "kernels").is_file():
            continue  # what was found when the run was read says so
        batches = recorded.attributed(study, source, directory)
        kernels = _kernels(directory)
        if batches["attributed"].any() and len(kernels["start_ns"]):
            busy = recorded.with_kernels(batches, kernels)
            without, everything = without + int((~busy).sum()), everything + len(busy)
            if not busy.any():
                continue
            batches = {name: column[busy] for name, column in batches.items()}
            rank = int(directory.name.rpartition("_")[2])
            ranks.append({"rank": rank, **of_rank(batches, kernels, transfers.get(rank))})
            launches.append(_launches(batches, kernels))
    if source.ranks > 1 and not any(one[f"{name}_ns"].any() for one in ranks for name in _COMMUNICATION):
        # Not 0 ms: the profiler did not see them, and what they took counts as idle.
        ranks = [
            {name: of for name, of in one.items() if name.removesuffix("_ns") not in _COMMUNICATION}
            for one in ranks
        ]
    if not ranks:
        study.note("no attributed batch with kernels", source)
    note_without_kernels(study, source, without, everything)
    _note_unknown(study, source, launches)
    note_untimed(study, source)
    return ranks


def _transfers(study: Study, source: Source) -> dict[int, Intervals]:
    """When each rank's collectives moved data: since the last rank had come; empty: not known of all."""
    ranks = ranks_of(study, source)
    if not any(len(one.kind) for one in ranks):
        if ranks and source.ranks > 1:
            study.note(f"its trace of {source.world_size} ranks holds no collective", source)
        return {one.rank: NOTHING for one in ranks if source.ranks == 1}  # else they were not recorded
    matched = matched_of(study, source, ranks)
    lasted = [np.asarray(one, float) for one in matched.transfer_ns] if matched is not None else []
    if not lasted or any(np.isnan(one).any() for one in lasted):
        return {}
    return {
        one.rank: (one.end_ns - np.rint(ns).astype(np.int64), one.end_ns)
        for one, ns in zip(ranks, lasted, strict=True)
    }


def _launches(batches: dict[str, np.ndarray], kernels: dict[str, np.ndarray]) -> tuple[int, int]:
    """(activities of the device from the first attributed batch to the last, those without known launch)."""
    edges = edges_of({name: column[batches["attributed"]] for name, column in batches.items()})
    start = kernels["start_ns"]
    mine = (kernels["device"] >= 0) & (start >= edges.min()) & (start < edges.max())
    return int(mine.sum()), int((mine & ~launch_known(kernels)).sum())


def _note_unknown(study: Study, source: Source, launches: Sequence[tuple[int, int]]) -> None:
    """Say of which ranks (activities, those of unknown launch) idle time is not split, or not surely."""
    silent = [count for count, unknown in launches if count and unknown == count]
    if silent:
        study.note(
            f"when kernels were launched is not recorded on {len(silent)} of {len(launches)} "
            "ranks: its idle time is not split into host-bound and other",
            source,
        )
    count, unknown = sum(count for count, _ in launches), sum(unknown for _, unknown in launches)
    if not silent and unknown > _UNKNOWN_SHARE * count:
        study.note(
            f"{unknown} of {count} activities have no launch that is known: idle time before "
            "these counts as other, not host-bound",
            source,
        )


def _kernels(directory: Path) -> dict[str, np.ndarray]:
    """The kernels of a rank that have a place in time."""
    table = tables.read(directory, "kernels", _KERNEL_COLUMNS)
    timed = pc.greater_equal(table["duration_ns"], 0)
    table = table.filter(pc.and_(pc.is_valid(table["start_ns"]), timed))
    columns = {name: table[name] for name in _KERNEL_COLUMNS}
    for name in ("device", "launch_ns"):
        columns[name] = pc.fill_null(columns[name], -1)
    return {name: values.to_numpy() for name, values in columns.items()}


def rows(study: Study, by: Sequence[str] = ()) -> Rows:
    """The answer's rows; with :data:`METRICS`."""
    every = frame(study)
    fields = {source.id: source.fields for source in study.of_kind("run")}
    repetitions = {source.id: source.repetition for source in study.of_kind("run")}
    answer = []
    for values, group in every.groupby(["id", *by], sort=False, observed=True):
        # What one of its ranks does not know is not known of the run.
        row, run_id = group.sum(numeric_only=True, skipna=False), str(values[0])
        # A batch has a window a stage.
        count = len(group) / (1 if "stage" in by else len(STAGES))
        answer.append({
            "id": run_id,
            **fields[run_id],
            "repetition": repetitions[run_id],
            **dict(zip(by, values[1:], strict=True)),
            "attributed_batches": round(count),
            "wall_ms": row["wall_ns"] / count / 1e6,
            **{f"{name}_ms": row.get(f"{name}_ns", math.nan) / count / 1e6 for name in EVERY},
        })  # fmt: skip
    return answer


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
