"""Comparison of two results, by configuration: runs with a test, traces by intervals over their steps.

A traced job was recorded once: a difference of medians counts if the intervals inside the two runs do not
overlap. The variation between runs is unknown.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display import output
from analysis.display.metrics import IN_RUN, JOB, NOMINAL, Metric, fields, names_of
from analysis.display.numbers import probability
from analysis.display.output import Answer
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.divide import EVERY
from analysis.frames.measure import measure
from analysis.frames.steps import STAGES, Series, all_series, series_of_traces
from analysis.frames.study import BOTH, Source, Study
from analysis.measures import anatomy, communication
from analysis.measures.kernels import OTHER_CALLS, effects
from analysis.measures.kernels import figures as kernel_figures
from analysis.measures.points import POINT_FIELDS, point_names, points_of_runs
from analysis.measures.traced import ALIKE, in_common, launches_of
from jobs.run_fields import FACTOR, fields_of
from profiling.errors import UserError
from profiling.findings import Finding

SLOWER, FASTER, NO_DIFFERENCE, TOO_FEW = "slower", "faster", "no difference", "too few runs"
FEW_STEPS, OPPOSITE = "too few steps", "slower and faster"
# As tables have it: the effect may be any of its interval.
SHOWN: dict[str, str] = {NO_DIFFERENCE: "no difference shown"}
_VERDICT = Metric(
    "verdict", "from p_value (at most 0.05) and, for kernels, their calls", text=True, priority=2,
    show=lambda verdict: SHOWN.get(verdict, verdict),
)  # fmt: skip
METRICS = (
    Metric("kind", "step, combined (steps of all), stages or kernels", text=True, table=False),
    Metric("quantity", "quantity compared", text=True),
    Metric("a", "median over the runs of A"),
    Metric("b", "median over the runs of B"),
    Metric(
        "effect_pct", "b / a - 1; interval: effects that the test does not reject",
        "effect, %", NOMINAL, places=2, priority=2,
    ),
    Metric("p_value", "exact Mann-Whitney test, corrected by Holm within its kind", "p", show=probability),
    _VERDICT,
    Metric("runs_a", "number of runs of A", "runs\nof A", priority=0),
    Metric("runs_b", "number of runs of B", "runs\nof B", priority=0),
)  # fmt: skip
TRACE_METRICS = (
    replace(JOB, meaning=f"{JOB.meaning} (if they differ: A, B)"),
    Metric("kind", "step, stages, parts (of a step), collectives or kernels (by class)", text=True, key=True),
    Metric("quantity", "ms per step: median of steps and stages, mean of the others", text=True, key=True),
    Metric("a_ms", "value in A", "A\nms", interval=IN_RUN),
    Metric("b_ms", "value in B", "B\nms", interval=IN_RUN),
    Metric("difference_ms", "B minus A"),
    Metric("difference_pct", "difference relative to A", places=1),
    Metric("verdict", "of a step: slower or faster if the intervals do not overlap", text=True, priority=2),
)
HISTORY_METRICS = (
    Metric("result", "name of its folder", text=True, key=True),
    Metric("date", "start of its first run, UTC", text=True),
    Metric("revision", "git revision that its runs started from", text=True),
    Metric("runs", "number of unprofiled runs"),
    Metric("step_ms", "median step of the job, median over runs", "step\nms"),
    Metric("images_per_s", "images of all ranks divided by the job's time", "images\n/s"),
    Metric("scaling_efficiency_pct", "speedup divided by the increase in ranks", "scaling\neff. %", places=1),
    Metric("change_pct", "change of the step from this result on, if the permutation test finds one at 5 %",
           "change\n%", places=1),
    Metric("change_p_value", "permutation test, corrected by Holm", "p of\nchange", show=probability),
    Metric("effect_pct", "of the last result: step relative to the results before, by Student's t",
           "effect, %", NOMINAL, places=1, priority=2),
    Metric("p_value", "of the same, corrected by Holm", "p", show=probability),
)  # fmt: skip
COLUMNS = {
    "Columns: the kind, the fields in which configurations differ, then": METRICS,
    "Traces (one row per quantity of two jobs):": TRACE_METRICS,
    "Three or more results (one row per configuration and result):": (*HISTORY_METRICS, _VERDICT),
}
KINDS = ("step", "combined", "stages", "kernels")
_DECIDING = ("step", "combined")
_FIGURE = ["kind", "quantity"]
_EFFECT = ["effect_pct", "effect_pct_low", "effect_pct_high", "p_value"]


@measure(COLUMNS)
def compare(
    study: Study, other: Sequence[Study], across: str | None = None, threshold: float = 0.0
) -> Answer:
    """A row a configuration and quantity, or a pair of traced jobs and quantity; of more, and result.

    ``study``, ``other``: A, before, and B, after; or those after, in order. ``across``: fields in which they
    may differ; ``threshold``: accepted slowdown, %.
    """
    if threshold < 0:
        raise UserError(f"--threshold: {threshold:g} is not a valid slowdown; give a percentage of 0 or more")
    own = [name for one in (study, *other) for name in one.own_factors]
    names = output.parse_fields(across, flag="--across", own=own)
    if len(other) > 1:
        return _in_order([study, *other], names, threshold)
    (b,) = other
    answer = compared(study, b, names, threshold)
    study.join(b)
    return answer


def _in_order(studies: Sequence[Study], across: Sequence[str], threshold: float) -> Answer:
    """Results in order: the last one's verdict, against those before it, decides."""
    rows = history(studies, across)
    is_last = rows["p_value"].notna()
    chance = rows["p_value"] > estimates.SIGNIFICANCE
    verdict = np.select([chance, rows["effect_pct"] > 0], [NO_DIFFERENCE, SLOWER], FASTER)
    rows["verdict"] = pd.Series(verdict, rows.index).where(is_last)
    last = rows[is_last].assign(kind="step")
    first = studies[0]
    for study in studies[1:]:
        first.failed += [replace(one, point=f"{study.path.name}: {one.point}") for one in study.failed]
        first.noted |= study.noted
    names = [str(name) for name in rows if name in (*POINT_FIELDS, *studies[-1].own_factors)]
    return Answer(
        rows, [*fields(names), *HISTORY_METRICS, _VERDICT], verdict=verdicts(last, False, threshold),
        title=f"{len(studies)} results in order", regressed=bool(len(regressed(last, threshold))),
    )  # fmt: skip


