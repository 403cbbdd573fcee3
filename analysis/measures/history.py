"""Results of one sweep in order, such as nightly ones: figures by date and revision, changes of the step."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.display.metrics import NOMINAL, Metric
from analysis.display.numbers import probability
from analysis.frames.steps import all_series
from analysis.frames.study import Study
from analysis.measures.points import point_names, points_of_runs
from analysis.statistics import sequence
from analysis.statistics.two_samples import SIGNIFICANCE, holm
from profiling.errors import UserError

METRICS = (
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


def history(studies: Sequence[Study], across: Sequence[str] = ()) -> pd.DataFrame:
    """A row a configuration and result that has it.

    Returns:
        Columns: the fields of configurations but ``across``, ``number`` (of the result, from 0), and
        :data:`METRICS`.

    Raises:
        UserError: no configuration is in the last result and two others.
    """
    rows = pd.concat([_of_result(study).assign(number=of) for of, study in enumerate(studies)])
    names = [name for name in point_names(rows) if name in rows and name not in across]
    rows = rows.assign(configuration=rows[names].map(str).groupby(names, sort=False).ngroup())
    rows = rows.drop_duplicates(["configuration", "number"]).sort_values(["configuration", "number"])
    in_order = rows.groupby("configuration")["number"]
    enough = (in_order.transform("size") >= sequence.FEWEST) & (in_order.transform("max") == len(studies) - 1)
    rows = rows[enough].reset_index(drop=True)
    if rows.empty:
        raise UserError(
            f"no configuration has unprofiled runs in {studies[-1].path} and in two results before"
        )
    ends, changes = [], []
    for places in rows.groupby("configuration").groups.values():
        values = rows.loc[places, "step_ms"].to_numpy()
        ends.append((places[-1], *sequence.last(values)))
        change = sequence.change_point(values)
        changes.append((places[change.place], change.effect_pct, change.p_value))
    found = pd.DataFrame(changes, columns=["place", "change_pct", "change_p_value"]).set_index("place")
    found["change_p_value"] = holm(found["change_p_value"].tolist())
    effect = ["effect_pct", "effect_pct_low", "effect_pct_high", "p_value"]
    of_last = pd.DataFrame(ends, columns=["place", *effect]).set_index("place")
    of_last["p_value"] = holm(of_last["p_value"].tolist())
    return rows.join([found[found["change_p_value"] <= SIGNIFICANCE], of_last])


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
