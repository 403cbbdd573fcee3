"""A single-node study's result: durations and quantities, case by case."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.statistics import inside_run
from analysis.statistics.estimates import Estimate
from jobs import store
from jobs.store import StudyManifest
from profiling import tables
from profiling.errors import UserError
from profiling.findings import Finding

Key = tuple[str, str]  # case, device


class Quantity(NamedTuple):
    """A figure, as often as it was taken, less what failed; the note says how, or why there is none."""

    values: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class Result:
    """One study's result; to an answer, also what it is of (:class:`analysis.display.terminal.Results`).

    Attributes:
        durations: in ns, by (case, device) and stage, in the order of their repetitions.
        quantities: by (case, device) and name.
    """

    path: Path
    manifest: StudyManifest
    durations: dict[Key, dict[str, np.ndarray]] = field(default_factory=dict)
    quantities: dict[Key, dict[str, Quantity]] = field(default_factory=dict)
    failed = missing = ()
    on_cpus = False

    @property
    def findings(self) -> Sequence[Finding]:
        return self.manifest.findings

    @cached_property
    def keys(self) -> list[Key]:
        """All (case, device), in the order in which they were measured."""
        return list(dict.fromkeys([*self.quantities, *self.durations]))

    def all_of(self, key: Key, name: str) -> Quantity:
        """A figure of a case; empty where it was not taken."""
        return self.quantities.get(key, {}).get(name, Quantity(()))

    def quantity(self, key: Key, name: str) -> float | None:
        """A figure of a case (the mean, if it was taken several times); None where it is not known."""
        values = self.all_of(key, name).values
        return float(np.mean(values)) if values else None

    def estimate(self, key: Key, stages: Iterable[str]) -> Estimate | None:
        """The median duration of stages together, ms, with its interval; None if one was not timed."""
        timed = self.durations.get(key, {})
        if any(stage not in timed for stage in stages):
            return None
        return inside_run.of_median(np.sum([timed[stage] for stage in stages], axis=0) / 1e6)

    def ratio(self, key: Key, other: Key) -> Estimate:
        """The median over repetitions of a case's duration divided by another's, taken in turns."""
        durations = [np.sum(list(self.durations[case].values()), axis=0) for case in (key, other)]
        return inside_run.of_median(durations[0] / durations[1])


def is_study(path: Path) -> bool:
    """Whether a folder is a study's result."""
    return (path / store.MANIFEST).is_file() and (path / "quantities.parquet").is_file()


def load(path: Path) -> list[Result]:
    """The results in ``path``: one study's, or a folder of several, in the order of their names.

    Raises:
        UserError: there are none, or one is damaged; the message names the file.
    """
    if is_study(path):
        return [read(path)]
    folders = [folder for folder in sorted(path.iterdir()) if is_study(folder)] if path.is_dir() else []
    if not folders:
        raise UserError(f"{path} holds no study; run one, e.g. python -m train.studies.layers")
    return [read(folder) for folder in folders]


def read(path: Path) -> Result:
    """One study's result.

    Raises:
        UserError: it is damaged; the message names the file.
    """
    result = Result(path, store.read_record(path / store.MANIFEST, StudyManifest))
    quantities = tables.read(path, "quantities").to_pandas()
    for (case, device, name), rows in quantities.groupby(["case", "device", "quantity"], sort=False):
        note = next((note for note in reversed(rows["note"].tolist()) if note), "")
        taken = Quantity(tuple(rows["value"].dropna()), note)
        result.quantities.setdefault((case, device), {})[name] = taken
    durations = tables.read(path, "durations").to_pandas().sort_values("repetition", kind="stable")
    for (case, device, stage), rows in durations.groupby(["case", "device", "stage"], sort=False):
        timed = rows["duration_ns"].to_numpy(dtype=float)
        result.durations.setdefault((case, device), {})[stage] = timed
    return result
