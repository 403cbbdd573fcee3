"""Ranks find their place from what the launcher gave them."""

import pytest

from profiling.errors import UserError
from train.world import World, first_host, gloo_interface, read_world

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


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
                "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
                "SLURM_NTASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_JOB_ID": "7",
            },
            5, 8, 1, 4, "Slurm",
        ),
        # An interactive allocation's shell is no rank.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, 0, 1, 0, 1, "none"),
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
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "1",
             "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[7,9]"}  # fmt: skip
    ports = {read_world({**slurm, "SLURM_JOB_ID": str(job)}).rendezvous for job in (1, 2, 3)}
    assert len(ports) == 3 and all(port.startswith("tcp://n7:") for port in ports)


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
