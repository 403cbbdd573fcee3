"""The answer of each single-node study: its rows, tables and verdict."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.display.metrics import IN_RUN, RANGE, Metric, Rows, columns, picked
from analysis.display.numbers import digits
from analysis.display.terminal import Answer, Part
from analysis.measures import peaks, roofline
from analysis.measures.peaks import Bound
from analysis.statistics.estimates import Estimate
from analysis.studies.result import Key, Result
from jobs.store import StudyManifest
from profiling.errors import UserError, did_you_mean
from profiling.findings import Finding
from profiling.schemas import PASSES, SPLIT_STEP

_MIB, _GIGA = 1 << 20, 1e9
Row = dict[str, Any]


class Study(NamedTuple):
    """A kind of study: its question, its columns, and what makes the answer, also of the user's own peaks."""

    question: str
    metrics: Sequence[Metric]
    answer: Callable[[Result, Path | None], Answer]


def answer(result: Result, own_peaks: Path | None = None) -> Answer:
    """The answer of a study; its verdict stands above the tables.

    Raises:
        UserError: a study that this release does not know.
    """
    name = result.manifest.study
    if name not in STUDIES:
        raise UserError(f"{result.path}: unknown study {name!r}{did_you_mean(name, STUDIES)}")
    return STUDIES[name].answer(result, own_peaks)


def timing(manifest: StudyManifest) -> str:
    """How a study's durations were taken."""
    return f"Medians [intervals] over {manifest.repetitions} repetitions after {manifest.warmup} of warmup."


# --- columns ------------------------------------------------------------------------------------------


def _size(name: str, meaning: str, header: str, unit: float = _MIB) -> Metric:
    return Metric(name, meaning, header, show=lambda value: digits(value / unit))


def _count(name: str, meaning: str, header: str = "", **more: Any) -> Metric:
    return Metric(name, meaning, header, show=lambda value: str(int(value)), **more)


def _whether(name: str, meaning: str, header: str = "") -> Metric:
    return Metric(name, meaning, header, show=lambda value: "yes" if value else "no", text=True)


def _timed(name: str, meaning: str, header: str = "", unit: str = "ms", interval: str = IN_RUN) -> Metric:
    """The column ``name_ms`` and those of its interval, ``name_low_ms`` and ``name_high_ms``."""
    return Metric(f"{name}_{unit}", meaning, header, interval, (f"{name}_low_{unit}", f"{name}_high_{unit}"))


_DEVICE = Metric("device", "where", text=True, key=True)
_FORWARD = _timed("forward", "duration of the forward pass, median over repetitions")
_BACKWARD = _timed("backward", "duration of the backward pass, median over repetitions")
_SAME = (
    _whether("same_output", "whether the outputs agree", "same\noutput"),
    Metric("largest_difference", "largest difference of the outputs"),
)


def _ends(name: str, estimate: Estimate | None, unit: str = "_ms") -> Row:
    """The cells of a figure and its interval; without a unit those of a ratio."""
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return dict(zip((name + unit, f"{name}_low{unit}", f"{name}_high{unit}"), values, strict=True))


def _same(result: Result, key: Key) -> Row:
    difference = result.quantity(key, "largest_difference")
    return {"same_output": bool(result.quantity(key, "same_output")), "largest_difference": difference}


def _devices(rows: Rows) -> str:
    return ", ".join(dict.fromkeys(row["device"] for row in rows))


def _compared(rows: Rows, name: str, case: Callable[[Row], str]) -> list[Finding]:
    """Whether cases differ in time from those that they are compared with, by the interval of a ratio."""
    found = []
    for row in rows:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        difference = "significant" if low > 1 or high < 1 else "not significant"
        difference = difference if low <= high else "too few repetitions"
        data = {"figure": name, "value": row[name], "difference": difference}
        found.append(Finding("study_compared", configuration=case(row), data=data))
        if not row["same_output"]:
            by = {"difference": row["largest_difference"]}
            found.append(Finding("study_outputs_differ", configuration=case(row), data=by))
    return found


# --- capacity -----------------------------------------------------------------------------------------

