"""Configurations at one world size (points): their runs, their baselines, and what their steps take.

The durations of a point come from its unprofiled runs (from profiled ones, if there are no others), its
kernels from its profiled runs.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import telling
from analysis.display.numbers import label_of
from analysis.estimates import slower_from
from analysis.frames.kernel_sums import COSTS, costs
from analysis.frames.steps import Series, all_series
from analysis.frames.study import Source, Study
from analysis.measures.lateness import parts_of_stages
from analysis.measures.peaks import bounds
from jobs.run_fields import fields_of, is_default, own_names
from profiling.findings import Finding

UNPROFILED, PROFILED = "unprofiled runs", "profiled runs"  # by which a point is timed
NO_SAMPLES = "samples per step are unknown; run the program with profiling.watch --samples N (per rank)"
OWN_RUNS = "it needs runs that scaleprof started or watched"
POINT_FIELDS = fields_of("workload", "size", "length")
NOT_ALIKE = fields_of("size", "length")  # in which a point may differ from its baseline
LONG_TAIL = 0.05  # by which the mean step is longer than the median one, as a share
WIDE_SCATTER = 0.1  # standard deviation of the logarithm of the runs' medians

Scaling = Literal["weak", "strong"]
Fields = Any  # of a run, a mapping, or of points: what has the names of fields
Run = tuple[Source, Series]


def point_names(*fields: Fields) -> list[str]:
    """The fields that tell points apart: ours, and the factors of programs' own among ``fields``."""
    return [*POINT_FIELDS, *own_names(*fields)]


def point_fields(fields: Fields) -> dict[str, Any]:
    """Of a run's fields, those of its point."""
    return {name: fields[name] for name in point_names(fields)}


def points_of_runs(runs: Sequence[Run], scaling: Scaling | None = None) -> pd.DataFrame:
    """The points of runs, in the order of their first ones.

    Args:
        scaling: by which baselines are found; None: the kind that compares more of the points with one of
            fewer ranks, weak if they tie.

    Returns:
        A row a point. Columns: its fields (:func:`point_names`) and ``world_size``; ``timed``, ``profiled``:
        its runs with their steps; ``runs``: how many time it, ``timed_by``: which; ``scaling``; ``base``: the
        row of its baseline, or its own; ``images`` of a step of the job (NaN: not known); medians over runs
        of the median step, ``step_ns``, and of ``images_per_s``, of all ranks over the time of the slowest;
        ``step`` and ``rate``, resampled (:class:`~analysis.estimates.Drawn`), with ``draw_seed``;
        ``mean_ns``, the mean step, ``tail_ns``, by how much it is longer than the median one for few long
        steps, ``slower_pct``, by how much steps are longer from one on (0: they are not), and
        ``<part>_ns``, what it is made of (:func:`~analysis.measures.lateness.parts_of_stages`).
    """
    fields = pd.DataFrame([point_fields(source.fields) for source, _ in runs], dtype=object)
    fields = fields.where(fields.notna(), None)  # of a program without a factor
    number = _numbers(fields.to_numpy())
    figures = [_figures([runs[place] for place in of]) for of in number.groupby(number).groups.values()]
    points = fields[~number.duplicated()].reset_index(drop=True)
    points["world_size"] = (points["nodes"] * points["gpus_per_node"]).astype(int)
    size, kinds = points["world_size"], get_args(Scaling) if scaling is None else (scaling,)
    bases = {kind: bases_of(points, kind) for kind in kinds}
    kind = max(bases, key=lambda kind: (size[bases[kind]].array < size).sum())
    return pd.concat([points.assign(scaling=kind, base=bases[kind]), pd.DataFrame(figures)], axis=1)


def _numbers(rows: Iterable[Iterable[Any]]) -> pd.Series:
    """The same number for rows that are alike as text, from 0 on in the order of the first ones."""
    first: dict[tuple[str, ...], int] = {}
    return pd.Series([first.setdefault(tuple(map(str, row)), len(first)) for row in rows], dtype=int)


