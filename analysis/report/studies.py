"""Charts of single-node studies: what fits in memory, what a layer costs, which alternative is faster."""

from collections.abc import Iterator, Mapping

import pandas as pd

from analysis.display import plots
from analysis.report.render import Chart

_MIB = 1 << 20
_COLOURS = {
    "before the network": plots.GREY, "network": plots.BLUE, "held": plots.ORANGE, "free": plots.WHITE,
    "retained": plots.BLUE, "activations": plots.BLUE, "more at the peak": plots.SKY, "idle": plots.GREY,
    "above idle": plots.VERMILLION, "separate": plots.PALE_GREY, "merged": plots.BLUE,
    "forward": plots.STAGE_COLOURS["forward"], "backward": plots.STAGE_COLOURS["backward"],
}  # fmt: skip


def charts(id: str, study: str, rows: pd.DataFrame) -> list[Chart]:
    """The charts of a study, by the rows of its answer (:mod:`analysis.measures.studies`)."""
    drawn = _DRAWN[study](rows)
    return [
        Chart(f"{id}-{name}", plots.bars(bars, _COLOURS, title, unit, f"%{{x:.4g}} {unit}"))
        for name, title, unit, bars in drawn
        if plots.is_drawn(bars["value"])
    ]


Drawn = Iterator[tuple[str, str, str, pd.DataFrame]]  # name, title, unit, and what `plots.bars` takes


def _stacked(label: pd.Series, parts: Mapping[str, pd.Series]) -> pd.DataFrame:
    """Parts beside each other in a bar for each label, all that are known and more than 0."""
    bars = [pd.DataFrame({"label": label, "series": part, "value": of}) for part, of in parts.items()]
    return pd.concat(bars).query("value > 0")


def _peaks(rows: pd.DataFrame, label: pd.Series, kept: str, part: str) -> pd.DataFrame:
    more = rows["peak_memory_bytes"] - rows[kept].fillna(0)
    return _stacked(label, {part: rows[kept] / _MIB, "more at the peak": more / _MIB})


def _passes(rows: pd.DataFrame, label: pd.Series) -> pd.DataFrame:
    return _stacked(label, {stage: rows[f"{stage}_ms"] for stage in ("forward", "backward")})


def _capacity(rows: pd.DataFrame) -> Drawn:
    alone = rows["devices"] == 1
    label = rows["layers"].where(alone, rows["layers"] + ", " + rows["device"])
    bytes_of = {
        "before the network": rows["base_bytes"], "network": rows["peak_memory_bytes"] - rows["base_bytes"],
        "held": rows["held_bytes"], "free": rows["free_bytes"],
    }  # fmt: skip
    shown = rows["fits"] & (alone | rows["chosen"].eq(True))
    bars = _stacked(label[shown], {part: of[shown] / _MIB for part, of in bytes_of.items()})
    yield "memory", "Memory by network (convolutions + linear layers)", "MiB", bars


def _layers(rows: pd.DataFrame) -> Drawn:
    label = rows["layer"] + " of " + rows["input"]
    yield "time", "Time by layer", "ms", _passes(rows, label)
    yield "memory", "Memory by layer", "MiB", _peaks(rows, label, "retained_memory_bytes", "retained")
    parts = {"idle": rows["idle_power_w"], "above idle": rows["power_w"] - rows["idle_power_w"]}
    yield "power", "Power by layer", "W", _stacked(label, parts)


def _order(rows: pd.DataFrame) -> Drawn:
    label = rows["order"] + ", " + rows["device"]
    yield "time", "Time by order", "ms", _passes(rows, label)
    yield "memory", "Memory by order", "MiB", _peaks(rows, label, "activation_memory_bytes", "activations")


def _gemm(rows: pd.DataFrame) -> Drawn:
    size = "hidden " + rows["hidden"].map("{:.0f}".format) + ", " + rows["device"]
    bars = pd.DataFrame({"label": size + ", " + rows["way"], "series": rows["way"], "value": rows["time_ms"]})
    yield "time", "Time of all steps", "ms", bars


_DRAWN = {"capacity": _capacity, "layers": _layers, "order": _order, "gemm": _gemm}