LARGEST, SMALLEST = "largest that fits", "smallest that does not"
_SPLIT = re.compile(r"(?P<network>\d+\+\d+) split after (?P<place>\d+)")
_CAPACITY = (
    Metric("layers", "convolutions + linear layers", text=True, key=True),
    Metric("devices", "number of devices the network is split over"),
    _DEVICE,
    Metric("split_after", "with two devices: number of layers on the first"),
    Metric("chosen", "with two devices: whether this is the best-balanced split"),
    Metric("convolutions", "convolutions on this device", "convo-\nlutions"),
    Metric("linears", "linear layers on this device"),
    _whether("fits", "no: it ran out of memory, or the kernel killed the process"),
    Metric("boundary", "largest network that fits, smallest that does not", text=True),
    _timed("step", "duration of a step: forward, mean of squares, backward and plain SGD"),
    Metric("step_on_devices", "number of devices the step was timed on", "timed on\ndevices"),
    _timed("own", "computation of this device, part of step_ms", "its own\nms"),
    _size("limit_bytes", "memory limit", "limit\nMiB"),
    _size("base_bytes", "memory in use before the network is built", "base\nMiB"),
    _size("peak_memory_bytes", "peak memory during a step", "peak\nMiB"),
    _size("held_bytes", "memory held in fragments by PyTorch's allocator", "held\nMiB"),
    _size("free_bytes", "limit minus peak and held memory", "free\nMiB"),
    Metric("reason", "reason why it does not fit", "why not", show=lambda reason: reason[:60], text=True),
)


def _capacity(result: Result, _: Path | None) -> Answer:
    """A row a try and device: the networks tried on one device by size, then the splits over two."""
    one = [_try(result, key) for key in result.keys if not _SPLIT.fullmatch(key[0])]
    one.sort(key=_layers)
    two = [_try(result, key) for key in result.keys if _SPLIT.fullmatch(key[0])]
    chosen = [row for row in two if row["chosen"]]
    fit, wanting = ([row for row in one if row["fits"] == whether] for whether in (True, False))
    if fit:
        fit[-1]["boundary"] = LARGEST
    if wanting:
        wanting[0]["boundary"] = SMALLEST
        for name in ("step_ms", "step_low_ms", "step_high_ms", "step_on_devices") if chosen else ():
            wanting[0][name] = chosen[0][name]  # over two devices
    verdict = Finding("study_limit_not_found", data={"why": "all fit" if fit else "none fits"})
    if fit and wanting:
        fits, fails, reason = fit[-1]["layers"], wanting[0]["layers"], wanting[0]["reason"]
        verdict = Finding("study_limit", data={"fits": fits, "fails": fails})
        if _layers(fit[-1]) > _layers(wanting[0]):
            why = f"{fails} fails, {fits} fits: {reason}"
            verdict = Finding("study_limit_not_found", data={"why": why})
    sizes = ("base_bytes", "peak_memory_bytes", "free_bytes")
    limit = next((row["limit_bytes"] for row in one if row["limit_bytes"] is not None), None)
    settings = result.manifest.settings
    shape = ", ".join(str(settings.get(name)) for name in ("batch", "image_size", "image_size"))
    parts = [
        Part(
            f"What fits in {digits(limit / _MIB) if limit else '?'} MiB of {_devices(one[:1]) or '?'}",
            one,
            columns(_CAPACITY, "layers", "fits", "boundary", "step_ms", "step_on_devices", *sizes, "reason"),
            f"{timing(result.manifest)} Batch, height, width: {shape}.",
        )
    ]
    if two:
        names = ("layers", "device", "convolutions", "linears", "own_ms", *sizes)
        title = f"On two devices, {settings.get('balance')} balanced"
        parts.append(Part(title, chosen or two, columns(_CAPACITY, *names)))
    return Answer([*one, *two], _CAPACITY, parts, verdict=[verdict])


