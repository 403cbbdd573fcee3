"""Load a single-node study's result: durations and other quantities of its cases, as frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.display.metrics import RANGE, Metric, names_of
from analysis.statistics import inside_run
from jobs import store
from jobs.store import StudyManifest
from profiling import tables
from profiling.errors import UserError
from profiling.findings import Finding

CASE = ["case", "device"]
Case = tuple[str, str]


@dataclass(frozen=True)
class Result:
    """One study's result; to an answer, also what it is of (:class:`analysis.display.terminal.Results`).

    Attributes:
        durations: the table ``durations``, of every timed repetition.
        quantities: the table ``quantities``; a figure has as many rows as it was taken times.
    """

    path: Path
    manifest: StudyManifest
    durations: pd.DataFrame
    quantities: pd.DataFrame
    missing = ()
    on_cpus = False

    @property
    def findings(self) -> Sequence[Finding]:
        return self.manifest.findings

    @cached_property
    def cases(self) -> pd.MultiIndex:
        """Every (case, device), in the order in which they were measured."""
        every = pd.concat([self.quantities[CASE], self.durations[CASE]]).drop_duplicates()
        return pd.MultiIndex.from_frame(every)

    def frame(self, metrics: Sequence[Metric], **timed: Sequence[str]) -> pd.DataFrame:
        """A row a case, with its figures, the ends of their ranges, and the durations of stages.

        Args:
            metrics: of which all columns are there; NaN: not known. A figure that was taken several times is
                their mean, beside the lowest and highest.
            timed: name of a duration -> its stages, whose sum's median, ms, is given with its interval; NaN
                where a case lacks one of them.
        """
        taken = self.quantities.groupby([*CASE, "quantity"], sort=False)["value"]
        rows = taken.mean().unstack().reindex(self.cases)
        low, high = (end.where(taken.count() > 1).unstack() for end in (taken.min(), taken.max()))
        for metric in metrics:
            if metric.interval == RANGE and metric.name in rows:
                rows[metric.names[1]], rows[metric.names[2]] = low[metric.name], high[metric.name]
        for name, stages in timed.items():
            spent = {case: ns / 1e6 for case, ns in self._spent(stages).items()}
            rows = rows.join(self._medians(name, "_ms", spent))
        rows = rows.reset_index()
        return rows.reindex(columns=list(dict.fromkeys([*rows, *names_of(metrics)])))

    def ratio(
        self, name: str, stages: Sequence[str], pairs: Mapping[Case, tuple[Case, Case]]
    ) -> pd.DataFrame:
        """The median over repetitions of one case's duration divided by another's, taken in turns.

        Args:
            pairs: the case in whose row a ratio stands -> the two.
        """
        spent = self._spent(stages)
        ratios = {case: spent[above] / spent[below] for case, (above, below) in pairs.items()}
        return self._medians(name, "", ratios)

    def _spent(self, stages: Sequence[str]) -> dict[Case, np.ndarray]:
        """ns of stages together, in the order of repetitions, of each case that has all of them."""
        wide = self.durations.pivot_table("duration_ns", [*CASE, "repetition"], "stage", "first", sort=False)
        total = wide.reindex(columns=list(stages)).sum(axis=1, skipna=False).dropna().sort_index()
        return {(str(case), str(device)): ns.to_numpy(float) for (case, device), ns in total.groupby(CASE)}

    def _medians(self, name: str, unit: str, values: Mapping[Case, np.ndarray]) -> pd.DataFrame:
        found = {case: inside_run.of_median(some) for case, some in values.items()}
        rows = {case: (one.value, one.low, one.high) for case, one in found.items()}
        ends = [name + unit, f"{name}_low{unit}", f"{name}_high{unit}"]
        return pd.DataFrame([rows.get(case, (np.nan,) * 3) for case in self.cases], self.cases, ends)


def is_study(path: Path) -> bool:
    """Whether a folder is a study's result."""
    return (path / store.MANIFEST).is_file() and (path / "quantities.parquet").is_file()


def load(path: Path) -> list[Result]:
    """The results in ``path``: one study's, or a folder of several, in the order of their names.

    Raises:
        UserError: there are none, or one is damaged; the message names the file.
    """
    inside = sorted(path.iterdir()) if path.is_dir() else []
    folders = [path] if is_study(path) else [folder for folder in inside if is_study(folder)]
    if not folders:
        raise UserError(f"{path} holds no study; run one, e.g. python -m train.studies.layers")
    return [
        Result(
            folder,
            store.read_record(folder / store.MANIFEST, StudyManifest),
            *(
                tables.read(folder, name).to_pandas().astype({"case": str, "device": str})
                for name in ("durations", "quantities")
            ),
        )
        for folder in folders
    ]
