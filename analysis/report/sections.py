"""What are the sections of a report? One function each: from an answer's rows to a section, or to none.

A section that the results cannot fill says so instead of being empty.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import CONFIGURATION, Column, Rows, columns, names_of, picked
from analysis.display.terminal import Part
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.kernels import rows as kernels
from analysis.measures.kernels.of_run import BY, DEFAULT_BY
from analysis.measures.scaling import scaled_parts
from analysis.report.per_point import labels_of, merged, named
from analysis.report.render import Chart, Section
from analysis.report.verdict import has_scaled, unscaled
from analysis.report.views import as_view, called, facts, varied
from analysis.results.study import Study
from profiling.errors import UserError

_SIZE = ("nodes", "gpus_per_node", "world_size")
TOP_KERNELS = 15  # of a chart
TABLE_KERNELS = 40  # of a run, in the table


def series_factors(factors: Sequence[str]) -> list[str]:
    """What tells one line of a chart against ranks from another: not the number of ranks."""
    return [name for name in factors if name not in _SIZE]


def scaling(own: Rows, factors: Sequence[str]) -> Section | None:
    """Throughput and efficiency against ranks."""
    if not own:
        return None
    points = _against_ranks(own, factors)
    charts = [
        Chart("throughput", plots.throughput(points), "Images a second against the number of ranks"),
        Chart("efficiency", plots.efficiency(points), "Scaling efficiency against the number of ranks"),
    ]
    strong = own[0]["scaling"] == "strong"
    text = (
        f"{'Strong scaling: the batch of the job' if strong else 'Weak scaling: the batch of a rank'} is "
        "constant. Bars are intervals between repeated runs, of 95 % or more; "
        "dotted lines are ideal scaling from the base point of each configuration, 100 % by definition."
    )
    if not has_scaled(own):
        why = unscaled(own)
        text = f"{why[0].upper()}{why[1:]}: throughput can be shown, scaling cannot."
        charts = charts[:1]
    return Section("scaling", "How does it scale?", text, charts)


def _against_ranks(own: Rows, factors: Sequence[str]) -> pd.DataFrame:
    """The points of the charts: a row a configuration and world size, each series from its base point on.

    A base point can be another configuration's (one rank sends no gradients, whatever their precision): it
    is repeated in each series that is compared with it.
    """
    fields = series_factors(factors)
    made = []
    for row in own:
        name = called(row, fields)
        made.append({**row, "label": name, "facts": facts(row, fields)})
    sizes = {(row["label"], row["world_size"]) for row in made}
    for row in list(made):
        start = (row["label"], row["base_world_size"])
        if start not in sizes and row["base_world_size"]:
            sizes.add(start)
            rate = row["base_images_per_s"]
            made.append({
                "label": row["label"], "facts": row["facts"], "world_size": row["base_world_size"],
                "images_per_s": rate, "scaling_efficiency_pct": 100.0,
            })  # fmt: skip
    return pd.DataFrame(made)


def table(own: Rows, study: Study) -> Section | None:
    """The figures themselves, as the terminal shows them."""
    if not own:
        return None
    parts = scaled_parts.parts(own, with_loss=False)
    factors = varied(own)
    views = [as_view(part, f"table-{number}", factors) for number, part in enumerate(parts)]
    text = (
        "Batch: the duration of a step of the job, which ends when its slowest rank does; warm-up is left "
        "out. MFU: analytic FLOPs over the whole batch and the peak. Profiled / twin: how much slower a "
        "batch is while the profiler records it."
    )
    return Section("table", "The figures", text, tables=views)


def stages(own: Rows, factors: Sequence[str]) -> Section | None:
    """Where a batch's time goes, by stage."""
    if not own:
        return None
    text = (
        "Medians of the stages of a steady batch. Load is the wait for the next batch; backward holds the "
        "communication of gradients and the wait for other ranks, since they run together."
    )
    figure = plots.parts(named(own, factors), plots.STAGE_COLOURS, "Stages of a batch")
    chart = Chart("stages", figure, "Milliseconds a batch spends in each stage")
    rows = [{**row, "label": label} for row, label in zip(own, labels_of(own, factors), strict=True)]
    columns = [Column("configuration", _get("label"), left=True)]
    columns += [Column(f"{name} ms", _get(f"{name}_ms")) for name in plots.STAGE_COLOURS]
    view = as_view(Part("", rows, columns), "stages-table", factors)
    return Section("stages", "Where does a batch's time go?", text, [chart], [view])


def _get(name: str) -> Any:
    return lambda row: row[name]


def batch_anatomy(study: Study, factors: Sequence[str]) -> Section:
    """Where it goes, by what runs: parts that add up."""
    heading = "What runs during a batch?"
    try:
        made = merged(anatomy.rows(study), names_of(anatomy.METRICS))
    except UserError as error:
        return Section("anatomy", heading, f"Not known: {error}.")
    figure = plots.parts(named(_bars(made), factors), plots.PART_COLOURS, "Anatomy of a batch")
    chart = Chart("anatomy", figure, "Milliseconds a batch spends computing, communicating, loading and idle")
    text = (
        "Mean of the attributed batches of all ranks and runs of a point, while the profiler records. The "
        "parts add up to the wall time; where two things run at once, the first in the legend has the "
        "time. Exposed communication is what no model kernel hides: transfer since the last rank has come to "
        "the collective, before that a wait for this rank. Idle time is host-bound until the next launch."
    )
    whole, within = anatomy.parts(made)
    views = [as_view(whole, "anatomy-table", factors), as_view(within, "anatomy-within", factors)]
    return Section("anatomy", heading, text, [chart], views)