def _try(result: Result, key: Key) -> Row:
    case, device = key
    split = _SPLIT.fullmatch(case)
    names = ("limit", "base", "peak", "held")
    limit, base, peak, held = (result.quantity(key, f"{name}_bytes") for name in names)
    fits = result.quantity(key, "fits") == 1
    step = _ends("step", result.estimate(key, SPLIT_STEP))
    return {
        "layers": split["network"] if split else case,
        "devices": 2 if split else 1,
        "device": device,
        "split_after": int(split["place"]) if split else None,
        "chosen": result.quantity(key, "chosen") == 1 if split else None,
        "convolutions": int(result.quantity(key, "convolutions") or 0),
        "linears": int(result.quantity(key, "linears") or 0),
        "fits": fits,
        "boundary": "",
        **step,
        "step_on_devices": (2 if split else 1) if step["step_ms"] is not None else None,
        **_ends("own", result.estimate(key, PASSES)),
        "limit_bytes": limit,
        "base_bytes": base,
        "peak_memory_bytes": peak,
        "held_bytes": held,
        "free_bytes": limit - peak - (held or 0) if fits and limit and peak else None,
        "reason": result.all_of(key, "fits").note,
    }


def _layers(row: Row) -> int:
    return int(row["convolutions"] + row["linears"])


# --- layers -------------------------------------------------------------------------------------------

_PEAKS = "peaks"  # the case that holds the device's
# Columns of each stage, whose name stands before theirs in the data: ``forward_flops``.
_OF_A_STAGE = (
    _size("flops", "FLOPs, by the formulas of profiling/cost/operators.py", "GFLOP", _GIGA),
    _size("bytes", "bytes of tensors read and written, by the same formulas", "GB", _GIGA),
    Metric("tflops_per_s", "FLOPs divided by duration", "TFLOP/s"),
    Metric("gb_per_s", "bytes divided by duration", "GB/s"),
    Metric("intensity_flop_per_byte", "FLOPs divided by bytes", "FLOP\nper byte"),
    Metric("bound", "compute or bandwidth: the roof that limits it", "bound by", text=True),
    Metric("roof_pct", "achieved share of the roof, with the datasheet's peaks", "of the\ndatasheet's %"),
    Metric(
        "roof_of_measured_pct",
        "the same, with peaks measured just before by a matrix product and a copy",
        "of the roof\n%",
    ),
)
_MEMORY = ("peak_memory_bytes", "retained_memory_bytes")
_LAYERS = (
    Metric("layer", "layer of torch.nn", text=True, key=True),
    Metric("input", "shape of the input", text=True),
    replace(_DEVICE, key=False),
    _FORWARD,
    _BACKWARD,
    _size(_MEMORY[0], "peak memory of both passes, gradients included, input and weights not",
          "peak\nMiB"),
    _size(_MEMORY[1], "memory that the forward pass keeps for the backward pass, output included",
          "retained\nMiB"),
    Metric("idle_power_w", "power before the study starts"),
    _timed("power", "mean power while both passes are repeated", "power\nW", "w", RANGE),
    _timed("energy_above_idle", "energy above idle power per repetition of both passes",
           "energy above\nidle, J", "j", RANGE),
    *(
        replace(metric, name=f"{stage}_{metric.name}", meaning=f"{stage}: {metric.meaning}")
        for stage in PASSES
        for metric in _OF_A_STAGE
    ),
)  # fmt: skip


