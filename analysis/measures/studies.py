"""Load the results of single-node studies, and give the rows, tables and verdict of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import IN_RUN, RANGE, Metric, columns, names_of, records
from analysis.display.numbers import digits
from analysis.display.output import Answer, Part
from analysis.frames.measure import measure
from analysis.measures import peaks
from jobs import store
from jobs.store import StudyManifest
from profiling import tables
from profiling.errors import UserError, did_you_mean
from profiling.findings import Finding
from profiling.schemas import PASSES, SPLIT_STEP

CASE = ["case", "device"]
_RENAMED = {"peak_bytes": "peak_memory_bytes", "steps": "time_steps"}  # in results of earlier versions
Spent = Mapping[tuple[str, str], np.ndarray]  # by case and device


@dataclass(frozen=True)
class Result:
    """One study's result; to an answer, also what it is of."""

    path: Path
    manifest: StudyManifest
    durations: pd.DataFrame  # the table of every timed repetition
    quantities: pd.DataFrame  # a figure has as many rows as it was taken times
    own_peaks: Path | None = None  # a peaks file of the user's
    missing = ()
    on_cpus = False

    @property
    def findings(self) -> Sequence[Finding]:
        return self.manifest.findings

    def frame(self, metrics: Sequence[Metric], **timed: Spent) -> pd.DataFrame:
        """A row a (case, device), in the order in which they were measured, with its figures.

        All columns of ``metrics`` are there; NaN: not known. A figure that was taken several times is their
        mean, beside the lowest and highest. ``timed``: of metrics, values by case (:meth:`spent_ms`), whose
        medians are given with their intervals.
        """
        every = pd.concat([self.quantities[CASE], self.durations[CASE]]).drop_duplicates()
        cases = pd.MultiIndex.from_frame(every)
        taken = self.quantities.groupby([*CASE, "quantity"], sort=False)["value"]
        rows = taken.mean().unstack().reindex(cases)
        low, high = (end.where(taken.count() > 1).unstack() for end in (taken.min(), taken.max()))
        for metric in metrics:
            name = metric.name
            if name in timed:
                medians = [estimates.median_in_run(timed[name].get(case, np.array([]))) for case in cases]
                rows = rows.join(pd.DataFrame(medians, cases, metric.names))
            elif metric.interval == RANGE and name in rows:
                rows[metric.names[1]], rows[metric.names[2]] = low[name], high[name]
        rows = rows.reset_index()
        return rows.reindex(columns=list(dict.fromkeys([*rows, *names_of(metrics)])))

    def spent_ms(self, *stages: str) -> Spent:
        """Time of stages together, in the order of repetitions, of each case that has all of them."""
        wide = self.durations.pivot_table("duration_ns", ["repetition", *CASE], "stage", "first")
        total = wide.reindex(columns=list(stages)).sum(axis=1, skipna=False).dropna().sort_index() / 1e6
        return {(str(case), str(device)): ms.to_numpy() for (case, device), ms in total.groupby(CASE)}


def folders_of(path: Path) -> list[Path]:
    """The studies' results in ``path``, by name: itself, or folders in it."""
    every = [path, *sorted(path.iterdir())] if path.is_dir() else []
    files = (store.MANIFEST, "quantities.parquet")
    found = [one for one in every if all((one / file).is_file() for file in files)]
    return found[:1] if path in found else found


def load(path: Path, own_peaks: Path | None = None) -> list[Result]:
    """The results in ``path``, of one study or of several; UserError: there is none, or damaged."""
    results = []
    for folder in folders_of(path):
        manifest = store.read_record(folder / store.MANIFEST, StudyManifest)
        durations, quantities = (
            tables.read(folder, name).to_pandas().astype({"case": str, "device": str})
            for name in ("durations", "quantities")
        )
        quantities["quantity"] = quantities["quantity"].astype(str).replace(_RENAMED)
        results.append(Result(folder, manifest, durations, quantities, own_peaks))
    if not results:
        raise UserError(f"{path} holds no study; run one, e.g. python -m train.studies.layers")
    return results


def timing(manifest: StudyManifest) -> str:
    return f"Medians [intervals] over {manifest.repetitions} repetitions after {manifest.warmup} of warmup."


# --- columns ------------------------------------------------------------------------------------------

