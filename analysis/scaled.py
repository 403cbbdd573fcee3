"""How does training scale, and how well does a batch use the device?

    python -m analysis.scaled DIR                                   results of a sweep, or reference files
    python -m analysis.scaled DIR --method corrected,published      both, a row each
    python -m analysis.scaled DIR --group-by batch,nodes --explain
    python -m analysis.scaled DIR --scaling strong                  the global batch is constant (by default
                                                                    the kind that compares more points)

A row is a configuration at one node count: ``method``, Run's fields, ``world_size``, then, for our own runs
(a name with ..._low and ..._high has a 95 % interval in these columns):

    scaling                          weak (constant batch of a GPU) or strong (constant global batch)
    repetitions, timed_by            timed runs, and of which kind (unprofiled, if there are any)
    batch_ms (_low, _high)           median batch of the job (its slowest rank's), ms
    p95_ms, p99_ms, max_ms           percentiles and maximum over the steady batches of all timed runs, ms
    images_per_s (_low, _high)       images of all ranks over the job's time
    speedup, scaling_efficiency_pct (_low, _high)   images/s over the base point's; the same a rank, % (of a
                                     group: of its points that are compared with another)
    base, base_world_size, base_images_per_s        that point: the smallest world size of the configuration
    loss_pct (_low, _high)           what is lost against ideal scaling from there: 100 - scaling efficiency
    loss_compute_pct, loss_exposed_communication_pct, loss_exposed_loader_pct, loss_exposed_copies_pct,
    loss_idle_pct, loss_unattributed_pct
                                     the same by how much each part of a profiled batch grew (below 0: shrank;
                                     see analysis.anatomy), and what these do not explain; they add up to it
    loss_exposed_transfer_pct, loss_exposed_wait_pct   what loss_exposed_communication_pct is made of, where
                                     known: sending, and waiting for ranks that come later
    loss_idle_host_bound_pct, loss_idle_other_pct   what loss_idle_pct is made of, where known
    loss_..._pct_low, loss_..._pct_high   of each part, from the batches inside the profiled runs
    loss_note                        why the parts are not known
    interval_note, interval_seed     why there is no interval; the seed of the resampling
    warmup_dropped                   batches left out at the heads of the timed runs
    load_ms, forward_ms, backward_ms, update_ms     medians of the stages, mean over ranks, ms
    startup_s                        process start to first batch, s
    profiled_runs                    runs under a profiler
    perturbation (_low, _high)       a batch that the profiler records over its unprofiled twin's (of several
                                     profilers, those that recorded kernels)
    tflop_per_batch                  credited FLOPs of a rank's batch, 1e12
    flop_coverage_pct                these over the analytic count, %
    kernel_ms                        time of the model's kernels in a batch of a rank, ms
    flops_efficiency_of_kernels_pct, bandwidth_efficiency_of_kernels_pct
                                     FLOPs (bytes) over the kernels' time and the datasheet's peak, %
    flops_efficiency_of_batch_pct, bandwidth_efficiency_of_batch_pct (_low, _high)
                                     the same over the whole batch (what the reference called "scaled"), %
    mfu_pct (_low, _high)            analytic FLOPs over the whole batch and the datasheet's peak, %
    use_note                         why efficiencies of the batch are above those of the kernels
    ..._of_measured_pct              each of these beside the peak measured on the machine, %
    exposed_communication_ms, overlapped_communication_ms
                                     collectives while nothing (something) is computed, ms a batch of a rank;
                                     empty: not known
    device_name, peak_tflops_per_s, peak_gb_per_s, measured_tflops_per_s, measured_gb_per_s
                                     the device and its peaks, by datasheet and as measured

PyProf tables hold no durations of batches:

    tables                           how many (repetitions, ranks) a row is of
    fprop_batches, bprop_batches     forward passes, and backward passes that were attributed, as counted
    tflop_per_batch                  forward FLOPs over the one count plus backward over the other, 1e12
    fprop_flop_coverage_pct, bprop_flop_coverage_pct   credited FLOPs over the analytic count, %
    kernel_ms, flops_efficiency_of_kernels_pct, bandwidth_efficiency_of_kernels_pct   as above

The published method reads TAU tables, and our own runs alike, by whole wall time:

    repetitions, repetitions_kept    before and after the 2-sigma cut
    application_s, epoch_duration_s  median of the kept, start-up included; scaled to 1e6 images, s
    base_nodes                       the fewest nodes with the same GPUs a node
    scaling_efficiency_pct           of the epoch duration, against these
    batch_duration_s                 of PyProf tables that TAU timed too: the estimate of a batch, s
    flops_efficiency_of_batch_pct, bandwidth_efficiency_of_batch_pct      over 25 of these, %
    batch_independent_pct            part of the time that a line through the batch sizes leaves at size 0, %
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.display import output
from analysis.display.terminal import Answer, Rows, sortable
from analysis.measures import tau
from analysis.measures.scaled_parts import parts
from analysis.published import reference, scaled_published
from analysis.results.load import load, no_result
from analysis.results.study import Study
from jobs.run import ID_FIELDS, Run
from profiling.errors import UserError, did_you_mean, run_command
from profiling.heap import keep_freed_memory

if TYPE_CHECKING:
    import pandas as pd

    from analysis.measures.scaling import Point, Scaling

METHODS = ("corrected", "published")
_ABOVE_IDEAL_PCT = 105.0  # an efficiency that is surely more than this is worth a line


def rows(
    study: Study,
    methods: Sequence[str] = ("corrected",),
    group_by: Sequence[str] = (),
    scaling: "Scaling | None" = None,
) -> Rows:
    """The answer's rows, by method, then by configuration.

    Args:
        scaling: weak or strong; None: the kind that compares more points (analysis.measures.scaling).

    Raises:
        UserError: nothing in the study can answer.
    """
    made: Rows = []
    for method in methods:
        found = _corrected(study, group_by, scaling) if method == "corrected" else _published(study, group_by)
        made += [{"method": method, **row} for row in found]
    if not made:
        raise UserError(_nothing(study, methods))
    return made


def table(
    study: Study, method: str = "corrected", group_by: Sequence[str] = (), scaling: "Scaling | None" = None
) -> "pd.DataFrame":
    """The same as a DataFrame; columns and units are in this file's docstring."""
    made = rows(study, method.split(","), group_by, scaling)
    return output.to_frame(made, columns_of(made, group_by))


