"""Two sets of runs that are compared: their figures by configuration, and what limits the comparison."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from analysis.display.metrics import NOMINAL, Column, Metric, Rows, columns, fields
from analysis.display.numbers import probability, signed
from analysis.frames.steps import STAGES, all_series
from analysis.frames.study import BOTH, Source, Study
from analysis.measures import kernels
from analysis.measures.kernels_changed import OTHER_CALLS, effects
from analysis.measures.points import POINT_FIELDS, point_fields
from analysis.statistics.two_samples import (
    SIGNIFICANCE,
    Stratum,
    difference,
    least_p_value,
    runs_enough,
    runs_needed,
    unlike_effects,
)
from analysis.statistics.variance import holm
from jobs.program import PER_STEP, command_of
from jobs.run import LONGEST_PROGRAM, Run
from jobs.run_fields import FACTOR, STARTING, fields_of, own_names
from profiling.errors import UserError
from profiling.findings import Finding

_SIZES = fields_of("size")
Key = tuple[tuple[str, str], ...]  # (field, value) of a configuration
Values = dict[tuple[Key, str, str], list[float]]  # (configuration, kind, quantity) -> a value a run

_NONE = str(None)  # a value that is not known, or of a factor that is another program's


@dataclass(frozen=True)
class Compared:
    """Two sets of runs.

    Attributes:
        a, b: the figures of each.
        rows: what both have, tested: of :func:`compare_rows.rows`.
        alone: what configurations are called that only A has, and that only B has.
        across: fields in which the two may differ.
    """

    a: Values
    b: Values
    rows: Rows
    alone: tuple[list[str], list[str]]
    across: tuple[str, ...] = ()

    def by_configuration(self, kind: str) -> list[tuple[Key, dict]]:
        """The rows of a kind, each with its configuration."""
        keys = [key for key, of, figure in self.a if of == kind and (key, of, figure) in self.b]
        of_kind = [row for row in self.rows if row["kind"] == kind]
        return list(zip(keys, of_kind, strict=True))


def compared(a: Study, b: Study, across: Sequence[str] = ()) -> Compared:
    """Two sets of runs; findings tell what was not compared, and what may explain a difference.

    Raises:
        UserError: they have nothing in common.
    """
    of_a, of_b = values_of(a, across), values_of(b, across)
    for study, values in ((a, of_a), (b, of_b)):
        if not values:
            raise UserError(f"{study.path} holds no run to compare")
    keys_a, keys_b = ({key for key, _, _ in values} for values in (of_a, of_b))
    if not keys_a & keys_b:
        differ = _nearest_differ(a, b, across)
        raise UserError(
            f"no configuration of {a.path} is in {b.path}: the nearest differ in {', '.join(differ)}; "
            f"compare them anyway with --across {','.join(differ)}"
        )
    timed_a, timed_b = ({key for key, kind, _ in values if kind == "step"} for values in (of_a, of_b))
    if (timed_a or timed_b) and not timed_a & timed_b:
        raise UserError(
            f"nothing to compare: no configuration has unprofiled runs in both {a.path} and {b.path}"
        )
    figures = rows(of_a, of_b)
    if not figures:
        raise UserError(f"nothing to compare: no kernel of {a.path} is in {b.path}")
    alone = _alone(of_a, of_b)
    _check(a, b, alone)
    return Compared(of_a, of_b, figures, alone, tuple(across))


def _check(a: Study, b: Study, alone: tuple[list[str], list[str]]) -> None:
    """Findings on what was not compared, and on what may explain a difference."""
    if alone[0]:
        a.note("not_compared", side="A", what=alone[0])
    if alone[1]:
        b.note("not_compared", side="B", what=alone[1])
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


def values_of(study: Study, across: Sequence[str] = ()) -> Values:
    """Figures of every run, by configuration; fields ``across`` do not tell configurations apart."""
    values: Values = {}

    def add(key: Key, kind: str, figure: str, value: float) -> None:
        if np.isfinite(value) and value > 0:
            values.setdefault((key, kind, figure), []).append(value)

    series = all_series(study)
    for source in study.of_kind("run"):
        key = tuple(
            (name, str(value)) for name, value in point_fields(source.fields).items() if name not in across
        )
        if source.fields["profile"] == "none":
            one = series[source.id]
            add(key, *STEP, float(np.median(one.steady_ns)) / 1e6)
            for stage in STAGES:
                add(key, "stages", f"{stage}_ms", float(np.median(one.stages[stage][one.steady])) / 1e6)
        elif source.tables("kernels"):
            for row in _kernels_of(study, source):
                name = f"{row['kernel']} ({row['direction']})"
                add(key, "kernels", name, row["ms_per_step"])
                add(key, CALLS, name, row["calls_per_step"])
    return values


def _kernels_of(study: Study, source: Source) -> Rows:
    """The kernels of a profiled run; none, and a finding, where they are unknown."""
    try:
        return kernels.rows(study, source.id)[0]
    except UserError:
        study.note("not_compared", source, what="kernels")
        return []


def _configurations(values: Values) -> set[Key]:
    """The configurations that have durations of batches; all, where none has."""
    timed = {key for key, kind, _ in values if kind == "step"}
    return timed or {key for key, _, _ in values}


def _alone(a: Values, b: Values) -> tuple[list[str], list[str]]:
    """The labels of configurations that only one of the two has."""
    of_a, of_b = _configurations(a), _configurations(b)
    fields = telling([*of_a, *of_b])
    only_a, only_b = (
        sorted(" ".join(_level(name, dict(key).get(name)) for name in fields) for key in alone)
        for alone in (of_a - of_b, of_b - of_a)
    )
    return only_a, only_b


def _level(name: str, value: str | None) -> str:
    """``loader=pytorch``; ``without lr`` of a program without that factor."""
    known = value not in (None, _NONE)
    if name.startswith(FACTOR):
        own = name.removeprefix(FACTOR)
        return f"{own}={value}" if known else f"without {own}"
    return f"{name}={value}" if known else f"{name} unknown"


def _nearest_differ(a: Study, b: Study, across: Sequence[str]) -> list[str]:
    """The fewest fields without which a configuration of A is one of B; a size rather not among them."""
    # What only a sweep's record tells of a program is no difference from one that was watched.
    keys_a, keys_b = (
        _configurations(values_of(study, across)) for study in align_watched(a, b, (*across, "program"))
    )
    fields = telling([*keys_a, *keys_b])
    pairs = [
        [name for name in fields if one.get(name) != other.get(name)]
        for one in map(dict, sorted(keys_a))
        for other in map(dict, sorted(keys_b))
    ]
    return min(pairs, key=lambda differ: (len(differ), len(set(_SIZES) & set(differ))))


# --- watched programs and swept ones ----------------------------------------------------------------------


class _Swept(NamedTuple):
    """A configuration of a program in a sweep.

    Attributes:
        fields: of its point.
        known: those that are known beside its command.
        command: filled, in one line.
    """

    fields: Mapping[str, Any]
    known: Mapping[str, Any]
    command: str


def align_watched(a: Study, b: Study, across: Sequence[str] = ()) -> tuple[Study, Study]:
    """Two studies in which watched runs of either have the fields of the other's swept configurations.

    A sweep declares what it starts; of a watched program its command is known, and what was found of it.
    Where the commands are the same, fields that only one side knows are taken to be equal.

    Args:
        across: fields in which the two may differ.
    """
    return _aligned(a, b, across), _aligned(b, a, across)


def _aligned(study: Study, other: Study, across: Sequence[str]) -> Study:
    swept: dict[str, _Swept] = {}
    for run in other.of_kind("run"):
        if run.manifest is not None and run.manifest.run.program and not _was_watched(run):
            fields = {name: of for name, of in point_fields(run.fields).items() if name not in across}
            swept.setdefault(repr(fields), _Swept(fields, _known(run, across), _command(run.manifest.run)))
    there = [point_fields(run.fields) for run in other.of_kind("run")]
    loaded, assumed = list[Source](), set[str]()
    for run in study.loaded:
        asked = swept and _was_watched(run) and point_fields(run.fields) not in there
        nearest = _nearest(run, list(swept.values()), across) if asked else []
        if not nearest:
            loaded.append(run)
            continue
        first, known = nearest[0], _known(run, across)
        differ = _apart(known, first.known).union(*(_apart(first.fields, one.fields) for one in nearest))
        fields = {name: of for name, of in first.fields.items() if name not in differ}
        loaded.append(replace(run, fields={**run.fields, **fields}))
        if len(nearest) == 1 and not _apart(known, first.known):
            assumed |= known.keys() ^ first.known.keys()
            if not _same_command(str(run.fields["program"]), first.command):
                assumed |= set(own_names(first.fields))  # else its command has them
    if assumed:
        study.note("not_recorded", side=BOTH, what=sorted(name.removeprefix(FACTOR) for name in assumed))
    return replace(study, loaded=loaded)


def _was_watched(run: Source) -> bool:
    """Whether it is a program that no sweep started: a sweep declares all of :data:`STARTING`."""
    manifest = run.manifest
    return manifest is not None and bool(manifest.run.program) and bool({*STARTING} & {*manifest.unknown})


def _command(run: Run) -> str:
    """The command of a sweep's run, as that of a program that was watched is recorded."""
    words = command_of(run)
    first = next(place for place, word in enumerate(words) if not word.startswith("--"))
    of_watch = [word for word in words[:first] if word.startswith(f"{PER_STEP}=") and word != f"{PER_STEP}=1"]
    return " ".join([*of_watch, *words[first:]])[:LONGEST_PROGRAM]


