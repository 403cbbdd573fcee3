"""How long does a batch take?

    python -m analysis.batches DIR

A row a run. A step of a job ends when its slowest rank does, so the job's batch is the maximum over ranks.
Columns: ``id``, the fields of the run, ``repetition``, then

    batches, warmup            batches done, and how many at the head were off the steady level (dropped)
    batch_ms (_low, _high)     median of the steady ones, ms, and its 95 % interval inside the run (it says
                               nothing of other runs; empty: too few batches, or too much alike)
    p95_ms, p99_ms, max_ms     percentiles and maximum, ms
    images_per_s               images of all ranks over the job's time for the steady batches
    load_ms, forward_ms, backward_ms, update_ms   medians of the stages (mean over ranks), ms
    attributed_ms              median of the batches that the profiler recorded, ms
    startup_s                  start of the process to the first batch (slowest rank), s

For TAU tables of the reference (both the 50-batch and the 1-batch runs of a configuration): ``tau_batch_ms``,
its published estimate of the batch duration, ms.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import output, published, statistics, tau
from analysis.efficiency import sortable
from analysis.load import load
from analysis.study import Source, Study
from analysis.terminal import Answer, Column, Part, Rows, digits, header, with_interval
from jobs.run import ID_FIELDS, Run
from profiling import tables
from profiling.errors import UserError, run_command

if TYPE_CHECKING:
    import pandas as pd

STAGES = ("load", "forward", "backward", "update")
FIGURES = (
    "batches", "warmup", "batch_ms", "batch_ms_low", "batch_ms_high", "p95_ms", "p99_ms", "max_ms",
    "images_per_s", "load_ms", "forward_ms", "backward_ms", "update_ms", "attributed_ms", "startup_s",
)  # fmt: skip
TAU_COLUMNS = ("tau_batch_ms",)
_DRIFT = 0.2  # of the level, from the first third of a run to the last
_FEWEST_TO_DRIFT = 12
_LONGER = 1.01  # than a batch its stages cannot be, but by rounding
_READ = ["batch_index", "start_ns", "load_ns", "forward_ns", "backward_ns", "update_ns", "end_ns", "images",
         "attributed"]  # fmt: skip


@dataclass(frozen=True)
class Series:
    """A run's batches, in order; arrays have one element a batch.

    Attributes:
        rank_ns: duration of each rank's batch (ranks x batches).
        images: of all ranks.
        rank_stages: name -> duration in ns of each rank's (ranks x batches).
        attributed: whether the profiler recorded it (on any rank).
        warmup: how many batches at the head are off the steady level.
    """

    rank_ns: np.ndarray
    images: np.ndarray
    rank_stages: dict[str, np.ndarray]
    attributed: np.ndarray
    warmup: int

    @property
    def stages(self) -> dict[str, np.ndarray]:
        """name -> duration in ns, mean over ranks."""
        return {name: of_ranks.mean(axis=0) for name, of_ranks in self.rank_stages.items()}

    @property
    def step_ns(self) -> np.ndarray:
        """Duration of the job's batch, which ends when its slowest rank does: the maximum over ranks."""
        return self.rank_ns.max(axis=0)

    @property
    def steady(self) -> np.ndarray:
        """Which batches a figure of the run's own speed is made of.

        Not the warm-up, and not those that the profiler slowed down by recording, if there are others.
        """
        after = np.arange(len(self.step_ns)) >= self.warmup
        unrecorded = after & ~self.attributed
        return unrecorded if unrecorded.any() else after

    @property
    def steady_ns(self) -> np.ndarray:
        return self.step_ns[self.steady]

    @property
    def pace_ns(self) -> np.ndarray:
        """The steady batches of the rank that took longest for all of them: their sum is the job's time.

        The sum of the slowest batches is more than that where ranks are late by turns.
        """
        of_ranks = self.rank_ns[:, self.steady]
        return of_ranks[np.argmax(of_ranks.sum(axis=1))]

    @property
    def images_per_s(self) -> float:
        """Images of all ranks over the job's time for the steady batches."""
        return float(self.images[self.steady].sum() / self.pace_ns.sum() * 1e9)


