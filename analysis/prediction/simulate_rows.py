"""What do simulated steps say of more ranks? The rows of analysis.predict by ``simulation``.

The step is that of the largest traced point; the cost of an allreduce is fitted to all traces of several
ranks. What the step misses of the largest measured batch stays as it is. A point is predicted back from those
of fewer ranks only; one that was measured outside of its range says that the simulation misses something that
grows, and ranges are wider by as much for every doubling of the ranks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.scaling.point import Point
from analysis.prediction import simulate
from analysis.prediction.basis import (
    Basis,
    Network,
    basis_of,
    late_of,
    layout_of,
    predicted,
    simulated,
    unseen,
)
from analysis.prediction.configurations import Configuration, error_of
from analysis.prediction.exchange_forms import Layout
from analysis.prediction.extrapolate import doublings, measured_on, outside, row_of
from analysis.prediction.simulate import Model
from analysis.prediction.traced_step import Traced, traced
from analysis.prediction.untold import Reason, lines, names_of, too_wide
from analysis.prediction.wanted import within_reach
from analysis.results.study import Study
from profiling.wording import how_many

SIMULATION = "simulation"
# A simulated step, or a fitted allreduce, that is further off than this is worth a line, percent.
WORTH_SAYING_PCT = 3.0
# Where simulated and recorded exposed transfer differ by more than this share of the step, what the exchange
# costs is not what is simulated: on a CPU it takes cores from the computation, too.
MOST_UNLIKE_SHARE = 0.05


def rows(
    study: Study,
    configurations: Sequence[Configuration],
    wanted: Sequence[int],
    what_ifs: Sequence[str] = (),
    network: Network | None = None,
) -> tuple[Rows, list[Reason]]:
    """Back-tests of each configuration, then its predictions and what-ifs; and why others have none."""
    answer: Rows = []
    reasons: list[Reason] = []
    refused: list[Reason] = []
    names = names_of(configurations)
    for one, name in zip(configurations, names, strict=True):
        steps = [traced(study, point) for point in one.points]
        of_one, why = rows_of(study, one, steps, wanted, what_ifs, network or Network(), name, refused)
        answer += of_one
        reasons += why
    for line in lines(refused, names):
        study.note(line)
    return answer, reasons


def rows_of(
    study: Study,
    one: Configuration,
    steps: Sequence[Traced | str],
    wanted: Sequence[int],
    what_ifs: Sequence[str],
    network: Network,
    name: str = "",
    refused: list[Reason] | None = None,
) -> tuple[Rows, list[Reason]]:
    """The same of one configuration, whose points' traces are ``steps``.

    Args:
        name: what it is called in notes; empty where it is the only one.
        refused: is extended by why what-ifs have no row.
    """
    refused = [] if refused is None else refused
    answer: Rows = []
    missed = 0.0
    for place in range(1, len(one.points)):
        basis = basis_of(one, place, steps, network, missed)
        point = one.points[place]
        if isinstance(basis, Basis) and not unseen(basis, point.world_size, network, layout_of(point)):
            row = _row(basis, layout_of(point))
            answer.append(_backtested(row, point))
            if late_of(steps[place]) == len(basis.models[0].step.late_ns):
                # A rank that is late on these ranks and was not there before is nothing that grows.
                missed = max(missed, _missed(row, point, basis))
    basis = basis_of(one, len(one.points), steps, network, missed)
    if not isinstance(basis, Basis):
        return answer, [Reason(name, basis)]
    basis = replace(basis, missed=max(missed, _missed_inside(basis, steps)))
    _find(study, basis, f" of {name}" if name else "")
    # What a change gives is surest on the ranks that were measured: nothing is extrapolated there.
    here = layout_of(one.points[-1])
    if not unseen(basis, here.ranks, network, here):
        answer += _what_ifs(basis, here, _row(basis, here), what_ifs, name, refused)
    reasons: list[Reason] = []
    near, too_far = within_reach(name, one.points[-1].world_size, wanted)
    for ranks in near:
        layout = one.nodes.of(ranks)
        if why := unseen(basis, ranks, network, layout):
            return answer, [*reasons, Reason(name, why)]  # neither are links of more ranks known
        plain = _row(basis, layout)
        if wide := too_wide(
            name, plain, f"profiles on {measured_on(plain)}", "profile more numbers of ranks"
        ):
            reasons.append(wide)
        else:
            answer += [plain, *_what_ifs(basis, layout, plain, what_ifs, name, refused)]
    return answer, [*reasons, *too_far]


def _find(study: Study, basis: Basis, of: str) -> None:
    """Say what stands behind the predictions of a configuration, if it is weak; ``of`` names it."""
    model, row = basis.models[0], _row(basis, layout_of(basis.anchor))
    if not model.cost.latency_known:
        study.note(
            "simulation: all profiled allreduces have the same size, so latency and bandwidth cannot be "
            "separated; latency is assumed to be 0, and ranges cover up to 100 us (--alpha-us sets it)"
        )
    if len(basis.anchor.timed) < 2:
        study.note(
            "simulation: configurations ran only once, so the spread of runs is assumed (3 %, unless other "
            "configurations were repeated)"
        )
    if basis.one.nodes.most == 1:
        study.note("simulation: all runs used one node; the network between nodes is not included")
    error = row["allreduce_error_pct"]
    if error is not None and error > WORTH_SAYING_PCT:
        study.note(
            f"simulation{of}: the profiled allreduces differ by {error:.0f} % from the best-fitting "
            f"algorithm ({row['exchange']}); ranges cover this"
        )
    if abs(row["fit_error_pct"]) > WORTH_SAYING_PCT:
        study.note(
            f"simulation{of}: the step simulated on {row['traced_ranks']} ranks differs from the measured "
            f"one by {row['fit_error_pct']:+.1f} %; the same difference is assumed on more ranks"
        )
    late = len(model.step.late_ns)
    if late:
        study.note(
            f"simulation{of}: {how_many(late, 'straggler')} among {basis.traced.world_size} ranks "
            "(analysis.stragglers); the same number is assumed on more ranks"
        )


# --- a row --------------------------------------------------------------------------------------------


def _row(basis: Basis, layout: Layout, models: Sequence[Model] = ()) -> dict[str, Any]:
    step = predicted(basis, layout, models)
    one, model, ranks = basis.one, (models or basis.models)[0], layout.ranks
    # A rate is of the mean batch, the step the median one: by their ratio on the largest measured point.
    point = basis.anchor
    images = point.rate.value * point.batch.value * (1 if one.strong else ranks / point.world_size)
    rate = (images / step.batch, images / step.high, images / step.low)
    step_ms = (step.batch / 1e6, step.low / 1e6, step.high / 1e6)
    base = basis.points[0].rate.value / basis.points[0].world_size
    alpha, per_byte = model.cost.slowest(layout)
    inside, inside_per_byte = model.cost.slowest(Layout(ranks))
    levels = len(model.cost.form.messages) > 1 and layout.nodes > 1
    seen = simulated(basis, basis.models[0], layout_of(basis.traced))
    error = model.cost.error
    return {
        **row_of(one, ranks, SIMULATION, rate, step_ms, base, [point.world_size for point in basis.points]),
        "global_batch": round(one.batch(ranks) * ranks),
        "traced_ranks": basis.traced.world_size,
        "fit_error_pct": 100 * (float(seen.step_ns[0]) / basis.traced.batch.value - 1),
        "exchange": model.cost.form.name,
        "exchanges_tried": " or ".join(dict.fromkeys(one.cost.form.name for one in basis.models)),
        "allreduce_error_pct": 100 * error if np.isfinite(error) else None,
        "late_ranks": len(model.step.late_ns),
        "buckets": step.simulated.buckets,
        "exposed_ms": float(step.simulated.exposed_ns[0]) / 1e6,
        "overlapped_ms": float(step.simulated.hidden_ns[0]) / 1e6,
        "measured_overlapped_ms": float(seen.hidden_ns[0]) / 1e6,
        "alpha_us": alpha / 1e3 if model.cost.latency_known else None,
        "beta_gb_per_s": 1 / per_byte if per_byte else None,
        "alpha_in_node_us": inside / 1e3 if levels else None,
        "beta_in_node_gb_per_s": 1 / inside_per_byte if levels and inside_per_byte else None,
    }


def _what_ifs(
    basis: Basis,
    layout: Layout,
    plain: dict[str, Any],
    what_ifs: Sequence[str],
    configuration: str,
    refused: list[Reason],
) -> Rows:
    variants = []
    for name in what_ifs:
        try:
            models = [simulate.changed(model, name, layout) for model in basis.models]
            if simulate.changes_exchange(name) and (why := _unlike(basis)):
                raise ValueError(why)
        except ValueError as error:
            refused.append(Reason(configuration, f"what-if {name} not simulated: {error}"))
            continue
        row = _row(basis, layout, models)
        # Nothing was measured with the change.
        row |= {"what_if": name, "fit_error_pct": None}
        variants.append(row | {"gain_pct": 100 * (row["images_per_s"] / plain["images_per_s"] - 1)})
    return variants


def _unlike(basis: Basis) -> str:
    """Why the simulated exchange is not the recorded one; empty: as much of both is exposed."""
    step = basis.traced.batch.value
    simulated_ns = float(simulated(basis, basis.models[0], layout_of(basis.traced)).exposed_ns[0])
    recorded_ns = basis.exposed_share * step
    if not abs(recorded_ns - simulated_ns) > MOST_UNLIKE_SHARE * step:
        return ""
    return (
        f"its gain is unknown, since the simulation does not explain the exposed transfer on "
        f"{basis.traced.world_size} ranks ({digits(simulated_ns / 1e6, 3)} ms per step, measured "
        f"{digits(recorded_ns / 1e6, 3)} ms)"
    )


# --- how well it does ---------------------------------------------------------------------------------


def _backtested(row: dict[str, Any], point: Point) -> dict[str, Any]:
    measured = point.rate.value
    error = 100 * (row["images_per_s"] / measured - 1)
    return row | {"backtest": True, "measured_images_per_s": measured, "error_pct": error}


def _missed(row: dict[str, Any], point: Point, basis: Basis) -> float:
    """By how much (of the logarithm) a measured batch is outside of what was predicted, a doubling."""
    measured = point.batch.value / 1e6
    off = outside(measured, row["step_ms_low"], row["step_ms_high"], error_of(point, basis.one.points))
    return off / max(1.0, doublings(point.world_size, basis.anchor.world_size))


def _missed_inside(basis: Basis, steps: Sequence[Traced | str]) -> float:
    """The same of measured points that the basis is made from, as its step says them."""
    largest = 0.0
    for point, step in zip(basis.points[:-1], steps, strict=False):
        if len(basis.models[0].step.late_ns) and late_of(step) != len(basis.models[0].step.late_ns):
            continue
        row = _row(basis, layout_of(point))
        largest = max(largest, _missed(row, point, basis))
    return largest
