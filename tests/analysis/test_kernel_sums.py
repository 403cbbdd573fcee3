"""The launches of a run are read once, and summed; FLOPs and bytes of tools that know no shapes are lent."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.display.metrics import records
from analysis.frames.kernel_sums import KEYS, PLAIN, costs, kept_sums, lender_of, relation
from analysis.frames.load import load
from analysis.measures.kernels import figures
from profiling import schemas, tables
from tests.analysis.commands import run
from tests.analysis.frames import kernels_frame
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep
from tests.analysis.test_bad_results import truncate

TRUTH = Truth()


def blank(directory, change=lambda rows: rows):
    """As a tool that knows no shapes would have written it: FLOPs and bytes of copies and messages only."""
    for rank in sorted(directory.glob("rank_*")):
        rows = change(tables.read(rank, "kernels").to_pydict())
        apart = [kind in schemas.APART for kind in rows["class"]]
        for name in ("flops", "bytes"):
            rows[name] = [value if own else None for value, own in zip(rows[name], apart, strict=True)]
        tables.write(tables.as_table("kernels", rows), rank, "kernels")


def sweep(tmp_path, change=lambda rows: rows, nodes=2, lend=True):
    """A sweep with the same point unprofiled, under the torch profiler, and under a tool without shapes."""
    runs = [run_of(nodes=nodes, profile=name) for name in ("none", *(["torch"] if lend else []))]
    write_sweep(tmp_path / "sweep", runs, TRUTH)
    blank(write_run(tmp_path / "sweep", run_of(nodes=nodes, profile="nsys"), TRUTH, 0), change)
    return load(tmp_path / "sweep")


def source_of(study, profile):
    return next(source for source in study.sources if source.fields["profile"] == profile)


def columns(study, source, names="name, batch_index, rank, flops, bytes"):
    sql = f"select {names} from {relation(study, source)} order by rank, start_ns, name"
    paths = [str(path) for path in source.tables("kernels")]
    return study.connection.execute(sql, {"kernels": paths}).fetchall()


def test_each_launch_has_the_flops_and_bytes_of_the_same_one(tmp_path):
    study = sweep(tmp_path)
    own, lender = source_of(study, "nsys"), source_of(study, "torch")
    mine, theirs = columns(study, own), columns(study, lender)
    assert [row[:3] for row in mine] == [row[:3] for row in theirs]
    assert np.array([row[3:] for row in mine]) == pytest.approx(np.array([row[3:] for row in theirs]))
    found = costs(study, [own, lender])
    assert found.loc[own.id, "flops"] == pytest.approx(TRUTH.flops)
    assert found.loc[own.id].tolist() == pytest.approx(found.loc[lender.id].tolist())
    (found,) = (one for one in study.findings if one.code == "flops_borrowed")
    assert (found.run, found.data["lender"]) == (own.id, lender.id)
    assert (found.data["pct"], found.data["by_class_pct"]) == pytest.approx((100, 0))


def test_all_answers_take_them(tmp_path):
    study = sweep(tmp_path)
    own, lender = source_of(study, "nsys"), source_of(study, "torch")
    frame = kernels_frame(study)
    mine, theirs = (
        frame[frame["run"] == one.id].set_index("kernel")["gflop_per_step"] for one in (own, lender)
    )
    assert mine["conv_fprop"] == pytest.approx(TRUTH.flops / 3 / 1e9)
    assert dict(mine) == pytest.approx(dict(theirs))
    for command in ("efficiency", "scaled"):
        answer = run(f"analysis.{command}", tmp_path / "sweep")
        assert answer.code == 0 and "100 % of the" in " ".join(answer.out.split())
    (row,) = run("analysis.scaled", tmp_path / "sweep", "--format", "json", "--all").json
    analytic = TRUTH.training_flops_per_image * 32
    assert row["flop_coverage_pct"] == pytest.approx(100 * TRUTH.flops / analytic)
    assert run("analysis.scaled", tmp_path / "sweep", "--explain").code == 0


def renamed(rows):
    """Another algorithm for the forward convolution; the backward one by two kernels."""
    names = ["other_conv" if name == "conv_fprop" else name for name in rows["short_name"]]
    again = [place for place, name in enumerate(names) if name == "conv_bprop"]
    order = sorted([*range(len(names)), *again])
    rows = {**rows, "short_name": names}
    return {name: [values[place] for place in order] for name, values in rows.items()}


def test_another_algorithm_is_matched_by_its_class_where_as_many_are_left(tmp_path):
    study = sweep(tmp_path, renamed, nodes=1)
    flops = dict(columns(study, source_of(study, "nsys"), "short_name::varchar, flops"))
    assert flops["other_conv"] == pytest.approx(TRUTH.flops / 3)
    assert flops["conv_bprop"] is None  # twice as many as the lender's: which is which is not known
    # Five launches of one length: relu and sgd by name, one by class, two not at all.
    (found,) = (one for one in study.findings if one.code == "flops_borrowed")
    assert (found.data["pct"], found.data["by_class_pct"]) == pytest.approx((60, 20))


def test_order_within_a_batch_tells_launches_of_one_kernel_apart(tmp_path):
    def numbered(rows):
        """The same kernel for each convolution; forward and update of it in one direction."""
        names = ["conv" if "conv" in name else name for name in rows["short_name"]]
        directions = ["fprop" if "conv" in name else way
                      for name, way in zip(rows["short_name"], rows["direction"], strict=True)]  # fmt: skip
        return {**rows, "short_name": names, "direction": directions}

    write_sweep(tmp_path / "sweep", [run_of(profile=name) for name in ("none", "torch")], TRUTH)
    for directory in (tmp_path / "sweep").glob("run_*_torch_*"):
        rows = numbered(tables.read(directory / "rank_0000", "kernels").to_pydict())
        tables.write(tables.as_table("kernels", rows), directory / "rank_0000", "kernels")
    blank(write_run(tmp_path / "sweep", run_of(profile="cupti"), TRUTH, 0), numbered)
    study = load(tmp_path / "sweep")
    own = columns(study, source_of(study, "cupti"), "short_name::varchar, flops")
    of_convolutions = [flops for name, flops in own if name == "conv"]
    assert of_convolutions[:2] == pytest.approx([TRUTH.flops / 3, TRUTH.flops * 2 / 3])
    assert len(of_convolutions) == 40


def test_own_figures_are_not_touched_and_none_is_made_up(tmp_path):
    study = sweep(tmp_path, lend=False)
    own = source_of(study, "nsys")
    assert relation(study, own) == PLAIN
    assert {row[3] for row in columns(study, own) if "conv" in row[0]} == {None}
    assert "FLOPs of kernels" in study.notes()[0]
    write_run(tmp_path / "sweep", run_of(nodes=2, profile="ncu"), TRUTH, 0)  # with FLOPs of its own
    study = load(tmp_path / "sweep")
    assert relation(study, source_of(study, "ncu")) == PLAIN


def test_the_lender_is_of_the_same_point_and_if_it_can_be_of_the_same_repetition(tmp_path):
    runs = [run_of(profile="torch"), run_of(profile="torch", batch=16)]
    write_sweep(tmp_path / "sweep", runs, TRUTH, {"torch": 2})
    for repetition in (1, 5):
        write_run(tmp_path / "sweep", run_of(profile="nsys", batches=60, attribute_from=7), TRUTH, repetition)
    study = load(tmp_path / "sweep")
    lenders = {
        source.repetition: lender_of(study, source)
        for source in study.sources
        if source.fields["profile"] == "nsys"
    }
    assert {number: (one.repetition, one.fields["batch"]) for number, one in lenders.items()} == {
        1: (1, 32), 5: (0, 32),
    }  # fmt: skip


def test_a_damaged_lender_costs_only_itself(tmp_path):
    study = sweep(tmp_path, nodes=1)
    own, lender = source_of(study, "nsys"), source_of(study, "torch")
    (lender.path / "rank_0000" / "kernels.parquet").write_bytes(b"PAR1 nothing")
    found = costs(study, list(study.sources))
    assert list(found.index) == [own.id] and found.loc[own.id, "flops"] == 0
    assert [failure.point for failure in study.failed] == [lender.id]
    assert np.isfinite(found.loc[own.id, "kernel_ns"])


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