def series_of(study: Study, source: Source) -> Series | None:
    """A run's batches; None, and the run is taken out, if a rank's table is missing, damaged or wrong."""
    try:
        found = _series(source)
    except UserError as error:
        study.fail(source, str(error))
        return None
    longer = int((sum(found.rank_stages.values()) > _LONGER * found.rank_ns).sum())
    if longer:
        study.find(
            f"{source.id}: {longer} of {found.rank_ns.size} batches of its ranks are shorter than their "
            "stages together: what is said of stages is wrong"
        )
    return found


def _series(source: Source) -> Series:
    count = source.fields["batches"]
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _READ}
    for rank in range(source.ranks):
        read = tables.read(tables.rank_directory(source.path, rank), "batches", _READ)
        if read.num_rows != count:
            raise UserError(f"rank {rank} recorded {read.num_rows} of {count} batches")
        order = np.argsort(read["batch_index"].to_numpy(), kind="stable")
        if any(read[name].null_count for name in _READ):
            raise UserError(f"rank {rank} recorded batches without their times")
        for name in _READ:
            columns[name].append(read[name].to_numpy()[order])
    rank_ns = np.stack(columns["end_ns"]) - np.stack(columns["start_ns"])
    if (rank_ns <= 0).any():
        raise UserError("a batch in its tables ends before it starts")
    if not np.sum(columns["images"]):
        raise UserError("its batches hold no images")
    attributed = np.any(columns["attributed"], axis=0)
    stages = {name: np.stack(columns[f"{name}_ns"]) for name in STAGES}
    # What the profiler records is slower; that is no end of the warm-up.
    step = rank_ns.max(axis=0)
    own = step[: np.argmax(attributed)] if attributed.any() and not attributed[0] else step
    return Series(rank_ns, np.sum(columns["images"], axis=0), stages, attributed, statistics.warmup(own))


def all_series(study: Study) -> dict[str, Series]:
    """The batches of every run that has them, by id; runs whose tables cannot be read are taken out."""
    found = {source.id: series_of(study, source) for source in study.of_kind("run")}
    known = {name: series for name, series in found.items() if series is not None}
    _find_unsettled(study, known)
    return known