_MIB, _GIGA = 1 << 20, 1e9
_count = partial(Metric, places=0)
_whether = partial(Metric, show=lambda value: "yes" if value else "no", text=True)


def _size(name: str, meaning: str, header: str, unit: float = _MIB) -> Metric:
    return Metric(name, meaning, header, show=lambda value: digits(value / unit))


def _timed(name: str, meaning: str, header: str = "", unit: str = "ms", interval: str = IN_RUN) -> Metric:
    """The column ``name_ms`` and those of its interval, ``name_low_ms`` and ``name_high_ms``."""
    return Metric(f"{name}_{unit}", meaning, header, interval, (f"{name}_low_{unit}", f"{name}_high_{unit}"))


_DEVICE = Metric("device", "where", text=True, key=True)
_PASSES = [_timed(stage, f"duration of the {stage} pass, median over repetitions") for stage in PASSES]
_SAME = (
    _whether("same_output", "whether the outputs agree", "same\noutput"),
    Metric("largest_difference", "largest difference of the outputs", table=False),
)


def _timed_part(title: str, rows: pd.DataFrame, metrics: Sequence[Metric], result: Result) -> Part:
    return Part(title, rows, [one for one in metrics if one.table], timing(result.manifest))


def _devices(rows: pd.DataFrame) -> str:
    return ", ".join(rows["device"].unique())


def _compared(rows: pd.DataFrame, name: str, case: pd.Series) -> list[Finding]:
    """Whether cases differ in time, by the interval of a ratio; ``case``: the name of each row."""
    found = []
    for row, called in zip(records(rows), case, strict=True):
        low, high, difference = row[f"{name}_low"], row[f"{name}_high"], "too few repetitions"
        if low is not None:
            difference = "significant" if low > 1 or high < 1 else "not significant"
        data = {"figure": name, "value": row[name], "difference": difference}
        found.append(Finding("study_compared", configuration=called, data=data))
        if not row["same_output"]:
            by = {"difference": row["largest_difference"]}
            found.append(Finding("study_outputs_differ", configuration=called, data=by))
    return found


# --- capacity -----------------------------------------------------------------------------------------

LARGEST, SMALLEST = "largest that fits", "smallest that does not"
_SPLIT_CASE = r"^(?P<network>\d+\+\d+) split after (?P<place>\d+)$"
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
    _size("held_bytes", "fragmented memory in PyTorch's allocator", "held\nMiB"),
    _size("free_bytes", "limit minus peak and held memory", "free\nMiB"),
    Metric("reason", "reason why it does not fit", "why not", show=lambda reason: reason[:60], text=True),
)