def _figures(runs: Sequence[Run]) -> dict[str, Any]:
    unprofiled = tuple(run for run in runs if run[0].fields["profile"] == "none")
    profiled = tuple(run for run in runs if run[0].fields["profile"] != "none")
    timed = unprofiled or profiled
    given = {name: of for name, of in point_fields(runs[0][0].fields).items() if not is_default(name, of)}
    # Points are resampled each for itself. A new field of Run, which has its default, moves no interval.
    seed = estimates.SEED + zlib.crc32(repr(sorted(given.items(), key=str)).encode()) % 2**20
    images = float(np.mean([series.images[series.steady].mean() for _, series in timed]))
    paces = [series.pace_ns.astype(float) for _, series in timed]
    step = estimates.draw_runs([series.steady_ns.astype(float) for _, series in timed], seed=seed)
    rate = estimates.draw_runs(paces, lambda ns: images / ns.mean(axis=-1) * 1e9, seed=seed)
    mean_ns = float(np.median([pace.mean() for pace in paces]))
    parts = pd.DataFrame([parts_of_stages(series) for _, series in timed]).mean()
    parts *= (mean_ns if np.isnan(images) else images / rate.value * 1e9) / parts.sum()
    return {
        "timed": timed, "profiled": profiled, "runs": len(timed),
        "timed_by": UNPROFILED if unprofiled else PROFILED,
        "images": images, "step_ns": step.value, "images_per_s": rate.value,
        "step": step, "rate": rate, "draw_seed": seed, "mean_ns": mean_ns,
        "tail_ns": float(np.mean([_tail(pace) for pace in paces])),
        "slower_pct": float(np.median([change[1] if (change := slower_from(one.steady_ns)) else 0.0
                                       for _, one in timed])),
        **parts.add_suffix("_ns"),
    }  # fmt: skip


def _tail(ns: np.ndarray) -> float:
    """By how much the mean step is longer than the median one, but by a change of level."""
    whole = ns.mean() - np.median(ns)
    within = np.mean([of.mean() - np.median(of) for of in np.array_split(ns, min(3, len(ns)))])
    return float(within if whole > max(2 * within, LONG_TAIL * ns.mean()) else whole)


def points_of(study: Study, scaling: Scaling | None = "weak") -> pd.DataFrame:
    """The points of a study (:func:`points_of_runs`); found once a study and set of runs.

    Further columns: ``device_name`` and its peaks (:func:`~analysis.measures.peaks.bounds`); the costs of a
    step (:func:`~analysis.frames.kernel_sums.costs`), mean over profiled runs; NaN: not known.
    """
    kept: dict[tuple, pd.DataFrame] = study.kept("points")
    key = scaling, *(source.id for source in study.sources)
    if key in kept:
        return kept[key]
    series = all_series(study)
    # Load first, so that runs with damaged tables are excluded.
    cost = costs(study, [source for source in study.of_kind("run") if source.fields["profile"] != "none"])
    runs = [(source, series[source.id]) for source in study.of_kind("run")]
    if not runs:
        return pd.DataFrame()
    points = points_of_runs(runs, scaling)
    peaks = bounds(study, [timed[0][0] for timed in points["timed"]])
    peaks = peaks.rename(columns={"device": "device_name"})
    place = {source.id: place for place, of in points["profiled"].items() for source, _ in of}
    cost_of_points = cost[list(COSTS)].groupby(cost.index.map(place)).mean()
    points = points.join([peaks.set_axis(points.index), cost_of_points])
    for finding in findings(points):
        study.add(finding)
    # Runs that turned out to be unusable are in none of them.
    kept[scaling, *(source.id for source in study.sources)] = points
    return points


def runs_of(point: Fields) -> list[Source]:
    """The runs of a point: where there are no others, profiled runs time it."""
    return list({source.id: source for source, _ in (*point["timed"], *point["profiled"])}.values())


def samples(drawn: pd.Series) -> pd.DataFrame:
    """The measured medians of points, then the resampled ones: a row a point."""
    return pd.DataFrame(np.array([one.sampled() for one in drawn]), drawn.index)


def as_columns(name: str, sampled: pd.DataFrame) -> dict[str, pd.Series]:
    """A figure, the measured and the resampled ones a row, as columns with the ends of its interval."""
    columns = estimates.columns_of(name, sampled.to_numpy())
    return {column: pd.Series(values, sampled.index) for column, values in columns.items()}


