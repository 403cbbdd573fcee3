"""What each launcher is told to do, and why it says it cannot.

Each golden file holds a launcher's whole answer: its variables, then its arguments, a word a line. Options
may come in any order, the words of the command may not.
"""

import shlex
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from jobs import ROOT
from jobs.launchers import LAUNCHERS
from jobs.launchers.base import Local
from jobs.launchers.flux import Flux
from jobs.launchers.jsrun import Jsrun
from jobs.launchers.mpirun import KINDS, Mpirun, kind_of
from jobs.launchers.slurm import Slurm
from jobs.machine import (
    Allocation,
    Machine,
    Partition,
    cluster_name,
    gpus_per_node,
    partition,
    read_allocation,
    read_hostfile,
)
from jobs.run import make_run
from jobs.site import Site, find_site
from profiling.errors import UserError
from tests.builders import put_programs

GOLDEN = Path(__file__).parent / "golden"
NODE = Machine("n1", "os", "cpu", 16, 1, ("Tesla K40m",) * 2, None, has_dali=True)
CPU_NODE = replace(NODE, gpus=())
MAIN = Partition("main", nodes=4, cpus=16, gpus=0)
FOUR = Allocation("7", ("n1", "n2", "n3", "n4"), 16, nodes_at_start=4)
OF_PBS = replace(FOUR, cpus=0, slurm=False)
USER = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "ib7", "PATH": "/bin", "AWS_SECRET": "x"}
USER["SLURM_JOB_ID"] = "7"
COMMAND = ["/venv/bin/python", "-m", "train", "--data", "a folder"]
STARTS = (COMMAND[0], "apptainer", "singularity", "python")  # the command's first word, in a container or not
EXAMPLE = find_site("example", {}).model_copy(update={"gpus_per_node": None})


def mpirun(kind: str, **other) -> Mpirun:
    parts = {"site": EXAMPLE, "allocation": FOUR, "machine": CPU_NODE, "environment": USER}
    return Mpirun(kind=kind, **{**parts, **other})


def in_container(runtime: str, image: str = "a.sif") -> Site:
    box = {"runtime": runtime, "image": image, "binds": ["/scratch", "/data:/in"]}
    return Site.model_validate({"container": box if runtime == "pyxis" else {**box, "python": "python3"}})


LEFT = FOUR.less({"n1", "n3"})
ON_IB = {"nodes": 2, "gpus_per_node": 2, "network": "ib"}
LAUNCHES = {
    "local": (Local(CPU_NODE), {"gpus_per_node": 2}),
    "slurm": (Slurm(EXAMPLE, FOUR, NODE, USER), ON_IB),
    "slurm_dp": (Slurm(EXAMPLE, FOUR, NODE, USER), {"gpus_per_node": 2, "backend": "dp"}),
    "slurm_cpu": (Slurm(Site(), FOUR, CPU_NODE, {}), {"nodes": 4, "gpus_per_node": 2, "threads": 3}),
    "open_mpi_4": (mpirun("Open MPI 4", root=True), ON_IB),
    "open_mpi_5": (mpirun("Open MPI 5", hosts=("a", "b", "c"), allocation=None), {**ON_IB, "network": "eth"}),
    "mpich": (mpirun("MPICH"), ON_IB),
    "intel_mpi": (mpirun("Intel MPI"), ON_IB),
    "pals": (mpirun("PALS", allocation=OF_PBS, mpirun="/opt/cray/pals/bin/mpiexec"), ON_IB),
    "jsrun": (Jsrun(find_site("summit", {}), replace(FOUR, cpus=42, slurm=False), NODE, USER), ON_IB),
    "flux": (Flux(EXAMPLE, OF_PBS, CPU_NODE, USER), ON_IB),
    "slurm_left_out": (Slurm(Site(), LEFT, CPU_NODE), {"nodes": 2}),
    "mpich_left_out": (mpirun("MPICH", allocation=LEFT), {"nodes": 2}),
    "slurm_apptainer": (Slurm(in_container("apptainer"), FOUR, NODE), {}),
    "slurm_pyxis": (Slurm(in_container("pyxis", "nvcr.io#nvidia/pytorch:26.10"), FOUR, NODE), {}),
    "mpich_singularity": (mpirun("MPICH", site=in_container("singularity"), machine=NODE), {}),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launcher_is_told_which_variables_options_and_command(name):
    launcher, values = LAUNCHES[name]
    assert not launcher.why_not(make_run(values))
    process = launcher.processes(make_run(values), COMMAND, Path("/results/x"))[0]
    variables, _, argv = (GOLDEN / f"{name}.txt").read_text().replace("=ROOT", f"={ROOT}").partition("\n\n")
    assert process.environment == dict(line.split("=", 1) for line in variables.splitlines())
    assert as_told(process.argv) == as_told(shlex.split(argv))


def as_told(argv: list[str]) -> tuple[list[str], list[list[str]], list[str]]:
    """What counts of the words: the launcher, its options with their values in any order, the command."""
    command = next(place for place, word in enumerate(argv) if word in STARTS)
    first = next((place for place, word in enumerate(argv[:command]) if word.startswith("-")), command)
    own = argv[:first]
    options: list[list[str]] = []
    for word in argv[first:command]:
        if word.startswith("-"):
            options.append([word])
        else:
            options[-1].append(word)
    return own, sorted(options), argv[command:]


def test_every_launcher_has_a_golden_file():
    told = {launcher.name for launcher, _ in LAUNCHES.values()}
    kinds = {launcher.kind for launcher, _ in LAUNCHES.values() if isinstance(launcher, Mpirun)}
    assert told == set(LAUNCHERS) and kinds == set(KINDS.values())


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("mpirun (Open MPI) 5.0.11 Report bugs to https://www.open-mpi.org/community/help/", "Open MPI 5"),
        ("mpirun (Open MPI) 4.1.8 Report bugs to http://www.open-mpi.org/community/help/", "Open MPI 4"),
        ("HYDRA build details: Version: 5.0.2 Release Date: Fri Sep 25", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)", "Intel MPI"),
        ("mpiexec version 1.8.0 revision 8b0a0fc", "PALS"),
        ("mpirun: a wrapper of ours", None),
    ],
)  # fmt: skip
def test_the_kind_of_mpi_is_told_by_what_it_says_of_itself(version, kind):
    assert kind_of(version) == kind


