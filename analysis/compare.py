"""Is the difference real?

    python -m analysis.compare A B                        two sets of results: before and after
    python -m analysis.compare A B --across compute       the two sides differ in this field
    python -m analysis.compare A B --threshold 2          accept regressions of less than 2 %

For converted traces (one job on each side): one row per step duration, part, collective and kernel class.

One row per configuration and quantity. A note names the devices of both sides if they differ.

Each family of rows is tested separately. The families batch and combined decide the exit code: 1 if a row of
theirs is slower by more than --threshold. Without a real difference, this happens in at most 5 % of
comparisons.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.display import output
from analysis.display.metrics import Rows
from analysis.display.terminal import Answer, Part
from analysis.measures.batches.series import STAGES, all_series
from analysis.measures.kernels import rows as kernels
from analysis.measures.scaling import traced_difference
from analysis.measures.scaling.compare_rows import (
    COLUMNS,
    Key,
    Values,
    columns_of,
    regressed,
    rows,
    same_runs,
    sentence,
    shown,
    telling,
)
from analysis.measures.scaling.points import point_fields
from analysis.results.load import load
from analysis.results.study import Source, Study
from jobs.flags import make_parser
from profiling.errors import EXIT_FAILED, UserError, run_command

MOST_NAMED = 6  # configurations that a note names

# --- values -------------------------------------------------------------------------------------------


def values_of(study: Study, across: Sequence[str] = ()) -> Values:
    """Figures of every run, by configuration; fields ``across`` do not tell configurations apart."""
    values: Values = {}

    def add(key: Key, family: str, figure: str, value: float) -> None:
        if np.isfinite(value) and value > 0:
            values.setdefault((key, family, figure), []).append(value)

    series = all_series(study)
    for source in study.of_kind("run"):
        key = tuple(
            (name, str(value)) for name, value in point_fields(source.fields).items() if name not in across
        )
        if source.fields["profile"] == "none":
            one = series[source.id]
            add(key, "batch", "batch_ms", float(np.median(one.steady_ns)) / 1e6)
            for stage in STAGES:
                add(key, "stages", f"{stage}_ms", float(np.median(one.stages[stage][one.steady])) / 1e6)
        elif source.tables("kernels"):
            for row in _kernels_of(study, source):
                name = f"{row['kernel']} ({row['direction']})"
                add(key, "kernels", name, row["ms_per_batch"])
    return values


def _kernels_of(study: Study, source: Source) -> Rows:
    """The kernels of a profiled run; none, and a finding, where they cannot be told: batches still can."""
    try:
        return kernels.rows(study, source.id)[0]
    except UserError:
        reasons = [failure.reason for failure in study.failed if failure.point == source.id]
        why = reasons[0] if reasons else "it has none in attributed steps"
        study.note(f"its kernels are not compared: {why}", source)
        return []


def _configurations(values: Values) -> set[Key]:
    """The configurations that have durations of batches; all, where none has."""
    timed = {key for key, family, _ in values if family == "batch"}
    return timed or {key for key, _, _ in values}


def _find_alone(study: Study, a: Values, b: Values, paths: tuple[Path, Path]) -> None:
    """A finding where configurations are on one side only: nothing is said of them."""
    of_a, of_b = _configurations(a), _configurations(b)
    fields = telling([*of_a, *of_b])
    for path, alone in zip(paths, (of_a - of_b, of_b - of_a), strict=True):
        names = sorted(" ".join(f"{name}={dict(key).get(name)}" for name in fields) for key in alone)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        if names:
            study.note(f"only in {path}, so not compared: {', '.join(names[:MOST_NAMED])}{more}")


def _no_batch(a: Values, b: Values, paths: tuple[Path, Path]) -> str:
    """Why no duration of a batch can be compared; empty: it can, or no side has any and kernels are."""
    timed = [{key for key, family, _ in values if family == "batch"} for values in (a, b)]
    if timed[0] & timed[1] or not (timed[0] or timed[1]):
        return ""
    for path, keys in zip(paths, timed, strict=True):
        if not keys:
            return f"nothing to compare: {path} holds no readable unprofiled run"
    return f"nothing to compare: no configuration has unprofiled runs both in {paths[0]} and {paths[1]}"


def _nothing_alike(a: Values, b: Values, paths: tuple[Path, Path]) -> str:
    one, other = (dict(next(iter(values))[0]) if values else {} for values in (a, b))
    if not one or not other:
        return f"{paths[0] if not one else paths[1]} holds no run to compare"
    differ = [name for name in one if name in other and one[name] != other[name]]
    return (
        f"no configuration of {paths[0]} is in {paths[1]}: they differ in {', '.join(differ)}, for example; "
        f"compare them anyway with --across {','.join(differ)}"
    )


def _say_if_apart(a: Study, b: Study) -> None:
    """A finding where all runs of one were before those of the other."""
    times = [
        [(source.manifest.started, source.manifest.ended) for source in study.sources if source.manifest]
        for study in (a, b)
    ]
    spans = [(min(of_a)[0], max(ended for _, ended in of_a)) for of_a in times if of_a]
    if len(spans) == 2 and (spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]):
        b.note(
            "all runs of one side came before those of the other, so drift of the machine looks like a "
            "difference; alternate the runs to rule this out"
        )


def _say_if_other_devices(a: Study, b: Study, paths: tuple[Path, Path]) -> None:
    """A finding where the two ran on different devices: the effect is theirs, too."""
    names = [sorted({device for run in study.of_kind("run") for device in run.devices}) for study in (a, b)]
    if all(names) and names[0] != names[1]:
        ran = [f"{path} ran on {' and '.join(of)}" for path, of in zip(paths, names, strict=True)]
        b.note(f"{', '.join(ran)}: differences may come from the devices")


# --- the answer ---------------------------------------------------------------------------------------


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    if arguments.threshold < 0:
        raise UserError(
            f"--threshold: {arguments.threshold:g} is not a valid slowdown; give a percentage of 0 or more"
        )
    studies = [load(path, arguments.peaks) for path in (arguments.a, arguments.b)]
    if all(study.of_kind("trace") and not study.of_kind("run") for study in studies):
        return _of_traces(studies[0], studies[1], arguments)
    own = [name for study in studies for name in study.own_factors]
    across = output.parse_fields(arguments.across, flag="--across", own=own)
    a, b = (values_of(study, across) for study in studies)
    figures, paths = rows(a, b), (arguments.a, arguments.b)
    if not figures:
        raise UserError(_nothing_alike(a, b, paths))
    if wrong := _no_batch(a, b, paths):
        raise UserError(wrong)
    worse = regressed(figures, arguments.threshold)
    notes = [sentence(a, b, figures, arguments.threshold)]
    changed = [row for row in figures if row["family"] != "kernels" or row["verdict"] in ("slower", "faster")]
    parts = [Part(f"{arguments.b.name} compared with {arguments.a.name}", changed, shown(figures), _CAPTION)]
    if same_runs(a, b):
        parts = []  # a table of intervals would look like an answer
    _find_alone(studies[0], a, b, paths)
    _say_if_apart(*studies)
    _say_if_other_devices(studies[0], studies[1], paths)
    studies[0].log.add(studies[1].log, studies[0].path.resolve() == studies[1].path.resolve())
    code = output.emit(Answer(figures, columns_of(figures), parts=parts, notes=notes), studies[0], arguments)
    return EXIT_FAILED if worse else code


def _of_traces(a: Study, b: Study, arguments: argparse.Namespace) -> int:
    """Two jobs' traces beside each other."""
    figures = traced_difference.rows(a, b)
    a.log.add(b.log, a.path.resolve() == b.path.resolve())
    if traced_difference.same_traces(figures):
        parts, notes = [], [traced_difference.SAME]
    else:
        title = f"{arguments.b.name} (b) compared with {arguments.a.name} (a)"
        parts = [traced_difference.part(figures, title)]
        notes = [traced_difference.sentence(figures), *traced_difference.unlike(a, b)]
    code = output.emit(Answer(figures, traced_difference.METRICS, parts, notes=notes), a, arguments)
    return EXIT_FAILED if traced_difference.regressed(figures, arguments.threshold) else code


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "python -m analysis.compare", output.described(__doc__, {**COLUMNS, **traced_difference.COLUMNS})
    )
    parser.add_argument("a", type=Path, metavar="A", help="results before: a sweep, a run, or traces")
    parser.add_argument("b", type=Path, metavar="B", help="results after")
    parser.add_argument("--across", metavar="FIELD,...", help="fields in which A and B may differ")
    parser.add_argument(
        "--threshold", type=float, default=0.0, metavar="PCT", help="accepted slowdown of a step, %% [0]"
    )
    return output.add_output_flags(parser)


_CAPTION = (
    "Medians over runs. p: Mann-Whitney test, corrected over the rows of a family (Holm). 95 % confidence "
    "intervals of each row alone: effects that the test does not reject; from 4 runs per side. Kernels: "
    "those that differ."
)


if __name__ == "__main__":
    run_command(main)
