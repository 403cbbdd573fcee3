"""A process finds its place from what the launcher gave it, whatever the launcher."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.errors import UserError
from profiling.identity import Identity, check_mpi, expand_counts, expand_nodes, read_identity

# Rank 5 of 8: the second of four on the second of two nodes. As each launcher says it.
_MPI = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")


def says(*names: str) -> dict[str, str]:
    """Variables for rank, size, local rank and local size."""
    return dict(zip(names, ("5", "8", "1", "4"), strict=False))


TORCHRUN = says("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
OPEN_MPI, MVAPICH = (says(*(f"{start}_COMM_WORLD_{name}" for name in _MPI)) for start in ("OMPI", "MV2"))
PMI, PALS = says("PMI_RANK", "PMI_SIZE"), says(*(f"PMI_{name}" for name in _MPI))
FLUX = says("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID")
# Of MPICH's and Intel MPI's mpirun (hydra).
HYDRA = says("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
SRUN = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7",
}  # fmt: skip
# In an allocation mpirun starts its daemons by srun, one per node: their ranks inherit that step's variables.
DAEMON = {
    **SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip
MATRIX = {
    "torchrun": (TORCHRUN, "torchrun"),
    "torchrun on each node by srun": ({**DAEMON, **TORCHRUN}, "torchrun"),
    "Open MPI": (OPEN_MPI, "Open MPI"),
    "Open MPI inside srun": ({**DAEMON, **OPEN_MPI}, "Open MPI"),
    "MVAPICH": ({**MVAPICH, **HYDRA}, "MVAPICH"),
    "MVAPICH inside srun": ({**DAEMON, **MVAPICH, **HYDRA}, "MVAPICH"),
    "MPICH, Intel MPI": (HYDRA, "MPICH"),
    "MPICH, Intel MPI inside srun": ({**DAEMON, **HYDRA}, "MPICH"),
    "srun": (SRUN, "Slurm"),
    "jsrun": ({**says(*(f"JSM_NAMESPACE_{name}" for name in _MPI)), "PMIX_RANK": "5"}, "jsrun"),
    "flux run": ({**PMI, **FLUX, "FLUX_JOB_NNODES": "2"}, "Flux"),
    "mpiexec of PALS": ({**PALS, "PALS_RANKID": "5"}, "PALS"),
    "srun --mpi=cray_shasta": ({**SRUN, **PALS}, "Slurm"),
    "srun --mpi=pmi2": ({**SRUN, **PMI}, "Slurm"),
}


@pytest.mark.parametrize("case", MATRIX)
def test_every_launcher_says_the_same(case):
    environment, launcher = MATRIX[case]
    assert read_identity(environment) == Identity(5, 8, 1, 4, launcher)


@pytest.mark.parametrize(("node", "local_size"), [("0", 2), ("1", 2), ("2", 1)])
def test_nodes_may_have_different_numbers_of_tasks(node, local_size):
    uneven = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "5",
              "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}  # fmt: skip
    assert read_identity({**uneven, "SLURM_NODEID": node}).local_size == local_size


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "x", "WORLD_SIZE": "4"},
        {"RANK": "²", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
        {"PMI_RANK": "0", "PMI_SIZE": "many"},
        PMI,  # on which node each is, is not known
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"ALPS_APP_PE": "3"},
        {"PMIX_RANK": "0"},
        {"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"},
        {**TORCHRUN, "LOCAL_WORLD_SIZE": "0"},
    ],
)
def test_variables_that_cannot_be_are_one_clear_line(environment):
    with pytest.raises(UserError) as error:
        read_identity(environment)
    assert "\n" not in str(error.value)


def test_a_library_of_another_mpi_is_named():
    with pytest.raises(UserError, match=r"mpi4py \(MPICH 4\) sees 1 of the 4 ranks that Open MPI started"):
        check_mpi(1, 4, "mpi4py (MPICH 4)", "Open MPI")
    check_mpi(4, 4, "mpi4py", "Open MPI")


# --- Slurm's shorthand for nodes ------------------------------------------------------------------------


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


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.integers(1, 5))
def test_numbers_keep_their_zeros(numbers, width):
    text = "n[" + ",".join(f"{number:0{width}d}" for number in numbers) + "]"
    assert expand_nodes(text) == [f"n{number:0{width}d}" for number in numbers]