@pytest.mark.parametrize("launcher", [Slurm(Site(), replace(FOUR, cpus=32), CPU_NODE), mpirun("MPICH",
    allocation=replace(FOUR, cpus=32))])  # fmt: skip
def test_a_node_has_the_cores_that_the_batch_system_counts(launcher):
    assert not launcher.why_not(make_run({"nodes": 4, "gpus_per_node": 32}))
    assert launcher.why_not(make_run({"nodes": 4, "gpus_per_node": 33}))


@pytest.mark.parametrize("launcher", [Slurm(Site(), FOUR, CPU_NODE), mpirun("MPICH")])
def test_nodes_that_slurm_has_taken_are_gone(launcher, monkeypatch):
    monkeypatch.setattr("jobs.machine._answer", lambda words, _: "n[1,3]" if "--jobs=7" in words else "")
    assert launcher.refreshed().nodes == ("n1", "n3")
    monkeypatch.setattr("jobs.machine._answer", lambda *_: "")  # it does not say
    assert launcher.refreshed().nodes == FOUR.nodes
    alone = replace(launcher, allocation=None)
    assert alone.refreshed() == alone


@pytest.mark.parametrize(
    ("launcher", "values", "says"),
    [
        (Slurm(Site(), FOUR, NODE, has_program=False), {}, "no srun on the PATH"),
        (Slurm(Site(), None, NODE), {}, "runs in an allocation: sbatch"),
        (Slurm(Site(), FOUR, NODE), {"nodes": 5}, "5 nodes requested, but the allocation has 4"),
        (Slurm(Site(), FOUR.less({"n2"}), NODE), {"nodes": 4}, "(1 left out)"),
        (Slurm(Site(), replace(FOUR, cpus=1), CPU_NODE, node_cpus=16), {"gpus_per_node": 2},
             "the job has 1 of 16 CPUs; submit with --exclusive"),
        (Slurm(Site(), replace(FOUR, cpus=2), CPU_NODE, node_cpus=2), {"gpus_per_node": 4},
             "4 ranks per node requested, but a node has 2 CPUs: set gpus_per_node to at most 2"),
        (Slurm(Site(), None, CPU_NODE, partition=MAIN), {"nodes": 5},
             "5 nodes requested, but the partition main has 4"),
        (Slurm(Site(), None, CPU_NODE, partition=MAIN), {"device": "gpu"},
             "a node of partition main has no usable GPU"),
        (Slurm(Site(gpus_per_node=2, name="mine"), None, NODE, gpus_per_node=0, partition=MAIN),
             {"gpus_per_node": 2}, "the partition main has 0: correct gpus_per_node in"),
        (Slurm(Site(gpus_per_node=1, name="mine"), FOUR, NODE), {"gpus_per_node": 2},
             "2 GPUs per node requested, but mine says gpus_per_node: 1"),
            (Slurm(Site(gpus_per_node=2, name="mine"), FOUR, NODE, gpus_per_node=0), {"gpus_per_node": 2},
             "has 0: correct gpus_per_node in mine, or submit with --gpus-per-node=2"),
        (Mpirun(Site(), FOUR, NODE), {}, "no mpirun on the PATH"),
        (Mpirun(Site(), FOUR, NODE, version="mpirun 9 of nobody"), {},
             "unrecognised MPI, mpirun --version says: 'mpirun 9 of"),
        (Flux(Site(), None, NODE), {}, "launcher flux runs in a job: python -m jobs.submit"),
        (Jsrun(Site(), FOUR, NODE, has_program=False), {}, "launcher jsrun: no jsrun on the PATH"),
        (Jsrun(Site(), OF_PBS, NODE), {"nodes": 5}, "5 nodes requested, but there are 4"),
        (mpirun("MPICH"), {"nodes": 8}, "but there are 4"),
        (mpirun("MPICH", allocation=None), {"nodes": 2}, "but there are 1"),
        (mpirun("MPICH", hosts=("a",), site=Site.model_validate({"mpi": {"hostfile": "h.txt"}})),
         {"nodes": 2}, "2 nodes requested, but there are 1"),
    ],
)  # fmt: skip
def test_a_launcher_says_why_it_cannot(launcher, values, says):
    assert says in launcher.why_not(make_run(values))