def compared(a: Study, b: Study, across: Sequence[str] = (), threshold: float = 0.0) -> Answer:
    """The answer of :func:`compare`, without a table where both sides are the same runs."""
    title = f"{b.path.name} (B) compared with {a.path.name} (A)"
    if a.only_traces and b.only_traces:
        changed = rows = of_traces(a, b)
        several = rows["run"].nunique() > 1
        metrics = [replace(one, table=several) if one.name == "run" else one for one in TRACE_METRICS]
        same = bool((rows["difference_ms"].fillna(0) == 0).all())
        more = unlike(a, b)
    else:
        pairs = _pairs_of_both(a, b, across)
        same = bool((pairs["runs_a"] == pairs["runs_b"]).all())
        rows = differences(pairs)
        kind, *figures = METRICS
        metrics = [kind, *fields(str(name) for name in rows if name not in names_of(METRICS)), *figures]
        changed = rows[(rows["kind"] != "kernels") | ~rows["verdict"].isin([NO_DIFFERENCE, TOO_FEW])]
        few = rows.loc[rows["kind"] == "step", "verdict"] == TOO_FEW
        data = {"n": int(few.sum()), "of": len(few), "least": estimates.runs_needed(len(few))}
        more = [Finding("few_runs", data=data)] if few.any() and not same else []
    return Answer(
        rows, metrics, [] if same else None, title, notable=changed,
        verdict=[*verdicts(rows, same, threshold), *more],
        regressed=not same and bool(len(regressed(rows, threshold))),
    )  # fmt: skip


def regressed(rows: pd.DataFrame, threshold_pct: float = 0.0) -> pd.DataFrame:
    """The rows that decide the exit code: steps that are slower by more than is accepted.

    So is all of the interval, where there is a threshold: of an effect of just that half of the estimates are
    above it.
    """
    slower = rows["kind"].isin(_DECIDING) & (rows["verdict"] == SLOWER)
    effect_pct = rows[_effect(rows)]
    if threshold_pct:
        paired = "effect_pct" in rows
        low = rows["effect_pct_low"] if paired else 100 * (rows["b_ms_low"] / rows["a_ms_high"] - 1)
        effect_pct = low.fillna(effect_pct)
    return rows[slower & (effect_pct > threshold_pct)]


