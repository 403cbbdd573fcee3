"""What Slurm says of its cluster is read on login nodes too, where no job's variables are."""

import pytest

from jobs.cluster import Partition, cluster_name, partition
from jobs.site import find_site
from profiling.errors import UserError
from tests.builders import put_programs

ROWS = "main*|4|2|(null)\ngpu|2|64|gpu:a100:4(S:0-1),shard:8\ngpu|1|128|gpu:h100:2\n"


@pytest.fixture
def slurm(tmp_path) -> dict[str, str]:
    """The environment of a login node of the cluster `virtual`, whose Slurm prints ROWS."""
    config = "Configuration data\nClusterName   = virtual\n"
    put_programs(tmp_path, scontrol=f"printf '%s' '{config}'", sinfo=f"printf '%s' '{ROWS}'")
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_a_login_node_knows_its_clusters_site(slurm):
    assert cluster_name({"SLURM_CLUSTER_NAME": "of-the-job"}) == "of-the-job"
    assert cluster_name(slurm) == "virtual"
    assert find_site(None, slurm).partition == "main"


def test_without_an_answer_there_is_no_cluster(tmp_path):
    assert cluster_name({"PATH": str(tmp_path)}) is None
    put_programs(tmp_path, scontrol="echo 'slurm_load: Unable to contact' >&2; exit 1")
    assert cluster_name({"PATH": str(tmp_path)}) is None


def test_a_partitions_nodes_are_counted_and_the_largest_is_taken(slurm):
    assert partition(None, slurm) == Partition("main", nodes=4, cpus=2, gpus=0)
    assert partition("gpu", slurm) == Partition("gpu", nodes=3, cpus=128, gpus=4)
    # Of several a job may get the best.
    assert partition("main,gpu", slurm) == Partition("main,gpu", nodes=4, cpus=128, gpus=4)


def test_many_nodes_are_a_plain_number(tmp_path):
    # As Slurm does: multiples of 512 from 1024 on in thousands, unless asked not to.
    plain, short = "echo 'main*|4608|42|gpu:6'", "echo 'main*|4.50K|42|gpu:6'"
    put_programs(tmp_path, sinfo=f'case "$*" in *--noconvert*) {plain};; *) {short};; esac')
    assert partition(None, {"PATH": f"{tmp_path}:/usr/bin:/bin"}).nodes == 4608


def test_a_partition_that_is_not_there_is_named_with_the_nearest(slurm, tmp_path):
    for names in ("gpux", "main,gpux"):
        with pytest.raises(UserError, match="Slurm has no partition 'gpux'; did you mean 'gpu'"):
            partition(names, slurm)
    put_programs(tmp_path, sinfo=f"printf '%s' '{ROWS.replace('*', '')}'")
    with pytest.raises(UserError, match="no default partition: set `partition` in the site file"):
        partition(None, slurm)
