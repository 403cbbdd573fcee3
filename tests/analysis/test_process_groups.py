"""Ranks of several process groups: planted figures are found."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.frames.steps import Series
from analysis.measures import communication
from analysis.measures.lateness import of_collectives
from analysis.measures.points import points_of
from analysis.prediction.traced_step import traced
from profiling import tables
from profiling.attribution.messages import ONE_OF_SEVERAL
from tests.analysis.commands import run
from tests.analysis.frames import matched_of
from tests.analysis.synthetic import MS, START_NS, Truth, change, run_of, write_run


@dataclass
class Group:
    """Allreduces of some ranks, ms after the start of each batch: when each rank comes, when all leave."""

    name: str
    came: dict[int, tuple[float, ...]]
    left: tuple[float, ...]
    mbytes: float = 4.0
    kind: str = "allreduce"

    @property
    def ranks(self) -> str:
        return ",".join(map(str, self.came))


# Two ranks share each layer. The second pair is 0.2 ms behind the first, and nobody waits for anybody.
TENSOR = (
    Group("1", {0: (1.0, 3.0), 1: (1.0, 3.0)}, (1.4, 3.4)),
    Group("2", {2: (1.2, 3.2), 3: (1.2, 3.2)}, (1.6, 3.6)),
)


def write(directory, groups, clocks_ms=(0.0,) * 4, batches: int = 20):
    """A run of four ranks in process groups, 10 ms a batch."""
    one = run_of(gpus_per_node=4, profile="torch", batches=batches)
    result = write_run(directory, one, Truth(step_ms={4: 10.0}, noise_ms=0.0, warmup=0, perturbation=1.0))
    for rank, clock in enumerate(clocks_ms):
        rows = [
            {
                "rank": rank, "batch_index": batch, "duration_ns": round((left - came) * MS),
                "start_ns": START_NS + round((10 * batch + clock) * MS) + round(came * MS),
                "name": "nccl", "short_name": "nccl", "class": "communication", "direction": "bprop",
                "device": 0, "bytes": group.mbytes * 1e6, "collective": group.kind,
                "process_group": group.name,
                "group_ranks": None if group.name == ONE_OF_SEVERAL else group.ranks,
                "group_size": None if group.name == ONE_OF_SEVERAL else len(group.came),
            }
            for batch in range(one.first_attributed, batches) for group in groups
            for came, left in zip(group.came.get(rank, ()), group.left, strict=False)
        ]  # fmt: skip
        columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
        tables.write(tables.as_table("kernels", columns), tables.rank_directory(result, rank), "kernels")
    return load(directory)


def figures(row) -> dict[str, float]:
    names = ("transfer_ms", "wait_ms", "algbw_gb_per_s", "busbw_gb_per_s")
    return {name.partition("_")[0]: row[name] for name in names}


def test_pairs_have_no_wait_and_no_bandwidth_that_is_not_there(tmp_path):
    study = write(tmp_path, TENSOR)
    (row,) = records(communication.communication(study).rows)
    assert (row["group_size"], row["groups"], row["group_ranks"]) == (2, 2, "0,1 | 2,3")
    # Two calls of 0.4 ms and 4 MB a batch; of two ranks an allreduce moves what it holds, 2 x 1/2.
    assert figures(row) == pytest.approx({"transfer": 0.8, "wait": 0.0, "algbw": 10.0, "busbw": 10.0})
    assert not any("not available" in said for said in study.notes())


def test_a_broadcast_sets_no_clock_and_has_no_wait_where_none_is_set(tmp_path):
    """Its root may be gone before the others have come; ranks 0 and 3 share nothing else."""
    study = write(tmp_path, (*TENSOR, Group("7", {0: (5.0,), 3: (5.5,)}, (6.0,), kind="broadcast")))
    pairs, ends = records(communication.communication(study).rows)
    assert pairs["wait_ms"] == pytest.approx(0) and ends.get("wait_ms") is None
    assert "broadcast: clocks unknown" in "\n".join(study.notes())


def test_of_a_group_that_is_not_recorded_beside_others_nothing_is_claimed(tmp_path):
    study = write(tmp_path, tuple(Group(ONE_OF_SEVERAL, one.came, one.left) for one in TENSOR))
    (row,) = records(communication.communication(study).rows)
    assert row["ms_per_step"] == pytest.approx(0.8)
    assert row.get("transfer_ms") is None and row.get("busbw_gb_per_s") is None and row["groups"] is None
    assert "groups not recorded" in "\n".join(study.notes())


def test_a_group_of_which_only_the_size_is_recorded_is_known_if_it_is_of_all(tmp_path):
    study = write(tmp_path, (*TENSOR, Group("0", dict.fromkeys(range(4), (5.0,)), (5.4,), kind="allgather")))
    for path in tmp_path.glob("*/rank_*/kernels.parquet"):
        table = tables.read(path.parent, "kernels").drop_columns(["process_group", "group_ranks"])
        pq.write_table(table, path)
    pairs, whole = records(communication.communication(study).rows)
    assert pairs["collective"] == "allreduce" and pairs["groups"] is None and pairs["wait_ms"] is None
    assert figures(whole) == pytest.approx({"transfer": 0.4, "wait": 0.0, "algbw": 10.0, "busbw": 7.5})


def test_a_group_of_which_a_rank_is_missing_costs_the_others_nothing(tmp_path):
    halved = Group("2", {2: (1.2, 3.2)}, (1.6, 3.6))
    everyone = Group("0", dict.fromkeys(range(4), (8.0,)), (8.5,), kind="barrier")
    study = write(tmp_path, (TENSOR[0], halved, everyone))
    for path in tmp_path.glob("*/rank_0002/kernels.parquet"):
        change(path.parent, "kernels", group_size=lambda sizes: [max(size, 2) for size in sizes])
    rows = records(communication.communication(study).rows)
    of = {(row["collective"], row["group_ranks"]): row for row in rows}
    assert of["barrier", "0-3"]["wait_ms"] == pytest.approx(0)
    assert of["allreduce", "0,1"]["transfer_ms"] == pytest.approx(0.4)  # of ranks 0 and 1, over four
    assert of["allreduce", "2"]["group_size"] == 2 and of["allreduce", "2"]["transfer_ms"] is None
    assert "allreduce" in [one.data.get("collectives") for one in study.findings]


def calls(rank: int, groups, clock_ms: float = 0.0, batches: int = 1) -> pd.DataFrame:
    """A rank's calls as one has them after reading."""
    rows = sorted(
        (10 * batch + came, 10 * batch + left, batch, group.kind, group.name, len(group.came))
        for batch in range(batches)
        for group in groups
        for came, left in zip(group.came.get(rank, ()), group.left, strict=False)
    )
    of = pd.DataFrame(rows, columns=("start_ns", "end_ns", "step", "collective", "group", "group_size"))
    times = ["start_ns", "end_ns"]
    return of.assign(**{name: ((of[name] + clock_ms) * MS).round().astype(np.int64) for name in times})