def _capacity(result: Result) -> Answer:
    """A row a try and device: the networks tried on one device by size, then the splits over two."""
    rows = result.frame(_CAPACITY, step_ms=result.spent_ms(*SPLIT_STEP), own_ms=result.spent_ms(*PASSES))
    split = rows["case"].str.extract(_SPLIT_CASE)
    over_two, fits = split["place"].notna(), rows["fits"] == 1
    free = rows["limit_bytes"] - rows["peak_memory_bytes"] - rows["held_bytes"].fillna(0)
    notes = result.quantities[result.quantities["quantity"] == "fits"].set_index(CASE)["note"]
    rows = rows.assign(
        layers=split["network"].fillna(rows["case"]),
        devices=over_two + 1,
        split_after=split["place"].astype(float).astype("Int64"),
        chosen=(rows["chosen"] == 1).astype(object).where(over_two, None),
        fits=fits,
        boundary="",
        step_on_devices=(over_two + 1).where(rows["step_ms"].notna()).astype("Int64"),
        free_bytes=free.where(fits),
        reason=notes.reindex(pd.MultiIndex.from_frame(rows[CASE])).to_numpy(),
        convolutions=rows["convolutions"].fillna(0).astype(int),
        linears=rows["linears"].fillna(0).astype(int),
    )
    size = rows["convolutions"] + rows["linears"]
    alone = rows.loc[size[~over_two].sort_values(kind="stable").index].reset_index(drop=True)
    two = rows[over_two]
    chosen = two[two["chosen"].astype(bool)]
    fit, lacking = alone.index[alone["fits"]], alone.index[~alone["fits"]]
    alone.loc[fit[-1:], "boundary"] = LARGEST
    alone.loc[lacking[:1], "boundary"] = SMALLEST
    step = ["step_ms", "step_low_ms", "step_high_ms", "step_on_devices"]
    for layers, sides in chosen.groupby("layers"):  # of what does not fit on one device, that on two
        alone.loc[alone["layers"] == layers, step] = sides[step].iloc[0].to_numpy()
    why = "none fits" if len(lacking) else "all fit"
    if len(fit) and len(lacking):
        largest, smallest = alone.loc[fit[-1]], alone.loc[lacking[0]]
        why = f"{smallest['layers']} fails, {largest['layers']} fits: {smallest['reason']}"
    verdict = Finding("uncertain", data={"figure": "memory limit", "why": why})
    if len(fit) and len(lacking) and fit[-1] < lacking[0]:
        data = {"devices": "one device", "fits": largest["layers"], "fails": smallest["layers"]}
        verdict = Finding("study_limit", data=data)
    verdicts = [verdict]
    split_up = sorted(two["layers"].unique(), key=lambda layers: sum(map(int, layers.split("+"))))
    holding = two[~two["case"].isin(two.loc[~two["fits"], "case"])]
    held = [layers for layers in split_up if layers in set(holding["layers"])]
    if held and held[-1] != split_up[-1]:
        more = split_up[split_up.index(held[-1]) + 1]
        data = {"devices": "two devices", "fits": held[-1], "fails": more}
        verdicts.append(Finding("study_limit", data=data))
    sizes, settings = ("base_bytes", "peak_memory_bytes", "free_bytes"), result.manifest.settings
    shape = ", ".join(str(settings.get(name)) for name in ("batch", "image_size", "image_size"))
    shown = columns(_CAPACITY, "layers", "fits", "boundary", "step_ms", "step_on_devices", *sizes, "reason")
    title = f"What fits in {digits(alone['limit_bytes'].max() / _MIB)} MiB of {_devices(alone[:1])}"
    parts = [Part(title, alone, shown, f"{timing(result.manifest)} Batch, height, width: {shape}.")]
    if len(two):
        shown = columns(_CAPACITY, "layers", "device", "convolutions", "linears", "own_ms", *sizes)
        title = f"On two devices, {settings.get('balance')} balanced"
        parts.append(Part(title, chosen if len(chosen) else two, shown))
    return Answer(pd.concat([alone, two]), _CAPACITY, parts, verdict=verdicts)


# --- layers -------------------------------------------------------------------------------------------

_PEAKS = "peaks"  # the case that holds the device's
# Columns of each stage, whose name stands before theirs in the data: ``forward_flops``.
_OF_A_STAGE = (
    _size("flops", "FLOPs, by the formulas of profiling/cost/operators.py", "GFLOP", _GIGA),
    _size("bytes", "bytes of tensors read and written, by the same formulas", "GB", _GIGA),
    Metric("tflops_per_s", "FLOPs divided by duration", "TFLOP/s"),
    Metric("gb_per_s", "bytes divided by duration", "GB/s"),
    *peaks.METRICS,
)
_LAYERS = (
    Metric("layer", "layer of torch.nn", text=True, key=True),
    Metric("input", "shape of the input", text=True),
    replace(_DEVICE, key=False, table=False),
    *_PASSES,
    _size("peak_memory_bytes", "peak memory of both passes, gradients included", "peak\nMiB"),
    _size("retained_memory_bytes", "memory that the forward pass keeps, output included", "retained\nMiB"),
    Metric("idle_power_w", "power before the study starts", table=False),
    _timed("power", "mean power while both passes are repeated", "power\nW", "w", RANGE),
    _timed("energy_above_idle", "energy above idle power per repetition of both passes",
           "energy above\nidle, J", "j", RANGE),
    *(
        replace(metric, name=f"{stage}_{metric.name}", meaning=f"{stage}: {metric.meaning}", table=False)
        for stage in PASSES
        for metric in _OF_A_STAGE
    ),
)  # fmt: skip


