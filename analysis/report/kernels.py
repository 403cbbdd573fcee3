"""Which kernels take the time, what do more ranks change in them, what bounds them, how busy are GPUs?"""

from collections.abc import Sequence

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import CONFIGURATION, Column, Rows, columns, picked
from analysis.display.numbers import change, digits, label_of, span
from analysis.display.terminal import Part
from analysis.measures.kernels import difference as kernel_difference
from analysis.measures.kernels import hotspots
from analysis.measures.kernels import rows as kernels
from analysis.measures.kernels.hotspots import TOOLS
from analysis.measures.kernels.rows import BY
from analysis.measures.scaling import utilization
from analysis.measures.scaling.traced import programs
from analysis.report.base import Content, Context, SectionKind
from analysis.report.per_point import labels_of
from analysis.report.render import Chart
from analysis.report.sentences import first_sentence
from analysis.report.views import as_view, called, facts
from analysis.results.source import Source

TOP_KERNELS = 15  # of a chart
TABLE_KERNELS = 40  # of a run, in the table
TOP_CHANGES = 15
TOP_HOTSPOTS = 5
_LEAST_MS = 0.005  # of a change that is named
# In these the two runs whose kernels are compared may differ: two make the number of ranks.
_ANY = ("nodes", "gpus_per_node", "attribute_from", "seed", "job")


def _top(context: Context) -> Content:
    """The kernels that take most time: a chart of one run, a table of all."""
    sources = kernels.with_kernels(context.study)
    if not sources:
        runs = context.study.of_kind("run")
        nothing = f"No kernel data: {kernels.why_none(runs) if runs else 'the traces hold no kernels'}."
        return Content(nothing, finding=nothing)
    of_run = context.once(_by_run)
    by_id = {source.id: source for source in sources}
    shown = _foremost(context)
    top = pd.DataFrame(of_run[shown][:TOP_KERNELS]).rename(columns={"kernel": "short_name"})
    names = _names(context, [by_id[run] for run in of_run])
    of_run_shown = facts(by_id[shown].fields, context.factors)
    figure = plots.of_one(plots.kernels(top, f"Top kernels: {names[shown]}"), of_run_shown)
    chart = Chart("kernels", figure, "Time per step by kernel", runs="1 run")
    of_table = [
        {**row, **facts(by_id[run].fields, context.factors), "configuration": names[run]}
        for run in of_run
        for row in of_run[run][:TABLE_KERNELS]
    ]
    part = Part("", of_table, _top_columns(len(of_run) > 1), _top_note(of_run))
    text = (
        "Time per step and rank, in profiled steps only. On a CPU a kernel is an operator that calls "
        "no other operator."
    )
    if any(row.get("flops_efficiency_pct") or row.get("bandwidth_efficiency_pct") for row in of_table):
        text += " Efficiencies are relative to the datasheet's peak."
    view = as_view(part, "kernel-table", context.factors, searchable=True)
    return Content(text, [chart], [view])


def _by_run(context: Context) -> dict[str, Rows]:
    """The kernels of each run, the longest first."""
    rows, _ = kernels.rows(context.study)
    of_run: dict[str, Rows] = {}
    for row in rows:
        of_run.setdefault(row["run"], []).append(row)
    return of_run


def _measured(context: Context) -> list[Source]:
    """The runs whose kernels are known."""
    return [source for source in context.whole.once(_with_kernels) if context.has(source)]


def _with_kernels(context: Context) -> list[Source]:
    sources = kernels.with_kernels(context.study)
    of_run = context.once(_by_run) if sources else {}
    return [source for source in sources if source.id in of_run]


def _foremost(context: Context) -> str:
    """The run whose longest kernel matters most, by its id."""
    of_run = context.whole.once(_by_run)

    def order(source: Source) -> tuple[bool, int, float]:
        # Traces are of unlike jobs; of the runs of a sweep those on the most ranks matter most.
        ranks = 0 if source.kind == "trace" else source.world_size or 0
        return not source.without_steps, ranks, of_run[source.id][0]["ms_per_step"]

    return max(_measured(context), key=order).id


def _names(context: Context, sources: Sequence[Source]) -> dict[str, str]:
    """What runs are called, by their ids."""
    every = [{**source.fields, "repetition": source.repetition} for source in sources]
    return dict(zip([source.id for source in sources], labels_of(every, context.factors), strict=True))


