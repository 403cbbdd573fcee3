"""Where does a batch go?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from analysis.measures.anatomy.divide import BESIDE, EVERY, PARTS, STAGES, WITHIN
from analysis.measures.anatomy.traces import Anatomy, anatomy_of, traces_of
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


def rows(study: Study, by: Sequence[str] = ()) -> Rows:
    """The answer's rows; with :data:`METRICS`.

    Raises:
        UserError: no run has attributed batches with kernels that have a place in time.
    """
    traces = traces_of(study, study.recorded)
    if "stage" in by:
        for trace in traces:
            if not trace.staged:
                study.note(
                    "what of a batch is forward, backward and update is not known: no row a stage",
                    trace.source,
                )
        traces = [trace for trace in traces if trace.staged]
    answer = [row for trace in traces for row in means(trace.source, anatomy_of(trace), by)]
    if not answer:
        raise study.nothing(
            f"{study.path} holds no attributed batch whose kernels have a place in time: "
            "it needs a run under a profiler (profile: torch)"
        )
    return answer


def means(source: Source, ranks: Anatomy, by: Sequence[str]) -> Rows:
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
