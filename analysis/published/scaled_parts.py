"""How is the answer of analysis.scaled laid out in a terminal? Three kinds of tables that fit 110 columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.display.metrics import (
    FIELDS,
    RANKS_PER_NODE,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    picked,
    telling,
)
from analysis.display.naming import in_words, names_apart, together
from analysis.display.numbers import digits
from analysis.display.terminal import Part
from analysis.measures.anatomy.divide import PARTS, WITHIN
from analysis.measures.scaling import figures, loss, use
from analysis.measures.scaling.certainty import open_intervals, without_unusable_intervals
from analysis.measures.scaling.point import UNPROFILED
from analysis.measures.tau import applications as tau
from analysis.published import reference, scaled_published
from analysis.statistics.estimates import fewest_beyond
from jobs.run_fields import APART

_PER_NODE = FIELDS["gpus_per_node"].header

_SHARES = (
    "flops_efficiency_of_kernels",
    "flops_efficiency_of_step",
    "bandwidth_efficiency_of_kernels",
    "bandwidth_efficiency_of_step",
    "mfu",
)
_RATE = "images/s: from the mean step, not the median. "
_MOST_BASES = 8  # named below the table; the rest is counted


def parts(rows: Rows, group_by: Sequence[str] = (), with_loss: bool = True) -> list[Part]:
    """The terminal's tables: durations and scaling, what is lost, use of the device, and reference files'."""
    own = [without_unusable_intervals(row) for row in rows if row.get("scaling")]
    counted = [row for row in rows if row["tables"] is not None]
    published = [row for row in rows if row["method"] == "published"]
    tables = []
    if own:
        tables.append(_time_part(own, group_by))
        tables += [lost] if with_loss and (lost := loss_part(own, group_by)) else []
        used = _use_part(own, group_by)
        # Without a profiled run it would be dashes, and its notes what is missing for want of one.
        if filled(used.columns[len(_who(own, group_by)) :], own):
            tables.append(used)
    if counted:
        tables.append(_counted_part(counted, group_by))
    timed = [row for row in published if row.get("application_s") is not None]
    if timed:
        tables.append(_published_part(timed, group_by))
    scaled = [row for row in published if row.get("step_duration_s") is not None]
    if scaled:
        tables.append(_published_scaled_part(scaled, group_by))
    return tables


def _who(some: Rows, group_by: Sequence[str]) -> list[Metric]:
    """The fields that tell the rows apart."""
    return fields(group_by or telling(some, APART) or _size_of(some))


def _size_of(some: Rows) -> list[str]:
    """What a single configuration is called by."""
    return [name for name in ("nodes", "gpus_per_node") if some[0].get(name) is not None] or ["model"]


def _peaks_beside(name: str, both: bool) -> Column:
    """A share of the measured peak, and before it that of the datasheet's: ``31.2 | 40.5``."""
    sheet, measured = picked(use.METRICS, f"{name}_pct", f"{name}_of_measured_pct")
    if not both:
        return measured.column()

    def printed(row: Mapping[str, Any]) -> str:
        of_sheet, of_measured = sheet.alone.printed(row), measured.printed(row)
        return "-" if of_sheet == of_measured == "-" else f"{of_sheet} | {of_measured}"

    return sheet.alone.column(printed=printed)


def _time_part(own: Rows, group_by: Sequence[str]) -> Part:
    rate, speedup = picked(figures.METRICS, "images_per_s", "speedup")
    efficiency, *runs = picked(figures.METRICS, "scaling_efficiency_pct", "runs", "warmup_dropped")
    # Where none is compared with another, 100 % would look like a result.
    scaling = [speedup.alone, efficiency] if any(map(_is_compared, own)) else []
    timed = picked(figures.METRICS, "step_ms", "p95_ms")
    shown = columns([*_who(own, group_by), *timed, rate.alone, *scaling, *runs])
    return Part(_time_title(own), own, shown, _bases(own, group_by))


def _time_title(own: Rows) -> str:
    if not any(map(_is_compared, own)):
        return "Steps and throughput: no configuration has a baseline of fewer ranks (run one for speedups)"
    kind = own[0]["scaling"]
    per = "per-rank" if all(row["device_name"] == "cpu" for row in own) else "per-GPU"
    return f"{kind.capitalize()} scaling (fixed {per if kind == 'weak' else 'global'} batch size)"


def _is_compared(row: Mapping[str, Any]) -> bool:
    """Whether a row's efficiency is relative to fewer ranks; a group of world sizes has some that is."""
    own_baseline = row["world_size"] is not None and row["world_size"] == row["base_world_size"]
    return bool(np.isfinite(row["scaling_efficiency_pct"])) and not own_baseline


