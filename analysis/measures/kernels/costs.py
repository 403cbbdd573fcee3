"""What did a batch's kernels cost: time, FLOPs and bytes?

Costs are of steady, attributed batches and of the model's own kernels; the loader's kernels, collectives and
copies are apart. They are a batch of a rank (of DataParallel's one rank: a GPU's), so that tables with more
batches do not weigh more in a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.measures.kernels import peaks
from analysis.results.borrowed import launches
from analysis.results.launches import TableSums, table_sums
from analysis.results.query import note_untimed, note_without_kernels, query
from analysis.results.study import Source, Study
from profiling.errors import UserError
from profiling.tables import IS_MODEL


@dataclass(frozen=True)
class Costs:
    """Of one batch of one rank, mean over the attributed batches (ns, FLOP, bytes).

    Attributes:
        batches: attributed batches (of all ranks) that have kernels.
        kernel_ns: time of the model's kernels, launch by launch.
        counted_ns: that of launches to which FLOPs are credited.
        flops, bytes: credited to them; 0: not known.
        loader_ns, communication_ns, copy_ns: the classes apart.
    """

    batches: int
    kernel_ns: float
    counted_ns: float
    flops: float
    bytes: float
    loader_ns: float
    communication_ns: float
    copy_ns: float


@dataclass(frozen=True)
class Bound:
    """What a rank's device could do, FLOP/s and bytes/s, by datasheet and as measured (None: unknown).

    Of ranks on different devices ``device`` names all and the datasheet's peak is the mean over ranks.
    """

    device: str
    flops_per_s: float | None
    bytes_per_s: float | None
    measured_flops_per_s: float | None = None
    measured_bytes_per_s: float | None = None


# --- bounds -------------------------------------------------------------------------------------------


def bound_of(study: Study, source: Source) -> Bound:
    """The peaks beside which a run's figures stand."""
    manifest = source.manifest
    devices = [rank.device for rank in manifest.ranks] if manifest else [peaks.REFERENCE_DEVICE]
    precision = str(source.fields.get("compute") or "fp32")
    kinds = list(dict.fromkeys(devices))
    if len(kinds) > 1:
        study.note(
            f"its ranks ran on {' and '.join(kinds)}: the datasheet's peak is the mean of theirs", source
        )
    sheets = {device: _datasheet(study, device, precision) for device in kinds}
    return Bound(
        " and ".join(kinds),
        _mean([sheets[device][0] for device in devices]),
        _mean([sheets[device][1] for device in devices]),
        *(_measured(study, source, precision) if manifest else (None, None)),
    )


def _datasheet(study: Study, device: str, precision: str) -> tuple[float | None, float | None]:
    """FLOP/s and bytes/s of a device; None, and a finding, where they are not known."""
    found = peaks.find(device, study.own_peaks)
    if found is None:
        if device.lower() != "cpu":
            study.note(f"no datasheet peak is known for {device}; name its peaks with --peaks FILE")
        return None, None
    if found.doubt:
        study.note(found.doubt)
    if precision not in found.flops_per_s:
        study.note(f"{found.name} has no datasheet peak for {precision}")
    return found.flops_per_s.get(precision), found.bytes_per_s


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def published_bound(study: Study) -> tuple[float, float]:
    """FLOP/s and bytes/s of the reference's GPU, single precision: its peaks whatever a run computed in."""
    peak = peaks.find(peaks.REFERENCE_DEVICE, study.own_peaks)
    if peak is None or "fp32" not in peak.flops_per_s:
        raise UserError(f"{study.own_peaks}: entry {peaks.REFERENCE_DEVICE} has no fp32 peak")
    return peak.flops_per_s["fp32"], peak.bytes_per_s


def _measured(study: Study, source: Source, precision: str) -> tuple[float | None, float | None]:
    calibration = study.calibration
    if calibration is None:
        return None, None
    ranks = int(source.fields["gpus_per_node"])
    moved = _at(calibration.copy_bytes_per_s, ranks)
    if calibration.precision != precision:
        study.note(f"the measured peak is of {calibration.precision}: none for runs in {precision}")
        return None, moved
    return _at(calibration.gemm_flops_per_s, ranks), moved


