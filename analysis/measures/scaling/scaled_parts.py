"""How is the answer of analysis.scaled laid out in a terminal? Three kinds of tables that fit 110 columns."""

from collections.abc import Sequence
from typing import Any

from analysis.display.metrics import CONFIDENCE
from analysis.display.terminal import Column, Part, Rows, digits, header, with_interval
from analysis.measures.scaling.points import UNPROFILED
from jobs.run import Run

_MOST_BASES = 8  # named below the table; the rest is counted


def parts(made: Rows, group_by: Sequence[str] = (), with_loss: bool = True) -> list[Part]:
    """The terminal's tables: durations and scaling, what is lost, use of the device, and reference files'."""
    own = [row for row in made if row.get("scaling")]
    counted = [row for row in made if "fprop_batches" in row]
    published = [row for row in made if row["method"] == "published"]
    found = []
    if own:
        found.append(_time_part(own, group_by))
        found += [loss] if with_loss and (loss := loss_part(own, group_by)) else []
        found.append(_use_part(own, group_by))
    if counted:
        found.append(_counted_part(counted, group_by))
    timed = [row for row in published if row.get("application_s") is not None]
    if timed:
        found.append(_published_part(timed, group_by))
    scaled = [row for row in published if row.get("batch_duration_s") is not None]
    if scaled:
        found.append(_published_scaled_part(scaled, group_by))
    return found


def _who(some: Rows, group_by: Sequence[str]) -> list[Column]:
    """The fields that tell the rows apart."""
    names = list(group_by) or [
        name for name in Run.model_fields
        if name not in ("profile", "data") and len({str(row.get(name)) for row in some}) > 1
    ]  # fmt: skip
    if not names:
        names = ["model"]
    short = {"gpus_per_node": "GPUs\na node", "image_size": "size"}
    return [
        Column(short.get(name, header(name)), _get(name), left=isinstance(some[0].get(name), str), key=True)
        for name in names
    ]


def _get(name: str, places: int | None = None) -> Any:
    def value(row: Any) -> Any:
        found = row.get(name)
        known = isinstance(found, int | float) and found == found
        return f"{found:z.{places}f}" if places is not None and known else found

    return value


def _interval(name: str, places: int | None = None) -> Any:
    return lambda row: with_interval(row.get(name), row.get(f"{name}_low"), row.get(f"{name}_high"), places)


def _beside(name: str, both: bool) -> Any:
    """A share of the measured peak, and before it that of the datasheet's: ``31.2 | 40.5``."""

    def value(row: Any) -> str:
        sheet, measured = row.get(f"{name}_pct"), row.get(f"{name}_of_measured_pct")
        if sheet is None and measured is None:
            return "-"
        return f"{digits(sheet, 3)} | {digits(measured, 3)}" if both else digits(measured, 3)

    return value


def _time_part(own: Rows, group_by: Sequence[str]) -> Part:
    columns = [
        *_who(own, group_by),
        Column(f"batch, ms\nmedian [{CONFIDENCE}]", _interval("batch_ms")),
        Column("p95\nms", _get("p95_ms")),
        Column("images\n/s", _get("images_per_s")),
        Column("speed-\nup", _get("speedup", 2)),
        Column(f"scaling eff.\n% [{CONFIDENCE}]", _interval("scaling_efficiency_pct", 1)),
        Column("runs", _get("repetitions")),
        Column("warm-\nup", _get("warmup_dropped")),
    ]
    kind = own[0]["scaling"]
    constant = "batch of a GPU" if kind == "weak" else "global batch"
    return Part(f"{kind.capitalize()} scaling (constant {constant})", own, columns, _bases(own, group_by))


