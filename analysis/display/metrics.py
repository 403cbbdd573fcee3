"""Columns of answers, defined once (:class:`Metric`): names in data, ``--columns``, tables, columns.md."""

import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from analysis.display.numbers import digits, figure, label_of, shown, with_interval, with_places
from jobs.run import Run
from jobs.run_fields import FACTOR, fields_of, own_names
from profiling.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd


# What an interval is called, by how often it was measured to hold the truth (docs/methods.md lists them all).
CONFIDENCE = ">=95 %"  # at least so often; in some kinds of cases it is wider than it had to be
NOMINAL = "~95 %"  # in 93.5 to 97.4 % of the cases of each kind: of few runs the exact test is coarse
# Of the batches (or repetitions) of one run, as many as are independent. It is made for 95 %, and holds fewer
# where neighbours are much alike, tails are very skewed or the machine slows down and recovers meanwhile.
IN_RUN = "in run"
RANGE = "range"  # of what was tried; how often it holds the truth is not known
_KINDS = {
    CONFIDENCE: "95 % confidence interval; it contains the true value in 95 % of cases or more",
    NOMINAL: "95 % confidence interval; it contains the true value in 93 to 98 % of cases",
    IN_RUN: "interval over the steps of one run; it does not cover differences between runs "
    "(docs/methods.md: coverage)",
    RANGE: "lowest and highest of the variants tried, or of the measurements",
}

# How a name ends, and the unit that this is.
UNITS = {
    "_pct": "%", "_ms": "ms", "_us": "us", "_ns": "ns", "_gb_per_s": "GB/s", "tflops_per_s": "TFLOP/s",
    "flops_per_s": "FLOP/s", "_per_s": "/s", "_s": "s", "_db": "dB", "_gb": "GB", "_mbyte": "MB",
    "_w": "W",
}  # fmt: skip


@dataclass(frozen=True)
class Metric:
    """A column of an answer: of its data, and of tables, which print it."""

    name: str  # the key of a row and the column of CSV, JSON and Parquet; it ends in its unit (UNITS)
    meaning: str  # a phrase for --columns, the docs and the report's tooltips
    header: str = ""  # in tables, "\n" breaks it; by default the name, its unit last
    interval: str = ""  # what the two columns beside it are (CONFIDENCE, NOMINAL, IN_RUN, RANGE)
    ends: tuple[str, str] = ("", "")  # their names; by default name_low and name_high
    places: int | None = None  # decimals in tables; by default as many as these digits need:
    significant: int = 4
    show: Callable[[Any], str] | None = None  # how a value is printed, where neither does
    text: bool = False  # it is no number
    key: bool = False  # it tells rows apart
    priority: int = 1  # where the terminal is too narrow, columns of 0 are dropped first, those of 2 last
    table: bool = True  # tables show it
    detail: bool = False  # data hold it with --all alone, and no table shows it
    cell: Callable[[Mapping[str, Any]], str] | None = None  # a row's cell in a table, if more than the figure
    longest: int | None = None  # characters to which a terminal shortens text

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the data: the figure's, and those of its interval's ends."""
        if not self.interval:
            return (self.name,)
        return (self.name, self.ends[0] or f"{self.name}_low", self.ends[1] or f"{self.name}_high")

    @property
    def label(self) -> str:
        """All its columns: ``step_ms (_low, _high)``."""
        usual = self.interval and not any(self.ends)
        return f"{self.name} (_low, _high)" if usual else ", ".join(self.names)

    @property
    def description(self) -> str:
        """What it means, and what its interval is called: ``median of the steady batches [95 %]``."""
        return f"{self.meaning} [{self.interval}]" if self.interval else self.meaning

    @property
    def heading(self) -> str:
        """Of its column in a table, in short lines, the unit last; below it what its interval is called."""
        text = self.header or header(self.name)
        return f"{text}{' ' if chr(10) in text else chr(10)}[{self.interval}]" if self.interval else text

    @property
    def alone(self) -> "Metric":
        """The same without its interval, for a table in which there is no room."""
        return replace(self, interval="")

    def printed(self, row: Mapping[str, Any]) -> str:
        """A row's cell: the figure with its interval; a dash: not known."""
        if self.cell is not None:
            return shown(self.cell(row))
        value = row.get(self.name)
        if self.interval:
            low, high = (row.get(name) for name in self.names[1:])
            return with_interval(value, low, high, self.places)
        if self.show is not None and shown(value) != "-":
            return self.show(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return shown(value)
        if self.places is not None:
            return with_places(value, self.places)
        if not isinstance(value, float):
            return str(value)
        # A field's value tells rows apart, however small: learning rates of 1e-5 and 3e-5.
        return (digits if self.key else figure)(value, self.significant)


def header(name: str) -> str:
    """A column's name in a few short lines, its unit last: ``bandwidth_efficiency_pct`` ..."""
    end = next((end for end in UNITS if name.endswith(end)), "")
    words = name.removesuffix(end).replace("_", " ")
    lines = textwrap.wrap(words, 10, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, UNITS[end]] if end else lines)