def columns_of(made: Rows, group_by: Sequence[str] = ()) -> list[str]:
    """The columns of these rows, in order: those of the kinds of results that they are of."""
    have = {name for row in made for name in row}
    fields = list(group_by) or [*ID_FIELDS, *(name for name in Run.model_fields if name not in ID_FIELDS)]
    known = ["method", *fields, "world_size"]
    if "scaling" in have:
        from analysis.measures.figures import TIME_COLUMNS
        from analysis.measures.use import USE_COLUMNS

        known += [*TIME_COLUMNS, *USE_COLUMNS]
    known += [*reference.PYPROF_COLUMNS, *tau.TAU_COLUMNS, *scaled_published.SCALED_COLUMNS]
    return [name for name in dict.fromkeys(known) if name in have]


def _nothing(study: Study, methods: Sequence[str]) -> str:
    if any(failure.kind != "excluded" for failure in study.failed):
        return no_result(study)
    if study.tau_intervals and list(methods) == ["corrected"]:
        return (
            f"{study.path} holds TAU application times only: they hold start-up and no batch, so there is no "
            "corrected figure; see --method published"
        )
    if study.of_kind("pyprof") and list(methods) == ["published"]:
        return (
            f"{study.path} holds no duration of a batch: the published scaled efficiencies of PyProf tables "
            "need TAU tables of the same configurations; see analysis.efficiency --method published"
        )
    if study.tau_intervals:
        return f"{study.path} holds TAU tables of 1-batch runs only: they measure start-up, not training"
    return f"{study.path} holds nothing that says how training scales (method {', '.join(methods)})"


# --- corrected ----------------------------------------------------------------------------------------


def _corrected(study: Study, group_by: Sequence[str], scaling: "Scaling | None") -> Rows:
    made = _of_runs(study, group_by, scaling) if study.of_kind("run") else []
    if study.of_kind("pyprof"):
        made += reference.pyprof_rows(study, group_by)
    if study.tau_intervals and made:
        study.find("TAU tables hold no durations of batches: they are in the published method only")
    return made


def _of_runs(study: Study, group_by: Sequence[str], scaling: "Scaling | None") -> Rows:
    from analysis.measures.figures import figures
    from analysis.measures.loss import add_anatomies
    from analysis.measures.scaling import choose_scaling, points_of
    from analysis.measures.use import findings

    points = points_of(study, scaling)
    kind = scaling or choose_scaling(points)
    _say_which(study, points, kind)
    add_anatomies(study, points)
    for finding in findings(points):
        study.find(finding)
    groups: dict[tuple, list[Point]] = {}
    for number, point in enumerate(points):
        key = tuple(_value(point, name) for name in group_by) if group_by else (number,)
        groups.setdefault(key, []).append(point)
    made = []
    for key, members in groups.items():
        fields = dict(zip(group_by, key, strict=True)) if group_by else _fields(members[0])
        sizes = {point.world_size for point in members}
        fields["world_size"] = sizes.pop() if len(sizes) == 1 else None
        made.append({**fields, **figures(members, kind)})
    _find_above_ideal(study, made)
    # Where the global batch is constant that of a GPU goes with the number of ranks.
    apart = [name for name in ID_FIELDS[2:] if kind == "weak" or name != "batch"]
    order = list(group_by) or [*apart, *_outside(), "world_size", "nodes", "batch"]
    return sorted(made, key=lambda row: sortable([_rank_of(row.get(name)) for name in order]))