def _find_unsettled(study: Study, series: dict[str, Series]) -> None:
    """Say which runs reach no steady level: of these a median, or images/s, is that of no pace they keep."""
    unrecorded = {name: one for name, one in series.items() if not one.attributed.any()}
    never = [name for name, one in unrecorded.items() if one.warmup and one.warmup >= len(one.step_ns) // 2]
    if never:
        study.find(
            f"{len(never)} of {len(unrecorded)} runs never settle (e.g. {never[0]}): half of their batches "
            "are dropped as warm-up, and the rest may drift; give them more batches"
        )
    drifting = [
        (name, change) for name, one in series.items() if (change := drift(one.steady_ns)) is not None
    ]
    if drifting:
        name, change = max(drifting, key=lambda one: abs(np.log(one[1])))
        study.find(
            f"{len(drifting)} of {len(series)} runs drift (most {name}: the last third of its batches takes "
            f"{change:.2f} times as long as the first): a median, or images/s, is of no level that they keep"
        )


def drift(steady_ns: np.ndarray) -> float | None:
    """The last third of a series over its first, by medians, if that is a change of level; else None.

    A change counts from a fifth on, if the middle halves of the two thirds are apart.
    """
    if len(steady_ns) < _FEWEST_TO_DRIFT:
        return None
    third = len(steady_ns) // 3
    first, last = (np.percentile(part, [25, 50, 75]) for part in (steady_ns[:third], steady_ns[-third:]))
    apart = first[0] > last[2] or last[0] > first[2]
    change = float(last[1] / first[1])
    return change if apart and abs(change - 1) > _DRIFT else None


def rows(study: Study) -> Rows:
    """A row a run, or a configuration of TAU tables; see this file's docstring."""
    made = []
    for name, series in all_series(study).items():
        source = next(source for source in study.sources if source.id == name)
        made.append(_row(source, series))
    made += _tau_rows(study)
    if not made:
        raise study.nothing(
            f"{study.path} holds no durations of batches: PyProf tables have none, "
            "TAU tables only where 50-batch and 1-batch runs of a configuration are there"
        )
    return sorted(made, key=lambda row: sortable([row.get(name) for name in (*ID_FIELDS, "repetition")]))


def table(study: Study) -> "pd.DataFrame":
    """The same as a DataFrame."""
    made = rows(study)
    return output.to_frame(made, columns_of(made))


def columns_of(made: Rows) -> list[str]:
    tau = TAU_COLUMNS if any("tau_batch_ms" in row for row in made) else ()
    # "batches" is a field of Run and what was done: of a run that counts the two are one.
    return list(dict.fromkeys(["id", *Run.model_fields, "repetition", *FIGURES, *tau]))


def _row(source: Source, series: Series) -> dict[str, Any]:
    steady = series.steady_ns / 1e6
    estimate = statistics.inside_run(steady)
    attributed = series.step_ns[series.attributed]
    manifest = source.manifest
    return {
        "id": source.id,
        **source.fields,
        "repetition": source.repetition,
        "batches": len(series.step_ns),
        "warmup": series.warmup,
        "batch_ms": estimate.value,
        "batch_ms_low": estimate.low,
        "batch_ms_high": estimate.high,
        "p95_ms": statistics.percentile(steady, 95),
        "p99_ms": statistics.percentile(steady, 99),
        "max_ms": float(steady.max()),
        "images_per_s": series.images_per_s,
        **{
            f"{name}_ms": float(np.median(values[series.steady])) / 1e6
            for name, values in series.stages.items()
        },
        "attributed_ms": float(np.median(attributed)) / 1e6 if len(attributed) else None,
        "startup_s": max(rank.startup_ns for rank in manifest.ranks) / 1e9 if manifest else None,
    }


def _tau_rows(study: Study) -> Rows:
    timed, started = tau.timed_and_started(study, rank_0_only=True)
    common = [key for key in timed if key in started]
    if study.tau_intervals and not common:
        study.find("the TAU tables hold no configuration with both 50-batch and 1-batch runs")
    return [
        {
            "id": "tau",
            **dict(zip(ID_FIELDS, key, strict=True)),
            "tau_batch_ms": 1e3 * published.tau_batch_duration_s(list(timed[key]), list(started[key])),
        }
        for key in common
    ]


def main() -> int:
    arguments = output.parser("analysis.batches", __doc__).parse_args()
    study = load(arguments.path, arguments.peaks)
    made = rows(study)
    part = Part(
        "Batches of each run (ms; the job's batch ends with its slowest rank)",
        made,
        _shown(_varying(made), made),
        "Intervals are of batches inside the run; none: too few batches, or neighbours too much alike.\n"
        "Warm-up is left out of all figures.",
    )
    answer = Answer(made, columns_of(made), parts=[part])
    return output.emit(answer, study, arguments)


def _varying(made: Rows) -> list[str]:
    return [name for name in Run.model_fields if len({str(row.get(name)) for row in made}) > 1]


def _shown(fields: list[str], made: Rows) -> list[Column]:
    def interval(row: Any) -> str:
        return with_interval(row.get("batch_ms"), row.get("batch_ms_low"), row.get("batch_ms_high"))

    def figure(name: str, significant: int = 0) -> Any:
        return lambda row: digits(row.get(name), significant) if significant else row.get(name)

    shown = [
        Column(header(name), figure(name), left=isinstance(made[0].get(name), str), key=True)
        for name in fields
    ]
    shown += [
        Column("rep", figure("repetition"), key=True),
        Column("warm-\nup", figure("warmup")),
        Column("batch\nmedian [95 %]", interval),
        *(Column(name.replace("_ms", ""), figure(name)) for name in ("p95_ms", "max_ms")),
        Column("images\n/s", figure("images_per_s")),
        *(Column(name, figure(f"{name}_ms", 3)) for name in STAGES),
    ]
    if any("tau_batch_ms" in row for row in made):
        shown.append(Column("TAU\nestimate", figure("tau_batch_ms")))
    return [column for column in shown if any(column.value(row) not in (None, "-") for row in made)]


if __name__ == "__main__":
    run_command(main)