def _costs(result: Result) -> Answer:
    """A row a layer: time, memory, power and energy; of each stage FLOPs, bytes and its place."""
    metrics = (*_LAYERS, Metric("idle_w", ""), Metric("flops_per_s", ""), Metric("bytes_per_s", ""))
    rows = result.frame(metrics, **{f"{stage}_ms": result.spent_ms(stage) for stage in PASSES})
    measured = rows[rows["case"] == _PEAKS].set_index("device")
    rows = rows[rows["case"] != _PEAKS]
    rows[["layer", "input"]] = rows["case"].str.rsplit("@", n=1, expand=True)
    rows["idle_power_w"] = rows["device"].map(measured["idle_w"])
    # The datasheet's peaks (fp32) and the measured ones of each row's device.
    sheets = {device: peaks.find(device, result.own_peaks) for device in rows["device"].unique()}
    known = {name: (peak.flops_per_s.get("fp32"), peak.bytes_per_s) for name, peak in sheets.items() if peak}
    datasheet = pd.DataFrame.from_dict(known, "index", columns=peaks.PEAKS[:2], dtype=float)
    bound = datasheet.join(measured[["flops_per_s", "bytes_per_s"]].add_prefix("measured_"), how="outer")
    bound = bound.reindex(rows["device"]).set_axis(rows.index)
    stages = []
    for stage in PASSES:
        flops, moved, ns = rows[f"{stage}_flops"], rows[f"{stage}_bytes"], 1e6 * rows[f"{stage}_ms"]
        work = pd.DataFrame({"flops": flops, "bytes": moved, "ns": ns})
        place = work.join(peaks.place(work, bound)).assign(tflops_per_s=flops / ns / 1e3, gb_per_s=moved / ns)
        rows = rows.assign(**place.add_prefix(f"{stage}_"))
        stages.append(place.assign(layer=rows["layer"], stage=stage))
    by_stage = pd.concat(stages).sort_index(kind="stable")  # stages of a layer below each other
    shown = (_LAYERS[0], Metric("stage", "forward or backward", text=True, key=True), *_OF_A_STAGE)
    both = measured[(measured["flops_per_s"] > 0) & (measured["bytes_per_s"] > 0)]
    roofs = (both["flops_per_s"] / 1e12).map(digits) + " TFLOP/s and "
    roofs += (both["bytes_per_s"] / _GIGA).map(digits) + " GB/s on " + both.index
    caption = f"Measured peaks (fp32): {'; '.join(roofs)}." if len(both) else ""
    roofline = Part("Their rooflines", by_stage, shown, caption)
    parts = [_timed_part(f"Layers on {_devices(rows)}", rows, _LAYERS, result), roofline]
    share = by_stage["roof_pct"].fillna(by_stage["roof_of_measured_pct"]).astype(float)
    verdict = _above_peak(share, by_stage["layer"] + " " + by_stage["stage"], by_stage["bound"] + " roof's")
    return Answer(rows, _LAYERS, parts, verdict=verdict)


def _above_peak(share_pct: pd.Series, names: pd.Series, roofs: pd.Series) -> list[Finding]:
    """What reaches more than there is of its roof: the peak is too low, or the work was not done."""
    above = share_pct > peaks.ABOVE_PCT
    if not above.any():
        return []
    data = {"what": tuple(names[above]), "n": above.sum(), "of": len(above), "peak": set(roofs[above])}
    return [Finding("above_peak", data=data | {"most_pct": share_pct.max()})]


# --- order --------------------------------------------------------------------------------------------

_USUAL = "ReLU, MaxPool2d"
_ORDER = (
    Metric("model", "name of the model", text=True, table=False),
    _DEVICE,
    Metric("order", "operator that comes first", text=True, key=True),
    Metric("pairs", "number of pairs of ReLU and MaxPool2d", table=False),
    _count("batch", "batch size, images"),
    _count("image_size", "height and width, in pixels", "pixels"),
    _size("activation_memory_bytes", "memory of activations that autograd keeps", "activations\nMiB"),
    _size("peak_memory_bytes", "peak memory", "peak\nMiB"),
    *_PASSES,
    _timed("step", "both", "both\nms"),
    Metric("time_ratio", "step duration relative to the usual order", "relative\nto usual", IN_RUN, places=3),
    *_SAME,
)  # fmt: skip


