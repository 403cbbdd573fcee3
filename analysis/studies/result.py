"""What did a single-node study measure, case by case?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.display.metrics import IN_RUN, Metric
from analysis.display.numbers import digits
from analysis.statistics import inside_run
from analysis.statistics.estimates import Estimate
from jobs import store
from jobs.store import StudyManifest
from profiling import tables
from profiling.errors import UserError
from profiling.wording import how_many

Key = tuple[str, str]  # case, device


class Quantity(NamedTuple):
    """A figure, as often as it was taken; None where it could not be had, as the note says."""

    values: tuple[float | None, ...]
    note: str = ""

    @property
    def numbers(self) -> list[float]:
        return [value for value in self.values if value is not None]


@dataclass(frozen=True)
class Result:
    """One study's result.

    Attributes:
        durations: in ns, by (case, device) and stage, in the order of their repetitions.
        quantities: by (case, device) and name.
    """

    path: Path
    manifest: StudyManifest
    durations: dict[Key, dict[str, np.ndarray]] = field(default_factory=dict)
    quantities: dict[Key, dict[str, Quantity]] = field(default_factory=dict)

    @cached_property
    def keys(self) -> list[Key]:
        """All (case, device), in the order in which they were measured."""
        return list(dict.fromkeys([*self.quantities, *self.durations]))

    def quantity(self, key: Key, name: str) -> float | None:
        """A figure of a case (the mean, if it was taken several times); None where it is not known."""
        entry = self.quantities.get(key, {}).get(name)
        return float(np.mean(entry.numbers)) if entry and entry.numbers else None

    def spread(self, key: Key, name: str) -> tuple[float | None, float | None]:
        """The least and the greatest of a figure taken several times; (None, None) of any other."""
        entry = self.quantities.get(key, {}).get(name)
        values = entry.numbers if entry else []
        return (min(values), max(values)) if len(values) > 1 else (None, None)

    def note(self, key: Key, name: str) -> str:
        """What was said of a figure, or why there is none."""
        entry = self.quantities.get(key, {}).get(name)
        return entry.note if entry else ""

    def estimate(self, key: Key, stages: Iterable[str]) -> Estimate | None:
        """The median duration of stages together, ms, with its interval; None if one was not timed."""
        timed = self.durations.get(key, {})
        wanted = list(stages)
        if not wanted or any(stage not in timed for stage in wanted):
            return None
        return inside_run.of_median(np.sum([timed[stage] for stage in wanted], axis=0) / 1e6)


def is_study(path: Path) -> bool:
    """Whether a folder is a study's result."""
    manifest = path / store.MANIFEST
    return manifest.is_file() and (path / "quantities.parquet").is_file()


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
    for row in tables.read(path, "quantities").to_pylist():
        of_case = result.quantities.setdefault((row["case"], row["device"]), {})
        before = of_case.get(row["quantity"], Quantity(()))
        of_case[row["quantity"]] = Quantity((*before.values, row["value"]), row["note"] or before.note)
    gathered: dict[Key, dict[str, list[tuple[int, int]]]] = {}
    for row in tables.read(path, "durations").to_pylist():
        stages = gathered.setdefault((row["case"], row["device"]), {})
        stages.setdefault(row["stage"], []).append((row["repetition"], row["duration_ns"]))
    for key, stages in gathered.items():
        result.durations[key] = {
            stage: np.array([duration for _, duration in sorted(pairs)], dtype=float)
            for stage, pairs in stages.items()
        }
    return result


# --- rows ---------------------------------------------------------------------------------------------


def interval_columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """``name_ms``, ``name_low_ms`` and ``name_high_ms`` of a row."""
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return dict(zip((f"{name}_ms", f"{name}_low_ms", f"{name}_high_ms"), values, strict=True))


def timed(name: str, meaning: str, unit: str = "ms", header: str = "", interval: str = IN_RUN) -> Metric:
    """The column ``name_ms`` and those of its interval, ``name_low_ms`` and ``name_high_ms``."""
    ends = (f"{name}_low_{unit}", f"{name}_high_{unit}")
    return Metric(f"{name}_{unit}", meaning, header, interval, ends)


def in_units(unit: float) -> Callable[[float], str]:
    """How a quantity is printed in larger units than it is kept in, e.g. bytes in MiB."""
    return lambda value: digits(value / unit)


def as_count(value: float) -> str:
    """How a number of things is printed that is kept as a float."""
    return str(int(value))


def yes_or_no(value: Any) -> str:
    """How a condition is printed."""
    return "yes" if value else "no"


def timing(manifest: StudyManifest) -> str:
    """How a study's durations were taken, in a sentence."""
    return (
        f"Medians of {how_many(manifest.repetitions, 'repetition')} after {manifest.warmup} of warmup; "
        "intervals over the repetitions of the run."
    )


def not_none(values: Iterable[Any]) -> list[Any]:
    """The values that are not None."""
    return [value for value in values if value is not None]
