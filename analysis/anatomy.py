"""Where does a batch go?

    python -m analysis.anatomy DIR                       a row a run: mean of its attributed batches, ms
    python -m analysis.anatomy DIR --by rank,stage       a row a rank and stage; also batch_index

The wall time of each attributed batch of each rank is split into parts that add up to it, to the nanosecond.
Where two things happen at once the first in this order has the time:

    compute_ms                 kernels of the model run (of the host, on a CPU)
    exposed_communication_ms   collectives run and no model kernel does
    exposed_loader_ms          the loader's kernels and copies run, or the next batch is waited for
    exposed_copies_ms          other copies and memory sets run
    idle_ms                    nothing runs

and beside them, inside other parts: overlapped_communication_ms and overlapped_loader_ms. ``wall_ms`` is the
sum of the parts; ``attributed_batches`` is how many batches (of all its ranks) a row is the mean of.
``stage`` is load, forward, backward, update or end (from the update's end to the batch's).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import output
from analysis.load import load
from analysis.overlap import Intervals, covered, union
from analysis.study import Source, Study
from analysis.terminal import Answer, Column, Part, Rows
from jobs.run import Run
from profiling import tables
from profiling.errors import UserError, did_you_mean, run_command

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("compute", "exposed_communication", "exposed_loader", "exposed_copies", "idle")
BESIDE = ("overlapped_communication", "overlapped_loader")
STAGES = ("load", "forward", "backward", "update", "end")
LEVELS = ("rank", "batch_index", "stage")
_BATCH_COLUMNS = ["batch_index", "start_ns", *(f"{stage}_ns" for stage in STAGES), "attributed"]
_KERNEL_COLUMNS = ["start_ns", "duration_ns", "class", "direction"]


@dataclass(frozen=True)
class Activities:
    """What runs on one rank, as any intervals in ns; they may overlap within and between kinds."""

    compute: Intervals
    communication: Intervals
    loader: Intervals
    copies: Intervals


def split(windows: Intervals, activities: Activities) -> dict[str, np.ndarray]:
    """Each window's time by part, in ns: :data:`PARTS`, which add up to the window, and :data:`BESIDE`.

    Args:
        windows: ``[start, end)`` of each window, in ns, shape (windows,).
    """
    in_order = (activities.compute, activities.communication, activities.loader, activities.copies)
    parts: dict[str, np.ndarray] = {}
    before: Intervals = (np.array([], np.int64), np.array([], np.int64))
    taken = np.zeros(len(windows[0]), np.int64)
    for name, activity in zip(PARTS, in_order, strict=False):
        before = union(np.concatenate([before[0], activity[0]]), np.concatenate([before[1], activity[1]]))
        reached = covered(windows, before)
        parts[name] = reached - taken
        taken = reached
    parts["idle"] = windows[1] - windows[0] - taken
    for name, activity in (("communication", activities.communication), ("loader", activities.loader)):
        whole = covered(windows, union(*activity))
        parts[f"overlapped_{name}"] = whole - parts[f"exposed_{name}"]
    return parts


def activities_of(kernels: dict[str, np.ndarray], waits: Intervals) -> Activities:
    """The activities of a rank from its ``kernels`` table and the times that it waited for its loader.

    Args:
        kernels: columns ``start_ns, duration_ns, class, direction``; rows without a start are left out.
    """
    kind, direction = kernels["class"], kernels["direction"]
    start, end = kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"]
    loader = (kind == "loader") | (direction == "loader")
    copies = np.isin(kind, ("memcpy", "memset")) & ~loader
    communication = (kind == "communication") & ~loader
    compute = ~(loader | copies | communication)

    def pick(mask: np.ndarray) -> Intervals:
        return start[mask], end[mask]

    loading = pick(loader)
    both = (np.concatenate([loading[0], waits[0]]), np.concatenate([loading[1], waits[1]]))
    return Activities(pick(compute), pick(communication), both, pick(copies))


def of_rank(batches: dict[str, np.ndarray], kernels: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The anatomy of each stage of each attributed batch of one rank, as columns.

    Columns: ``batch_index, stage, wall_ns``, and ``<part>_ns`` of :data:`PARTS` and :data:`BESIDE`; five rows
    a batch, in order.
    """
    mine = {name: column[batches["attributed"]] for name, column in batches.items()}
    edges = _edges(mine)
    windows = (edges[:, :-1].ravel(), edges[:, 1:].ravel())
    parts = split(windows, activities_of(kernels, (edges[:, 0], edges[:, 1])))
    return {
        "batch_index": np.repeat(mine["batch_index"], len(STAGES)),
        "stage": np.tile(np.array(STAGES), len(edges)),
        "wall_ns": windows[1] - windows[0],
        **{f"{name}_ns": value for name, value in parts.items()},
    }


def _edges(batches: dict[str, np.ndarray]) -> np.ndarray:
    """The six instants of each batch, in ns, shape (batches, 6)."""
    edges = np.empty((len(batches["start_ns"]), len(STAGES) + 1), np.int64)
    edges[:, 0] = batches["start_ns"]
    for place, stage in enumerate(STAGES[:-1]):
        edges[:, place + 1] = edges[:, place] + batches[f"{stage}_ns"]
    edges[:, -1] = batches["end_ns"]
    # Rounding may put the end of the last stage a nanosecond after the batch's.
    edges[:, -2] = np.minimum(edges[:, -2], edges[:, -1])
    return edges


