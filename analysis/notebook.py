"""The results of the commands as DataFrames, and the report's charts, for notebooks.

    from analysis import load

    results = load("results/resnet50")
    results.scaled()                                  # as python -m analysis.scaled results/resnet50
    results.efficiency(group_by=["batch", "nodes"])  # --group-by batch,nodes
    results.kernels(results.path / "run_...")         # a second path, where the command takes one
    results.charts()["scaling"]                       # plotly figures, by the section of the report

A frame has all columns of the command's ``--columns``. ``frame.attrs["meaning"]`` explains each column;
``frame.attrs["findings"]`` lists the findings, with the runs that were left out; ``frame.attrs["notes"]`` has
them as lines of text.
"""

import importlib
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.frames import load as results
from analysis.frames.study import Study
from analysis.report.build import build
from profiling.errors import UserError, did_you_mean
from profiling.findings import as_data, lines

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# Those that answer by a table; analysis.report is `charts`, and analysis.timeline writes a file.
COMMANDS = (
    "activities", "anatomy", "batches", "communication", "compare", "critical_path", "efficiency",
    "expense", "factors", "hotspots", "kernels", "plan", "predict", "scaled", "stragglers", "tau_batches",
    "utilization",
)  # fmt: skip
Setting = str | int | float | bool | Path | Iterable[str | int | float]


class Results:
    """The results in a folder, to be asked what the commands answer.

    Each command of :data:`COMMANDS` is a method: ``results.scaled(method="published")``. Its settings are the
    command's flags: ``group_by=["batch", "nodes"]`` is ``--group-by batch,nodes``, ``summary=True`` is
    ``--summary``; None and False leave one out. Where the command takes further paths, they come first.
    """

    def __init__(self, path: Path, study: Study) -> None:
        self.path, self.study = path, study

    def __repr__(self) -> str:
        return f"<results in {self.path}, runs or tables: {len(self.study.loaded)}>"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *COMMANDS]

    def __getattr__(self, name: str) -> "Callable[..., pd.DataFrame]":
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in COMMANDS:
            # Python would add the nearest name itself, but IPython does not show that; of None it adds none.
            near = did_you_mean(name, COMMANDS)
            raise AttributeError(f"no command {name!r}{near}", name=name, obj=None)
        return question(name, self.path)

    @cached_property
    def _charts(self) -> dict[str, list[dict[str, Any]]]:
        sections = build(self.study).sections
        return {section.id: [chart.figure for chart in section.charts] for section in sections}

    def charts(self) -> dict[str, list["Figure"]]:
        """The report's charts as plotly figures, by the section that they stand in; new ones at each call."""
        from plotly.graph_objects import Figure

        return {name: [Figure(one) for one in drawn] for name, drawn in self._charts.items() if drawn}


def question(name: str, path: Path) -> "Callable[..., pd.DataFrame]":
    """A command, to be called with its settings: its answer as a DataFrame."""
    command = importlib.import_module(f"analysis.{name}")

    def answer(*more: Path | str, **settings: Setting | None) -> "pd.DataFrame":
        # As data: a table of the terminal may be of the first rows only.
        flags = [word for setting in settings.items() for word in _flag(*setting)]
        words = [*map(str, (path, *more)), "--format", "json", *flags]
        found, study, _ = command.main.answer(words)
        frame, findings = found.frame(), [*found.verdict, *study.findings]
        metrics = [*(metric for of in command.main.measure.columns.values() for metric in of), *found.columns]
        meaning = {name: metric.description for metric in metrics for name in metric.names if name in frame}
        notes = [*found.notes, *lines(findings)]
        frame.attrs = {"meaning": meaning, "notes": notes, "findings": as_data(findings)}
        return frame  # type: ignore[no-any-return]

    answer.__doc__ = command.__doc__
    return answer


# Flags that say where an answer goes and how it looks there, or explain it: here it is a frame, which does.
_OF_A_TERMINAL = ("all", "columns", "format", "help", "notes", "out", "output", "wide")


def _flag(name: str, value: Setting | None) -> list[str]:
    if name in _OF_A_TERMINAL:
        raise UserError(f"{name}: no setting in a notebook, where the answer is a DataFrame")
    flag = "--" + name.replace("_", "-")
    if value is None or isinstance(value, bool):
        return [flag] if value else []
    words = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return [f"{flag}={','.join(map(str, words))}"]  # one word: a value may begin with a dash


def load(path: Path | str, peaks: Path | None = None) -> Results:
    """The results in ``path``: a sweep, a run, a folder of the reference's files, or one such file.

    ``peaks``: datasheet peaks of your devices (as analysis/measures/peaks.yaml). UserError: nothing is known.
    """
    path = Path(path).expanduser()
    return Results(path, results.load(path, peaks))
