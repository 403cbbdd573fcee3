"""Slurm's shorthand for nodes is read as Slurm writes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.cluster import Allocation, read_allocation
from profiling.errors import UserError
from profiling.identity import expand_counts, expand_nodes


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("gpu[03-05,9],x1", ["gpu03", "gpu04", "gpu05", "gpu9", "x1"]),
        ("a[1-2]b[08-09]", ["a1b08", "a1b09", "a2b08", "a2b09"]),
        ("tcn[098-101]", ["tcn098", "tcn099", "tcn100", "tcn101"]),
        ("r1i0n[1,3].site.nl", ["r1i0n1.site.nl", "r1i0n3.site.nl"]),
    ],
)
def test_node_lists_are_expanded(text, nodes):
    assert expand_nodes(text) == nodes


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n]1[", ",n1", "n1,,n2", "n[]"])
def test_what_is_no_node_list_is_said_to_be_none(text):
    with pytest.raises(UserError, match="invalid node list"):
        expand_nodes(text)


@pytest.mark.parametrize(
    ("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("16", [16]), ("", []), ("2(x", []), ("a,1", [])]
)
def test_counts_of_each_node_are_expanded(text, counts):
    assert expand_counts(text) == counts


def test_slurm_itself_reads_every_list_as_we_do(cluster):
    lists = ["n[1-3,7],x", "a[01-03]", "g[8-11]b[1-2],z9"]
    for text in lists:
        theirs = cluster.control("exec", "scontrol", "show", "hostnames", text).split()
        assert expand_nodes(text) == theirs


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.integers(1, 5))
def test_numbers_keep_their_zeros(numbers, width):
    text = "n[" + ",".join(f"{number:0{width}d}" for number in numbers) + "]"
    assert expand_nodes(text) == [f"n{number:0{width}d}" for number in numbers]


def test_an_allocation_is_read_from_the_environment():
    environment = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8",
        "SLURM_RESTART_COUNT": "2",
    }  # fmt: skip
    found = read_allocation(environment)
    assert found == Allocation("7", ("n1", "n2", "n3"), 16, nodes_at_start=3)
    assert read_allocation({}) is None