def _known(run: Source, across: Sequence[str]) -> dict[str, Any]:
    """The known fields of a run's configuration beside its command, which holds its own factors."""
    unknown = run.manifest.unknown if run.manifest else ()
    names = [name for name in POINT_FIELDS if name not in (*unknown, *across, "program")]
    fields = {name: run.fields[name] for name in names}
    if fields.get("device") == "auto":
        fields["device"] = "cpu" if run.on_cpus else "gpu"
    return fields


def _nearest(run: Source, swept: Sequence[_Swept], across: Sequence[str]) -> list[_Swept]:
    """The configurations of its command that differ from a run in the fewest fields that both know.

    Where none has its command, and commands may differ: of any.
    """
    program, known = str(run.fields["program"]), _known(run, across)
    alike = [one for one in swept if _same_command(program, one.command)]
    if not alike and "program" in across:
        alike = list(swept)
    apart = [(len(_apart(known, one.known)), one) for one in alike]
    fewest = min((count for count, _ in apart), default=0)
    return [one for count, one in apart if count == fewest]


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The fields in which two differ, of those that both know."""
    return {name for name in one.keys() & other.keys() if one[name] != other[name]}


def _same_command(watched: str, swept: str) -> bool:
    """Whether two commands are the same; one may name the script by a longer path."""
    (a_step, one), (other_step, other) = _step_and_program(watched), _step_and_program(swept)
    short, long = sorted((one, other), key=len)
    folder = long.removesuffix(short)
    named_longer = long.endswith(short) and folder.endswith("/") and " " not in folder
    return a_step == other_step and (short == long or named_longer)


def _step_and_program(command: str) -> tuple[str, str]:
    """The flag of how many optimizer steps are one, where they are several, and the program."""
    flag, _, program = command.partition(" ")
    return (flag, program) if flag.startswith(f"{PER_STEP}=") else ("", command)


METRICS = (
    Metric("kind", "step, combined (the steps of all configurations), stages, or kernels", text=True),
    Metric("quantity", "quantity compared", text=True),
    Metric("a", "median over the runs of A"),
    Metric("b", "median over the runs of B"),
    Metric(
        "effect_pct",
        "b divided by a, minus 1; interval: the effects that the test does not reject",
        "effect, %",
        NOMINAL,
        places=2,
        priority=2,
    ),
    Metric(
        "p_value",
        "exact Mann-Whitney test, corrected by Holm over all rows of its kind",
        "p",
        show=probability,
    ),
    Metric(
        "verdict",
        "by p (at most 0.05) and, of kernels, by their calls; or too few runs",
        text=True,
        priority=2,
    ),
    Metric("detectable_pct", "slowdown that such runs would show in at least 3 of 4 cases"),
    Metric("runs_a", "number of runs of A", priority=0),
    Metric("runs_b", "number of runs of B"),
    Metric(
        "runs_enough",
        "runs per side that would show such an effect in 3 of 4 cases",
        "runs\nneeded",
    ),
    Metric("least_effect_pct", "of combined, where effects differ (F test, 1 %): the lowest"),
    Metric("most_effect_pct", "the same: the highest effect of a configuration"),
)
COLUMNS = {"Columns: the kind, the fields in which configurations differ, then": METRICS}
KINDS = ("step", "combined", "stages", "kernels")
STEP = ("step", "step_ms")  # kind and quantity of the duration of a step
CALLS = "calls"  # of kernels, per step: not tested, they tell why a kernel's time differs
SHOWN = {"no difference": "no difference shown"}  # a verdict as tables have it: its effect may be any
FOUND = ("slower", "faster")  # verdicts on a step that is shown to differ
WORSE, BETTER, ACCEPTED, TOO_FEW = "worse", "better", "slower within --threshold", "too few runs"
_OF_ALL = "step_ms of all"
SAME = {"verdict": "same runs", "change": "0 %", "slower": 0, "faster": 0, "of": 0}
_DECIDING = ("step", "combined")


def rows(a: Values, b: Values) -> Rows:
    """A row a figure that both have, and one of all steps together; with :data:`METRICS`."""
    common = [key for key in a if key in b and key[1] != CALLS]
    apart = telling([key for key, _, _ in common])
    answer: Rows = []
    for kind in dict.fromkeys(kind for _, kind, _ in common):
        members = [each for each in common if each[1] == kind]
        strata = [(np.array(a[each]), np.array(b[each])) for each in members]
        of_kind = [
            {
                "kind": kind,
                **{name: value for name, value in key if name in apart},
                "quantity": figure,
                "a": float(np.median(of_a)),
                "b": float(np.median(of_b)),
                **_tested([(of_a, of_b)], len(members)),
            }
            for (key, _, figure), (of_a, of_b) in zip(members, strata, strict=True)
        ]
        _judge(of_kind)
        if kind == "kernels":
            for row, (key, _, figure) in zip(of_kind, members, strict=True):
                calls = (float(np.median(side.get((key, CALLS, figure), [np.nan]))) for side in (a, b))
                row["verdict"] = _of_kernel(row, *calls)
        answer += of_kind
        if kind == "step" and len(members) > 1:
            answer.append(_combined(strata))
    for row in answer:
        del row["least_p"]
    return sorted(answer, key=lambda row: KINDS.index(row["kind"]))


def _combined(strata: Sequence[Stratum]) -> dict[str, Any]:
    """The row of the steps of all configurations together."""
    row = {"kind": "combined", "quantity": _OF_ALL, "a": None, "b": None, **_tested(strata, 1)}
    _judge([row])
    return row


def telling(keys: Sequence[Key]) -> list[str]:
    """The fields that tell configurations apart."""
    names = [*Run.model_fields, *own_names(*map(dict, keys))]
    return [name for name in names if len({dict(key).get(name) for key in keys}) > 1]


def _tested(strata: Sequence[Stratum], tests: int) -> dict[str, Any]:
    effect = difference(strata, tests)
    alone = len(strata) == 1
    least, most = unlike_effects(strata) or (None, None)
    return {
        "effect_pct": effect.effect_pct,
        "effect_pct_low": effect.low,
        "effect_pct_high": effect.high,
        "p_value": effect.p_value,
        "detectable_pct": effect.detectable_pct,
        "runs_a": sum(len(of_a) for of_a, _ in strata),
        "runs_b": sum(len(of_b) for _, of_b in strata),
        "runs_enough": runs_enough(strata[0], effect.effect_pct, tests) if alone else None,
        "least_effect_pct": least,
        "most_effect_pct": most,
        "least_p": tests * least_p_value([(len(of_a), len(of_b)) for of_a, of_b in strata]),
    }


def _judge(of_kind: Rows) -> None:
    """Correct the p of the rows of a kind, and give each its verdict."""
    corrected = holm([float(row["p_value"]) for row in of_kind])
    for row, p_value in zip(of_kind, corrected, strict=True):
        row["p_value"] = p_value
        if row["least_p"] > SIGNIFICANCE:
            row["verdict"] = TOO_FEW
        elif p_value > SIGNIFICANCE:
            row["verdict"] = "no difference"
        else:
            row["verdict"] = "slower" if row["effect_pct"] > 0 else "faster"


def _of_kernel(row: Mapping[str, Any], calls_a: float, calls_b: float) -> str:
    """The verdict of a kernel's time per step, in which a kernel that is called more often is not slower."""
    verdict = str(row["verdict"])
    if verdict not in ("slower", "faster"):
        return verdict
    by_calls, by_duration = effects(
        {"ms_per_step": row["a"], "calls_per_step": calls_a},
        {"ms_per_step": row["b"], "calls_per_step": calls_b},
    )
    if by_calls is None or by_duration is None:
        return OTHER_CALLS
    if abs(by_calls) > abs(by_duration):
        return "more calls" if verdict == "slower" else "fewer calls"
    return verdict


