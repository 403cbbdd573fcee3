"""Diagnosis of results: what a step takes, how the job scales, what is lost and why, and what to try.

Rules applied to the results of measures. Each rule returns findings; their texts are in ``findings.yaml`` and
``words.yaml``. The data of a finding about a cost contain what its text needs, and also ``cause``,
``cost_pct`` with the ``ends`` of its interval (points of scaling efficiency, or percent of a step),
``cost_ms``, and ``on`` (the number of ranks).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.diagnosis.evidence import (
    HEADINGS,
    PARTS,
    PLACES,
    WORDS,
    Evidence,
    finest_ms,
    in_words,
    predicted,
    widest,
)
from analysis.diagnosis.runs import TRANSFER, WAITING_SHARE_PCT, advised, of_rows
from analysis.display.metrics import IN_RUN, Metric, called, records
from analysis.display.output import Answer
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.measure import measure
from analysis.frames.study import TAU, Source, Study
from analysis.measures import anatomy, communication, critical_path, scaled, traced
from analysis.measures.points import findings, points_of, shared_cores
from analysis.measures.stragglers import late_ranks
from jobs.run import LINK
from profiling.errors import UserError
from profiling.findings import MOST_SHOWN, Finding, listed
from profiling.tables import rank_of

CAUSES = ("computation", "transfer", "latency", "data", "host", "copies", "imbalance", "straggler", "idle")
METRICS = (
    Metric("code", "code of the finding", text=True),
    Metric("cause", f"{', '.join(CAUSES)}, none or cannot_tell", text=True),
    Metric("cost_pct", "points of scaling efficiency; for step_waits, percent of a step", interval=IN_RUN),
    Metric("cost_ms", "the same, per step"),
    Metric("of", "number of GPUs or ranks, and of nodes", text=True),
    Metric("configuration", "the values in which the configuration differs from the others", text=True),
    Metric("rank", "of a straggler: the ranks", text=True),
    Metric("node", "of a straggler: its host", text=True),
    Metric("why", "of a straggler: loader, GPU (processor), node or host", text=True),
    Metric("advice", "codes of what to try, the cheapest first", text=True),
    Metric("gain_pct", "gain in images/s that was simulated or measured"),
    Metric("text", "the finding in words", text=True),
)
COLUMNS = {"Columns (a row a finding):": METRICS}
NO_TIMES = "no timed kernels and one number of ranks"
NO_DURATIONS = "kernel tables hold no step durations"
_LEAST_SAVED_PCT = 5.0
_RECORD_MORE = {"profiles_missing": "record_all_ranks", "one_step": "record_steps"}
_MOST_JOBS = 3  # of unlike traces that are described
# What a program could do without; kernels of the model are not among it.
AVOIDABLE = (critical_path.COLLECTIVES, critical_path.WAITING, critical_path.COPIES, "data loading", "host",
             "launches", "synchronization", "gaps")  # fmt: skip


@measure(COLUMNS)
def summary(study: Study, short: bool = False) -> Answer:
    """A row a finding, in their order, and a line for each; ``short``: the first, without what to try."""
    found = in_order(diagnosis(Evidence(study)))
    if short:
        found = [one for one in found if PLACES.get(one.code, ("",))[0] != HEADINGS[-1]][:MOST_SHOWN]
    rows = pd.DataFrame([as_row(one) for one in found], dtype=object)
    return Answer(rows, METRICS, parts=(), notes=as_lines(found), brief=True)


def diagnosis(evidence: Evidence) -> list[Finding]:
    """The findings, in their order: the step, its scaling, the loss, what to try."""
    if len(evidence.own):
        return _of_runs(evidence)
    found = [*(_of_traces(evidence) if evidence.traces else []), *_of_reference(evidence.others)]
    return found or [Finding("scaling_unknown", data={"reason": NO_TIMES})]


def _of_runs(evidence: Evidence) -> list[Finding]:
    study, own, judged = evidence.study, evidence.own, evidence.once(widest)
    names = [called(row, evidence.series) if evidence.series else None for row in records(own)]
    found = of_rows(
        own.assign(called=pd.Series(names, own.index, dtype=object)),
        judged.rows if judged else pd.DataFrame(),
        evidence.frame_if_any(predicted),
        list(findings(points_of(study, None))),
        evidence.parts_ms,
        lambda row: evidence.limit(evidence.traced(row)),
    )
    waiting = [one for one in study.failed if one.kind in ("running", "interrupted", "not started")]
    data = {"n": len(waiting), "of": len(study.of_kind("run")) + len(study.failed)}
    incomplete = [Finding("sweep_incomplete", data=data)] if waiting else []
    slower = [one for one in study.findings if one.code == "slower_from" and own["slower_pct"].any()]
    sizes = scaled.sizes_without_result(study)
    # What ranks lose to each other's use of the cores comes before what else they may lose.
    lost = {one.code for one in found} & {"loss", "loss_unexplained", "cause_uncertain"}
    shared = [Finding("cores_shared")] if lost and shared_cores(study) else []
    told = any("same_cores" in one.data.get("advice", ()) for one in found)
    advice = advised("shared cores", ["same_cores"], ours=False) if shared and not told else []
    # Until ranks have cores of their own, remedies for other causes are guesses; what was simulated is not.
    found = [one for one in found if one.code != "advice"] if advice else found
    first = [*_unrecorded(study), *incomplete, *sizes, *shared]
    return [*first, *found, *slower, *_link(evidence, found), *advice]


def _unrecorded(study: Study) -> list[Finding]:
    """That profiled runs lack the kernels of ranks, by the one that lacks most."""
    there = [
        (one.ranks, [rank_of(of.parent) for of in one.tables("kernels")]) for one in study.of_kind("run")
    ]
    lacking = [(sorted({*range(ranks)} - {*known}), ranks) for ranks, known in there if known]
    missing, ranks = max(lacking, key=lambda one: len(one[0]), default=([], 0))
    data = {"n": len(missing), "of": ranks, "ranks": missing, "cause": "cannot_tell"}
    return [Finding("profiles_missing", data=data)] if missing else []


def _link(evidence: Evidence, found: Sequence[Finding]) -> list[Finding]:
    """What a GPU's link carried in allreduces beside its bandwidth before the runs, or by the site file."""
    ranks = [one.data["ranks"] for one in found if one.data.get("cause") == "transfer"][:1]
    rows = evidence.frame_if_any(communication.communication, evidence.study) if ranks else pd.DataFrame()
    if "busbw_gb_per_s" not in rows:
        return []
    rows = rows[rows["group_size"].isin(ranks) & (rows["collective"] == "allreduce")]
    rows = rows.dropna(subset=["busbw_gb_per_s", "mbyte_per_step"])
    manifests = {source.id: source.manifest for source in evidence.study.sources}
    links = []
    for row in records(rows.nlargest(1, "mbyte_per_step")):
        carried, pct = 8 * row["busbw_gb_per_s"], row["busbw_of_measured_pct"]
        manifest = manifests[row["run"]]
        nominal = float(manifest.environment.get(LINK) or 0) if manifest else 0.0
        before = carried / pct * 100 if pct else 0.0
        beside = {"in allreduces": carried, "before the runs": before, "nominal": nominal}
        known = [f"{of:.3g} {name}" for name, of in beside.items() if of]
        data = {"gbit_per_s": carried, "ranks": row["group_size"], "nominal": nominal or None, "known": known}
        links += [Finding("link", data=data)] if len(known) > 1 else []
    return links