def _bases(own: Rows, group_by: Sequence[str]) -> str:
    """The baselines with their absolute images/s, and why intervals are missing."""
    size = ("nodes", "gpus_per_node", "world_size")
    # A baseline's own name has the precision of its gradients.
    told = [field.name for field in _who(own, group_by) if field.name not in (*size, "grad")]
    bases: dict[str, None] = {}
    for row in own if any(map(_is_compared, own)) else ():
        # "": it has none; a row that mixes world sizes is none.
        if row.get("base") and row["world_size"] and row["world_size"] == row["base_world_size"]:
            who = in_words(row, told)
            rate = f"{digits(row['base_images_per_s'])} images/s on {row['base']}"
            bases[f"{who}: {rate}" if who else rate] = None
    lines = ["Baselines (100 % scaling efficiency):"] if bases else []
    lines += [f"  {base}" for base in list(bases)[:_MOST_BASES]]
    if len(bases) > _MOST_BASES:
        lines.append(f"  and {len(bases) - _MOST_BASES} more (columns base, base_images_per_s of the CSV)")
    rate = _RATE if any(np.isfinite(row["images_per_s"]) for row in own) else ""
    lines.append(
        "[>=95 %]: confidence interval that contains the true value in at least 95 % of cases. "
        f"{rate}warmup: steps dropped at the start, summed over the runs."
    )
    if any(np.isnan(row["p95_ms"]) for row in own):
        lines.append(f"No p95 (-): it takes {fewest_beyond(95)} steps without warmup, of one configuration.")
    notes = dict.fromkeys(row["interval_note"] for row in own if row.get("interval_note"))
    lines += [f"No interval: {note}." for note in notes]
    lines += open_intervals(own)
    if any(row["kind_of_runs"] != UNPROFILED for row in own):
        lines.append("Configurations without unprofiled runs are timed by their profiled runs.")
    return "\n".join(lines)


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
    split = [row for row in scaled if row["loss_exposed_transfer_pct"] is not None]
    names = (*PARTS[:2], *(WITHIN["exposed_communication"] if split else ()), *PARTS[2:], "unattributed")
    parts_of_it = picked(loss.METRICS, *(f"loss_{name}_pct" for name in names))
    shown = [
        *columns([*_who(own, group_by), *picked(loss.METRICS, "loss_pct")]),
        *(one.alone.column(printed=one.printed if intervals else None) for one in parts_of_it),
    ]
    lines = [
        "Growth of each part of a profiled step relative to the baseline; negative: it shrank.",
        *([_TRANSFER] if split else []),
        "Unattributed: growth of unprofiled steps that profiled ones do not show (negative: profiled steps "
        "grew more).",
        "Intervals of the parts "
        + ("" if intervals else "(CSV columns loss_..._low and loss_..._high; report) ")
        + "are over the steps of the profiled runs: they do not cover differences between runs.",
    ]
    if any(row["loss_idle_host_bound_pct"] is not None for row in scaled):
        (host_bound,) = picked(loss.METRICS, "loss_idle_host_bound_pct")
        shown.append(host_bound.alone.column())
    known = [row for row in scaled if row["loss_unattributed_pct"] is not None]
    if len(split) < len(known):
        lines.append(
            f"Communication {'of some rows ' if split else ''}includes waiting for other ranks: to separate "
            "it from transfer, the same collectives of all ranks must be recorded."
        )
    lines += open_intervals(scaled) if intervals else []  # in the terminal the first table says it
    missing = parts_not_available(scaled, group_by)
    lines += missing[:_MOST_BASES]
    if len(missing) > _MOST_BASES:
        lines.append(f"  and {len(missing) - _MOST_BASES} more (column loss_note of the CSV)")
    return Part(
        "Loss of scaling efficiency by part of the step, percentage points", scaled, shown, "\n".join(lines)
    )


def parts_not_available(
    scaled: Rows, group_by: Sequence[str] = (), head: str = "Parts not available"
) -> list[str]:
    """Why parts of the loss are not available: a line for each reason, with its rows unless all."""
    names = [one.name for one in _who(scaled, group_by)]
    rows_of: dict[str, list[str]] = {}
    for row, name in zip(scaled, names_apart(scaled, names), strict=True):
        if row["loss_note"]:
            rows_of.setdefault(row["loss_note"], []).append(name)
    return [
        f"{head}{'' if len(of) == len(scaled) else f' for {together(of)}'}: {note}."
        for note, of in rows_of.items()
    ]