def _costs(result: Result, own_peaks: Path | None) -> Answer:
    """A row a layer: time, memory, power and energy; of each stage FLOPs, bytes and its place."""
    rows, above = [], []
    for key in result.keys:
        case, device = key
        if case == _PEAKS:
            continue
        layer, _, shape = case.rpartition("@")
        row: Row = {"layer": layer, "input": shape, "device": device}
        row |= {name: result.quantity(key, name) for name in _MEMORY}
        row["idle_power_w"] = result.quantity((_PEAKS, device), "idle_w")
        for name, unit in (("power", "w"), ("energy_above_idle", "j")):
            values = result.all_of(key, f"{name}_{unit}").values
            row[f"{name}_{unit}"] = result.quantity(key, f"{name}_{unit}")
            several = len(values) > 1
            row[f"{name}_low_{unit}"] = min(values) if several else None
            row[f"{name}_high_{unit}"] = max(values) if several else None
        for stage in PASSES:
            row |= _ends(stage, result.estimate(key, [stage]))
            row |= _place(result, key, stage, row[f"{stage}_ms"], own_peaks)
            share = row[f"{stage}_roof_pct"] or row[f"{stage}_roof_of_measured_pct"]
            if share and share > roofline.ABOVE_PCT:
                above.append((f"{layer} {stage}", f"{row[f'{stage}_bound']} roof's", share))
        rows.append(row)
    costs = ("layer", "input", "forward_ms", "backward_ms", *_MEMORY, "power_w", "energy_above_idle_j")
    places = columns(
        (_LAYERS[0], Metric("stage", "forward or backward", text=True, key=True), *_OF_A_STAGE),
        "layer", "stage", "flops", "bytes", "intensity_flop_per_byte", "tflops_per_s", "gb_per_s", "bound",
        "roof_of_measured_pct", "roof_pct",
    )  # fmt: skip
    stages = [
        {**row, "stage": stage, **{one.name: row[f"{stage}_{one.name}"] for one in _OF_A_STAGE}}
        for row in rows
        for stage in PASSES
    ]
    roofs = [
        f"{digits(flops / 1e12)} TFLOP/s and {digits(moved / _GIGA)} GB/s on {key[1]}"
        for key in result.keys
        if key[0] == _PEAKS
        and (flops := result.quantity(key, "flops_per_s"))
        and (moved := result.quantity(key, "bytes_per_s"))
    ]
    measured = f"Measured peaks (fp32): {'; '.join(roofs)}." if roofs else ""
    cost = Part(f"Layers on {_devices(rows)}", rows, columns(_LAYERS, *costs), timing(result.manifest))
    parts = [cost, Part("Their rooflines", stages, places, measured)]
    if not above:
        return Answer(rows, _LAYERS, parts)
    what, peak, shares = zip(*above, strict=True)
    data = {"what": what, "peak": set(peak), "n": len(what), "of": len(stages), "most_pct": max(shares)}
    return Answer(rows, _LAYERS, parts, verdict=[Finding("above_peak", data=data)])


def _place(result: Result, key: Key, stage: str, duration_ms: float | None, own_peaks: Path | None) -> Row:
    """Where a stage stands beside the rooflines of the measured peaks and of the datasheet's."""
    flops, moved = (result.quantity(key, f"{stage}_{name}") for name in ("flops", "bytes"))
    measured = (result.quantity((_PEAKS, key[1]), name) for name in ("flops_per_s", "bytes_per_s"))
    sheet = peaks.find(key[1], own_peaks)
    datasheet = (sheet.flops_per_s.get("fp32"), sheet.bytes_per_s) if sheet else (None, None)
    seconds = duration_ms / 1e3 if duration_ms else None
    place: Row = dict.fromkeys(roofline.COLUMNS)
    if flops is not None and moved is not None and seconds:
        place = roofline.place(flops, moved, seconds * 1e9, Bound(key[1], *datasheet, *measured))
    return {
        f"{stage}_flops": flops,
        f"{stage}_bytes": moved,
        f"{stage}_tflops_per_s": flops / seconds / 1e12 if flops is not None and seconds else None,
        f"{stage}_gb_per_s": moved / seconds / _GIGA if moved is not None and seconds else None,
        **{f"{stage}_{name}": value for name, value in place.items()},
    }


# --- order --------------------------------------------------------------------------------------------

_USUAL = "ReLU, MaxPool2d"
_ORDER = (
    Metric("model", "name of the model", text=True),
    _DEVICE,
    Metric("order", "operator that comes first", text=True, key=True),
    Metric("pairs", "number of pairs of ReLU and MaxPool2d"),
    _count("batch", "batch size, images"),
    _count("image_size", "height and width, in pixels", "pixels"),
    _size("activation_memory_bytes", "memory of the activations that autograd keeps, each block once",
          "activations\nMiB"),
    _size("peak_memory_bytes", "peak memory", "peak\nMiB"),
    _FORWARD,
    _BACKWARD,
    _timed("step", "both", "both\nms"),
    Metric("time_ratio", "duration of a step divided by that of the usual order, median over repetitions",
           "time relative\nto usual", IN_RUN, places=3),
    *_SAME,
)  # fmt: skip