def _longest(context: Context) -> str:
    """The longest kernel: of all jobs of traces, or of the runs on the most ranks; and whose it is."""
    sources = _measured(context)
    if not sources:
        return ""
    run = _foremost(context)
    (source,) = [one for one in sources if one.id == run]
    kernel = context.whole.once(_by_run)[run][0]
    sizes = {one.world_size for one in sources}
    where = f" on {source.world_size} ranks" if source.kind != "trace" and len(sizes) > 1 else ""
    per = "in the recording" if source.without_steps else "per step"
    whose = f" ({_names(context, sources)[run]})" if len(sources) > 1 else ""
    return f"Longest{where}: {kernel['kernel']}, {digits(kernel['ms_per_step'], 3)} ms {per}{whose}."


def _top_note(of_run: dict[str, Rows]) -> str:
    longest = max(len(rows) for rows in of_run.values())
    if longest <= TABLE_KERNELS:
        return ""
    return (
        f"The first {TABLE_KERNELS} of each run. For all of them: python -m analysis.kernels RUN --format csv"
    )


def _top_columns(several: bool) -> list[Column]:
    of_run = [CONFIGURATION] if several else []
    figures = picked(
        kernels.METRICS, "ms_per_step", "share_pct", "calls_per_step", "mean_us", "gflop_per_step",
        "flops_efficiency_pct", "bandwidth_efficiency_pct",
    )  # fmt: skip
    return columns([*of_run, *(BY[name] for name in kernels.DEFAULT_BY), *figures])


def _pair(context: Context) -> tuple[Source, Source] | None:
    sources = kernels.with_kernels(context.study)
    traces = [source for source in sources if source.kind == "trace"]
    runs = [source for source in sources if source.kind != "trace"]
    groups = [runs, *programs(context.study, traces)]
    pairs = [pair for group in groups if (pair := smallest_and_largest(group))]
    return max(pairs, key=_ratio, default=None)


def _sides(context: Context) -> list[kernel_difference.Side]:
    """Two profiled runs of a configuration with their kernels; none if none ran on two numbers of ranks."""
    pair = context.once(_pair)
    sides = [kernel_difference.side_of(context.study, source, None) for source in pair or ()]
    return sides if all(side.kernels for side in sides) else []


def _change(context: Context) -> Content:
    """The difference of two profiled runs of a configuration."""
    pair = context.once(_pair)
    assert pair is not None  # else the section does not apply
    rows, totals = context.once(_differences), context.once(_totals)
    fields = [*(name for name in context.factors if name not in ("nodes", "gpus_per_node")), "world_size"]
    names = [called({**source.fields, "world_size": source.world_size}, fields) for source in pair]
    title = ("Kernels on more ranks", f"A: {names[0]}; B: {names[1]}")
    named = kernels.naming(kernels.DEFAULT_BY, rows)
    parts = kernel_difference.parts(rows[:TOP_CHANGES], totals, title, named)
    views = [as_view(part, f"kernel-change-{number}", ()) for number, part in enumerate(parts)]
    return Content(_change_text(rows, totals, pair, _of_which(context, pair)), tables=views)


def _changed(context: Context) -> str:
    """The difference of the two runs that are shown; nothing where filters leave one of them out."""
    pair = context.whole.once(_pair)
    assert pair is not None  # else the section does not apply
    if not all(context.has(source) for source in pair):
        return ""
    rows, totals = context.whole.once(_differences), context.whole.once(_totals)
    return first_sentence(_change_text(rows, totals, pair, _of_which(context, pair)))


def _differences(context: Context) -> Rows:
    """A row for each kernel of the two runs, that which differs most first."""
    a, b = context.once(_sides)
    return kernel_difference.rows(a, b)


def _totals(context: Context) -> Rows:
    a, b = context.once(_sides)
    return kernel_difference.summary(context.once(_differences), a, b)


def _of_which(context: Context, pair: tuple[Source, Source]) -> str:
    """`` (synthetic, fp32 gradients)``: of which configuration two runs are; empty: there is only one."""
    name = label_of(pair[1].fields, context.series)
    return f" ({name})" if name else ""


def smallest_and_largest(sources: Sequence[Source]) -> tuple[Source, Source] | None:
    """Two runs of one configuration whose numbers of ranks are furthest apart; None if there are none.

    One rank sends no gradients: if it is the smaller one, their precision may be another.
    """
    sized = [source for source in sources if source.world_size]
    pairs = [
        (a, b) for a in sized for b in sized if (a.world_size or 0) < (b.world_size or 0) and _alike(a, b)
    ]
    # Of equally far ones those that differ in nothing else.
    return max(pairs, key=lambda pair: (_ratio(pair), not _other_gradients(pair)), default=None)


