"""Cost of runs: memory, energy, startup and node-hours, one row per configuration."""

from typing import Any

import pandas as pd

from analysis.display.metrics import Metric, fields
from analysis.display.numbers import digits, in_order
from analysis.display.output import Answer
from analysis.frames.measure import measure
from analysis.frames.steps import series_of
from analysis.frames.study import Study
from analysis.measures.points import OWN_RUNS, POINT_FIELDS, PROFILED, UNPROFILED
from jobs import store
from jobs.run_fields import FACTOR, ID_FIELDS, attempted
from jobs.store import NOT_ENDED, Manifest
from profiling.errors import UserError

METRICS = (
    Metric("runs", "number of runs"),
    Metric("kind_of_runs", "unprofiled, or profiled if there are no others", text=True, table=False),
    Metric("memory_gb", "peak resident memory of a rank", "memory\nGB"),
    Metric("memory_rank", "rank with the highest memory_gb", "of\nrank"),
    Metric("least_memory_gb", "peak memory of the rank that needs least", table=False),
    Metric("device_memory_gb", "peak memory of tensors on a GPU", "tensors\nGB"),
    Metric("device_reserved_gb", "GPU memory reserved by PyTorch for them", "reserved\nGB"),
    Metric("device_used_gb", "GPU memory in use after the steps, by all processes", "in use\nGB"),
    Metric("device_j_per_image", "energy of all GPUs (NVML, whole boards) per image", "GPU\nJ/image"),
    Metric("processors_j_per_image", "energy of all processors (RAPL, all users) per image",
           "processors\nJ/image"),
    Metric("device_w", "mean power per GPU", "W per\nGPU"),
    Metric("processors_w", "mean power of the processors of a node", "CPU W\nper node"),
    Metric("energy_note", "reason why an energy is missing", text=True, table=False),
    Metric("startup_s", "start of the process to first step, slowest rank, median over runs", "startup\ns"),
    Metric("first_step_s", "duration of the first step", "first\nstep, s"),
    Metric("node_hours_per_million_images", "node-hours per 1e6 images, steady", "node-hours/\n1e6 images"),
    Metric("kwh_per_million_images", "energy of GPUs and processors, if metered", "kWh/\n1e6 images"),
    Metric("node_hours", "nodes x wall time of the runs used", "node\nhours"),
    Metric("failed_node_hours", "nodes x wall time of failed runs", "node hours\nfailed"),
)  # fmt: skip
COLUMNS = {"Columns: the fields of a configuration, then": METRICS}
_WATCHED = "profiling.watch does not record it"
_OLD = "the ranks recorded none (they ran with an older release)"
_OF_RANK = {  # figure of a rank -> what its report calls it, and in how many units
    "memory_gb": ("peak_memory_bytes", 1e9),
    "device_memory_gb": ("peak_device_memory_bytes", 1e9),
    "device_reserved_gb": ("peak_device_reserved_bytes", 1e9),
    "device_used_gb": ("device_used_bytes", 1e9),
    "startup_s": ("startup_ns", 1e9),
    "device_j": ("device_energy_j", 1),
    "processors_j": ("processors_energy_j", 1),
    "images": ("images_done", 1),
    "metered_s": ("metered_s", 1),
}


@measure(COLUMNS)
def expense(study: Study) -> Answer:
    """A row a configuration (runs of all profilers together)."""
    of_all = ranks(study)  # first: a run whose tables are damaged does not count
    runs = spent(study)
    if runs.empty and study.only_traces:
        raise UserError(f"{study.path} holds only traces, which do not tell what a job cost: {OWN_RUNS}")
    if runs.empty:
        raise UserError(f"{study.path} holds no run with a manifest: its cost is not available")
    names = [name for name in map(str, runs) if name in POINT_FIELDS or name.startswith(FACTOR)]
    runs["configuration"] = runs.groupby(names, dropna=False, sort=False).ngroup()
    configurations = runs.drop_duplicates("configuration").set_index("configuration")[names]
    of_ranks = of_all.merge(runs[["path", "configuration"]], on="path")
    # Unprofiled runs; of a configuration that has none all.
    plain = of_ranks["profile"] == "none"
    of_ranks = of_ranks[plain | ~plain.groupby(of_ranks["configuration"]).transform("any")]
    figures = _of_configurations(runs, of_ranks)
    if figures.empty:
        raise UserError(f"{study.path} holds no usable run: the cost of its ranks is not available")
    rows = in_order(configurations.join(figures, how="inner"), ID_FIELDS)
    sides = runs["counts"], ~runs["counts"]
    used, failed = (digits(float(runs.loc[of, "node_hours"].sum()), 3) for of in sides)
    caption = f"Node-hours: {used}; of failed runs: {failed}"
    return Answer(rows, [*fields(POINT_FIELDS), *METRICS], title="Cost", caption=caption)


