"""Which kernels take the time, and how well do they use the device?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.display import output
from analysis.display.metrics import RUN, Column, Metric, Rows, columns, picked
from analysis.display.numbers import shortened, with_places
from analysis.measures.kernels import measured_peaks, roofline
from analysis.measures.kernels.of_run import BY, DEFAULT_BY, kernels_of_each
from analysis.results.attributed import has_kernels
from analysis.results.load import no_result
from analysis.results.source import Source
from analysis.results.study import Study
from profiling.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TOP, TOP_OF_EACH = 25, 5  # kernels that the terminal shows of one run, of each of several
METRICS = (
    Metric("calls_per_step", "launches per step", "calls/\nstep", places=1, priority=0),
    Metric("ms_per_step", "time per step", "ms/\nstep"),
    Metric("share_pct", "share of the time of all kernels", places=1),
    Metric("min_us", "shortest launch"),
    Metric("mean_us", "mean launch", places=1, priority=0),
    Metric("max_us", "longest launch"),
    Metric("gflop_per_step", "FLOPs per step, 1e9", "GFLOP/\nstep"),
    Metric("mbyte_per_step", "bytes per step, 1e6", "MB/\nstep"),
    Metric(
        "flops_efficiency_pct",
        "FLOP rate divided by the datasheet's peak; empty where no FLOPs are counted (copies, collectives)",
        "FLOPS\neff. %",
        places=2,
    ),
    Metric(
        "bandwidth_efficiency_pct",
        "bytes per second divided by the datasheet's bandwidth; empty where no bytes are counted",
        "bandw.\neff. %",
        places=2,
    ),
    Metric("flops_efficiency_of_measured_pct", "FLOP rate divided by the peak measured on this machine"),
    Metric(
        "bandwidth_efficiency_of_measured_pct",
        "bytes per second divided by the bandwidth measured on this machine",
    ),
    *roofline.METRICS,
)


def table(study: Study, run: str | None = None, direction: str | None = None) -> "pd.DataFrame":
    """The kernels of ``run`` (an id), or of all runs that have some, largest first.

    Columns: what they are grouped by, then :data:`METRICS`.

    Raises:
        UserError: no run has kernels, or none of this id.
    """
    return output.to_frame(*rows(study, run, direction))


def with_kernels(study: Study) -> list[Source]:
    """The runs and PyProf tables that have kernels."""
    return [source for source in study.sources if has_kernels(source)]


def why_none(runs: Iterable[Source]) -> str:
    """Why none of these runs has kernels: none was profiled, or the profilers have recorded none."""
    profiles = dict.fromkeys(run.fields["profile"] for run in runs if run.fields["profile"] != "none")
    if not profiles:
        return "no run was profiled (profile: torch)"
    return f"the profiled runs hold no kernels (profile: {', '.join(profiles)})"


def rows(
    study: Study, run: str | None = None, direction: str | None = None, by: Sequence[str] = DEFAULT_BY
) -> tuple[Rows, list[Metric]]:
    """The corrected answer's rows and columns; see :func:`table`."""
    sources = with_kernels(study)
    if run is not None:
        sources = [source for source in sources if source.id == run]
    if not sources:
        which = f"run {run} of {study.path}" if run else str(study.path)
        raise UserError(
            f"{which} has no kernels: this needs a run with profile: torch, or a trace with kernels"
        )
    answer = []
    for source, kernels in kernels_of_each(study, sources, direction, by):
        answer += [{"run": source.id, **row} for row in kernels]
    if not answer:
        raise UserError(nothing(study, direction))
    for line in measured_peaks.exceeded(study, answer, by):
        study.note(line)
    return answer, [*([RUN] if len(sources) > 1 else []), *(BY[name] for name in by), *METRICS]


def nothing(study: Study, direction: str | None) -> str:
    if not with_kernels(study):
        return no_result(study)
    which = f"no kernels of direction {direction}" if direction else "no kernels in profiled steps"
    return " ".join([f"{study.path} has {which}", *(f"({note})" for note in study.notes()[:1])])


def naming(by: Sequence[str], kernels: Rows) -> list[Column]:
    """The table's columns of what kernels are grouped by; none of what no profiler recorded of these."""

    def printed(name: str) -> Callable[[Mapping[str, Any]], str]:
        # What belongs to no layer, as the optimizer and collectives, was not missed.
        return lambda row: shortened(row[name] or ("(no layer)" if name == "layer" else "(unknown)"))

    known = [name for name in by if any(row[name] is not None for row in kernels)]
    return [BY[name].column(printed=printed(name)) for name in known]


def shown(without_steps: bool = False) -> list[Column]:
    """The terminal's columns of figures: what fits into 110 beside names.

    Args:
        without_steps: the figures are of a whole recording, which has no steps.
    """
    known = columns(METRICS, "ms_per_step", "share_pct", "calls_per_step", "mean_us")
    if without_steps:
        known = [replace(column, header=column.header.replace("/\nstep", "")) for column in known]
    (flops, roof) = picked(METRICS, "flops_efficiency_pct", "roof_pct")
    share, rate = roofline.share_of, roofline.flops_efficiency_of
    return [
        *known,
        Column(flops.header, rate, printed=lambda row: with_places(rate(row), 2), help=flops.description),
        *columns(METRICS, "bound"),
        Column("roof\n%", share, printed=lambda row: with_places(share(row), 1), help=roof.description),
    ]