def compared(evidence: Evidence) -> pd.DataFrame:
    """The jobs of one program on several numbers of ranks, the fewest first."""
    jobs = evidence.once(traced.jobs, evidence.study)
    return jobs[jobs["compared"]]


def _of_traces(evidence: Evidence) -> list[Finding]:
    """What the traces cannot show; how the jobs scale, what a step takes; what would shorten it."""
    jobs = _described(evidence)
    means = anatomy.means(anatomy_frame(evidence.study, jobs))
    steps = {row["run"]: row for row in records(means)}
    limits = [one for source in jobs for one in _limits(source, steps.get(source.id))]
    late = evidence.once(widest)
    late_here = late_ranks(late.rows) if late else None
    partial = "profiles_missing" in [one.code for one in limits]
    taken = [_traced_step(source, steps[source.id]) for source in jobs if source.id in steps]
    found = [
        *limits,
        *_traced_efficiency(evidence),
        *taken,
        # Of some ranks it is not known whether they transferred or waited for the others.
        *([] if partial else [one for source in jobs for one in _longest_collective(evidence, source)]),
        *([] if partial or not late_here else [late_here]),
        *([] if partial else _saving(evidence)),
        *dict.fromkeys(one for source in jobs for one in advice_on(evidence, source, steps.get(source.id))),
    ]
    return found if len(evidence.traces) > 1 else [one.of(run=None) for one in found]