def spent(study: Study) -> pd.DataFrame:
    """A row a run that ended: its fields, ``path``, ``node_hours``, and whether it ``counts``."""
    counted = {source.path.resolve() for source in study.of_kind("run")}
    sweeps = {source.path.parent for source in study.of_kind("run")} or {study.path}
    folders = sorted(counted)
    if not (study.path / store.MANIFEST).is_file():
        # A run that was started by hand may have any name.
        inside = (path for sweep in sweeps for path in sweep.glob("*") if path.is_dir())
        folders = sorted(path for path in inside if path.name.startswith("run_") or store.is_run(path))
    open_runs = {attempted(one.point): one.kind for one in study.failed if one.kind in NOT_ENDED}
    runs = list[dict[str, Any]]()
    for directory in folders:
        begun = directory.with_name(attempted(directory.name))
        # A run that ended since the results were loaded has not failed; an attempt before one that is under
        # way has.
        state = None if directory != begun and begun.is_dir() else open_runs.get(begun.name)
        try:
            if state or not (directory / store.MANIFEST).is_file():
                raise UserError("it has not ended")
            manifest = store.read_record(directory / store.MANIFEST, Manifest)
        except UserError:
            study.note("not_recorded", directory.name, what="cost")
            continue
        runs.append({
            **manifest.fields,
            "path": directory.resolve(),
            "counts": directory.resolve() in counted,
            "node_hours": manifest.seconds * manifest.run.nodes / 3600,
        })  # fmt: skip
    return pd.DataFrame(runs).astype({"counts": bool}) if runs else pd.DataFrame()


def ranks(study: Study) -> pd.DataFrame:
    """A row a rank of each run that counts: what it reported of itself; a study makes them once.

    Columns: ``path``, ``profile``, ``images_per_s`` of its run, ``rank``, ``local_rank``, ``node``, ``gpus``
    that it drove, :data:`_OF_RANK`, ``first_step_s``, and ``notes``: why an energy is missing.
    """
    kept: dict[str, pd.DataFrame] = study.kept("frames")
    if "reports of ranks" not in kept:
        rows = [
            {
                "path": source.path.resolve(), "profile": source.fields["profile"], "rank": report.rank,
                "local_rank": report.local_rank, "node": report.hostname, "gpus": source.gpus_per_rank,
                **{name: getattr(report, of) for name, (of, _) in _OF_RANK.items()},
                "first_step_s": series.rank_ns[report.rank, 0] / 1e9,
                "images_per_s": series.images_per_s,
                "notes": [*report.unmetered, *([] if report.metered_s else [why])],
            }
            for source in study.of_kind("run")
            for series in [study.use(source, lambda source: series_of(study, source))]
            if series
            for why in [_WATCHED if source.fields.get("program") else _OLD]
            for report in (source.manifest.ranks if source.manifest else [])
        ]  # fmt: skip
        of_series = ["first_step_s", "images_per_s"]
        names = ["path", "profile", "rank", "local_rank", "node", "gpus", *_OF_RANK, *of_series, "notes"]
        frame = pd.DataFrame(rows, columns=names)
        numbers = frame[[*_OF_RANK, *of_series]].astype(float)
        numbers[list(_OF_RANK)] /= [unit for _, unit in _OF_RANK.values()]
        numbers["memory_gb"] = numbers["memory_gb"].where(numbers["memory_gb"] > 0)  # else not recorded
        kept["reports of ranks"] = frame.assign(**numbers)
    return kept["reports of ranks"]


def _of_configurations(runs: pd.DataFrame, of_ranks: pd.DataFrame) -> pd.DataFrame:
    """The figures of configurations; those without a run that counts have node-hours only."""
    key = "configuration"
    groups = of_ranks.groupby(key)
    by_run = of_ranks.groupby([key, "path"])[["startup_s", "first_step_s"]].max()  # of the slowest rank
    by_memory = of_ranks.dropna(subset="memory_gb").sort_values("memory_gb", ascending=False, kind="stable")
    # The meters of a node's processors are read by one of its ranks.
    meters = of_ranks[of_ranks["local_rank"] == 0].groupby(key)
    hours = runs["node_hours"].groupby([runs[key], runs["counts"]]).sum().unstack(fill_value=0)
    images_per_s = of_ranks.drop_duplicates("path").groupby(key)["images_per_s"].median()
    metered = _metered(groups)
    of_processors = _over(meters["processors_j"], groups["images"])
    j_per_image = pd.concat([metered["device_j_per_image"], of_processors], axis=1).sum(axis=1, min_count=1)
    return pd.DataFrame({
        "runs": runs.groupby(key)["counts"].sum(),
        "kind_of_runs": groups["profile"].agg(_kind),
        **metered,
        "memory_rank": by_memory.groupby(key)["rank"].first().astype("Int64"),
        "least_memory_gb": groups["memory_gb"].min(),
        "processors_j_per_image": of_processors,
        "processors_w": _over(meters["processors_j"], meters["metered_s"]),
        "energy_note": groups["notes"].agg(lambda notes: "; ".join(dict.fromkeys(notes.explode().dropna()))),
        **by_run.groupby(key).median(),
        "node_hours_per_million_images": 1e6 / 3600 * runs.groupby(key)["nodes"].first() / images_per_s,
        "kwh_per_million_images": j_per_image / 3.6,
        "node_hours": hours.get(True, 0.0),
        "failed_node_hours": hours.get(False, 0.0),
    })  # fmt: skip


def _kind(profiles: pd.Series) -> str:
    return UNPROFILED if (profiles == "none").all() else PROFILED


def _metered(groups: Any) -> dict[str, pd.Series]:
    """Memory of the rank that needs most, and energy of GPUs: of backend dp a rank drives several."""
    return {
        **groups[[name for name in _OF_RANK if name.endswith("_gb")]].max(),
        "device_j_per_image": _over(groups["device_j"], groups["images"]),
        "device_w": _over(groups["device_j"], groups["metered_s"]) / groups["gpus"].first(),
    }


def _over(joules: Any, amounts: Any) -> pd.Series:
    """Joules over images or seconds, each summed over runs first; NaN: one meter of one run did not tell."""
    amount = amounts.sum()
    energy: pd.Series = joules.sum(skipna=False)
    return energy / amount.where(amount > 0)