def verdicts(rows: pd.DataFrame, same: bool, threshold_pct: float = 0.0) -> list[Finding]:
    """Whether steps of B take longer than those of A: findings ``compared``, of traces one a pair of jobs."""
    deciding = rows[rows["kind"].isin(_DECIDING) & rows[_effect(rows)].notna()]
    if not (deciding["kind"] == "step").any():
        return [Finding("not_compared", data={"what": "steps"})]
    if same:
        none = {SLOWER: 0, FASTER: 0, "of": 0, "each": []}
        return [Finding("compared", data={"verdict": "same runs", "change": "0 %", **none})]
    # The row of all of them first, if there is one.
    deciding = deciding.sort_values("kind", kind="stable")
    if "run" not in rows:
        return [Finding("compared", data=_verdict(deciding, threshold_pct))]
    pairs = deciding.groupby("run", sort=False)
    return [Finding("compared", run=str(run), data=_verdict(of, threshold_pct)) for run, of in pairs]


def _verdict(deciding: pd.DataFrame, threshold_pct: float) -> dict[str, Any]:
    effect, steps = _effect(deciding), deciding[deciding["kind"] == "step"]
    worse, found = regressed(deciding, threshold_pct), deciding[deciding["verdict"].isin([SLOWER, FASTER])]
    row = deciding.iloc[0]
    if len(worse):
        verdict = "worse"
        row = row if worse.index[0] == deciding.index[0] else worse.iloc[int(np.argmax(worse[effect]))]
    elif (found["verdict"] == SLOWER).any():
        verdict = "slower within --threshold"
    elif len(found):
        verdict, row = "better", found.iloc[0]
    else:
        verdict = SHOWN.get(row["verdict"], row["verdict"])
    names = ("effect_pct", "effect_pct_low", "effect_pct_high")
    figures = {name: row[name] for name in names if pd.notna(row.get(name))}
    counts = {name: int((steps["verdict"] == name).sum()) for name in (SLOWER, FASTER)}
    low, high = row.get(f"{effect}_low"), row.get(f"{effect}_high")
    change = f"{row[effect]:+.1f} %" + (f" [{low:.1f}, {high:.1f}]" if pd.notna(low) else "")
    each = [steps[effect].min(), steps[effect].max()] if len(steps) > 1 else []
    return {"verdict": verdict, "change": change, **figures, **counts, "of": len(steps), "each": each}


def _effect(rows: pd.DataFrame) -> str:
    return "effect_pct" if "effect_pct" in rows else "difference_pct"


def history(studies: Sequence[Study], across: Sequence[str] = ()) -> pd.DataFrame:
    """A row a configuration and result that has it.

    Columns: the fields of configurations but ``across``, ``number`` (of the result, from 0), and
    :data:`HISTORY_METRICS`.
    """
    rows = pd.concat([_of_result(study).assign(number=of) for of, study in enumerate(studies)])
    names = [name for name in point_names(rows) if name in rows and name not in across]
    rows = rows.assign(configuration=rows[names].map(str).groupby(names, sort=False).ngroup())
    rows = rows.drop_duplicates(["configuration", "number"]).sort_values(["configuration", "number"])
    numbers = rows.groupby("configuration")["number"]
    rows = rows[
        (numbers.transform("size") >= estimates.FEWEST_TO_JUDGE)
        & (numbers.transform("max") == len(studies) - 1)
    ].reset_index(drop=True)
    if rows.empty:
        raise UserError(f"no configuration has unprofiled runs in {studies[-1].path} and two results before")
    ends, changes = [], []
    for places in rows.groupby("configuration").groups.values():
        values = rows.loc[places, "step_ms"].to_numpy()
        ends.append((places[-1], *estimates.last(values)))
        change = estimates.change_point(values)
        changes.append((places[change.place], change.effect_pct, change.p_value))
    found = pd.DataFrame(changes, columns=["place", "change_pct", "change_p_value"]).set_index("place")
    found["change_p_value"] = estimates.holm(found["change_p_value"].tolist())
    of_last = pd.DataFrame(ends, columns=["place", *_EFFECT]).set_index("place")
    of_last["p_value"] = estimates.holm(of_last["p_value"].tolist())
    return rows.join([found[found["change_p_value"] <= estimates.SIGNIFICANCE], of_last])


