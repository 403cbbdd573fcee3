"""What would N ranks give?

    python -m analysis.predict DIR --ranks 8,16,32        from a sweep's measured points
    python -m analysis.predict TABLE.csv --ranks 256      from a table of images/s by number of GPUs

A row is a configuration and a number of ranks: ``batch_ms`` and ``images_per_s`` with ``_low`` and ``_high``,
``scaling_efficiency_pct`` over the smallest measured number, ``measured_on`` (the ranks that it is fitted on)
and ``shapes`` (how the cost of more ranks may grow: analysis/curve.py). Rows with ``backtest`` true predict
a point that was measured, from smaller ones only: ``measured_images_per_s`` and ``error_pct`` say how well.

A prediction holds for the same batch of a rank, the same software, and a network that goes on as it did: a
switch, or a second rail, that the measured points did not use is not in it.

A table needs a column of ranks (world_size, n_gpus, gpus or ranks) and one of images a second (images_per_s,
img_per_s, img_s_global, images_per_second); framework, model, platform, gpu, mode, precision, batch_per_gpu,
loader, grad and compute tell configurations, where it has them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import curve, output
from analysis.load import load
from analysis.scaling import POINT_FIELDS, points_of
from analysis.study import Study
from analysis.terminal import Answer, Column, Part, Rows, with_interval
from jobs.run import make_parser
from profiling.errors import UserError, run_command

COLUMNS = (
    "ranks", "backtest", "images_per_s", "images_per_s_low", "images_per_s_high", "batch_ms", "batch_ms_low",
    "batch_ms_high", "scaling_efficiency_pct", "measured_images_per_s", "error_pct", "measured_on", "shapes",
)  # fmt: skip
RANKS = ("world_size", "n_gpus", "gpus", "ranks")
RATES = ("images_per_s", "img_per_s", "img_s_global", "images_per_second", "median_img_s")
# A prediction over more than this many times the measured ranks is guessing.
FARTHEST = 16


@dataclass(frozen=True)
class Series:
    """A configuration measured on several numbers of ranks, in rising order."""

    fields: Mapping[str, Any]
    ranks: tuple[int, ...]
    images_per_s: tuple[float, ...]
    batch: float  # images a rank; 1 where a table does not say it, so that times are relative

    def time_s(self) -> list[float]:
        """Seconds a batch of a rank."""
        return [self.batch * ranks / rate for ranks, rate in zip(self.ranks, self.images_per_s, strict=True)]


def rows(series: Sequence[Series], wanted: Sequence[int]) -> Rows:
    """Back-tests of each series, then its predictions; see this file's docstring.

    Raises:
        UserError: no series was measured on two numbers of ranks.
    """
    usable = [one for one in series if len(one.ranks) > 1]
    if not usable:
        raise UserError(
            "no configuration was measured on two numbers of ranks: there is nothing to go on from"
        )
    made: Rows = []
    for one in usable:
        for place in range(2, len(one.ranks)):
            known = Series(one.fields, one.ranks[:place], one.images_per_s[:place], one.batch)
            row = _row(known, one.ranks[place])
            measured = one.images_per_s[place]
            error = 100 * (row["images_per_s"] / measured - 1)
            made.append(row | {"backtest": True, "measured_images_per_s": measured, "error_pct": error})
        made += [_row(one, ranks) for ranks in wanted if ranks > one.ranks[-1]]
    return made


def _row(one: Series, ranks: int) -> dict[str, Any]:
    found = curve.predict(one.ranks, one.time_s(), ranks)
    images = one.batch * ranks

    def rate(time_s: float) -> float:
        return images / time_s if time_s > 0 else float("nan")

    base = one.images_per_s[0] / one.ranks[0]
    return {
        **one.fields,
        "ranks": ranks,
        "backtest": False,
        "images_per_s": rate(found.time),
        "images_per_s_low": rate(found.high),
        "images_per_s_high": rate(found.low),
        "batch_ms": 1e3 * found.time,
        "batch_ms_low": 1e3 * found.low,
        "batch_ms_high": 1e3 * found.high,
        "scaling_efficiency_pct": 100 * rate(found.time) / ranks / base,
        "measured_on": " ".join(str(count) for count in one.ranks),
        "shapes": " ".join(found.shapes),
    }


# --- what was measured --------------------------------------------------------------------------------


def series_of(study: Study) -> list[Series]:
    """A sweep's configurations; one rank sends no gradients, so its point may be of another precision."""
    found: dict[tuple, list[Any]] = {}
    points = points_of(study)
    names = [name for name in POINT_FIELDS if name not in ("nodes", "gpus_per_node")]
    for point in points:
        key = tuple((name, str(point.fields[name])) for name in names)
        members = found.setdefault(key, [])
        base = point.base
        if base is not None and base.world_size < point.world_size and base not in members:
            members.append(base)
        if point not in members:
            members.append(point)
    made = []
    for key, members in found.items():
        members.sort(key=lambda point: point.world_size)
        ranks = tuple(point.world_size for point in members)
        if len(set(ranks)) < len(ranks):
            study.find(f"{dict(key)['model']}: several node counts give one world size; the first counts")
            members = [one for place, one in enumerate(members) if ranks.index(one.world_size) == place]
        made.append(Series(
            dict(key),
            tuple(point.world_size for point in members),
            tuple(point.rate.value for point in members),
            float(members[-1].fields["batch"]),
        ))  # fmt: skip
    return made


