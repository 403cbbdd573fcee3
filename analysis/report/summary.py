"""What does the first screen say, in which order? Of runs of our own, of the reference's files, of traces."""

from collections.abc import Sequence
from statistics import median

from analysis.display.left_out import counted, missing, not_ended
from analysis.display.metrics import Rows
from analysis.display.numbers import span
from analysis.measures.scaling.certainty import sizes_without_result
from analysis.measures.scaling.point import findings, points_of
from analysis.report import prediction, stragglers, traced_advice, traced_opening
from analysis.report.base import Context
from analysis.report.sentences import SCALES, Sentence, ranks_in_words
from analysis.report.verdict import verdict
from analysis.report.views import called, varied
from analysis.results.study import Study
from profiling.findings import lines
from profiling.wording import how_many

_MUCH_LOWER = 5.0  # percentage points of scaling efficiency


def opening(study: Study) -> list[Sentence]:
    """The report's first sentences, without the rest of the page.

    Raises:
        UserError: nothing in the study can be reported.
    """
    return list(summary(Context(study)))


def summary(context: Context) -> Sequence[Sentence]:
    """The sentences, of the configurations that filters leave."""
    if context.traces and not context.own:
        return [
            *traced_opening.opening(context),
            *traced_advice.to_try(context),
            *(_of_reference(context.others) if context.others else []),
        ]
    return _of_own(context) if context.own else _of_reference(context.others)


def _of_own(context: Context) -> list[Sentence]:
    own, series = context.own, context.series
    late = context.once(stragglers.late_runs) or []
    names = [called(row, series) for row in own]
    predicted = prediction.known(context)
    named = [{**row, "name": prediction.name_of(row, series) if series else ""} for row in predicted]
    sentences = verdict(own, names, named, stragglers.rows_of(late), context.whole.own)
    # An efficiency across devices is not one of scaling: who reads no further has to know it.
    points = [row["point"] for row in context.rows_of(_points)]
    mixed = lines(one for one in findings(points) if one.code in ("devices_differ", "threads_differ"))
    place = 1 + next((n for n, one in enumerate(sentences) if one.figure == "scaling"), 0)
    return [
        *_not_complete(context.study),
        *sentences[:place],
        *(Sentence(text, "left-out") for text in mixed),
        *sentences[place:],
    ]


def _points(context: Context) -> Rows:
    return [{**point.fields, "point": point} for point in points_of(context.study, None)]


def _not_complete(study: Study) -> list[Sentence]:
    """That runs of the sweep are missing and what is said may change with them, or is of fewer ranks."""
    texts = lines(sizes_without_result(study))
    if open_runs := not_ended(study.failed):
        runs = how_many(len(study.of_kind("run")) + len(missing(study.failed)), "run")
        of = f"of {runs}: {counted(open_runs)}"
        texts.insert(0, f"The sweep is not complete ({of}), so all that follows may change.")
    return [Sentence(text, "left-out", answers=SCALES, of_all=True) for text in texts]


def _much_lower(published: Rows, least_pct: float) -> list[Sentence]:
    """The lowest scaling efficiency of all, where it is far below the least on the most ranks."""
    lowest = min(published, key=lambda row: row["scaling_efficiency_pct"])
    if least_pct - lowest["scaling_efficiency_pct"] < _MUCH_LOWER:
        return []
    name = called(lowest, [name for name in varied(published) if name not in ("nodes", "world_size")])
    ranks = ranks_in_words(lowest["world_size"])
    text = f"Lowest of all: {lowest['scaling_efficiency_pct']:.0f} % on {ranks} ({name})."
    return [Sentence(text, "published-scaling")]


def _ends(shares: Sequence[float]) -> str:
    """``93 to 98 %``, and ``93 %`` where both ends read alike."""
    return f"{span(f'{min(shares):.0f}', f'{max(shares):.0f}')} %"


def _of_reference(rows: Rows) -> Sequence[Sentence]:
    published = [row for row in rows if row.get("epoch_duration_s")]
    sentences = []
    if published:
        largest = max(row["world_size"] for row in published)
        values = [row["scaling_efficiency_pct"] for row in published if row["world_size"] == largest]
        text = f"Published scaling efficiency on {ranks_in_words(largest)}: {_ends(values)}."
        sentences.append(Sentence(text, "published-scaling"))
        sentences += _much_lower(published, min(values))
        fixed = [row["batch_independent_pct"] for row in published if row.get("batch_independent_pct")]
        if fixed:
            sentences.append(Sentence(
                f"Of the durations behind it, {median(fixed):.0f} % (median of {len(fixed)} configurations) "
                "do not depend on the batch size: this is startup, not training.", "published-scaling",
            ))  # fmt: skip
    counted = [row for row in rows if row["tables"] is not None]
    if counted:
        values = [row["flops_efficiency_of_kernels_pct"] for row in counted
                  if row.get("flops_efficiency_of_kernels_pct")]  # fmt: skip
        if values:
            sentences.append(Sentence(
                f"Kernels reach {_ends(values)} of the device's peak FLOP rate.",
                "kernel-tables",
            ))  # fmt: skip
        sentences.append(Sentence(
            "Not enough data to say how training scales: kernel tables hold no step durations.",
            "left-out",
        ))  # fmt: skip
    return sentences
