"""Terminal tables of analysis.scaled: durations and scaling, loss by part, use of the device."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import Column, Metric, Rows, columns, fields, filled, picked, telling
from analysis.display.numbers import digits
from analysis.display.terminal import Part
from analysis.frames.divide import PARTS, WITHIN
from analysis.measures import loss, tau, use
from analysis.measures import scaled as figures
from analysis.measures.certainty import without_unusable_intervals
from analysis.published import reference
from jobs.run_fields import APART

_SHARES = (
    "flops_efficiency_of_kernels",
    "flops_efficiency_of_step",
    "bandwidth_efficiency_of_kernels",
    "bandwidth_efficiency_of_step",
    "mfu",
)


def parts(rows: Rows, group_by: Sequence[str] = (), with_loss: bool = True) -> list[Part]:
    """The terminal's tables: durations and scaling, what is lost, use of the device, and reference files'."""
    own = [without_unusable_intervals(row) for row in rows if row.get("scaling")]
    tables = []
    if own:
        tables.append(_time_part(own, group_by))
        tables += [lost] if with_loss and (lost := loss_part(own, group_by)) else []
        used = _use_part(own, group_by)
        if filled(used.columns[len(_who(own, group_by)) :], own):
            tables.append(used)
    published = [row for row in rows if row["method"] == "published"]
    for title, metrics, some in (
        (
            "PyProf kernel tables, corrected method",
            reference.METRICS[1:],
            [row for row in rows if row["tables"] is not None],
        ),
        (
            "Published method",
            [one for one in tau.METRICS if one.name not in ("runs", "base_nodes")],
            [row for row in published if row.get("application_s") is not None],
        ),
        (
            "Published method, PyProf tables timed by TAU",
            reference.SCALED_METRICS,
            [row for row in published if row.get("step_duration_s") is not None],
        ),
    ):
        if some:
            tables.append(Part(title, some, columns([*_who(some, group_by), *metrics])))
    return tables


def _who(some: Rows, group_by: Sequence[str]) -> list[Metric]:
    """The fields that tell the rows apart; of a single configuration its size."""
    size = [name for name in ("nodes", "gpus_per_node") if some[0].get(name) is not None]
    return fields(group_by or telling(some, APART) or size or ["model"])


def _time_part(own: Rows, group_by: Sequence[str]) -> Part:
    rate, speedup = picked(figures.METRICS, "images_per_s", "speedup")
    efficiency, *runs = picked(figures.METRICS, "scaling_efficiency_pct", "runs", "warmup_dropped")
    # Where none is compared with another, 100 % would look like a result.
    compared = any(map(_is_compared, own))
    scaling = [speedup.alone, efficiency] if compared else []
    timed = picked(figures.METRICS, "step_ms", "p95_ms")
    shown = columns([*_who(own, group_by), *timed, rate.alone, *scaling, *runs])
    if not compared:
        return Part("Steps and throughput", own, shown)
    kind = own[0]["scaling"]
    per = "per-rank" if all(row["device_name"] == "cpu" for row in own) else "per-GPU"
    title = f"{kind.capitalize()} scaling (fixed {per if kind == 'weak' else 'global'} batch size)"
    return Part(title, own, shown)


def _is_compared(row: Mapping[str, Any]) -> bool:
    """Whether a row's efficiency is relative to fewer ranks; a group of world sizes has some that is."""
    own_baseline = row["world_size"] is not None and row["world_size"] == row["base_world_size"]
    return bool(np.isfinite(row["scaling_efficiency_pct"])) and not own_baseline


def loss_part(own: Rows, group_by: Sequence[str] = (), intervals: bool = False) -> Part | None:
    """Percentage points of ideal scaling that each part of a batch costs; None: all are baselines.

    Args:
        intervals: beside the parts, too: for pages, which are wider than terminals.
    """
    scaled = [
        loss.without_meaningless_parts(without_unusable_intervals(row))
        for row in own
        if row["world_size"] != row["base_world_size"]
    ]
    if not scaled:
        return None
    split = any(row["loss_exposed_transfer_pct"] is not None for row in scaled)
    host_bound = any(row["loss_idle_host_bound_pct"] is not None for row in scaled)
    names = (*PARTS[:2], *(WITHIN["exposed_communication"] if split else ()), *PARTS[2:], "unattributed")
    parts_of_it = picked(loss.METRICS, *(f"loss_{name}_pct" for name in names))
    shown = [
        *columns([*_who(own, group_by), *picked(loss.METRICS, "loss_pct")]),
        *(one.alone.column(printed=one.printed if intervals else None) for one in parts_of_it),
        *(one.alone.column() for one in picked(loss.METRICS, "loss_idle_host_bound_pct") if host_bound),
    ]
    caption = "Growth of each part of a profiled step relative to the baseline; negative: it shrank."
    return Part("Loss of scaling efficiency by part of the step, percentage points", scaled, shown, caption)


def _use_part(own: Rows, group_by: Sequence[str]) -> Part:
    # A CPU has no datasheet to stand beside.
    both = any(row.get("peak_tflops_per_s") or row.get("peak_gb_per_s") for row in own)
    exposed, perturbation = picked(use.METRICS, "exposed_communication_ms", "perturbation")
    who, others = columns(_who(own, group_by)), columns([exposed, perturbation.alone])
    shares = [_peaks_beside(name, both) for name in _SHARES]
    if not filled(shares, own):
        return Part("Communication, and the cost of profiling", own, [*who, *others])
    of_what = "% of the datasheet's peak | of the measured peak" if both else "% of the measured peak"
    return Part(f"Use of the device: {of_what}", own, [*who, *shares, *others], _peaks(own))


def _peaks_beside(name: str, both: bool) -> Column:
    """A share of the measured peak, and before it that of the datasheet's: ``31.2 | 40.5``."""
    sheet, measured = picked(use.METRICS, f"{name}_pct", f"{name}_of_measured_pct")
    if not both:
        return measured.column()

    def printed(row: Mapping[str, Any]) -> str:
        of_sheet, of_measured = sheet.alone.printed(row), measured.printed(row)
        return "-" if of_sheet == of_measured == "-" else f"{of_sheet} | {of_measured}"

    return sheet.alone.column(printed=printed)


def _peaks(own: Rows) -> str:
    """The peaks of each device, datasheet and measured, a line each."""
    lines = []
    for device in dict.fromkeys(row["device_name"] for row in own):
        texts = []
        for kind, where in (("peak", "datasheet"), ("measured", "measured")):
            for name, unit in (("tflops_per_s", "TFLOP/s"), ("gb_per_s", "GB/s")):
                of_device = (row.get(f"{kind}_{name}") for row in own if row["device_name"] == device)
                if values := sorted({value for value in of_device if value}):
                    span = " to ".join(dict.fromkeys(digits(one, 3) for one in (values[0], values[-1])))
                    texts.append(f"{span} {unit} ({where})")
        lines.append(f"Peaks of {device}: {', '.join(texts)}" if texts else "")
    return "\n".join(filter(None, lines))