def test_outside_a_job_a_plan_is_that_of_the_sites_partition(tmp_path):
    put_programs(tmp_path, sinfo="echo 'main*|4|2|(null)'\necho 'gpu|2|64|gpu:2'")
    on_login_node = {"PATH": f"{tmp_path}:/bin"}
    gpu = Slurm(Site(partition="gpu"), None, CPU_NODE, on_login_node).planned()
    assert (gpu.machine.cores, len(gpu.machine.gpus), gpu.gpus_per_node) == (64, 2, 2)
    assert not gpu.why_not(make_run({"nodes": 2, "gpus_per_node": 2, "loader": "dali-gpu", "data": "."}))
    argv = gpu.processes(make_run({"nodes": 2}), COMMAND, Path("x"))[0].argv
    assert "--nodes=2" in argv and not any(word.startswith("--nodelist") for word in argv)
    held = Slurm(Site(), FOUR, NODE, on_login_node)
    assert held.planned() == held


def test_a_hostfile_gives_each_host_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "aux"))
    assert Site.model_validate({"mpi": {"hostfile": "$PBS_NODEFILE"}}).mpi.hostfile == tmp_path / "aux"
    path = tmp_path / "hosts"
    path.write_text("# ours\nn1 slots=2\nn2:4\n\nn1\nn3  # slow\n")
    assert read_hostfile(path, "x") == ["n1", "n2", "n1", "n3"]
    path.write_text("# nothing\n")
    with pytest.raises(UserError, match="names no host"):
        read_hostfile(path, "x")
    path.write_text("n1\nn2\nn1\n")
    own = Site.model_validate({"mpi": {"hostfile": str(path)}})
    assert Mpirun.open(own, {"PATH": "/nowhere"}).nodes == ("n1", "n2")
    path.unlink()
    with pytest.raises(UserError, match=r"`mpi\.hostfile` .* cannot be read: .*No such file"):
        Mpirun.open(own, {"PATH": "/nowhere"})


def test_a_job_of_slurm_knows_its_nodes_and_cores():
    environment = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8",
        "SLURM_RESTART_COUNT": "2",
    }  # fmt: skip
    assert read_allocation(environment) == Allocation("7", ("n1", "n2", "n3"), 16, nodes_at_start=3)
    assert read_allocation({}) is None