def _orders(result: Result, _: Path | None) -> Answer:
    """A row a device and order, the usual one first."""
    rows = []
    for key in sorted(result.keys, key=lambda key: (key[1], key[0] != _USUAL)):
        row: Row = {"model": result.manifest.settings.get("model"), "device": key[1], "order": key[0]}
        row |= {metric.name: result.quantity(key, metric.name) for metric in _ORDER[3:8]}
        for name, stages in (("forward", PASSES[:1]), ("backward", PASSES[1:]), ("step", PASSES)):
            row |= _ends(name, result.estimate(key, stages))
        rows.append(row | _ends("time_ratio", result.ratio(key, (_USUAL, key[1])), "") | _same(result, key))
    (ratio,) = picked(_ORDER, "time_ratio")
    shown = [
        *columns(_ORDER, "device", "order", "batch", "image_size", "forward_ms", "backward_ms", "step_ms"),
        ratio.column(printed=lambda row: "1" if row["order"] == _USUAL else ratio.printed(row)),
        *columns(_ORDER, "activation_memory_bytes", "peak_memory_bytes", "same_output"),
    ]
    title = f"{result.manifest.settings.get('model')} on {_devices(rows)}"
    others = [row for row in rows if row["order"] != _USUAL]
    verdict = _compared(others, "time_ratio", lambda row: f"{row['order']}, {row['device']}")
    return Answer(rows, _ORDER, [Part(title, rows, shown, timing(result.manifest))], verdict=verdict)


# --- gemm ---------------------------------------------------------------------------------------------

_SEPARATE, _MERGED = "separate", "merged"
_GEMM = (
    _DEVICE,
    Metric("way", "separate matrix products, or one merged product", "products", text=True, key=True),
    _count("inputs", "inputs per step: equal to hidden, or 3 N for a row of an image"),
    _count("hidden", "size of the hidden layer", key=True),
    _count("batch", "batch size, images"),
    _count("gates", "products per step, if separate"),
    _count("time_steps", "number of time steps"),
    _count("products", "matrix products per repetition: gates x time_steps, or time_steps", "calls"),
    _timed("time", "duration of all steps, median over repetitions"),
    _size("flops_per_s", "2 x batch x inputs x hidden x gates x time_steps / time", "GFLOP/s", _GIGA),
    Metric("speedup", "time of the separate products divided by the merged one's, median over repetitions",
           interval=IN_RUN, places=2),
    *_SAME,
)  # fmt: skip


def _products(result: Result, _: Path | None) -> Answer:
    """A row a device, size and way; the speedup stands beside the merged product."""
    rows = []
    for key in result.keys:
        case, device = key
        way = case.rpartition(" ")[2]
        row: Row = {"device": device, "way": way}
        row |= {
            name: result.quantity(key, name) for name in ("inputs", "hidden", "batch", "gates", "products")
        }
        row["time_steps"] = result.quantity(key, "steps")
        row["inputs"] = row["inputs"] or row["hidden"]  # older results do not have it
        time, flops = result.estimate(key, PASSES[:1]), result.quantity(key, "flops")
        row |= _ends("time", time)
        row["flops_per_s"] = flops / time.value * 1e3 if time and flops else None
        separate = (case.replace(_MERGED, _SEPARATE), device)
        row |= _ends("speedup", result.ratio(separate, key) if way == _MERGED else None, "")
        rows.append(row | _same(result, key))
    names = ("device", "inputs", "hidden", "way", "batch", "products", "time_ms", "flops_per_s", "speedup",
             "same_output")  # fmt: skip
    title = f"Matrix products on {_devices(rows)}"
    merged = [row for row in rows if row["way"] == _MERGED]
    verdict = _compared(merged, "speedup", lambda row: f"hidden {row['hidden']:.0f}, {row['device']}")
    part = Part(title, rows, columns(_GEMM, *names), timing(result.manifest))
    return Answer(rows, _GEMM, [part], verdict=verdict)


STUDIES = {
    "capacity": Study("Which network fits in memory?", _CAPACITY, _capacity),
    "layers": Study("What does a layer cost?", _LAYERS, _costs),
    "order": Study("Does the order matter?", _ORDER, _orders),
    "gemm": Study("Separate or merged small matrix products?", _GEMM, _products),
}
