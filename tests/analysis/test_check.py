"""Which nodes of an allocation are slow: none by chance, those that are, and what the command says of it."""

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.estimates import SIGNIFICANCE
from analysis.measures.check import FEWEST, LEAST_PCT, slowness
from jobs import store
from jobs.store import Check, CheckedRank, Link, write_record
from tests.analysis.commands import found, one_line_error, run
from train.check import ROUNDS, pairings

FIGURES = 4
CHECKS = 200


def named(values: np.ndarray, tests: int = FIGURES) -> set[int]:
    below, p_value, _ = slowness(values, tests)
    return set(np.flatnonzero((p_value <= SIGNIFICANCE) & (below >= LEAST_PCT)).tolist())


# What rounds have in common, as of a machine that others use, makes no node slow.
NOISE = {
    "normal": lambda draw, shape: 0.1 * draw.standard_normal(shape),
    "heavy tails": lambda draw, shape: 0.1 * draw.standard_t(2, shape),
    "skewed": lambda draw, shape: -0.3 * draw.exponential(size=shape),
    "disturbed": lambda draw, shape: (
        0.01 * draw.standard_normal(shape) - (draw.random(shape) < 0.1) - draw.random((shape[0], 1))
    ),
}


@pytest.mark.parametrize(("noise", "nodes"), [*((noise, FEWEST) for noise in NOISE), ("heavy tails", 8)])
def test_of_alike_nodes_one_is_named_in_5_percent_of_checks(noise, nodes):
    draw = np.random.default_rng(37)
    errors = 0
    for _ in range(CHECKS):
        figures = [np.exp(NOISE[noise](draw, (ROUNDS, nodes))) for _ in range(FIGURES)]
        errors += any((slowness(values, FIGURES)[1] <= SIGNIFICANCE).any() for values in figures)
    # Three standard deviations of the simulation above what is promised, and not zero.
    assert 0 < errors / CHECKS <= SIGNIFICANCE + 3 * math.sqrt(SIGNIFICANCE * (1 - SIGNIFICANCE) / CHECKS)


@pytest.mark.parametrize(
    ("nodes", "slow"),
    [
        (FEWEST, {0: 0.8}), (4, {1: 0.9}), (5, {1: 0.5, 3: 0.85}), (8, {0: 0.2, 7: 0.9}),
        (32, {3: 0.9, 4: 0.9}),
    ],
)  # fmt: skip
def test_exactly_the_slow_ones_are_named(nodes, slow):
    draw = np.random.default_rng(5)
    for _ in range(5):
        values = np.exp(0.01 * draw.standard_normal((ROUNDS, nodes)))
        for node, factor in slow.items():
            values[:, node] *= factor
        assert named(values) == set(slow)
    below, _, least = slowness(values, FIGURES)
    assert below[list(slow)] == pytest.approx([100 * (1 - factor) for factor in slow.values()], abs=2)
    assert nodes == FEWEST or 0 < least < 5  # of those that are left, if they are enough


def test_nodes_that_are_equal_or_a_little_slower_or_but_two_are_not_named():
    assert named(np.full((ROUNDS, 4), 7.0)) == set()
    a_little = np.full((ROUNDS, 4), 100.0)
    a_little[:, 2] = 96.0
    below, p_value, _ = slowness(a_little)
    assert p_value[2] <= SIGNIFICANCE and below[2] < LEAST_PCT and named(a_little) == set()
    assert named(np.array([[1.0, 9.0]] * ROUNDS)) == set()


def write_check(folder: Path, nodes: int, links: dict[str, float], computes: dict[str, float]) -> Path:
    """The record of nodes n0, n1 ... of two ranks, of which some are slower by a factor."""
    draw = np.random.default_rng(3)

    def rounds(value: float) -> list[float]:
        return list(value * np.exp(0.01 * draw.standard_normal(ROUNDS)))

    names = [f"n{node}" for node in range(nodes)]
    ranks = []
    for name in names:
        for factor in (1.0, computes.get(name, 1.0)):
            rates = {"gemm_flops_per_s": rounds(1e12 * factor), "steps_per_s": rounds(5 * factor)}
            ranks.append(CheckedRank(node=name, copy_bytes_per_s=rounds(3e9), **rates))
    pairs = [
        Link(nodes=of, size=size, bus_bytes_per_s=rounds(1e9 * min(links.get(name, 1.0) for name in of)))
        for meeting in pairings(nodes)
        for of in ([names[a], names[b]] for a, b in meeting)
        for size in (1 << 16, 1 << 20)
    ]
    together = [Link(nodes=names, size=1 << 20, bus_bytes_per_s=rounds(2e9))]
    record = Check(ranks=ranks, pairs=pairs, together=together, device="cpu", precision="fp32", seconds=90.0)
    write_record(folder / store.CHECK, record)
    return folder


def test_a_slow_rank_and_a_slow_link_are_told_apart(tmp_path):
    write_check(tmp_path, 6, links={"n4": 0.25}, computes={"n1": 0.5})
    answer = run("analysis.check", tmp_path, "--format", "csv")
    rows = {row["node"]: row for row in answer.csv}
    assert answer.code == 1 and list(rows) == ["n1", "n4", "n0", "n2", "n3", "n5"]
    assert rows["n1"]["slow"].count(",") == 1 and rows["n4"]["slow"] and not rows["n0"]["slow"]
    assert float(rows["n1"]["gemm_tflops_per_s"]) == pytest.approx(0.5, rel=0.05)
    assert float(rows["n4"]["link_gb_per_s_below_pct"]) == pytest.approx(75, abs=3)
    assert float(rows["n0"]["link_gb_per_s"]) == pytest.approx(1, rel=0.05)
    assert found("analysis.check", tmp_path)["node_slow"]["nodes"]
    shown = run("analysis.check", tmp_path)
    assert "n4" in shown.out.splitlines()[2] and shown.code == 1
    # An allreduce of 12 ranks: bytes x 2 x 11 / 12 in so many seconds, at 2 GB/s.
    assert f"{1e3 * (1 << 20) * 2 * 11 / 12 / 2e9:.2f}"[:3] in shown.out


def test_a_check_of_alike_nodes_succeeds_and_one_of_two_says_that_they_are_too_few(tmp_path):
    for nodes in (2, 8):
        (tmp_path / str(nodes)).mkdir()
        write_check(tmp_path / str(nodes), nodes, {}, {"n1": 0.5} if nodes == 2 else {})
        assert run("analysis.check", tmp_path / str(nodes)).code == 0
    assert "uncertain" in found("analysis.check", tmp_path / "2")
    assert set(found("analysis.check", tmp_path / "8")) == set()


def test_what_is_no_check_is_one_line(tmp_path):
    assert "jobs.check" in one_line_error(run("analysis.check", tmp_path))
    (tmp_path / store.CHECK).write_text("{")
    one_line_error(run("analysis.check", tmp_path))