def _described(evidence: Evidence) -> list[Source]:
    """The jobs that findings are of: those with steps, and of these with most ranks there, first."""

    def place(source: Source) -> tuple[bool, bool, int, int]:
        there, tool = (len(source.job.ranks), source.job.tool) if source.job else (0, "")
        return tool == TAU, source.without_steps, -there, -(source.world_size or 0)

    order = sorted(evidence.traces, key=place)
    one_program = len(compared(evidence)) == len(order)
    return order[: 1 if one_program else _MOST_JOBS]


def _limits(source: Source, step: Mapping[str, Any] | None) -> list[Finding]:
    """What a job's traces cannot show: ranks that are missing, recordings that differ, a single step."""
    recorded = source.job.findings if source.job else []
    codes = ("profiles_missing", "steps_differ", "recording_cut_short")
    found = [one.of(run=source.id) for one in recorded if one.code in codes]
    there = len(source.job.ranks) if source.job else 1
    if there < source.ranks and not any(one.code == "profiles_missing" for one in found):
        data = {"n": source.ranks - there, "of": source.ranks, "ranks": []}
        found.insert(0, Finding("profiles_missing", run=source.id, data=data))
    if step and step["attributed_steps"] <= there and not source.without_steps:
        found.append(Finding("one_step", run=source.id, data={"ranks": there}))
    return [one.of(data={**one.data, "cause": "cannot_tell"}) for one in found]


def _traced_efficiency(evidence: Evidence) -> list[Finding]:
    rows = records(compared(evidence))
    return [
        Finding("traced_efficiency", run=most["run"], data={
            "ranks": most["world_size"], "pct": most["scaling_efficiency_pct"],
            "base_ranks": rows[0]["world_size"],
        })
        for most in rows[-1:]
    ]  # fmt: skip


def advice_on(evidence: Evidence, source: Source, row: Mapping[str, Any] | None) -> list[Finding]:
    """What to record of a job; else what may help against the largest part that a step need not have."""
    codes = [one.code for one in _limits(source, row)]
    if more := [advice for code, advice in _RECORD_MORE.items() if code in codes]:
        return advised("what is not recorded", more, ours=False)
    if row is None:
        return []
    step = _traced_step(source, row)
    shares = {name: share for name, share in step.data["parts_pct"].items() if name in WORDS["avoidable"]}
    part = max(shares, key=lambda name: shares[name], default="")
    if not part or shares[part] < WAITING_SHARE_PCT:
        return []
    part = (part == TRANSFER and evidence.limit([source])) or part
    found = advised(PARTS[part]["name"], PARTS[part]["advice"], ours=False)
    return [one.of(run=step.run) for one in found]


def _traced_step(source: Source, row: Mapping[str, Any]) -> Finding:
    parts_ms = dict(sorted(finest_ms(row).items(), key=lambda part: -part[1]))
    shares = {name: 100 * ms / row["wall_ms"] for name, ms in parts_ms.items() if name in PARTS}
    data = {
        "what": "recording" if source.without_steps else "step", "step_ns": 1e6 * row["wall_ms"],
        "n": len(source.job.ranks) if source.job else 1, "of": source.world_size or "?", "parts_ms": parts_ms,
        "parts_pct": shares, "steps": row["attributed_steps"], "shares": in_words(shares),
    }  # fmt: skip
    return Finding("traced_step_takes", run=source.id, data=data)


def _longest_collective(evidence: Evidence, source: Source) -> list[Finding]:
    """The collective that costs a step most."""
    rows = evidence.frame_if_any(communication.communication, evidence.study)
    if "exposed_ms" not in rows:  # TAU's tables of MPI hold sums of a whole run
        return []
    most = rows[rows["run"] == source.id].dropna(subset="exposed_ms").nlargest(1, "exposed_ms")
    return [
        Finding("longest_collective", run=source.id, data={
            "collective": row["collective"], "group_size": row["group_size"],
            "exposed_ns": 1e6 * row["exposed_ms"],
            "waiting": "unknown" if (waited := row["wait_ms"]) is None
            else f"{100 * waited / row['ms_per_step']:.0f} %",
        })
        for row in records(most)
    ]  # fmt: skip


