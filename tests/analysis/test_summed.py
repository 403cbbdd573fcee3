"""The launches of a run are read once, and their sums are those of the launches."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.display.metrics import records
from analysis.frames.kernel_sums import KEYS, costs, kept_sums
from analysis.frames.load import load
from analysis.measures.kernels import figures
from profiling import schemas, tables
from tests.analysis.synthetic import run_of, write_sweep
from tests.analysis.test_bad_results import truncate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two ranks, of which some launches lack a time, a direction, FLOPs or a step."""
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")])
    for rank in tmp_path.glob("run_*/rank_*"):
        kernels = tables.read(rank, "kernels").to_pandas()
        texts = kernels.select_dtypes("category").columns
        kernels[texts] = kernels[texts].astype(object)
        kernels.loc[::7, "duration_ns"] = -1
        kernels.loc[3::11, "flops"] = None
        kernels.loc[4::13, "bytes"] = 0.0
        kernels.loc[5::11, "direction"] = None
        kernels.loc[len(kernels) - 2 :, "batch_index"] = None
        columns = {name: kernels[name].astype(object).where(kernels[name].notna(), None) for name in kernels}
        table = tables.as_table("kernels", {name: values.tolist() for name, values in columns.items()})
        tables.write(table, rank, "kernels")
    return tmp_path


def launches(folder: Path) -> pd.DataFrame:
    parts = [tables.read(path, "kernels").to_pandas() for path in sorted(folder.glob("run_*/rank_*"))]
    every = pd.concat(parts, ignore_index=True)
    return every.assign(**{name: every[name].astype(object).where(every[name].notna(), "") for name in KEYS})


def test_the_sums_are_those_of_the_launches(folder):
    study = load(folder)
    (source,) = study.recorded
    summed = study.connection.execute(f"select * from {kept_sums(study, source)}").df()
    by = ["rank", "batch_index", *KEYS]
    assert not summed.duplicated(by).any()
    every = launches(folder)
    assert len(summed) == len(every.groupby(by, dropna=False, observed=True))
    timed = every[every["duration_ns"] >= 0]
    assert 0 < summed["calls"].sum() == len(timed) < len(every)
    assert summed["ns"].sum() == timed["duration_ns"].sum()
    assert summed["least_ns"].min() == timed["duration_ns"].min() > 0
    assert summed["most_ns"].max() == timed["duration_ns"].max()
    for name in ("flops", "bytes"):
        assert summed[name].sum() == pytest.approx(timed[name].sum())
    assert summed["counted_ns"].sum() == timed.loc[timed["flops"] > 0, "duration_ns"].sum()
    one = timed[(timed["rank"] == 1) & (timed["batch_index"] == timed["batch_index"].max())]
    shortest = one.groupby("short_name", observed=True)["duration_ns"].min()
    rows = summed[(summed["rank"] == 1) & (summed["batch_index"] == summed["batch_index"].max())]
    assert rows.groupby("short_name")["least_ns"].min().dropna().to_dict() == shortest.to_dict()
    # The roofline is of the model's launches with bytes.
    is_model = schemas.is_model(every["class"].to_numpy(), every["direction"].to_numpy())
    placed = every[is_model & (every["bytes"] > 0) & (every["duration_ns"] > 0)]
    assert 0 < len(placed) < len(every)
    assert summed["placed_ns"].sum() == placed["duration_ns"].sum()
    for name in ("flops", "bytes"):
        assert summed[f"placed_{name}"].sum() == pytest.approx(placed[name].sum())


def test_the_launches_are_read_for_the_first_question_only(folder):
    study = load(folder)
    (source,) = study.recorded
    costs(study, [source])
    for path in source.tables("kernels"):
        truncate(path)
    assert records(figures(study, [source], ("kernel",), "fprop"))
    damaged = load(folder)
    assert costs(damaged, damaged.recorded).empty