def _of_result(study: Study) -> pd.DataFrame:
    """A row a configuration of a result that has unprofiled runs."""
    series = all_series(study)
    runs = [(run, series[run.id]) for run in study.of_kind("run") if run.fields["profile"] == "none"]
    if not runs:
        raise UserError(f"{study.path} holds no unprofiled run to compare")
    points = points_of_runs(runs)
    per_rank = points["images_per_s"] / points["world_size"]
    efficiency = 100 * per_rank / per_rank[points["base"]].to_numpy()
    manifests = [run.manifest for run, _ in runs if run.manifest]
    revisions = dict.fromkeys(one.git_revision[:10] for one in manifests if one.git_revision)
    return points[[*point_names(points), "runs", "images_per_s"]].assign(
        step_ms=points["step_ns"] / 1e6,
        scaling_efficiency_pct=efficiency.where(points["base"] != points.index, np.nan),
        result=study.path.resolve().name,
        date=min((one.started for one in manifests), default="")[:16].replace("T", " "),
        revision=", ".join(revisions),
    )


# --- runs -------------------------------------------------------------------------------------------------


def _pairs_of_both(a: Study, b: Study, across: Sequence[str]) -> pd.DataFrame:
    """The figures that both sides have (:func:`pairs_of`)."""
    of_a, of_b = runs_of(a, across), runs_of(b, across)
    for study, runs in ((a, of_a), (b, of_b)):
        if runs.empty:
            raise UserError(f"{study.path} holds no run to compare")
    runs = pd.concat([of_a.assign(side="A"), of_b.assign(side="B")], ignore_index=True)
    runs = runs.fillna(dict.fromkeys([*of_a, *of_b], "None") | {"calls": np.nan})  # another program's factor
    every_a, every_b = _configurations(runs, "A"), _configurations(runs, "B")
    if not set(every_a) & set(every_b):
        differ = _nearest_differ(runs)
        raise UserError(
            f"no configuration of {a.path} is in {b.path}: the nearest differ in {', '.join(differ)}; "
            f"compare them anyway with --across {','.join(differ)}"
        )
    pairs, timed = pairs_of(runs), runs[runs["kind"] == "step"]
    if pairs.empty or (len(timed) and not (pairs["kind"] == "step").any()):
        what = "configuration has unprofiled runs" if len(timed) else "kernel is"
        raise UserError(f"nothing to compare: no {what} in both {a.path} and {b.path}")
    _note_unlike(a, b, _configurations(timed, "A") or every_a, _configurations(timed, "B") or every_b)
    return pairs


def runs_of(study: Study, across: Sequence[str] = ()) -> pd.DataFrame:
    """The figures of every run, without those that are 0 or not known.

    Columns: the fields of its configuration but ``across``, as text, ``kind``, ``quantity``, ``value`` (ms a
    step) and, of a kernel, its ``calls`` per step.
    """
    figures = ["value", "calls"]
    series = all_series(study)
    profiled = [run for run in study.of_kind("run") if run.fields["profile"] != "none"]
    kernels = kernel_figures(study, profiled)
    for source in profiled:
        if source.tables("kernels") and source.id not in set(kernels["run"]):
            study.note("not_compared", source, what="kernels")
    named = kernels["kernel"].map(str) + " (" + kernels["direction"].map(str) + ")"
    kernels = kernels.rename(columns={"ms_per_step": "value", "calls_per_step": "calls"})
    kernels = kernels.assign(kind="kernels", quantity=named)
    steps = [
        {"run": source.id, "kind": kind, "quantity": name, "value": np.median(ns) / 1e6}
        for source in study.of_kind("run")
        if source.fields["profile"] == "none"
        # Of our own trainer its own code is next to nothing, and one test more.
        for kind, name, ns in _durations(series[source.id], STAGES if source.fields["program"] else _TIMED)
    ]
    of_all = pd.concat([pd.DataFrame(steps), kernels]).reindex(columns=["run", *_FIGURE, *figures])
    frame = study.with_fields(of_all)
    names = [name for name in (*POINT_FIELDS, *study.own_factors) if name not in across]
    levels = frame[names].where(frame[names].notna(), None).map(str)
    return pd.concat([levels, frame[[*_FIGURE, *figures]]], axis=1)[frame["value"] > 0]