def _bases(own: Rows, group_by: Sequence[str]) -> str:
    """The base points with their absolute images/s, and why intervals are missing."""
    told = [column for column in _who(own, group_by) if column.header not in ("nodes", "GPUs\na node")]
    bases: dict[str, None] = {}
    for row in own:
        if row.get("base") and row["world_size"] == row["base_world_size"]:
            who = " ".join(str(column.value(row)) for column in told)
            rate = f"{digits(row['base_images_per_s'])} images/s on {row['base']}"
            bases[f"{who}: {rate}" if who else rate] = None
    lines = ["100 % is ideal scaling from the base point of the configuration:"] if bases else []
    lines += [f"  {base}" for base in list(bases)[:_MOST_BASES]]
    if len(bases) > _MOST_BASES:
        lines.append(f"  and {len(bases) - _MOST_BASES} more (columns base, base_images_per_s of the CSV)")
    lines.append("warm-up: batches dropped at the head of the runs.")
    notes = dict.fromkeys(row["interval_note"] for row in own if row.get("interval_note"))
    lines += [f"No interval: {note}." for note in notes]
    if any(row["timed_by"] != UNPROFILED for row in own):
        lines.append("Timed by profiled runs where there is no unprofiled one.")
    return "\n".join(lines)


def loss_part(own: Rows, group_by: Sequence[str] = (), intervals: bool = False) -> Part | None:
    """Percentage points of ideal scaling that each part of a batch costs; None: all are base points.

    Args:
        intervals: beside the parts, too: for pages, which are wider than terminals.
    """
    scaled = [row for row in own if row["world_size"] != row["base_world_size"]]
    if not scaled:
        return None
    heads = {
        "com-\nputing": "compute", "exposed\ncomm.": "exposed_communication",
        "of it:\ntransfer": "exposed_transfer", "of it:\nwait": "exposed_wait",
        "exposed\nloader": "exposed_loader", "other\ncopies": "exposed_copies", "idle": "idle",
        "not attri-\nbuted": "unattributed",
    }  # fmt: skip
    split = [row for row in scaled if row["loss_exposed_transfer_pct"] is not None]
    if not split:
        heads = {head: name for head, name in heads.items() if not head.startswith("of it")}
    columns = [
        *_who(own, group_by),
        Column(f"lost\n[{CONFIDENCE}]", _interval("loss_pct", 1)),
        *(
            Column(head, (_interval if intervals else _get)(f"loss_{name}_pct", 1))
            for head, name in heads.items()
        ),
    ]
    lines = [
        "How much each part of a profiled batch grew from the base point, over the batch; below 0: shrank.",
        *([_TRANSFER] if split else []),
        "Not attributed: growth of unprofiled batches that profiled ones do not show (below 0: the reverse).",
        "Intervals of parts: inside the profiled runs"
        + ("." if intervals else " (columns loss_..._low and loss_..._high of the CSV, and the report)."),
    ]
    if any(row["loss_idle_host_bound_pct"] is not None for row in scaled):
        columns.append(Column("of idle:\nhost-bound", _get("loss_idle_host_bound_pct", 1)))
    known = [row for row in scaled if row["loss_unattributed_pct"] is not None]
    if len(split) < len(known):
        lines.append(
            f"{'Some communication' if split else 'Communication'} holds the wait for later ranks: to tell "
            "it from transfer takes the same collectives of all ranks."
        )
    notes = dict.fromkeys(row["loss_note"] for row in scaled if row["loss_note"])
    lines += [f"Parts not known: {note}." for note in list(notes)[:_MOST_BASES]]
    if len(notes) > _MOST_BASES:
        lines.append(f"  and {len(notes) - _MOST_BASES} more (column loss_note of the CSV)")
    return Part(
        "What is lost, and where: percentage points of ideal scaling", scaled, columns, "\n".join(lines)
    )


_TRANSFER = "Transfer: since the last rank had come to the collective; wait: before that, for later ranks."