def _orders(result: Result) -> Answer:
    """A row a device and order, the usual one first."""
    spent = result.spent_ms(*PASSES)
    ratio = {(case, device): ms / spent[_USUAL, device] for (case, device), ms in spent.items()}
    stages = {f"{stage}_ms": result.spent_ms(stage) for stage in PASSES}
    rows = result.frame(_ORDER, **stages, step_ms=spent, time_ratio=ratio)
    rows = rows.assign(order=rows["case"], same_output=rows["same_output"] == 1)
    rows["model"] = result.manifest.settings.get("model")
    rows = rows.sort_values("order", key=lambda order: order != _USUAL).sort_values("device", kind="stable")
    others = rows[rows["order"] != _USUAL]
    verdict = _compared(others, "time_ratio", others["order"] + ", " + others["device"])
    title = f"{result.manifest.settings.get('model')} on {_devices(rows)}"
    return Answer(rows, _ORDER, [_timed_part(title, rows, _ORDER, result)], verdict=verdict)


# --- gemm ---------------------------------------------------------------------------------------------

_GEMM = (
    _DEVICE,
    Metric("way", "separate matrix products, or one merged product", "products", text=True, key=True),
    _count("inputs", "inputs per step: equal to hidden, or 3 N for a row of an image"),
    _count("hidden", "size of the hidden layer", key=True),
    _count("batch", "batch size, images"),
    _count("gates", "products per step, if separate", table=False),
    _count("time_steps", "number of time steps", table=False),
    _count("products", "matrix products per repetition: gates x time_steps, or time_steps", "calls"),
    _timed("time", "duration of all steps, median over repetitions"),
    _size("flops_per_s", "2 x batch x inputs x hidden x gates x time_steps / time", "GFLOP/s", _GIGA),
    Metric("peak_pct", "FLOP/s relative to a large matrix product", "of the\npeak %", places=1),
    Metric("time_at_peak_ms", "duration at the measured peak", "at the\npeak, ms"),
    Metric("speedup", "time of the separate products divided by the merged one's", interval=IN_RUN, places=2),
    *_SAME,
)  # fmt: skip


def _products(result: Result) -> Answer:
    """A row a device, size and way; the speedup stands beside the merged product."""
    spent = result.spent_ms("forward")
    merged = {key: ms for key, ms in spent.items() if key[0].endswith("merged")}
    speedup = {key: spent[key[0].replace("merged", "separate"), key[1]] / ms for key, ms in merged.items()}
    rows = result.frame(_GEMM, time_ms=spent, speedup=speedup)
    peak = rows["device"].map(rows[rows["case"] == _PEAKS].set_index("device")["flops_per_s"])
    rows = rows.assign(
        way=rows["case"].str.rpartition(" ")[2],
        inputs=rows["inputs"].fillna(rows["hidden"]),  # older results do not have it
        flops_per_s=rows["flops"] / rows["time_ms"] * 1e3,
        peak_pct=1e5 * rows["flops"] / rows["time_ms"] / peak,
        time_at_peak_ms=1e3 * rows["flops"] / peak,
        same_output=rows["same_output"] == 1,
    )
    rows = rows[rows["case"] != _PEAKS]
    compared = rows[rows["way"] == "merged"]
    names = "hidden " + compared["hidden"].map("{:.0f}".format) + ", " + compared["device"]
    part = _timed_part(f"Matrix products on {_devices(rows)}", rows, _GEMM, result)
    above = _above_peak(rows["peak_pct"], rows["case"], rows["device"] + "'s measured")
    return Answer(rows, _GEMM, [part], verdict=_compared(compared, "speedup", names) + above)


# Of each study its question, its answer and the columns of this.
STUDIES = {
    "capacity": ("Which network fits in memory?", _capacity, _CAPACITY),
    "layers": ("What does a layer cost?", _costs, _LAYERS),
    "order": ("Does the order matter?", _orders, _ORDER),
    "gemm": ("Separate or merged small matrix products?", _products, _GEMM),
}


@measure({f"{name}:": columns for name, (_, _, columns) in STUDIES.items()})
def studies(result: Any) -> Answer:
    """The answer of a study, with its question as title; UserError if this release does not know it."""
    if (name := result.manifest.study) not in STUDIES:
        raise UserError(f"{result.path}: unknown study {name!r}{did_you_mean(name, STUDIES)}")
    question, answer, _ = STUDIES[name]
    return replace(answer(result), title=question)