def _at(rates: dict[int, float], ranks: int) -> float | None:
    # Ranks of a node share its cores and memory, so the peak of as many ranks counts; else the next fewer.
    fewer = [count for count in rates if count <= ranks]
    return rates[max(fewer)] if fewer else rates[min(rates)] if rates else None


# --- costs --------------------------------------------------------------------------------------------


def costs_of(study: Study, sources: Sequence[Source]) -> dict[str, Costs]:
    """The costs of each source by its id; without attributed batches it is absent, and a finding says so."""
    tables = [source for source in sources if source.kind == "pyprof"]
    runs = [source for source in sources if source.kind == "run"]
    costs = _of_pyprof(study, tables) if tables else {}
    for source, cost in study.each(runs, lambda source: _of_run(study, source)):
        costs[source.id] = cost
    return costs


def _of_pyprof(study: Study, sources: Sequence[Source]) -> dict[str, Costs]:
    sums = table_sums(study, sources)
    each = study.each(sources, lambda source: _of_table(study, source, sums.get(source.id)))
    return {source.id: cost for source, cost in each}


def _of_table(study: Study, source: Source, sums: TableSums | None) -> Costs | None:
    # A table without rows has no sums.
    if sums is None or sums.batches.attributed_from is None:
        study.note("no batch in it has an attributed backward pass, so no cost is counted", source)
        return None
    if not sums.kernel_ns:
        study.note("no launch of its attributed batches has a time, so no cost is counted", source)
        return None
    count = sums.batches.backward
    return Costs(
        batches=count,
        kernel_ns=sums.kernel_ns / count,
        counted_ns=sums.counted_ns / count,
        flops=sums.kernel_flops / count,
        bytes=sums.kernel_bytes / count,
        loader_ns=sums.loader_ns / count,
        communication_ns=0.0,
        copy_ns=0.0,
    )


_RUN = f"""
with attributed as (
    select distinct rank, batch_index from read_parquet($batches) where attributed
), recorded as (
    select distinct rank, batch_index from read_parquet($kernels)
    semi join attributed using (rank, batch_index)
), launches as (
    select duration_ns as ns, coalesce(flops, 0) as flops, coalesce(bytes, 0) as bytes,
        "class"::varchar as class, {IS_MODEL} as model
    from {{launches}} semi join attributed using (rank, batch_index)
    where duration_ns >= 0
)
select (select count(*) from recorded),
    (select count(*) from attributed where rank in (select rank from recorded)),
    sum(ns) filter (model), sum(ns) filter (model and flops > 0),
    sum(flops) filter (model), sum(bytes) filter (model),
    sum(ns) filter (not model and class not in ('communication', 'memcpy', 'memset')),
    sum(ns) filter (class = 'communication'), sum(ns) filter (class in ('memcpy', 'memset'))
from launches
"""


def _of_run(study: Study, source: Source) -> Costs | None:
    kernels, batches = source.tables("kernels"), source.tables("batches")
    if not kernels or not batches:
        return None
    sql = _RUN.format(launches=launches(study, source))
    values = query(study, source, sql, kernels=kernels, batches=batches)
    note_untimed(study, source)
    # Only batches that have kernels count: a profiler may watch some ranks alone, or its recording be cut.
    count, attributed, *sums = values[0]
    if not count or sums[0] is None:
        study.note("its kernels belong to no attributed batch, so no cost is counted", source)
        return None
    note_without_kernels(study, source, attributed - count, attributed)
    # One rank of DataParallel has the kernels of all its GPUs.
    cost = Costs(count, *(float(value or 0) / (count * source.gpus_per_rank) for value in sums))
    if source.fields["profile"] == "torch" and not cost.flops:
        study.note("no launch is credited with FLOPs, so efficiencies of these are not known", source)
    return cost