def test_a_job_of_pbs_lsf_or_flux_knows_its_nodes_and_cores(tmp_path):
    path = tmp_path / "aux"
    path.write_text("n1.hsn\nn1.hsn\nn2.hsn\n")  # mpiprocs=2
    of_pbs = read_allocation({"PBS_JOBID": "7.pbs01", "PBS_NODEFILE": str(path)})
    assert of_pbs == Allocation("7.pbs01", ("n1.hsn", "n2.hsn"), 0, 2, slurm=False)
    assert of_pbs.lost() == frozenset() and read_allocation({"PBS_JOBID": "7.pbs01"}) is None
    path.write_text("batch4\n" + "h36n04\n" * 42 + "h36n05\n" * 42)
    of_lsf = read_allocation({"LSB_JOBID": "8", "LSB_DJOB_HOSTFILE": str(path)})
    assert of_lsf == Allocation("8", ("h36n04", "h36n05"), 42, 2, slurm=False)
    put_programs(tmp_path, flux="echo 't[3,5-6] 288'")
    of_flux = read_allocation({"FLUX_ENCLOSING_ID": "f7", "PATH": f"{tmp_path}:/bin"})
    assert of_flux == Allocation("f7", ("t3", "t5", "t6"), 96, 3, slurm=False)
    assert not Jsrun(Site(), of_lsf, NODE).without(frozenset({"h36n04"})).why_not(make_run({"nodes": 2}))


def test_the_doctor_sees_the_mpirun_that_the_launcher_takes(monkeypatch, tmp_path):
    put_programs(tmp_path, mpirun="echo 'mpirun (Open MPI) 5.0.11'")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")  # /bin may have one
    seen = Mpirun.presence()
    assert (seen.name, seen.present, seen.detail) == ("mpirun", True, "mpirun (Open MPI) 5.0.11")
    path = tmp_path / "pbs"
    path.mkdir()
    put_programs(path, mpiexec="echo 'pbs_version = 23.06.06'")  # for SGI's MPI alone
    assert Mpirun.open(Site(), {"PATH": str(path)}).mpirun == str(tmp_path / "mpirun")
    (tmp_path / "mpirun").unlink()
    assert not Mpirun.presence().present
    assert "pbs_version" in Mpirun.open(Site(), {"PATH": str(path)}).why_not(make_run({}))


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=", 0),
        ("Nodes=n1 CPU_IDs=0-7 Mem=0 GRES=gpu:4(IDX:0-3)", 4),
        ("Nodes=n1 CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0-1),shard:8", 2),
        ("Nodes=n1 CPU_IDs=0-7 Mem=0 GRES=gpu:1g.5gb:3(IDX:0-2),gpu:2g:1(IDX:3)", 4),
        ("Nodes=n1 CPU_IDs=0 GRES=gpu:4(IDX:0-3)\n     Nodes=n2 CPU_IDs=0 GRES=gpu:2(IDX:0-1)", 2),
        ("NumNodes=2 NumCPUs=2", None),
    ],
)
def test_the_gpus_of_a_job_are_those_of_its_poorest_node(line, gpus, monkeypatch):
    answer = CompletedProcess([], 0, f"   JOB_GRES=x\n     {line}\n   MinCPUsNode=1\n", "")
    monkeypatch.setattr("jobs.machine.ask", lambda *_: answer)
    assert gpus_per_node("7") == gpus


# --- what Slurm says of its cluster, also on login nodes, where no job's variables are ------------------

ROWS = "main*|4|2|(null)\ngpu|2|64|gpu:a100:4(S:0-1),shard:8\ngpu|1|128|gpu:h100:2\n"


@pytest.fixture
def slurm(tmp_path) -> dict[str, str]:
    """The environment of a login node of the cluster `virtual`, whose Slurm prints ROWS."""
    config = "Configuration data\nClusterName   = virtual\n"
    put_programs(tmp_path, scontrol=f"printf '%s' '{config}'", sinfo=f"printf '%s' '{ROWS}'")
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_a_login_node_knows_its_cluster_and_the_nodes_of_a_partition_of_which_the_largest_is_taken(slurm):
    assert cluster_name({"SLURM_CLUSTER_NAME": "of-the-job"}) == "of-the-job"
    assert cluster_name(slurm) == "virtual" and find_site(None, slurm).partition == "main"
    assert partition(None, slurm) == Partition("main", nodes=4, cpus=2, gpus=0)
    assert partition("gpu", slurm) == Partition("gpu", nodes=3, cpus=128, gpus=4)
    # Of several a job may get the best.
    assert partition("main,gpu", slurm) == Partition("main,gpu", nodes=4, cpus=128, gpus=4)


def test_without_an_answer_there_is_no_cluster(tmp_path):
    assert cluster_name({"PATH": str(tmp_path)}) is None
    put_programs(tmp_path, scontrol="echo 'slurm_load: Unable to contact' >&2; exit 1")
    assert cluster_name({"PATH": str(tmp_path)}) is None


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
