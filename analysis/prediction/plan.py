"""Plan of a training: its time, node-hours and energy on each number of nodes."""

import pandas as pd

from analysis.display.metrics import RANGE, Metric, called, fields, names_of, records, telling
from analysis.display.output import Answer
from analysis.frames.measure import measure
from analysis.frames.study import Study
from analysis.measures.expense import expense
from analysis.measures.points import POINT_FIELDS
from analysis.measures.scaled import scaled
from analysis.prediction import configurations
from analysis.prediction.configurations import CONFIGURATION
from analysis.prediction.predict import of_study
from jobs.run_fields import own_names
from profiling.errors import UserError

METRICS = (
    Metric("nodes", "number of nodes", key=True),
    Metric("world_size", "number of ranks", "ranks", key=True),
    Metric("known_by", "measured, or predicted by curve or simulation", "known by", text=True),
    Metric("images_per_s", "images/s of all ranks; 95 % interval, or range of the prediction", "images/s",
           RANGE),
    Metric("hours", "duration of the training, without startup", "hours", RANGE, priority=2),
    Metric("within", "whether it ends in time: yes, no, or unsure (in part of the range)", text=True),
    Metric("node_hours", "nodes x hours", "node\nhours"),
    Metric("kwh", "energy of GPUs and processors, as far as metered at this size"),
    Metric("added_efficiency_pct", "images/s of an added rank, relative to a rank of the smallest size",
           "of added\nrank, %"),
)  # fmt: skip
COLUMNS = {"Columns: the configuration's fields, then": METRICS}
_CHEAPEST = "Cheapest within {within:g} hours: {nodes} nodes, {node_hours:.0f} node-hours ({called})"
_TOO_SLOW = "None surely ends within {within:g} hours; fastest: {nodes} nodes, {hours:.1f} hours ({called})"
_RATES = ["images_per_s", "images_per_s_low", "images_per_s_high"]


@measure(COLUMNS)
def plan(
    study: Study, images: float | None = None, within: float | None = None, ranks: str = "",
    tokens: float | None = None,
) -> Answer:  # fmt: skip
    """A row a configuration and number of ranks, measured or predicted; ``ranks``: as of ``predict``.

    ``images``, ``tokens``: of the whole training, one of them; ``within``: hours that it may take.
    """
    sizes = {unit: size for unit, size in (("images", images), ("tokens", tokens)) if size}
    if len(sizes) != 1:
        raise UserError("give the size of the training by one of --images and --tokens")
    ((unit, samples),) = sizes.items()
    measured = scaled(study).rows
    if "images_per_s" not in measured or measured["images_per_s"].isna().all():
        raise UserError(f"{study.path} holds no run with images/s: nothing can be planned")
    own = [one for one in (*CONFIGURATION, *own_names(dict.fromkeys(map(str, measured)))) if one in measured]
    measured = measured[[*own, "world_size", "nodes", *_RATES]].dropna(subset="images_per_s")
    rows = pd.concat([measured.assign(known_by="measured"), _predicted(study, ranks)], ignore_index=True)
    costs = expense(study).rows
    costs["world_size"] = costs["nodes"] * costs["gpus_per_node"]
    # Fields of both as text: answers of different measures hold missing ones differently.
    rows["of"], costs["of"] = (
        of.reindex(columns=own).fillna("").astype(str).agg("/".join, axis=1) for of in (rows, costs)
    )
    rows = rows.sort_values(["of", "world_size"], ignore_index=True)
    rows[["hours", "hours_high", "hours_low"]] = samples / 3600 / rows[_RATES].astype(float)
    rows["node_hours"] = rows["nodes"].astype(int) * rows["hours"]
    per_million = costs.groupby(["of", "world_size"])["kwh_per_million_images"].mean().rename("kwh")
    rows = rows.join(per_million * samples / 1e6, on=["of", "world_size"])
    # From the next smaller size, relative to a rank of the smallest.
    of_one = rows.groupby("of")[["images_per_s", "world_size"]]
    added, first = of_one.diff(), of_one.transform("first")
    per_rank = added["images_per_s"] / added["world_size"].where(added["world_size"] > 0)
    rows["added_efficiency_pct"] = 100 * per_rank / (first["images_per_s"] / first["world_size"])
    if within is not None:
        slowest, fastest = rows["hours_high"].fillna(rows["hours"]), rows["hours_low"].fillna(rows["hours"])
        rows["within"] = "unsure"
        rows.loc[slowest <= within, "within"] = "yes"
        rows.loc[fastest > within, "within"] = "no"
    caption = ""
    for row in records(chosen(rows)):
        template = _CHEAPEST if row["within"] == "yes" else _TOO_SLOW
        named = called(row, telling(rows, own))
        caption = template.format(**{**row, "within": within, "called": named})
    shown = [one for one in METRICS if one.name in rows]
    rows = rows[[*own, *(name for name in names_of(shown) if name in rows)]]
    return Answer(rows, [*fields([name for name in own if name in POINT_FIELDS]), *shown],
                  title=f"{samples:.4g} {unit}", caption=caption, brief=True)  # fmt: skip


def _predicted(study: Study, ranks: str) -> pd.DataFrame:
    """The preferred predictions beyond the measured sizes, with their nodes; empty: there is none."""
    try:
        found = of_study(study, ranks)
    except UserError:
        return pd.DataFrame()
    found = found[~found["backtest"] & found["believed"]]
    of = configurations.of_study(study)
    nodes = [of[one].layout(size).nodes for one, size in zip(found["of"], found["world_size"], strict=True)]
    return found.assign(nodes=nodes, known_by=found["predicted_by"])


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """The row of the cheapest choice that is sure to end in time, else of the fastest; none without a limit.

    Without a loader nothing is learnt.
    """
    trained = rows[rows["loader"] != "synthetic"] if "loader" in rows else rows
    if "within" not in rows:
        return rows[:0]
    enough = trained[trained["within"] == "yes"]
    return enough.nsmallest(1, "node_hours") if len(enough) else trained.nsmallest(1, "hours")