def _say_which(study: Study, points: Sequence["Point"], kind: "Scaling") -> None:
    """Say which kind of scaling the efficiencies are of, where the other one compares points, too."""
    from analysis.measures.scaling import count_compared

    constant: dict[Scaling, str] = {"weak": "batch of a GPU", "strong": "global batch"}
    other: Scaling = "weak" if kind == "strong" else "strong"
    compared = {one: count_compared(points, one) for one in constant}
    if compared[other]:
        study.find(
            f"efficiencies are of {kind} scaling: {compared[kind]} of {len(points)} points are compared with "
            f"one of fewer ranks and the same {constant[kind]}; {compared[other]} have one with the same "
            f"{constant[other]} (analysis.scaled --scaling {other})"
        )


def _find_above_ideal(study: Study, made: Rows) -> None:
    """Say where points scale better than ideal, surely (or, without an interval, by as much as is odd)."""
    above = []
    for row in made:
        share, low = row["scaling_efficiency_pct"], row["scaling_efficiency_pct_low"]
        if row["world_size"] != row["base_world_size"] and (low if low == low else share) > _ABOVE_IDEAL_PCT:
            above.append(share)
    if above:
        strong = made[0]["scaling"] == "strong"
        study.find(
            f"scaling better than ideal ({len(above)} of {len(made)} rows, up to {max(above):.0f} %) says "
            "that the base point ran slower than it need have (a busy machine, other clocks or threads"
            f"{', a batch that suits the device less' if strong else ''}): its efficiencies are too high"
        )


def _rank_of(value: Any) -> Any:
    # fp32 comes first: one rank has no other precision of gradients, and is the base of the others.
    return "" if value == "fp32" else value


def _outside() -> list[str]:
    return [name for name in Run.model_fields if name not in ID_FIELDS]


def _fields(point: Any) -> dict[str, Any]:
    return {**point.fields, "profile": _value(point, "profile")}


def _value(point: Any, name: str) -> Any:
    if name == "world_size":
        return point.world_size
    if name in point.fields:
        return point.fields[name]
    runs = point.profiled if name == "profile" and point.profiled else [*point.timed, *point.profiled]
    values = dict.fromkeys(source.fields[name] for source, _ in runs)
    return next(iter(values)) if len(values) == 1 else "+".join(str(value) for value in values)


# --- published ----------------------------------------------------------------------------------------


def _published(study: Study, group_by: Sequence[str]) -> Rows:
    made = tau.tau_rows(study)
    if study.of_kind("run"):
        made += tau.run_rows(study)
    return tau.grouped([*made, *scaled_published.scaled_rows(study)], group_by)


# --- command ------------------------------------------------------------------------------------------


def main() -> int:
    parser = output.parser("analysis.scaled", __doc__)
    parser.add_argument(
        "--method",
        default="corrected",
        metavar="METHOD,...",
        help="corrected, published, or both [corrected]",
    )
    parser.add_argument("--group-by", metavar="FIELD,...", help="fields of a run [every configuration]")
    parser.add_argument(
        "--scaling", choices=("weak", "strong"),
        help="weak: the batch of a GPU is constant; strong: the global batch is [what compares more points]",
    )  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="say what each correction moved, and why")
    arguments = parser.parse_args()
    methods = _methods(arguments.method)
    group_by = output.parse_fields(arguments.group_by, ("world_size",))
    study = load(arguments.path, arguments.peaks)
    made = rows(study, methods, group_by, arguments.scaling)
    notes: list[str] = []
    if arguments.explain:
        from analysis.published.explain import explain

        own = _of_runs(study, (), arguments.scaling) if study.of_kind("run") else []
        notes = explain(study, own)
    answer = Answer(made, columns_of(made, group_by), parts=parts(made, group_by), notes=notes)
    return output.emit(answer, study, arguments)


def _methods(text: str) -> list[str]:
    methods = [name.strip() for name in text.split(",") if name.strip()]
    for name in methods:
        if name not in METHODS:
            raise UserError(f"--method: unknown method {name!r}{did_you_mean(name, METHODS)}")
    return list(dict.fromkeys(methods)) or ["corrected"]


if __name__ == "__main__":
    keep_freed_memory()
    run_command(main)