def read_table(path: Path) -> list[Series]:
    """The configurations of a CSV table of images/s by number of ranks; repeated points are averaged.

    Raises:
        UserError: it has no such columns, or a value is no number.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no CSV table ({error})") from None
    ranks, rate = (next((name for name in names if name in table.columns), None) for names in (RANKS, RATES))
    if ranks is None or rate is None:
        raise UserError(
            f"{path} needs a column of ranks ({', '.join(RANKS)}) and one of images a second "
            f"({', '.join(RATES)}); it has {', '.join(table.columns)}"
        )
    numbers = table[[ranks, rate]].apply(pd.to_numeric, errors="coerce")
    if numbers.isna().to_numpy().any() or (numbers <= 0).to_numpy().any():
        line = int(np.flatnonzero((numbers.isna() | (numbers <= 0)).any(axis=1))[0]) + 2
        raise UserError(f"{path}, line {line}: ranks and images a second must be positive numbers")
    table[[ranks, rate]] = numbers
    fields = [name for name in _FIELDS if name in table.columns]
    made = []
    groups: Any = table.groupby(fields, dropna=False, sort=False) if fields else [((), table)]
    for key, members in groups:
        means = members.groupby(ranks)[rate].mean()
        batch = (
            pd.to_numeric(members["batch_per_gpu"], errors="coerce").iloc[0]
            if "batch_per_gpu" in fields
            else None
        )
        known = {name: value for name, value in zip(fields, key, strict=True) if pd.notna(value)}
        made.append(Series(
            known,
            tuple(int(count) for count in means.index),
            tuple(float(value) for value in means),
            float(batch) if batch is not None and np.isfinite(batch) else 1.0,
        ))  # fmt: skip
    return made


# Columns of tables that tell configurations apart.
_FIELDS = (
    "framework",
    "model",
    "platform",
    "gpu",
    "mode",
    "precision",
    "batch_per_gpu",
    "loader",
    "grad",
    "compute",
)


def main() -> int:
    parser = make_parser("python -m analysis.predict", __doc__)
    parser.add_argument("path", type=Path, metavar="DIR|TABLE.csv", help="a sweep's results, or a table")
    parser.add_argument(
        "--ranks", default="", metavar="P,...", help="world sizes to predict [twice, four times]"
    )
    arguments = output.add_output_flags(parser).parse_args()
    is_table = arguments.path.suffix == ".csv" and arguments.path.is_file()
    study = None if is_table else load(arguments.path, arguments.peaks)
    series = read_table(arguments.path) if study is None else series_of(study)
    made = rows(series, _wanted(arguments.ranks, series))
    fields = list(dict.fromkeys(name for one in series for name in one.fields))
    part = Part("Predicted throughput", made, _shown(made, fields), _caption(made))
    return output.emit(Answer(made, [*fields, *COLUMNS], parts=[part]), study, arguments)


def _wanted(text: str, series: Sequence[Series]) -> list[int]:
    largest = max((one.ranks[-1] for one in series), default=1)
    if not text:
        return [2 * largest, 4 * largest]
    values = [value.strip() for value in text.split(",")]
    if not all(value.isdigit() and int(value) > 0 for value in values):
        raise UserError(f"--ranks: {text!r} is no list of numbers of ranks, e.g. 8,16,32")
    if max(map(int, values)) > FARTHEST * largest:
        raise UserError(
            f"--ranks: {max(map(int, values))} ranks are more than {FARTHEST} times the measured {largest}: "
            "measure a larger point first"
        )
    return [int(value) for value in values]


def _caption(made: Rows) -> str:
    errors = [abs(row["error_pct"]) for row in made if row["backtest"]]
    text = "Intervals span the shapes of cost that fit the measured points about as well."
    if not errors:
        return f"{text}\nToo few points for a back-test: how good this is, is not known."
    return (
        f"{text}\nBack-tests (each from smaller points only): {len(errors)}, median error "
        f"{np.median(errors):.1f} %, largest {max(errors):.1f} %."
    )


def _shown(made: Rows, fields: Sequence[str]) -> list[Column]:
    def get(name: str) -> Any:
        return lambda row: row.get(name)

    def rate(row: Mapping[str, Any]) -> str:
        return with_interval(row["images_per_s"], row["images_per_s_low"], row["images_per_s_high"])

    varying = [name for name in fields if len({str(row.get(name)) for row in made}) > 1]
    return [
        *(Column(name, get(name), left=True) for name in varying),
        Column("ranks", get("ranks")),
        Column("images/s\n[range]", rate),
        Column("efficiency\n%", lambda row: f"{row['scaling_efficiency_pct']:.1f}"),
        Column("measured\nimages/s", get("measured_images_per_s")),
        Column("error\n%", lambda row: f"{row['error_pct']:+.1f}" if row["backtest"] else None),
        Column("from\nranks", get("measured_on"), left=True),
    ]


if __name__ == "__main__":
    run_command(main)
