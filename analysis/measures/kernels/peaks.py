"""Datasheet peaks of devices.

The values and their sources are in ``peaks.yaml``; ``--peaks FILE`` adds the user's own, in the same form.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from profiling import yaml_text
from profiling.errors import UserError

_FILE = Path(__file__).with_name("peaks.yaml")
_MODELS = Path(__file__).with_name("models.yaml")

# As NVML and torch name a slice of a GPU: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
_MIG = re.compile(r"(?P<gpu>.+) MIG (?P<parts>\d)g\.(?P<gb>\d+)gb(\+.*)?", re.IGNORECASE)
_MEMORY_GB = re.compile(r"(\d+)\s?GB", re.IGNORECASE)
# Memory of GPUs that can be cut, where the name does not say it.
_MIG_GB = (("H100 PCIe", 80), ("H100 NVL", 94), ("H100", 80), ("H200", 141), ("A30", 24), ("B200", 180))
# The reference's GPU (Cartesius), whose tables do not name it.
REFERENCE_DEVICE = "Tesla K40m"


@dataclass(frozen=True)
class Peak:
    """Datasheet peaks of a device.

    ``flops_per_s`` is by precision (fp32, tf32, bf16, fp16), ``bytes_per_s`` that of its memory (None: not
    known).
    ``unconfirmed`` says what of it no source confirms; empty: nothing.
    """

    name: str
    match: str
    flops_per_s: dict[str, float]
    bytes_per_s: float | None
    source: str
    unconfirmed: str = ""


def read_peaks(path: Path = _FILE) -> list[Peak]:
    """The entries of a peaks file.

    Raises:
        UserError: unreadable, or an entry lacks a key; the message names the file and the entry.
    """
    content = yaml_text.read(path, "peaks file").content
    if not isinstance(content, list):
        raise UserError(f"{path} is not a peaks file (see analysis/measures/kernels/peaks.yaml)")
    return [_peak(entry, path) for entry in content]


def _peak(entry: Any, path: Path) -> Peak:
    try:
        rates = {precision: float(value) * 1e12 for precision, value in entry["tflops"].items()}
        match = str(entry.get("match", re.escape(entry["name"])))
        re.compile(match)
        moved = None if entry["gb_per_s"] is None else float(entry["gb_per_s"]) * 1e9
        doubt = str(entry.get("unconfirmed", ""))
        return Peak(entry["name"], match, rates, moved, entry.get("source", "user"), doubt)
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        name = entry.get("name") if isinstance(entry, dict) else entry
        raise UserError(
            f"{path}: invalid entry {name!r} ({error}); it needs name, tflops: {{fp32: ...}}, gb_per_s"
        ) from None


@cache
def _all(own: Path | None) -> tuple[Peak, ...]:
    return (*(read_peaks(own) if own else ()), *read_peaks())


def find(device: str, own: Path | None = None) -> Peak | None:
    """The datasheet peaks of ``device`` (as NVML or torch names it), or None if no entry matches.

    Args:
        own: a peaks file of the user's, whose entries come first.
    """
    name = device.strip()
    if slice_of := _MIG.fullmatch(name):
        whole = find(slice_of["gpu"], own)
        return _slice(whole, name, slice_of) if whole else None
    for peak in _all(own):
        if name.lower() == peak.name.lower() or re.fullmatch(peak.match, name, re.IGNORECASE):
            return peak
    return None


def _slice(whole: Peak, name: str, match: re.Match) -> Peak | None:
    """The share of a GPU's peaks that a MIG slice has; None where its memory's size is not known.

    NVIDIA cuts a GPU into 7 slices of its multiprocessors (A30: 4) and 8 of its memory (A30: 4); the name
    says the former's number, and how much memory it has.
    """
    memory_gb = _MEMORY_GB.search(match["gpu"])
    known = int(memory_gb[1]) if memory_gb else next((gb for gpu, gb in _MIG_GB if gpu in whole.name), 0)
    if not known:
        return None
    parts, slices = (4, 4) if whole.name == "A30" else (7, 8)
    computing = int(match["parts"]) / parts
    of_memory = min(slices, max(1, round(int(match["gb"]) / known * slices)))
    return Peak(
        name,
        re.escape(name),
        {precision: rate * computing for precision, rate in whole.flops_per_s.items()},
        None if whole.bytes_per_s is None else whole.bytes_per_s * of_memory / slices,
        whole.source,
        f"{match['parts']}/{parts} of the arithmetic, {of_memory}/{slices} of the memory of {whole.name}",
    )


@cache
def forward_flops_per_image(model: str) -> float | None:
    """Analytic FLOPs of a forward pass of ``model`` at 224 x 224, an image; None if not known."""
    return yaml_text.parse(_MODELS.read_text(encoding="utf-8")).get(model)
