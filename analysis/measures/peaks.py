"""Peaks of devices, and the roofline of kernels.

The roofline model (Williams, Waterman, Patterson 2009): F FLOPs on B bytes take at least F / peak FLOP rate
and at least B / memory bandwidth: arithmetic limits from the *ridge* (peak / bandwidth) on, bandwidth below.

Bytes are tensors read plus tensors written, without cache hits, so a kernel whose tensors stay in a cache can
exceed 100 % of the memory roof.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import BaseModel, TypeAdapter, ValidationError

from analysis.display.metrics import Metric, names_of
from analysis.frames.kernel_sums import query
from analysis.frames.study import Source, Study
from profiling import yaml_text
from profiling.cost.classify import precision_in
from profiling.errors import UserError

_FILE = Path(__file__).with_name("peaks.yaml")
_MODELS = Path(__file__).with_name("models.yaml")

# The reference's GPU (Cartesius), whose tables do not name it.
REFERENCE_DEVICE = "Tesla K40m"


class Peak(BaseModel):
    """Datasheet peaks of a device: an entry of a peaks file."""

    name: str
    match: re.Pattern[str] | None = None  # the names that NVML or torch give it, whole, in any case
    tflops: dict[str, float]  # by precision (fp32, tf32, bf16, fp16)
    gb_per_s: float | None  # of its memory; None: not known
    source: str = "user"
    unconfirmed: str = ""  # what of it no source confirms

    @property
    def flops_per_s(self) -> dict[str, float]:
        return {precision: 1e12 * rate for precision, rate in self.tflops.items()}

    @property
    def bytes_per_s(self) -> float | None:
        return None if self.gb_per_s is None else 1e9 * self.gb_per_s


@cache
def read_peaks(path: Path = _FILE) -> list[Peak]:
    """The entries of a peaks file; UserError: unreadable, or an entry lacks a key."""
    try:
        return TypeAdapter(list[Peak]).validate_python(yaml_text.read(path, "peaks file").content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        needed = "entries have name, tflops: {fp32: ...}, gb_per_s"
        raise UserError(f"{path}: entry {place}: {first['msg'].lower()}; {needed}") from None


def find(device: str, own: Path | None = None) -> Peak | None:
    """The datasheet peaks of a device by its name, first from the user's ``own`` file; None: no entry."""
    name = device.strip()
    for peak in (*(read_peaks(own) if own else ()), *read_peaks()):
        pattern = peak.match.pattern if peak.match else re.escape(peak.name)
        if name.lower() == peak.name.lower() or re.fullmatch(pattern, name, re.IGNORECASE):
            return peak
    return None


@cache
def forward_flops_per_image(model: str) -> float | None:
    """Analytic FLOPs of a forward pass of ``model`` at 224 x 224, an image; None if not known."""
    return yaml_text.parse(_MODELS.read_text(encoding="utf-8")).get(model)


# By datasheet and as measured here, FLOP/s and bytes/s.
PEAKS = ("flops_per_s", "bytes_per_s", "measured_flops_per_s", "measured_bytes_per_s")


def bounds(study: Study, sources: Iterable[Source]) -> pd.DataFrame:
    """What the ranks' devices of runs could do: ``device`` and :data:`PEAKS` by run; NaN: not known.

    Of ranks on different devices ``device`` names all and the datasheet's peak is the mean over ranks.
    """
    kept: dict[str, tuple] = study.kept("peaks")
    found = {source.id: kept.get(source.id) or _peaks_of(study, source) for source in sources}
    kept.update(found)
    frame = pd.DataFrame.from_dict(found, "index", columns=["device", *PEAKS])
    return frame.astype(dict.fromkeys(PEAKS, float))


def _peaks_of(study: Study, source: Source) -> tuple[str | float | None, ...]:
    manifest = source.manifest
    measured: tuple[float | None, float | None] = None, None
    if source.job is not None:
        devices, precision = list(source.job.devices), precision_of(study, source)
        # Of a CPU no peak is known, whatever its kernels compute in.
        comparable = any(one.lower() != "cpu" or find(one, study.own_peaks) for one in devices)
        if comparable and not precision:
            study.note("peak_unknown", source, device=devices, precision="precision unknown")
    else:
        devices = [rank.device for rank in manifest.ranks] if manifest else [REFERENCE_DEVICE]
        precision = str(source.fields.get("compute") or "fp32")
        measured = _measured(study, source, precision) if manifest else measured
    kinds = list(dict.fromkeys(devices))
    if len(kinds) > 1 and source.job is None:
        study.note("devices_differ", source, devices=kinds)
    sheets = {device: _datasheet(study, device, precision) for device in kinds if precision}
    rates = pd.DataFrame([sheets.get(one, (None, None)) for one in devices], columns=PEAKS[:2], dtype=float)
    return ", ".join(kinds), *rates.mean(skipna=False), *measured