def _bars(made: Rows) -> Rows:
    """Rows of the anatomy with each time once: split where it is known how, else whole."""
    parts = [finest({name: row[f"{name}_ms"] for name in EVERY}) for row in made]
    names = {name for of_row in parts for name in of_row}
    figures = names_of(anatomy.METRICS)
    rest = [{name: value for name, value in row.items() if name not in figures} for row in made]
    return [
        {**row, **{f"{name}_ms": of_row.get(name, math.nan) for name in names}}
        for row, of_row in zip(rest, parts, strict=True)
    ]


def top_kernels(study: Study, factors: Sequence[str]) -> Section:
    """The kernels that take most time: a chart of one run, a table of all."""
    heading = "Which kernels take the time?"
    sources = kernels.with_kernels(study)
    if not sources:
        text = "No run was profiled (profile: torch), so nothing is known of kernels."
        return Section("kernels", heading, text)
    try:
        made, _ = kernels.rows(study)
    except UserError as error:
        return Section("kernels", heading, f"Not known: {error}.")
    of_run: dict[str, Rows] = {}
    for row in made:
        of_run.setdefault(row.get("run") or sources[0].id, []).append(row)
    fields = {source.id: source.fields for source in sources}
    shown = max(
        of_run, key=lambda run: (fields[run].get("nodes") or 0) * (fields[run].get("gpus_per_node") or 0)
    )
    top = pd.DataFrame(of_run[shown][:TOP_KERNELS]).rename(columns={"kernel": "short_name"})
    by_id = {source.id: source for source in sources}
    every: Rows = [{**fields[run], "repetition": by_id[run].repetition} for run in of_run]
    names = dict(zip(of_run, labels_of(every, factors), strict=True))
    chart = Chart("kernels", plots.kernels(top, f"Top kernels: {names[shown]}"), "Time a batch by kernel")
    rows = [
        {**row, **facts(fields[run], factors), "configuration": names[run]}
        for run in of_run
        for row in of_run[run][:TABLE_KERNELS]
    ]
    part = Part("", rows, _kernel_columns(len(of_run) > 1), _kernel_note(of_run))
    text = (
        "Attributed batches only, a batch of a rank. On a CPU a kernel is an operator that calls no other. "
        "Efficiencies are beside the datasheet's peak."
    )
    return Section(
        "kernels", heading, text, [chart], [as_view(part, "kernel-table", factors, searchable=True)]
    )


def _kernel_note(of_run: dict[str, Rows]) -> str:
    longest = max(len(rows) for rows in of_run.values())
    if longest <= TABLE_KERNELS:
        return ""
    return f"The first {TABLE_KERNELS} of each run; all of them: python -m analysis.kernels RUN --format csv"


def _kernel_columns(several: bool) -> list[Column]:
    of_run = [CONFIGURATION] if several else []
    figures = picked(
        kernels.METRICS, "ms_per_batch", "share_pct", "calls_per_batch", "mean_us", "gflop_per_batch",
        "flops_efficiency_pct", "bandwidth_efficiency_pct",
    )  # fmt: skip
    return columns([*of_run, *(BY[name] for name in DEFAULT_BY), *figures])


def reference(made: Rows, study: Study) -> list[Section]:
    """What the reference's own files say: counts and coverage of PyProf tables, published scaling."""
    sections = []
    published = [row for row in made if row["method"] == "published" and "epoch_duration_s" in row]
    if published:
        text = (
            "Epoch durations and scaling efficiencies as the reference computed them, from times of the "
            "whole application. The column on the right says how much of that time does not depend on "
            "the batch."
        )
        chart = Chart("published", _published_chart(published), "Published scaling efficiency against ranks")
        views = _views(published, "published")
        sections.append(Section("scaling", "Scaling, as published", text, [chart], views))
    counted = [row for row in made if "fprop_batches" in row]
    if counted:
        views = _views(counted, "counted")
        text = "PyProf kernel tables: batches are counted in each table, not assumed."
        sections.append(Section("table", "The kernel tables", text, tables=views))
    return sections


def _views(rows: Rows, id: str) -> list[Any]:
    factors = varied(rows)
    return [as_view(part, f"{id}-{number}", factors) for number, part in enumerate(scaled_parts.parts(rows))]


def _published_chart(published: Rows) -> plots.Figure:
    # Each has its own base point for a number of GPUs a node.
    fields = [name for name in varied(published) if name not in ("nodes", "world_size")]
    points = [{**row, "label": called(row, fields), "facts": facts(row, fields)} for row in published]
    return plots.efficiency(pd.DataFrame(points))


def corrections(lines: Sequence[str]) -> Section | None:
    """What each correction of the reference's method moves on these data."""
    notes = [line.strip() for line in lines[2:] if line.strip()]
    if not notes:
        return None
    text = (
        "The reference's method (SURFBoard, 2020) and ours differ in the points below; each line says what "
        "the correction moves on these data. Numbers are those of docs/methods.md."
    )
    return Section("corrections", "What the corrections move", text, notes=notes)


def left_out(study: Study) -> Section:
    """All points that do not count, and what is to be said of those that do."""
    failed = [f"{failure.kind}: {failure.point}: {failure.reason}" for failure in study.failed
              if failure.kind != "excluded"]  # fmt: skip
    reasons: dict[str, int] = {}
    for failure in study.failed:
        if failure.kind == "excluded":
            reasons[failure.reason] = reasons.get(failure.reason, 0) + 1
    excluded = [f"left out: {count} points: {reason}" for reason, count in reasons.items()]
    notes = [*failed, *excluded, *(f"note: {finding}" for finding in study.notes())]
    text = (
        "Nothing is left out silently: failed points, points excluded with the reason, and notes on the data."
    )
    if not notes:
        text = "Nothing failed, nothing was left out, and there is nothing to note."
    return Section("left-out", "What does not count, and what to know", text, notes=notes)