RANKS_PER_NODE = "ranks/\nnode"  # instead, of runs without GPUs


def _field(name: str) -> Metric:
    info = Run.model_fields[name]
    kinds = (info.annotation, *get_args(info.annotation))
    number = any(kind in kinds for kind in (int, float, bool))
    also = f" (in tables without GPUs: {RANKS_PER_NODE})".replace("\n", "") if name == "gpus_per_node" else ""
    heading = "GPUs/\nnode" if also else ""
    return Metric(name, (info.description or "") + also, heading, text=not number, key=True)


# Factors of a program's own are fields of their own.
FIELDS_OF_RUNS = tuple(name for name in Run.model_fields if name != "factors")
RUN = Metric("run", "run id; of traces, the name of their folder", text=True, key=True)
JOB = replace(RUN, header="job")  # tables of traces call it so
FIELDS: Mapping[str, Metric] = {
    "run": RUN,
    **{name: _field(name) for name in FIELDS_OF_RUNS},
    "world_size": Metric("world_size", "number of GPUs (on a run without GPUs: of ranks)", key=True),
    "repetition": Metric("repetition", "repetition of the same configuration, from 0", "rep", key=True),
}
# By these runs and jobs are told apart.
TELLING = (*FIELDS_OF_RUNS, "job")
OF_A_RUN = (RUN, *(FIELDS[name] for name in FIELDS_OF_RUNS), FIELDS["repetition"])
RANK = Metric("rank", "rank in the job, from 0", key=True)
NODE = Metric("node", "host of the rank", text=True, key=True)
CONFIGURATION = Metric("configuration", "the values in which it differs from the others", text=True, key=True)
STEP = Metric("step", "step of the run, from 0", key=True)


def telling(rows: "pd.DataFrame", fields: Iterable[str] = (*TELLING, "repetition")) -> list[str]:
    """The fields in which rows differ; where these may be any of a run, also factors of a program's own."""
    names = list(fields)
    names += own_names(rows.columns) if "program" in names else []
    known = [name for name in dict.fromkeys(names) if name in rows]
    each = records(rows[known])
    return [name for name in known if len({str(row[name]) for row in each}) > 1]


# Fields that may tell configurations apart, in the order in which one reads them.
_FIRST = (
    "model", "loader", "workers", "batch", "grad", "compute", "nodes", "gpus_per_node", "world_size",
    "network", "backend", "image_size", "channels_last", "compile", "bucket_mb", "data_format", "threads",
    "sync_stages",
)  # fmt: skip
FACTORS = ("job", *_FIRST, *(name for name in fields_of("workload") if name not in _FIRST))


def varied(rows: "pd.DataFrame", fields: Sequence[str] = FACTORS) -> list[str]:
    """The fields that tell rows apart."""
    return telling(rows, fields)


