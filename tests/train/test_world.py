"""Ranks find their place from what the launcher gave them."""

import pytest

from profiling.errors import UserError
from train.world import World, check_mpi, first_host, gloo_interface, read_world

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}

SLURM = {
    "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[7,9]",
    "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[7,9]", "SLURM_JOB_NUM_NODES": "2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "rank", "size", "local_rank", "local_size", "launcher"),
    [
        ({}, 0, 1, 0, 1, "none"),
        ({**TORCHRUN, "MASTER_ADDR": "n0", "MASTER_PORT": "1"}, 3, 4, 1, 2, "torchrun"),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            1, 2, 1, 2, "Open MPI",
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, 4, 2, 4, "MPICH"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2",
          "MASTER_ADDR": "a"}, 2, 4, 0, 2, "MPICH"),
        (
            {
                "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "gpu[03-04]",
                "SLURM_NODEID": "1", "SLURM_JOB_ID": "7",
            },
            5, 8, 1, 4, "Slurm",
        ),
        # srun --mpi=pmi2: a task of Slurm's, to which PMI says the same.
        ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2, 0, 1, "Slurm"),
        # mpirun in an allocation starts its daemons, a node each, with srun: ranks see that step's variables.
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
         3, 4, 1, 2, "MPICH"),
        (
            {
                **SLURM, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            3, 4, 1, 2, "Open MPI",
        ),
        # An interactive allocation's shell is no rank.
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "7"}, 0, 1, 0, 1, "none"),
    ],
)  # fmt: skip
def test_every_launchers_variables_are_read(environment, rank, size, local_rank, local_size, launcher):
    world = read_world(environment)
    assert (world.rank, world.size, world.local_rank, world.local_size, world.launcher) == (
        rank, size, local_rank, local_size, launcher,
    )  # fmt: skip
    assert world.nodes == size // local_size


def test_where_ranks_meet():
    assert read_world({**TORCHRUN, "SCALEPROF_RENDEZVOUS": "file:///x"}).rendezvous == "file:///x"
    assert read_world({**TORCHRUN, "MASTER_ADDR": "n0", "MASTER_PORT": "9"}).rendezvous == "tcp://n0:9"
    one_node = {"PMI_RANK": "2", "PMI_SIZE": "4"}
    assert read_world(one_node).host == "127.0.0.1"
    assert read_world(SLURM).host == "n7"
    assert read_world({**TORCHRUN, "MASTER_ADDR": "n0"}).host == "n0"
    # mpirun tells its ranks of no host: ours says it, else it is the first of the allocation.
    by_mpirun = {
        "PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2",
        "SLURM_JOB_NODELIST": "n[4-8]", "SLURM_JOB_NUM_NODES": "5",
    }  # fmt: skip
    assert read_world(by_mpirun).host == "n4"
    assert read_world({**by_mpirun, "SCALEPROF_HOST": "n6"}).host == "n6"


def test_jobs_and_steps_on_one_host_are_told_apart():
    worlds = [
        {},
        {"SLURM_STEP_ID": "1"},
        {"SLURM_JOB_ID": "2"},
        {"SCALEPROF_JOB": "/results/a"},
        {"SCALEPROF_JOB": "/results/b"},
    ]
    assert len({read_world({**SLURM, **more}).job for more in worlds}) == len(worlds)


@pytest.mark.parametrize(("node", "local_size"), [("0", 2), ("1", 2), ("2", 1)])
def test_nodes_may_have_different_numbers_of_tasks(node, local_size):
    uneven = {**SLURM, "SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}
    assert read_world({**uneven, "SLURM_NODEID": node}).local_size == local_size


def test_a_library_of_another_mpi_is_named():
    with pytest.raises(UserError, match=r"mpi4py \(MPICH 4\) sees 1 of the 4 ranks that Open MPI started"):
        check_mpi(1, 4, "mpi4py (MPICH 4)", "Open MPI")


@pytest.mark.parametrize(
    ("nodelist", "host"), [("n1", "n1"), ("n1,n2", "n1"), ("gpu[03-05,9],x", "gpu03"), ("a,b[1-2]", "a")]
)
def test_the_first_host_of_a_slurm_list(nodelist, host):
    assert first_host(nodelist) == host


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "x", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {**TORCHRUN, "LOCAL_WORLD_SIZE": "0"},
        TORCHRUN,  # two nodes, and no word of where rank 0 is
    ],
)
def test_variables_that_cannot_be_are_one_clear_line(environment):
    with pytest.raises(UserError) as error:
        read_world(environment)
    assert "\n" not in str(error.value)


def test_gloo_is_told_of_loopback_only_where_the_host_is_unknown(monkeypatch):
    world = World(0, 2, 0, 2)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    assert gloo_interface({}, world) == {}

    def unknown(*_):
        raise OSError("Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert gloo_interface({}, world)["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert gloo_interface({"GLOO_SOCKET_IFNAME": "ib0"}, world) == {}
    assert gloo_interface({}, World(0, 2, 0, 1)) == {}