_TIMED = STAGES[:-1]


def _durations(series: Series, stages: Sequence[str] = _TIMED) -> list[tuple[str, str, np.ndarray]]:
    """Kind, name and ns of the steady steps of a run or job, and of their stages."""
    of_stages = [("stages", f"{stage}_ms", series.stages[stage][series.steady]) for stage in stages]
    return [("step", "step_ms", series.steady_ns), *of_stages]


def _fields_of(runs: pd.DataFrame) -> list[str]:
    """The fields in which configurations differ."""
    names = [str(name) for name in runs if name not in (*_FIGURE, "value", "calls", "side")]
    return [name for name in names if runs[name].nunique() > 1]


def _configurations(runs: pd.DataFrame, side: str) -> list[tuple[tuple[str, str], ...]]:
    """The configurations of a side, by the fields in which any differ."""
    names = _fields_of(runs)
    of_side = runs.loc[runs["side"] == side, names].drop_duplicates()
    return [tuple(zip(names, row, strict=True)) for row in of_side.itertuples(index=False, name=None)]


def _note_unlike(a: Study, b: Study, every_a: Sequence, every_b: Sequence) -> None:
    """Findings on what was not compared, and on what may explain a difference."""
    for study, side, own, other in ((a, "A", every_a, every_b), (b, "B", every_b, every_a)):
        missing = [one for one in own if one not in other]
        # A factor of the program's own that is None is another program's.
        alone = sorted(
            " ".join(f"{name.removeprefix(FACTOR)}={value}" for name, value in one if value != "None")
            for one in missing
        )
        if alone:
            study.note("not_compared", side=side, what=alone)  # type: ignore[arg-type]
    spans = [
        (min(one.started for one in of), max(one.ended for one in of))
        for study in (a, b)
        if (of := [source.manifest for source in study.sources if source.manifest])
    ]
    if len(spans) == 2 and (spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]):
        b.note("sides_apart_in_time", side=BOTH)
    devices = [{device for run in study.of_kind("run") for device in run.devices} for study in (a, b)]
    if all(devices) and devices[0] != devices[1]:
        b.note("devices_differ", side=BOTH, devices=devices[0] | devices[1])


def _nearest_differ(runs: pd.DataFrame) -> list[str]:
    """The fewest fields without which a configuration of A is one of B; a size rather not among them."""
    timed = runs[runs["kind"] == "step"]
    sides = [_configurations(timed if len(timed) else runs, side) for side in "AB"]
    pairs = [
        [name for (name, value), (_, other) in zip(one, another, strict=True) if value != other]
        for one in sorted(sides[0])
        for another in sorted(sides[1])
    ]
    return min(pairs, key=lambda differ: (len(differ), len({*fields_of("size")} & set(differ))))