def regressed(rows: Rows, threshold_pct: float) -> Rows:
    """The rows that decide the exit code: batches that are slower by more than is accepted."""
    return [
        row
        for row in rows
        if row["kind"] in _DECIDING and row["verdict"] == "slower" and row["effect_pct"] > threshold_pct
    ]


def same_runs(a: Values, b: Values) -> bool:
    """Whether both sides have the same figures, which two measurements never have."""
    return all(a[key] == b[key] for key in a if key in b)


def verdict(a: Values, b: Values, rows: Rows, threshold_pct: float) -> Finding:
    """Whether steps of B take longer than those of A: of the code ``compared``.

    Worse wherever a row regresses (:func:`regressed`), whatever else became faster.
    """
    steps = [row for row in rows if row["kind"] == "step"]
    if not steps:
        return Finding("not_compared", data={"what": "steps"})
    if same_runs(a, b):
        return Finding("compared", data=SAME)
    row = next((row for row in rows if row["kind"] == "combined"), steps[0])
    counts = Counter(row["verdict"] for row in steps)
    deciding = [one for one in (row, *steps) if one["verdict"] in FOUND]
    if worse := regressed(rows, threshold_pct):
        said, row = WORSE, row if row in worse else max(worse, key=lambda one: one["effect_pct"])
    elif any(one["verdict"] == "slower" for one in deciding):
        said = ACCEPTED
    elif deciding:
        said, row = BETTER, deciding[0]
    else:
        said = SHOWN.get(row["verdict"], str(row["verdict"]))
    figures = ("effect_pct", "effect_pct_low", "effect_pct_high", "detectable_pct")
    data = {name: row[name] for name in figures if np.isfinite(row[name])}
    data |= {name: counts[name] for name in FOUND}
    return Finding("compared", data={"verdict": said, "change": change(row), **data, "of": len(steps)})


