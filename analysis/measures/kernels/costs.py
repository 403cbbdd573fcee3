"""Cost of a step's kernels: time, FLOPs and bytes, and the peaks of the device beside which they stand.

Costs are of steady, attributed batches and of the model's own kernels; the loader's kernels, collectives and
copies are apart. They are a batch of a rank (of DataParallel's one rank: a GPU's), so that tables with more
batches do not weigh more in a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.measures.kernels import peaks
from analysis.results.attributed import Costs, sums_of_each
from analysis.results.query import query
from analysis.results.source import Source
from analysis.results.study import Study
from profiling.cost.classify import precision_in
from profiling.errors import UserError


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
    if source.job is not None:
        return _bound_of_trace(study, source, source.job.devices)
    devices = [rank.device for rank in manifest.ranks] if manifest else [peaks.REFERENCE_DEVICE]
    precision = str(source.fields.get("compute") or "fp32")
    kinds = list(dict.fromkeys(devices))
    if len(kinds) > 1:
        study.note("devices_differ", source, devices=kinds)
    sheets = {device: _datasheet(study, device, precision) for device in kinds}
    return Bound(
        ", ".join(kinds),
        _mean([sheets[device][0] for device in devices]),
        _mean([sheets[device][1] for device in devices]),
        *(_measured(study, source, precision) if manifest else (None, None)),
    )


def _bound_of_trace(study: Study, source: Source, devices: Sequence[str]) -> Bound:
    """The peaks of traces' devices, in the precision that the names of their matrix kernels say."""
    kept: dict[str, Bound] = study.kept("bounds of traces")
    if source.id not in kept:
        precision = precision_of(study, source)
        sheets = [_datasheet(study, device, precision) for device in devices] if precision else []
        # Of a CPU no peak is known, whatever its kernels compute in.
        comparable = any(one.lower() != "cpu" or peaks.find(one, study.own_peaks) for one in devices)
        if comparable and not precision:
            study.note("peak_unknown", source, device=devices, precision="precision unknown")
        kept[source.id] = Bound(
            ", ".join(devices), _mean([one[0] for one in sheets]), _mean([one[1] for one in sheets])
        )
    return kept[source.id]


_MATRIX_KERNELS = """
select name::varchar, sum(duration_ns)::double from read_parquet($kernels)
where "class"::varchar in ('gemm', 'convolution', 'attention') and duration_ns > 0 group by 1
"""


def precision_of(study: Study, source: Source) -> str:
    """In which precision most of the time of matrix kernels is spent, by their names; "": none says it."""
    if not source.tables("kernels"):
        return ""
    times: dict[str, float] = {}
    for name, ns in query(study, source, _MATRIX_KERNELS, kernels=source.tables("kernels")):
        if precision := precision_in(name or ""):
            times[precision] = times.get(precision, 0.0) + ns
    return max(times, key=lambda one: times[one], default="")


def _datasheet(study: Study, device: str, precision: str) -> tuple[float | None, float | None]:
    """FLOP/s and bytes/s of a device; None, and a finding, where they are not known."""
    peak = peaks.find(device, study.own_peaks)
    if peak is None:
        if device.lower() != "cpu":
            study.note("peak_unknown", device=device, precision=precision)
        return None, None
    if peak.unconfirmed:
        study.note("peak_unknown", device=peak.name, precision=peak.unconfirmed)
    if precision not in peak.flops_per_s:
        study.note("peak_unknown", device=peak.name, precision=precision)
    return peak.flops_per_s.get(precision), peak.bytes_per_s


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def published_bound(study: Study) -> tuple[float, float]:
    """FLOP/s and bytes/s of the reference's GPU, single precision: its peaks whatever a run computed in."""
    peak = peaks.find(peaks.REFERENCE_DEVICE, study.own_peaks)
    if peak is None or "fp32" not in peak.flops_per_s or peak.bytes_per_s is None:
        raise UserError(
            f"{study.own_peaks}: entry {peaks.REFERENCE_DEVICE} lacks its fp32 peak or that of its memory"
        )
    return peak.flops_per_s["fp32"], peak.bytes_per_s


def _measured(study: Study, source: Source, precision: str) -> tuple[float | None, float | None]:
    calibration = study.calibration
    if calibration is None:
        return None, None
    for finding in calibration.findings:
        study.log.add(finding)
    ranks = int(source.fields["gpus_per_node"])
    moved = _at(calibration.copy_bytes_per_s, ranks)
    if calibration.precision != precision:
        study.note("peak_unknown", device="measured", precision=precision)
        return None, moved
    return _at(calibration.gemm_flops_per_s, ranks), moved


def _at(rates: dict[int, float], ranks: int) -> float | None:
    # Ranks of a node share its cores and memory, so the peak of as many ranks counts; else the next fewer.
    fewer = [count for count in rates if count <= ranks]
    return rates[max(fewer)] if fewer else rates[min(rates)] if rates else None


# --- costs --------------------------------------------------------------------------------------------


def costs_of(study: Study, sources: Sequence[Source]) -> dict[str, Costs]:
    """Of a batch, by the source's id; one without attributed batches is absent, and a note says so."""
    costs = {source.id: sums.per_batch for source, sums in sums_of_each(study, sources)}
    for source in sources:
        if source.id in costs and source.fields["profile"] == "torch" and not costs[source.id].flops:
            study.note("not_recorded", source, what="FLOPs of kernels")
    return costs