def _saving(evidence: Evidence) -> list[Finding]:
    """The part that a step could be without and that would save most."""
    if not any(source.tables("kernels") for source in evidence.traces):
        return []
    try:
        paths, parts = evidence.once(critical_path.foremost, evidence.study)
    except UserError:
        return []
    rows = parts[parts["part"].isin(AVOIDABLE)]
    unknown = [one.data.get("what") for one in evidence.study.noted if one.run == paths.source.id]
    if critical_path.WAITS_AS_HOST in unknown:
        rows = rows[rows["part"] != "host"]
    if rows.empty:
        return []
    best = rows.sort_values("saved_ms").iloc[-1]
    if not best["saved_pct"] >= _LEAST_SAVED_PCT:
        return []
    data = {
        "part": best["part"], "what": "recording" if paths.source.without_steps else "step",
        "saved_pct": best["saved_pct"], "saved_ns": 1e6 * best["saved_ms"],
        "step_ns": 1e8 * best["saved_ms"] / best["saved_pct"],
        "steps": paths.steps["step"].nunique(),
    }  # fmt: skip
    return [Finding("saving_of_part", run=paths.source.id, data=data)]


def _of_reference(others: pd.DataFrame) -> list[Finding]:
    """Of tables of the reference: that they measure startup, which is no answer on training."""
    known = others.reindex(columns=["batch_independent_pct", "tables"]).astype(float)
    startup = {"pct": known["batch_independent_pct"].median(), "cause": "cannot_tell"}
    found = {
        "batch_independent_pct": Finding("tables_of_startup", data=startup),
        "tables": Finding("scaling_unknown", data={"reason": NO_DURATIONS}),
    }
    return [finding for name, finding in found.items() if known[name].notna().any()]


_MOST_BARS, _BAR_PCT = 3, 4  # lines for parts of a step; percent of a sign


def in_order(found: Iterable[Finding]) -> list[Finding]:
    order = {code: HEADINGS.index(heading) for code, (heading, _) in PLACES.items()}
    return sorted(found, key=lambda one: order.get(one.code, len(HEADINGS)))


def as_lines(found: Iterable[Finding]) -> list[str]:
    """A line a finding, with a bar for its cost; the parts of a step have a line each."""
    lines = []
    for one in found:
        parts = one.data["parts_pct"] if "shares" in one.data else {}
        if parts:
            lines.append(str(one.of(data={**one.data, "shares": []})).replace(": ", "", 1).rstrip())
        else:
            bar = "#" * round(one.data["cost_pct"] / _BAR_PCT) if "kind" in one.data else ""
            lines.append(" ".join(filter(None, [bar, str(one)])))
        bars = [(PARTS[name]["name"], share) for name, share in parts.items()]
        if sum(share for _, share in bars[_MOST_BARS:]) > 1:
            bars = bars[: _MOST_BARS - 1]
            bars.append(("other", 100 - sum(round(share) for _, share in bars)))
        for name, share in bars[:_MOST_BARS]:
            bar = "#" * round(share / _BAR_PCT)
            lines.append(f"  {bar:<{100 // _BAR_PCT}} {share:3.0f} % {name}")
    return lines


def as_row(one: Finding) -> dict[str, Any]:
    """A finding as a row of data; ``analysis.summary`` has the columns."""
    low, high = one.data.get("ends") or (None, None)
    names = ("cost_pct", "cost_ms", "node", "why", "gain_pct")
    return {
        **{name: one.data.get(name) for name in names},
        "code": one.code, "cause": one.data.get("cause", "none"), "of": one.data.get("on"),
        "cost_pct_low": low, "cost_pct_high": high, "configuration": one.configuration,
        "rank": listed(one.data["stragglers"]) if "stragglers" in one.data else None,
        "advice": ",".join(one.data.get("advice", ())), "text": str(one),
    }  # fmt: skip