# --- of a study ---------------------------------------------------------------------------------------


def frame(study: Study) -> "pd.DataFrame":
    """The anatomy of every attributed batch: columns of :func:`of_rank`, with ``id`` and ``rank``, in ns.

    Raises:
        UserError: no run has attributed batches with kernels that have a place in time.
    """
    import pandas as pd

    found = []
    for source in study.of_kind("run"):
        if source.fields["profile"] != "none":
            found += _of_run(study, source)
    if not found:
        raise UserError(
            f"{study.path} holds no attributed batch whose kernels have a place in time: "
            "it needs a run under a profiler (profile: torch)"
        )
    return pd.concat([pd.DataFrame(columns) for columns in found], ignore_index=True)


def _of_run(study: Study, source: Source) -> list[dict[str, Any]]:
    found = []
    try:
        for directory in sorted(source.path.glob("rank_*")):
            if not tables.table_path(directory, "kernels").is_file():
                study.find(f"{source.id}: {directory.name} has no kernels")
                continue
            batches = _columns(directory, "batches", _BATCH_COLUMNS)
            kernels = _columns(directory, "kernels", _KERNEL_COLUMNS)
            if batches["attributed"].any() and len(kernels["start_ns"]):
                rank = int(directory.name.rpartition("_")[2])
                found.append({"id": source.id, "rank": rank, **of_rank(batches, kernels)})
    except UserError as error:
        study.fail(source, str(error))
        return []
    if not found:
        study.find(f"{source.id}: no attributed batch with kernels")
    return found


def _columns(directory: Any, name: str, columns: list[str]) -> dict[str, np.ndarray]:
    import pyarrow.compute as pc

    table = tables.read(directory, name, columns)
    if name == "kernels":
        table = table.filter(pc.and_(pc.is_valid(table["start_ns"]), pc.is_valid(table["duration_ns"])))
    return {column: table[column].to_numpy() for column in columns}


# --- the answer ---------------------------------------------------------------------------------------


def rows(study: Study, by: Sequence[str] = ()) -> Rows:
    """The answer's rows; see this file's docstring."""
    every = frame(study)
    fields = {source.id: source.fields for source in study.of_kind("run")}
    made = []
    for values, group in every.groupby(["id", *by], sort=False, observed=True):
        row, run_id = group.sum(numeric_only=True), str(values[0])
        # A batch has a window a stage.
        count = len(group) / (1 if "stage" in by else len(STAGES))
        made.append({
            "id": run_id,
            **fields[run_id],
            **dict(zip(by, values[1:], strict=True)),
            "attributed_batches": round(count),
            "wall_ms": row["wall_ns"] / count / 1e6,
            **{f"{name}_ms": row[f"{name}_ns"] / count / 1e6 for name in (*PARTS, *BESIDE)},
        })  # fmt: skip
    return made


def columns_of(by: Sequence[str]) -> list[str]:
    """The columns of :func:`rows`."""
    parts = [f"{name}_ms" for name in (*PARTS, *BESIDE)]
    return ["id", *Run.model_fields, *by, "attributed_batches", "wall_ms", *parts]


def main() -> int:
    parser = output.parser("analysis.anatomy", __doc__)
    parser.add_argument(
        "--by", default="", metavar="LEVEL,...", help="rank, batch_index, stage [a row a run]"
    )
    arguments = parser.parse_args()
    by = _levels(arguments.by)
    study = load(arguments.path, arguments.peaks)
    made = rows(study, by)
    part = Part("Anatomy of a batch, ms (mean of attributed batches)", made, shown(made, by), _CAPTION)
    return output.emit(Answer(made, columns_of(by), parts=[part]), study, arguments)


_CAPTION = (
    "Parts add up to the wall time of a batch while the profiler records it; overlapped ones are beside it."
)


def _levels(text: str) -> list[str]:
    levels = [name.strip() for name in text.split(",") if name.strip()]
    for name in levels:
        if name not in LEVELS:
            raise UserError(f"--by: unknown level {name!r}{did_you_mean(name, LEVELS)}")
    return levels


def shown(made: Rows, by: Sequence[str] = ()) -> list[Column]:
    """The terminal's columns."""

    def get(name: str) -> Any:
        return lambda row: row[name]

    def share(name: str) -> Any:
        return lambda row: (
            f"{row[name]:.2f} ({100 * row[name] / row['wall_ms']:.0f} %)" if row["wall_ms"] else "-"
        )

    varying = [name for name in Run.model_fields if len({str(row.get(name)) for row in made}) > 1]
    heads = {"exposed_communication": "exposed\ncomm.", "exposed_loader": "exposed\nloader",
             "exposed_copies": "other\ncopies", "overlapped_communication": "overlapped\ncomm.",
             "overlapped_loader": "overlapped\nloader"}  # fmt: skip
    return [
        *(Column(name, get(name), left=isinstance(made[0][name], str)) for name in (*varying, *by)),
        Column("batches", get("attributed_batches")),
        Column("wall", get("wall_ms")),
        *(Column(heads.get(name, name), share(f"{name}_ms")) for name in PARTS),
        *(Column(heads[name], get(f"{name}_ms")) for name in BESIDE),
    ]


if __name__ == "__main__":
    run_command(main)