def change(row: Mapping[str, Any]) -> str:
    """``+3.1 % [2.9, 3.3]``; of effects that differ from each other ``-88.9 to +7.3 %``."""
    if row.get("least_effect_pct") is not None:
        return f"{signed(1)(row['least_effect_pct'])} to {signed(1)(row['most_effect_pct'])} %"
    low, high = row["effect_pct_low"], row["effect_pct_high"]
    ends = f" [{low:.1f}, {high:.1f}]" if np.isfinite([low, high]).all() else ""
    return f"{row['effect_pct']:+.1f} %{ends}"


def least_runs(rows: Rows, kind: str = "step") -> list[Finding]:
    """How many runs a verdict on one row of a kind takes at least, if some have fewer."""
    verdicts = [row["verdict"] for row in rows if row["kind"] == kind]
    if TOO_FEW not in verdicts:
        return []
    data = {"n": verdicts.count(TOO_FEW), "of": len(verdicts), "least": runs_needed(len(verdicts))}
    return [Finding("few_runs", data=data)]


def shown(rows: Rows) -> list[Column]:
    """The terminal's columns."""
    by_name = {metric.name: metric for metric in METRICS}
    effect = by_name["effect_pct"]
    return [
        *columns([*_row_fields(rows), *(by_name[name] for name in ("quantity", "a", "b"))]),
        effect.column(
            printed=lambda row: (
                effect.printed(row) if row.get("least_effect_pct") is None else change(row).removesuffix(" %")
            )
        ),
        by_name["p_value"].column(),
        by_name["runs_a"].column("runs", lambda row: f"{row['runs_a']}, {row['runs_b']}"),
        by_name["verdict"].column(printed=lambda row: SHOWN.get(row["verdict"], row["verdict"])),
    ]


def columns_of(rows: Rows) -> list[Metric]:
    """The columns of :func:`rows`."""
    kind, *figures = METRICS
    return [kind, *_row_fields(rows), *figures]


def _row_fields(rows: Rows) -> list[Metric]:
    """The columns of the fields that configurations are told apart by."""
    names = [*Run.model_fields, *own_names(*rows)]
    return fields(name for name in names if any(name in row for row in rows))