def test_clocks_are_followed_through_a_chain_of_groups():
    """Ranks 0 and 3 are joined by way of two others."""
    chain = [
        Group(str(rank), {rank: (1.0 + 2 * rank,), rank + 1: (1.0 + 2 * rank,)}, (2.0 + 2 * rank,))
        for rank in range(3)
    ]
    matched = matched_of([calls(rank, chain, clock) for rank, clock in enumerate((0.0, 50.0, -300.0, 700.0))])
    assert [round(one.offset_ns / MS) for one in matched.clocks] == [0, 50, -300, 700]
    assert set(matched.reference) == {0}


def test_clocks_that_no_group_joins_are_not_set_by_each_other(tmp_path):
    clocks = (0.0, 50.0, -300.0, 700.0)
    matched = matched_of([calls(rank, TENSOR, clock) for rank, clock in enumerate(clocks)])
    assert matched.reference.tolist() == [0, 0, 2, 2]
    assert [round(one.offset_ns / MS) for one in matched.clocks] == [0, 50, 0, 1000]
    of = matched.calls
    assert (of["transfer_ns"] == of["left_ns"] - of["entered_ns"]).all() and len(of) == 8
    write(tmp_path, TENSOR, clocks_ms=clocks)
    assert "ranks: 2 groups" in run("analysis.timeline", tmp_path).err


def test_ranks_are_late_within_their_group_only():
    """Rank 3 comes 2 ms after rank 2; the first pair is 5 ms before both, and waits for neither."""
    groups = (Group("1", {0: (1.0,), 1: (1.0,)}, (1.4,)), Group("2", {2: (6.0,), 3: (8.0,)}, (8.4,)))
    ranks = [calls(rank, groups, batches=30) for rank in range(4)]
    stages = {name: np.full((4, 30), 1e6) for name in ("load", "forward", "backward", "update")}
    series = Series(np.full((4, 30), 1e7), np.full(30, 4), stages, np.full(30, True), 0)
    found = of_collectives(matched_of(ranks), series)
    assert (found.late_ns[:, 0] / MS).tolist() == [0, 0, -2, 2]
    assert (found.behind_ns[:, 0] / MS).tolist() == [0, 0, -2, 2]
    assert found.residual_ns.tolist() == [0, 0, 0, 0]


def test_allreduces_of_some_ranks_are_no_exchange_of_gradients(tmp_path):
    study = write(tmp_path, (*TENSOR, Group("0", dict.fromkeys(range(4), (6.0,)), (8.0,), mbytes=20.0)))
    found = traced(study, points_of(study).iloc[0])
    assert not isinstance(found, str), found
    found = found.exchanges
    assert set(found.bytes) == {20e6} and set(found.ranks) == {4} and set(found.ns) == {2 * MS}