_TRANSFER = "Wait: until the last rank enters the collective; transfer: after that."


def _use_part(own: Rows, group_by: Sequence[str]) -> Part:
    # A CPU has no datasheet to stand beside.
    both = any(row.get("peak_tflops_per_s") or row.get("peak_gb_per_s") for row in own)
    exposed, perturbation = picked(use.METRICS, "exposed_communication_ms", "perturbation")
    who, others = columns(_who(own, group_by)), columns([exposed, perturbation.alone])
    shares = [_marked(_peaks_beside(name, both), name) for name in _SHARES]
    if not filled(shares, own):
        without = "No efficiencies: no peaks are known (a sweep measures them, GPUs have datasheets)."
        return Part("Communication, and the cost of profiling", own, [*who, *others], without)
    shown = [*who, *shares, *others]
    of_what = "% of the datasheet's peak | of the measured peak" if both else "% of the measured peak"
    lines = [_peaks(own), *_use_notes(own, who)]
    return Part(f"Use of the device: {of_what}", own, shown, "\n".join(lines))


def _marked(column: Column, name: str) -> Column:
    """A share of the kernels with an asterisk where it is too low (``use_note``); others as they are."""
    if not name.endswith("_of_kernels"):
        return column
    return replace(column, printed=lambda row: column.text(row) + ("*" if row.get("use_note") else ""))


def _use_notes(own: Rows, who: Sequence[Column]) -> list[str]:
    """What is to be said of the rows that have an asterisk, each named by what tells it apart."""
    noted = [row for row in own if row.get("use_note")]
    lines = []
    for row in noted[:_MOST_BASES]:
        of_cpu = row.get("device_name") == "cpu"
        heads = (RANKS_PER_NODE if of_cpu and one.header == _PER_NODE else one.header for one in who)
        # A heading broken behind a slash is one word: GPUs/node.
        names = (head.replace("/\n", "/").replace("\n", " ") for head in heads)
        named = (f"{name} {column.value(row)}" for name, column in zip(names, who, strict=True))
        lines.append(f"* {', '.join(named)}: {row['use_note']}.")
    if len(noted) > _MOST_BASES:
        lines.append(f"and {len(noted) - _MOST_BASES} more (column use_note of the CSV)")
    return lines


def _peaks(own: Rows) -> str:
    lines = []
    for device in dict.fromkeys(row["device_name"] for row in own):
        of_device = [row for row in own if row["device_name"] == device]
        texts = []
        for name, unit, where in (
            ("peak_tflops_per_s", "TFLOP/s", "datasheet"),
            ("peak_gb_per_s", "GB/s", "datasheet"),
            ("measured_tflops_per_s", "TFLOP/s", "measured"),
            ("measured_gb_per_s", "GB/s", "measured"),
        ):
            values = sorted({row[name] for row in of_device if row.get(name)})
            if values:
                span = " to ".join(digits(value, 3) for value in dict.fromkeys((values[0], values[-1])))
                texts.append(f"{span} {unit} ({where})")
        lines.append(f"Peaks of {device}: {', '.join(texts) or 'not available'}.")
    return "\n".join(lines)


def _counted_part(counted: Rows, group_by: Sequence[str]) -> Part:
    shown = columns([*_who(counted, group_by), *reference.METRICS[1:]])
    caption = (
        "Steps are counted in each table. Coverage: FLOPs from kernels divided by the analytic count. "
        "Efficiencies: of kernel time.\nPyProf tables hold no step durations, so there are no images/s and "
        "no scaling efficiency."
    )
    return Part("PyProf kernel tables, corrected method", counted, shown, caption)


def _published_part(published: Rows, group_by: Sequence[str]) -> Part:
    kept, application, *others = picked(
        tau.METRICS, "runs_kept", "application_s", "epoch_duration_s", "scaling_efficiency_pct",
        "batch_independent_pct",
    )  # fmt: skip
    shown = [
        *columns(_who(published, group_by)),
        kept.column(printed=lambda row: f"{row['runs_kept']} of {row['runs']}"),
        *columns([application, *others]),
    ]
    caption = (
        "The reference's scaling efficiency: epoch durations, startup included, relative to the fewest nodes "
        "with the same number of GPUs per node. --explain breaks it down."
    )
    return Part("Published method", published, shown, caption)


def _published_scaled_part(scaled: Rows, group_by: Sequence[str]) -> Part:
    shown = columns([*_who(scaled, group_by), *scaled_published.METRICS])
    caption = "The reference's scaled efficiencies, each under its own name. --explain breaks them down."
    return Part("Published method, PyProf tables timed by TAU", scaled, shown, caption)