def bases_of(points: pd.DataFrame, scaling: Scaling) -> pd.Series:
    """The baselines of points: the smallest world size of the otherwise equal configuration.

    One rank sends no gradients: where there is no point of one rank with the same precision of gradients, one
    with any other is the baseline.
    """
    size = points["world_size"]
    alike = points[[name for name in point_names(points) if name not in NOT_ALIKE]]
    if scaling == "strong":
        # The global batch; of a program whose samples are unknown, none is known to be that of another.
        alike = alike.assign(batch=points["batch"].map(lambda batch: batch or 1) * size)
    numbers = _numbers(alike.to_numpy(object))
    order = points[["nodes", "batches"]].assign(place=points.index, size=size, alike=numbers)
    pairs = order.merge(order, on="alike", suffixes=("", "_base"))
    pairs["other_length"] = pairs["batches"].map(str) != pairs["batches_base"].map(str)
    nearest = pairs.sort_values(["size_base", "nodes_base", "other_length"]).drop_duplicates("place")
    base = nearest.set_index("place")["place_base"].sort_index()
    any_precision = _numbers(alike.drop(columns="grad").to_numpy(object))
    ones = points[size == 1].sort_values("grad", key=lambda grad: grad != "fp32", kind="stable").index
    stand_in = pd.Series(ones, any_precision[ones]).groupby(level=0).first()
    return base.where(size[base].array == 1, any_precision.map(stand_in).fillna(base)).astype(int)


def findings(points: pd.DataFrame) -> Iterator[Finding]:
    """What makes the points' figures uncertain, or not comparable with each other."""
    of = len(points)
    if few := int((points["runs"] < 3).sum()):
        yield Finding("few_runs", data={"n": few, "of": of, "least": 3})
    sigma = points["step"].map(lambda drawn: drawn.sigma)
    if scattered := int((sigma > WIDE_SCATTER).sum()):
        widest = int(np.nanargmax(sigma))
        medians = [np.median(series.steady_ns) for _, series in points["timed"].iloc[widest]]
        data = {"n": scattered, "of": of, "factor": max(medians) / min(medians)}
        yield Finding("runs_differ", configuration=_label(points, widest), data=data)
    tail_pct = 100 * points["tail_ns"] / points["mean_ns"]
    if tails := int((tail_pct > 100 * LONG_TAIL).sum()):
        data = {"n": tails, "of": of, "tail_pct": tail_pct.max()}
        yield Finding("few_long_steps", configuration=_label(points, tail_pct.idxmax()), data=data)
    for place, point in points.iterrows():
        both: tuple[Fields, Fields] = (point, points.loc[point["base"]])
        devices = {device for one in both for run in runs_of(one) for device in run.devices}
        if len(devices) > 1:
            yield Finding("devices_differ", configuration=_label(points, place), data={"devices": devices})
        threads, base = (
            {rank.threads for run, _ in one["timed"] if run.manifest for rank in run.manifest.ranks}
            - {0, None}
            for one in both
        )
        # Where ranks have GPUs, CPU threads do little of the work.
        if devices == {"cpu"} and threads and base and threads != base:
            differ = {"threads": threads, "base": base}
            yield Finding("threads_differ", configuration=_label(points, place), data=differ)
    others = points[[name for name in point_names(points) if name != "batches"]].map(str)
    lengths = points["batches"].groupby([others[name] for name in others]).unique()
    for differing in {tuple(sorted(of)) for of in lengths if len(of) > 1}:
        yield Finding("not_compared", data={"what": [f"runs of {length} steps" for length in differing]})
    if profiled := int((points["timed_by"] == PROFILED).sum()):
        yield Finding("timed_by_profiled_runs", data={"n": profiled, "of": of})


def shared_cores(study: Study) -> bool:
    """Whether more ranks would have fewer cores each than the measured ones.

    So it is where ranks without GPUs run on one host, and twice as many would have more threads than it has
    cores, or get their share of these by being so many (``threads: 0``).
    """
    runs = [(run, run.manifest) for run in study.of_kind("run") if run.manifest and run.manifest.ranks]
    hosts = {rank.hostname for _, manifest in runs for rank in manifest.ranks}
    if len(hosts) != 1:
        return False
    widest, manifest = max(runs, key=lambda run: run[0].ranks)
    if any(rank.device != "cpu" for rank in manifest.ranks):
        return False
    cores, threads = manifest.host.get("cores"), widest.fields["threads"]
    enough = threads and 2 * widest.ranks * threads <= (cores if isinstance(cores, int) else 0)
    return not enough


def _label(points: pd.DataFrame, place: Any) -> str:
    """A point's number of ranks, and what tells it from others: ``8 ranks, dali-cpu``."""
    names = telling(points[list(POINT_FIELDS)], fields_of("workload"))
    return label_of(points.loc[place], ("world_size", *names))