def precision_of(study: Study, source: Source) -> str:
    """In which precision most of the time of matrix kernels is spent, by their names; "": none says it."""
    if not source.tables("kernels"):
        return ""
    sql = """select name::varchar as name, sum(duration_ns)::double as ns from read_parquet($kernels)
        where "class"::varchar in ('gemm', 'convolution', 'attention') and duration_ns > 0
        and name is not null group by 1"""
    found = query(study, source, sql, kernels=source.tables("kernels"))
    ns = found["ns"].groupby(found["name"].map(precision_in)).sum().drop("", errors="ignore")
    return "" if ns.empty else str(ns.idxmax())


def _datasheet(study: Study, device: str, precision: str) -> tuple[float | None, float | None]:
    """FLOP/s and bytes/s of a device; None, and a finding, where they are not known."""
    peak = find(device, study.own_peaks)
    if peak is None:
        if device.lower() != "cpu":
            study.note("peak_unknown", device=device, precision=precision)
        return None, None
    for text in filter(None, (peak.unconfirmed, "" if precision in peak.flops_per_s else precision)):
        study.note("peak_unknown", device=peak.name, precision=text)
    return peak.flops_per_s.get(precision), peak.bytes_per_s


def published_bound(study: Study) -> tuple[float, float]:
    """FLOP/s and bytes/s of the reference's GPU, single precision: its peaks whatever a run computed in."""
    peak = find(REFERENCE_DEVICE, study.own_peaks)
    if peak is None or "fp32" not in peak.flops_per_s or peak.bytes_per_s is None:
        raise UserError(f"{study.own_peaks}: {REFERENCE_DEVICE} lacks its fp32 peak or that of its memory")
    return peak.flops_per_s["fp32"], peak.bytes_per_s


def _measured(study: Study, source: Source, precision: str) -> tuple[float | None, float | None]:
    calibration = study.calibration
    if calibration is None:
        return None, None
    for finding in calibration.findings:
        study.add(finding)
    ranks = int(source.fields["gpus_per_node"])
    # Ranks of a node share its cores and memory, so the peak of as many ranks counts; else the next fewer.
    flops, moved = (
        rates[max((count for count in rates if count <= ranks), default=min(rates))] if rates else None
        for rates in (calibration.gemm_flops_per_s, calibration.copy_bytes_per_s)
    )
    if calibration.precision != precision:
        study.note("peak_unknown", device="measured", precision=precision)
        return None, moved
    return flops, moved


# --- the roofline -------------------------------------------------------------------------------------

METRICS = (
    Metric("intensity_flop_per_byte", "FLOPs divided by bytes", "FLOP/\nbyte", table=False),
    Metric("bound", "compute or bandwidth: the roof that limits this intensity", "bound by", text=True),
    Metric("roof_pct", "shortest time by the datasheet's roof / actual time", "of roof\n%", places=1),
    Metric("roof_of_measured_pct", "the same by the roof measured here", "of measured\nroof %", places=1),
)
COLUMNS = tuple(names_of(METRICS))
COMPUTE, BANDWIDTH = "compute", "bandwidth"
# From here on it is not that roof that bounds: clocks and measured peaks are some per cent off, and no more.
ABOVE_PCT = 110.0


@dataclass(frozen=True)
class Roof:
    """What a device can do at best; FLOP/s and bytes/s."""

    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge_flop_per_byte(self) -> float:
        return self.flops_per_s / self.bytes_per_s

    def at(self, intensity_flop_per_byte: float) -> float:
        """The FLOP rate that an intensity allows, FLOP/s."""
        return min(self.flops_per_s, intensity_flop_per_byte * self.bytes_per_s)


def roofs(peaks: pd.Series) -> dict[str, Roof]:
    """The roofs of a run's device (a row of :func:`bounds`): ``datasheet``, ``measured``, as far as known."""
    both = {"datasheet": PEAKS[:2], "measured": PEAKS[2:]}
    return {name: Roof(*peaks[list(of)]) for name, of in both.items() if peaks[list(of)].notna().all()}


def place(work: pd.DataFrame, peaks: pd.DataFrame | pd.Series) -> pd.DataFrame:
    """Where work stands on the roofline: :data:`COLUMNS`, NaN where it moved no known bytes.

    ``bound`` is by the datasheet's roof, by the measured one if the datasheet is not known. The percentages
    are the least time by either roof over the time it took. ``work``: ``flops, bytes, ns``, a row each;
    ``peaks``: columns :data:`PEAKS` of the same rows (0 or NaN: not known), or those of all.
    """
    flops, moved, ns = (work[name].astype(float) for name in ("flops", "bytes", "ns"))
    known = (moved > 0) & (ns > 0)
    intensity = (flops / moved).where(known)
    peak, bandwidth, *measured = (
        pd.Series(peaks[name], work.index, dtype=float).where(lambda rate: rate > 0) for name in PEAKS
    )
    ridge = (peak / bandwidth).fillna(measured[0] / measured[1])
    least_s = [
        pd.concat([flops / rate, moved / bytes_per_s], axis=1).max(axis=1, skipna=False)
        for rate, bytes_per_s in ((peak, bandwidth), measured)
    ]
    bound = pd.Series(np.where(intensity >= ridge, COMPUTE, BANDWIDTH), work.index, dtype=object)
    shares = [(100e9 * seconds / ns).where(known) for seconds in least_s]
    columns = (intensity, bound.where(known & ridge.notna(), None), *shares)
    return pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))
