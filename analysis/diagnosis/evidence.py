"""Input of the diagnosis rules: results and the answers of measures, each computed once, and vocabulary."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from analysis.display.metrics import FACTORS, records, varied
from analysis.display.numbers import is_unusable
from analysis.display.output import Answer
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.anatomy import traces_of
from analysis.frames.divide import EVERY, finest
from analysis.frames.study import Source, Study
from analysis.measures import anatomy, communication, scaled, stragglers
from analysis.measures.loss import other_steps
from analysis.measures.points import point_names, shared_cores
from analysis.prediction import predict
from analysis.prediction.simulation import DEFAULT_WHAT_IFS
from profiling import yaml_text
from profiling.errors import UserError
from profiling.findings import Finding

WORDS = yaml_text.parse(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
HEADINGS = list(WORDS["headings"])
# Code of a finding -> (heading, id of the report's section that backs it).
PLACES = {
    code: (heading, section)
    for heading, sections in WORDS["headings"].items()
    for section, codes in sections.items()
    for code in codes
}
PARTS = WORDS["parts"]
T = TypeVar("T")


class Evidence:
    """A study, and what the rules and the report's sections read of it; UserError: nothing can be told.

    Attributes:
        own: rows of analysis.scaled of runs of our own.
        others: those of tables that the reference published.
        traces: the jobs that it has traces of.
        configurations: the fields of runs, and of ``others``.
        factors: the fields of ``Run`` that vary, but for the world size.
        lines: of these, not the batch size of a GPU where that of the job is constant.
        series: of these, not the number of ranks.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        methods = ["corrected"] if study.of_kind("run", "pyprof") else []
        methods = [*methods, "published"] if study.of_kind("tau_intervals") else methods
        # Traces alone have no such rows.
        asked = methods or not study.of_kind("trace")
        rows = scaled.configurations(study, methods) if asked else pd.DataFrame({"scaling": []})
        of_runs = rows["scaling"].notna()
        self.own, self.others = rows[of_runs].copy(), rows[~of_runs].copy()
        self.traces = list(study.of_kind("trace"))
        fields = [*(source.fields for source in study.sources), *records(self.others)]
        self.configurations = pd.DataFrame(fields, dtype=object)
        self.factors = varied(self.configurations, [name for name in FACTORS if name != "world_size"])
        strong = self.own[self.own["scaling"] == "strong"]
        one_job = len(strong) > 0 and (strong["batch"] * strong["world_size"]).nunique() == 1
        self.lines = [name for name in self.factors if name != "batch" or not one_job]
        self.series = [name for name in self.lines if name not in ("nodes", "gpus_per_node", "world_size")]
        self._results: dict[Callable[..., Any], Any] = {}

    def once(self, compute: Callable[..., T], study: Study | None = None) -> T:
        """What ``compute`` gives for this evidence (or its study), or raises; computed when first asked."""
        if compute not in self._results:
            try:
                self._results[compute] = compute(study or self)
            except UserError as error:
                self._results[compute] = error
        result = self._results[compute]
        if isinstance(result, UserError):
            raise result
        answer: T = result
        return answer

    def frame_if_any(self, compute: Callable[..., Answer], study: Study | None = None) -> pd.DataFrame:
        """The rows of an answer; no row where it cannot be given."""
        try:
            return self.once(compute, study).rows
        except UserError:
            return pd.DataFrame()

    def parts_ms(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Of a row of ``own`` the parts of its profiled steps, mean over ranks and runs; empty: not known."""
        of_row = self.traced(row)
        if not of_row or other_steps(row.get("perturbation")):
            return {}
        means = anatomy.means(anatomy_frame(self.study, of_row))
        return {} if means.empty else finest_ms(means.mean(numeric_only=True).to_dict())

    def limit(self, sources: Sequence[Source]) -> str:
        """Of the transfers of runs or traces (:func:`~analysis.measures.communication.limit`)."""
        traces = traces_of(self.study, sources)
        return communication.limit(pd.concat([one.collectives for one in traces])) if traces else ""

    def traced(self, row: Mapping[str, Any]) -> list[Source]:
        """The profiled runs of a row of ``own``."""
        names = [name for name in point_names(row) if name in row]
        runs = [one for one in self.study.recorded if one.kind == "run" and one.tables("kernels")]
        return [one for one in runs if all(str(one.fields.get(name)) == str(row[name]) for name in names)]


def finest_ms(means: Mapping[Any, Any]) -> dict[str, float]:
    return finest({name: means.get(f"{name}_ms") for name in EVERY})


def widest(evidence: Evidence) -> stragglers.Judged | None:
    """The runs on the most ranks whose lateness is known; None where no run has several ranks."""
    runs = stragglers.of_several_ranks(evidence.study) if len(evidence.own) or evidence.traces else []
    if not runs:
        return None
    most = max(source.world_size or 1 for source in runs)
    return stragglers.judged(evidence.study, [source for source in runs if source.world_size == most])


def predicted(evidence: Evidence) -> Answer:
    """The answer of analysis.predict, with its what-ifs; UserError: nothing can be predicted, and why."""
    if shared_cores(evidence.study):
        raise UserError(str(Finding("cores_shared")))
    return predict.answer(predict.of_study(evidence.study, what_ifs=DEFAULT_WHAT_IFS))


def on(row: Mapping[str, Any], ranks: int | None = None) -> str:
    """``64 GPUs (16 nodes)``; ``ranks``: instead of the row's, on nodes that are not known."""
    unit = "rank" if row.get("device_name") == "cpu" else "GPU"
    return size_of(ranks or row["world_size"], None if ranks else row.get("nodes"), unit)


def size_of(count: float, nodes: float | None, unit: str) -> str:
    return f"{count:.0f} {unit}{'s' * (count != 1)}" + (f" ({nodes:.0f} nodes)" if (nodes or 1) > 1 else "")


def shares_of(parts: Mapping[str, float]) -> dict[str, float]:
    """Percent of their sum, the largest first."""
    whole = sum(parts.values())
    return {name: 100 * ms / whole for name, ms in sorted(parts.items(), key=lambda part: -part[1])}


def in_words(shares: Mapping[str, float]) -> list[str]:
    return [f"{share:.0f} % {PARTS[name]['name']}" for name, share in shares.items() if share >= 1]


def number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return math.nan if value is None else float(value)


def ends(row: Mapping[str, Any], name: str) -> list[float]:
    """Of an interval; none if it does not tell the order of magnitude."""
    found = [number(row, f"{name}_low"), number(row, f"{name}_high")]
    return found if np.isfinite(found).all() and not is_unusable(number(row, name), *found) else []
