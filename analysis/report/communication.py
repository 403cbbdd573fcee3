"""The report's section "What does communication cost?": collectives of runs, and MPI as TAU saw it."""

from collections.abc import Sequence

import pandas as pd

from analysis.display import plots
from analysis.display.terminal import Part, Rows
from analysis.measures.anatomy import communication
from analysis.measures.tau import messages
from analysis.report.per_point import merged, named
from analysis.report.render import Chart, Section, TableView
from analysis.report.views import as_view, called, facts, varied
from analysis.results.study import Study
from jobs.run import Run
from profiling.errors import UserError

_ID, _HEADING = "communication", "What does communication cost?"
HIDDEN = {"exposed": "#D55E00", "overlapped": "#56B4E9"}
WAITED = {"transfer": "#0072B2", "wait": "#E69F00"}
_MPI_CHARTS = (
    ("mpi_s", "Time in MPI, all ranks", "s"),
    ("messages", "Messages, all ranks", "messages"),
    ("volume_mb", "Bytes sent, all ranks", "MB"),
)


def section(study: Study, factors: Sequence[str]) -> Section | None:
    """Of runs of several ranks and of TAU's tables; none where nobody has anybody to talk to."""
    several = any(
        (source.world_size or 1) > 1 and source.fields["profile"] != "tau"
        for source in study.of_kind("run")
        if source.fields["profile"] != "none" or not messages.has_tau(study)
    )
    tau = messages.has_tau(study)
    if not (several or tau):
        return None
    texts: list[str] = []
    charts: list[Chart] = []
    tables: list[TableView] = []
    for wanted, make in ((several, _collectives), (tau, _mpi)):
        if not wanted:
            continue
        try:
            text, some, table = make(study, factors)
        except UserError as error:
            texts.append(f"Not known: {error}.")
            continue
        texts.append(text)
        charts += some
        tables.append(table)
    return Section(_ID, _HEADING, " ".join(texts), charts, tables)


def _collectives(study: Study, factors: Sequence[str]) -> tuple[str, list[Chart], TableView]:
    made = of_points(communication.rows(study))
    points = bars_of(made, factors)
    hidden = plots.parts(points, HIDDEN, "Hidden by computing or not")
    charts = [Chart("exposed", hidden, "Milliseconds a batch of collectives that computing hides, or not")]
    known = points.dropna(subset=[f"{name}_ms" for name in WAITED])
    if len(known):
        waited = plots.parts(known, WAITED, "Transfer, and waiting for slower ranks")
        charts.append(Chart("waits", waited, "Milliseconds a batch of collectives in transfer, and waiting"))
    text = (
        "Collectives of a batch of a rank, by configuration: means over a point's runs. Transfer is the time "
        "since the last rank had arrived, wait the time before that, for slower ranks; busbw is what the "
        "network carried, as nccl-tests defines it."
    )
    return text, charts, as_view(Part("", made, communication.shown(made)), "communication-table", factors)


# Of a batch: they add up over collectives, and their means over runs are what a point's bars show.
_ADDED = ("calls_per_batch", "mbyte_per_batch", "ms_per_batch", "transfer_ms", "wait_ms", "exposed_ms",
          "overlapped_ms", "attributed_batches")  # fmt: skip
_RATES = ("algbw_gb_per_s", "busbw_gb_per_s", "busbw_of_measured_pct")


def of_points(made: Rows) -> Rows:
    """Rows of runs as rows of points, a row a collective: means of times and bytes, rates formed of these."""
    rows = merged(made, (*_ADDED, "mbyte_per_call", *_RATES, "clock_residual_us"))
    for row in rows:
        moved, ms, calls = (row[name] for name in ("mbyte_per_batch", "transfer_ms", "calls_per_batch"))
        row["mbyte_per_call"] = moved / calls if moved and calls else None
        mean = row["algbw_gb_per_s"]
        for name in _RATES:
            # What a rate is over the algorithm bandwidth is the same in all runs.
            row[name] = row[name] / mean * moved / ms if moved and ms and mean and row[name] else None
    return rows


def bars_of(made: Rows, factors: Sequence[str]) -> pd.DataFrame:
    """A row a point: all its collectives together; what is not known of one is not known of their sum."""
    parts = [f"{name}_ms" for name in (*HIDDEN, *WAITED)]
    points: dict[tuple, Rows] = {}
    for row in made:
        points.setdefault(tuple(str(row.get(name)) for name in Run.model_fields), []).append(row)
    summed = [
        {**of[0], **{name: None if any(row.get(name) is None for row in of) else sum(row[name] for row in of)
                     for name in parts}}
        for of in points.values()
    ]  # fmt: skip
    summed.sort(key=lambda row: (row.get("nodes") or 0, row.get("gpus_per_node") or 0))
    frame = named(summed, factors)
    return frame.astype(dict.fromkeys(parts, float))


def _mpi(study: Study, _factors: Sequence[str]) -> tuple[str, list[Chart], TableView]:
    made = messages.rows(study)
    fields = varied(made)
    lines = [name for name in fields if name not in ("nodes", "world_size")]
    named: Rows = [{**row, "label": called(row, lines), "facts": facts(row, lines)} for row in made]
    points = pd.DataFrame(named)
    charts = [
        Chart(f"mpi-{name}", plots.by_nodes(points.dropna(subset=[name]), name, title, unit),
              f"{title} against the number of nodes")
        for name, title, unit in _MPI_CHARTS
        if name in points and points[name].notna().any()
    ]  # fmt: skip
    text = (
        "MPI as TAU recorded it, start-up included: time in allreduce, broadcast, gather and allgather, how "
        "many messages, and their bytes, summed over ranks. Bars are the central 95 % of repetitions: how "
        "much runs differ, no confidence interval."
    )
    (part,) = messages.answer(study).parts
    return text, charts, as_view(part, "mpi-table", fields)