def pairs_of(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a configuration and figure that both sides have.

    Columns: the fields in which these configurations differ, ``kind``, ``quantity``, ``runs_a`` and
    ``runs_b`` (a list of a value a run), ``calls_a`` and ``calls_b``.
    """
    keys = [*_fields_of(runs), *_FIGURE]
    sides = runs.groupby([*keys, "side"], sort=False).agg(runs=("value", list), calls=("calls", "median"))
    a, b = (sides.xs(side, level="side").reset_index() for side in "AB")
    pairs = a.merge(b, on=keys, suffixes=("_a", "_b"))
    return pairs.drop(columns=[name for name in keys if name not in _FIGURE and pairs[name].nunique() < 2])


def differences(pairs: pd.DataFrame) -> pd.DataFrame:
    """A row a figure that both sides have, and one of all steps together; with :data:`METRICS`."""
    figures = []
    for kind, of_kind in pairs.groupby("kind", sort=False):
        sides = zip(of_kind["runs_a"], of_kind["runs_b"], strict=True)
        strata = [(np.array(a), np.array(b)) for a, b in sides]
        rows = pd.DataFrame([
            {"a": np.median(a), "b": np.median(b), **_tested([(a, b)], len(strata))} for a, b in strata
        ])  # fmt: skip
        rows["verdict"] = _verdicts(rows)
        rows = pd.concat([of_kind.reset_index(drop=True).drop(columns=["runs_a", "runs_b"]), rows], axis=1)
        if kind == "kernels":
            # A kernel that is called more often is not slower.
            calls, each = effects(rows["calls_a"], rows["a"], rows["calls_b"], rows["b"])
            found, more = rows["verdict"].isin([SLOWER, FASTER]), abs(calls) > abs(each)
            kinds = [found & calls.isna(), found & more & (rows["verdict"] == SLOWER), found & more]
            rows["verdict"] = np.select(kinds, [OTHER_CALLS, "more calls", "fewer calls"], rows["verdict"])
        figures.append(rows)
        if kind == "step" and len(strata) > 1:
            of_all = {"kind": "combined", "quantity": "step_ms of all", **_tested(strata, 1)}
            combined = pd.DataFrame([of_all])
            verdict = _verdicts(combined)
            both = {SLOWER, FASTER} <= {*rows["verdict"]}
            verdict = np.where(both & (verdict == NO_DIFFERENCE), OPPOSITE, verdict)
            figures.append(combined.assign(verdict=verdict))
    rows = pd.concat(figures).sort_values("kind", key=lambda kinds: kinds.map(KINDS.index), kind="stable")
    return rows.drop(columns=["least_p", "calls_a", "calls_b"]).reset_index(drop=True)


def _tested(strata: Sequence[estimates.Stratum], tests: int) -> dict[str, Any]:
    counts = [(len(of_a), len(of_b)) for of_a, of_b in strata]
    runs_a, runs_b = map(sum, zip(*counts, strict=True))
    return {
        **dict(zip(_EFFECT, estimates.difference(strata), strict=True)), "runs_a": runs_a, "runs_b": runs_b,
        "least_p": tests * estimates.least_p_value(counts),
    }  # fmt: skip


def _verdicts(rows: pd.DataFrame) -> np.ndarray:
    """The verdicts on rows of a kind, whose p are corrected for each other here."""
    rows["p_value"] = estimates.holm(rows["p_value"].tolist())
    few, chance = rows["least_p"] > estimates.SIGNIFICANCE, rows["p_value"] > estimates.SIGNIFICANCE
    return np.select([few, chance, rows["effect_pct"] > 0], [TOO_FEW, NO_DIFFERENCE, SLOWER], FASTER)


# --- traces -----------------------------------------------------------------------------------------------


def of_traces(a: Study, b: Study) -> pd.DataFrame:
    """The figures of each pair of jobs; with :data:`TRACE_METRICS`."""
    in_a, in_b = _collectives(a), _collectives(b)
    both = [(one, _figures(a, one, in_a), other, _figures(b, other, in_b)) for one, other in _jobs(a, b)]
    frames = []
    for one, of_a, other, of_b in both:
        rows = pd.concat([of_a, of_b])[_FIGURE].drop_duplicates()  # in their order
        for side, of in (("a", of_a), ("b", of_b)):
            names = {name: f"{side}_{name}" for name in ("ms", "ms_low", "ms_high")}
            rows = rows.merge(of.rename(columns=names), how="left", on=_FIGURE)
        frames.append(rows.assign(run=one.id if one.id == other.id else f"{one.id}, {other.id}"))
    rows = pd.concat(frames, ignore_index=True)
    # A kernel or collective that one of them lacks takes it no time; a part that is not known is not 0.
    absent = rows["kind"].isin(["collectives", "kernels"])
    for name in ("a_ms", "b_ms"):
        rows[name] = rows[name].mask(absent & rows[name].isna(), 0.0)
    rows["difference_ms"] = rows["b_ms"] - rows["a_ms"]
    if rows["difference_ms"].isna().all():
        raise UserError(f"nothing to compare: {a.path} and {b.path} have no figure in common")
    rows["difference_pct"] = 100 * (rows["b_ms"] / rows["a_ms"].where(rows["a_ms"] != 0) - 1)
    rows["verdict"] = np.select(
        [
            (rows["kind"] != "step") | rows["difference_ms"].isna(),
            rows[["a_ms_low", "b_ms_low"]].isna().any(axis=1),
            rows["b_ms_low"] > rows["a_ms_high"],
            rows["b_ms_high"] < rows["a_ms_low"],
        ],
        ["", FEW_STEPS, SLOWER, FASTER],
        SHOWN[NO_DIFFERENCE],
    )
    return rows[names_of(TRACE_METRICS)]


def _jobs(a: Study, b: Study) -> list[tuple[Source, Source]]:
    """The jobs to compare: one of each side, or those of equal world size, or of equal name."""
    of_a, of_b = a.of_kind("trace"), b.of_kind("trace")
    if len(of_a) == len(of_b) == 1:
        return [(of_a[0], of_b[0])]
    for name in ("run", "world_size"):
        keys_a, keys_b = ({one.value(name): one for one in side if one.value(name)} for side in (of_a, of_b))
        pairs = [(keys_a[key], keys_b[key]) for key in keys_a if key in keys_b]
        if pairs and len(keys_a) == len(of_a) and len(keys_b) == len(of_b):
            return pairs
    raise UserError(
        f"no job of {a.path} matches one of {b.path} by name or world size; give folders of one job each"
    )


def _figures(study: Study, job: Source, collectives: pd.DataFrame) -> pd.DataFrame:
    """The figures of a job, ms a step: ``kind, quantity, ms, ms_low, ms_high``, without unknown ones."""
    series = series_of_traces(study).get(job.id)
    times = [] if series is None else _durations(series)
    known = [(kind, name.removesuffix("_ms"), ns / 1e6) for kind, name, ns in times if not np.isnan(ns).any()]
    medians = [(kind, name, *estimates.median_in_run(ms)) for kind, name, ms in known]
    parts = anatomy.means(anatomy_frame(study, [job])).reindex(columns=[f"{name}_ms" for name in EVERY])
    parts.columns = [name.replace("_", " ") for name in EVERY]
    calls = collectives[collectives["run"] == job.id]
    sizes = calls["group_size"].map(lambda size: f" of {size}" if size else "", na_action="ignore").fillna("")
    calls = calls.assign(kind="collectives", quantity=calls["collective"] + sizes)
    kernels = kernel_figures(study, [job], ("class",))
    kernels = kernels.assign(kind="kernels", quantity=kernels["class"].map(str))
    figures = ["ms", "ms_low", "ms_high"]
    means = [one.rename(columns={"ms_per_step": "ms"}) for one in (calls, kernels)]
    parts = parts.melt(var_name="quantity", value_name="ms").assign(kind="parts")
    frame = pd.concat([pd.DataFrame(medians, columns=[*_FIGURE, *figures]), parts, *means])
    frame = frame[[*_FIGURE, *figures]].astype(dict.fromkeys(figures, float)).dropna(subset="ms")
    # Groups of one size of which some were recorded in part are rows of their own.
    return frame.groupby(_FIGURE, sort=False, as_index=False).sum(min_count=1)


def _collectives(study: Study) -> pd.DataFrame:
    try:
        return communication.communication(study).rows
    except UserError:  # no job has any
        return pd.DataFrame(columns=["run", *names_of(communication.METRICS)])


def unlike(a: Study, b: Study) -> list[Finding]:
    """A finding for each pair of jobs that differ in devices, number of ranks, or kernels."""
    found = []
    for one, other in _jobs(a, b):
        sides = {"devices": (one.devices, other.devices), "ranks": (one.world_size, other.world_size)}
        differ = [what for what, (of_a, of_b) in sides.items() if of_a and of_b and of_a != of_b]
        launches = launches_of(a, one), launches_of(b, other)
        if one.devices == other.devices and any(map(len, launches)) and in_common(*launches) < ALIKE:
            differ.append("kernels")
        if differ:
            found.append(Finding("jobs_differ", data={"jobs": [one.id, other.id], "differ": differ}))
    return found