def called(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """A configuration's name: ``dali-cpu, fp16 gradients``."""
    words = str(row.get("program") or "").split()
    # Of a command line the script alone: a report is sent to others.
    program, *_ = *(word.rpartition("/")[2] for word in words if word.endswith(".py")), *words, "all runs"
    return label_of(row, fields) or str(row.get("model") or row.get("job") or program)


def fields(names: Iterable[str]) -> list[Metric]:
    """The metrics of fields of a run; a user's program or table may have others, which are text."""
    every = {**FIELDS, "job": JOB}
    return [every.get(name) or _own(name) for name in names]


def _own(name: str) -> Metric:
    meaning = "factor of the program's own, from the sweep file" if name.startswith(FACTOR) else ""
    return Metric(name, meaning, header(name.removeprefix(FACTOR)), text=True, key=True)


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """A table's rows as dicts, to be printed or named; what is not known is None."""
    columns: dict[str, list[Any]] = table.to_dict("list")  # type: ignore[assignment]
    # By columns: as rows, pandas takes ten times as long for a wide table.
    for values, absent in zip(columns.values(), table.isna().to_numpy().T, strict=True):
        for row in absent.nonzero()[0]:
            values[row] = None
    rows = zip(*columns.values(), strict=True) if columns else [()] * len(table)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def data_columns(metrics: Iterable[Metric], rows: "pd.DataFrame", every: bool = False) -> list[str]:
    """The columns of the data; where they hold all fields of a run, also factors of a program's own.

    Traces know next to no field of a run: of traces alone, those that none knows are left out. ``every``:
    also fields of runs in which no rows differ, and details.
    """
    names = names_of(one for one in metrics if every or not one.detail)
    if "program" not in names:
        return names
    if len(rows) and "job" in rows and rows["job"].notna().all():
        unknown = {name for name in FIELDS_OF_RUNS if name not in rows or rows[name].isna().all()}
        return [name for name in names if name not in unknown]
    after = names.index("program") + 1
    names = list(dict.fromkeys([*names[:after], *own_names(rows.columns), *names[after:]]))
    # With some each row of an answer can be named, also where they are the same in all.
    same = {*FIELDS_OF_RUNS, "repetition"} - {"run", "nodes", "gpus_per_node", *telling(rows)}
    return [name for name in names if every or name not in same]


def names_of(metrics: Iterable[Metric]) -> list[str]:
    """The columns of the data, each once."""
    return list(dict.fromkeys(name for metric in metrics for name in metric.names))


def columns(metrics: Iterable[Metric], *names: str) -> list[Metric]:
    """The metrics of these names, in this order; all without any."""
    by_name = {metric.name: metric for metric in metrics}
    return [by_name[name] for name in names or by_name]


def filled(some: Iterable[Metric], rows: "pd.DataFrame") -> list[Metric]:
    """The columns in which a row has something."""
    each = records(rows)
    return [one for one in some if any(one.printed(row) not in ("", "-") for row in each)]


def explain_columns(groups: Mapping[str, Sequence[Metric]], names: Sequence[str] = ()) -> str:
    """The columns as ``--columns`` lists them (all without ``names``), each group below what it is of."""
    groups = _of_names(groups, names) if names else groups
    width = max(60, min(110, shutil.get_terminal_size((112, 24)).columns - 2))
    lines = []
    for of, metrics in groups.items():
        longest = max(len(one.label) for one in metrics)
        texts = [f"    {one.label:<{longest}}  {one.description}" for one in metrics]
        wrapped = [textwrap.fill(text, width, subsequent_indent=" " * (longest + 6)) for text in texts]
        lines += [textwrap.fill(of, width), "", *wrapped, ""]
    used = {metric.interval for metrics in groups.values() for metric in metrics}
    if kinds := "; ".join(f"{kind}: {meaning}" for kind, meaning in _KINDS.items() if kind in used):
        lines.append(textwrap.fill(f"In brackets: kind of the interval from _low to _high. {kinds}.", width))
    return "\n".join(lines).rstrip()


def _of_names(groups: Mapping[str, Sequence[Metric]], names: Sequence[str]) -> dict[str, list[Metric]]:
    own = names_of(metric for metrics in groups.values() for metric in metrics)
    every = {**groups, "Of a run:": [metric for name, metric in FIELDS.items() if name not in own]}
    for name in names:
        if name not in (known := [*own, *FIELDS]):
            raise UserError(f"--columns: unknown column {name!r}{did_you_mean(name, known, see='--columns')}")
    chosen = {of: [one for one in metrics if {*one.names} & {*names}] for of, metrics in every.items()}
    return {of: metrics for of, metrics in chosen.items() if metrics}