def _use_part(own: Rows, group_by: Sequence[str]) -> Part:
    # A CPU has no datasheet to stand beside.
    both = any(row.get("peak_tflops_per_s") or row.get("peak_gb_per_s") for row in own)
    columns = [
        *_who(own, group_by),
        Column("FLOPS eff. %\nof kernels", _beside("flops_efficiency_of_kernels", both)),
        Column("FLOPS eff. %\nof batch", _beside("flops_efficiency_of_batch", both)),
        Column("bandw. eff. %\nof kernels", _beside("bandwidth_efficiency_of_kernels", both)),
        Column("bandw. eff. %\nof batch", _beside("bandwidth_efficiency_of_batch", both)),
        Column("MFU\n%", _beside("mfu", both)),
        Column("exposed\ncomm., ms", _get("exposed_communication_ms")),
        Column("profiled\n/ twin", _get("perturbation", 2)),
    ]
    of_what = "% of the datasheet's peak | of the peak measured" if both else "% of the peak measured"
    lines = [_peaks(own), *_use_notes(own, _who(own, group_by))]
    return Part(f"Use of the device: {of_what}", own, columns, "\n".join(lines))


def _use_notes(own: Rows, who: Sequence[Column]) -> list[str]:
    """What is to be said of single rows, each named by what tells it apart."""
    noted = [row for row in own if row.get("use_note")]
    lines = []
    for row in noted[:_MOST_BASES]:
        named = (f"{column.header.replace(chr(10), ' ')} {column.value(row)}" for column in who)
        lines.append(f"{', '.join(named)}: {row['use_note']}.")
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
        lines.append(f"Peaks of {device}: {', '.join(texts) or 'not known'}.")
    return "\n".join(lines)


def _counted_part(counted: Rows, group_by: Sequence[str]) -> Part:
    columns = [
        *_who(counted, group_by),
        Column("fprop\nbatches", _get("fprop_batches")),
        Column("bprop\nbatches", _get("bprop_batches")),
        Column("TFLOP\na batch", _get("tflop_per_batch", 5)),
        Column("fprop\ncover. %", _get("fprop_flop_coverage_pct", 1)),
        Column("bprop\ncover. %", _get("bprop_flop_coverage_pct", 1)),
        Column("kernels\nms", _get("kernel_ms")),
        Column("FLOPS\neff. %", _get("flops_efficiency_of_kernels_pct", 2)),
        Column("bandw.\neff. %", _get("bandwidth_efficiency_of_kernels_pct", 2)),
    ]
    caption = (
        "Batches are counted in each table. Coverage: credited over analytic FLOPs. Efficiencies: of the "
        "kernels' time.\nPyProf tables hold no durations of batches: no images/s and no scaling efficiency."
    )
    return Part("PyProf kernel tables, corrected method", counted, columns, caption)


def _published_part(published: Rows, group_by: Sequence[str]) -> Part:
    columns = [
        *_who(published, group_by),
        Column("repetitions\nkept", lambda row: f"{row['repetitions_kept']} of {row['repetitions']}"),
        Column("application\ns", _get("application_s", 2)),
        Column("epoch of 1e6\nimages, s", _get("epoch_duration_s")),
        Column("scaling\nefficiency %", _get("scaling_efficiency_pct", 2)),
        Column("does not depend\non batch size %", _get("batch_independent_pct", 1)),
    ]
    caption = (
        "The reference's scaling efficiency: epoch durations, start-up included, against the fewest nodes "
        "with the same GPUs a node. --explain says what that is made of."
    )
    return Part("Published method", published, columns, caption)


def _published_scaled_part(scaled: Rows, group_by: Sequence[str]) -> Part:
    columns = [
        *_who(scaled, group_by),
        Column("batch, s\n(TAU)", _get("batch_duration_s")),
        Column("FLOPS eff. %\nof batch", _get("flops_efficiency_of_batch_pct", 2)),
        Column("bandw. eff. %\nof batch", _get("bandwidth_efficiency_of_batch_pct", 2)),
    ]
    caption = (
        "The reference's scaled efficiencies, each under its own name. --explain says what they are made of."
    )
    return Part("Published method, PyProf tables that TAU timed", scaled, columns, caption)