def _alike(a: Source, b: Source) -> bool:
    free = (*_ANY, "grad") if a.world_size == 1 else _ANY
    return all(str(value) == str(b.fields.get(name)) for name, value in a.fields.items() if name not in free)


def _ratio(pair: tuple[Source, Source]) -> float:
    return (pair[1].world_size or 0) / (pair[0].world_size or 1)


def _other_gradients(pair: tuple[Source, Source]) -> bool:
    return pair[0].fields.get("grad") != pair[1].fields.get("grad")


def _change_text(rows: Rows, totals: Rows, pair: tuple[Source, Source], whose: str) -> str:
    of = {row["change"]: f"{change(row['difference_ms'])} ms" for row in totals}
    named = [row["change"] for row in totals
             if kernel_difference.is_kind(row) and abs(row["difference_ms"]) >= _LEAST_MS]  # fmt: skip
    kinds = ", ".join(f"{kind} {of[kind]}" for kind in named)
    of_grad = ""
    if _other_gradients(pair):
        of_grad = (
            f" They also differ in gradient precision: {pair[1].fields['grad']} on {pair[1].world_size} "
            f"ranks, {pair[0].fields['grad']} on one rank, which sends no gradients."
        )
    most = rows[0]
    largest = f"{most['kernel']} ({change(most['difference_ms'])} ms, {most['change']})"
    text = (
        f"From {pair[0].world_size} to {pair[1].world_size} ranks{whose}, kernel time per step and rank "
        f"changes by {of[kernel_difference.ALL]}{f'; largest change: {largest}' if named else ''}. "
        f"By kind: {kinds or 'none changed'}."
    )
    if kernel_difference.BATCH not in of:
        return f"{text} The step duration of these runs is not available.{of_grad}"
    return (
        f"{text} The profiled step changes by {of[kernel_difference.BATCH]}: to the kernel time it adds the "
        f"time without a kernel ({of[kernel_difference.NO_KERNEL]}), and what kernels share that run at the "
        f"same time counts once ({of[kernel_difference.AT_ONCE]}).{of_grad}"
    )


def _hotspots(context: Context) -> Content:
    """The table of analysis.hotspots, of runs that have read counters."""
    rows, caption = hotspots.rows(context.study, TOP_HOTSPOTS)
    text = (
        "Times come from the run under the torch profiler. Counters come from another run, in which each "
        "of these kernels was replayed several times. What bounds a kernel is the first that applies of: "
        "memory, arithmetic, calls too short, wasted bytes, latency (docs/profilers.md)."
    )
    view = as_view(hotspots.part("", rows, caption), "hotspots-table", context.factors)
    return Content(text, tables=[view])


def _utilization(context: Context) -> Content:
    """How busy each GPU was, and what more of them gained: a row a rank and GPU."""
    rows = context.once(_used)
    text = (
        "In profiled steps: the share of time in which a kernel runs and, estimated from launch sizes, "
        "the share of multiprocessors with a block and the achieved occupancy (definitions of PyTorch's "
        "TensorBoard plugin). Speedup is relative to one "
        f"{context.study.unit} of the same configuration."
    )
    part = utilization.part(utilization.notable(rows), rows, "")
    view = as_view(part, "utilization-table", context.factors)
    return Content(text, tables=[view])


def _used(context: Context) -> Rows:
    return utilization.rows(context.study)


def _busy(context: Context) -> str:
    rows = context.rows_of(_used)
    busy = [row["gpu_utilization_pct"] for row in rows if row.get("gpu_utilization_pct") is not None]
    if not busy:
        return ""
    return f"A kernel runs in {span(f'{min(busy):.0f}', f'{max(busy):.0f}')} % of the time."


def _counters_read(context: Context) -> bool:
    return any(source.fields["profile"] in TOOLS for source in context.study.of_kind("run"))


def _profiled(context: Context) -> bool:
    return any(source.tables("kernels") for source in context.study.of_kind("run"))


TOP = SectionKind(
    "kernels",
    "Which kernels take the time?",
    _top,
    lambda context: bool(context.study.sources),
    finding=_longest,
)
CHANGE = SectionKind(
    "kernel-change",
    "What changes in the kernels on more ranks?",
    _change,
    lambda context: bool(context.once(_sides)),
    finding=_changed,
)
HOTSPOTS = SectionKind("hotspots", "Why are the hottest kernels slow?", _hotspots, _counters_read)
UTILIZATION = SectionKind(
    "utilization",
    "How busy is each GPU?",
    _utilization,
    _profiled,
    on_cpus="How busy is each rank?",
    finding=_busy,
)
