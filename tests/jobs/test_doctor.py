"""What is here and how to get what is not, what cannot start, and what of a site file is not true."""

import ctypes
import re
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from jobs import doctor, machine
from jobs import site as site_checks
from jobs.doctor import examine, look_at_tau
from jobs.failures import explain
from jobs.launchers import LAUNCHERS
from jobs.launchers.base import Local
from jobs.machine import Machine
from jobs.run import BACKENDS, LOADERS, make_run
from jobs.site import Mpi, check_mpi, check_site, find_site, refuse
from profiling.errors import UserError
from profiling.tools import STARTED, TOOLS, Presence, Profiler, cupti, tool
from tests.analysis.commands import ROOT, run
from tests.builders import put_programs
from tests.jobs.scripted import HERE


def found_of(machine: Machine, name: str) -> Presence:
    return next(found for found in examine(machine) if found.name == name)


def test_what_is_missing_comes_with_what_to_do():
    found = examine(replace(HERE, has_dali=False))
    named = {each.name for each in found}
    assert named >= {"GPU", "torch", "nsys", "nvprof", "tau_exec", "cupti", "mpirun", "srun", "dali-cpu"}
    assert all(each.remedy for each in found if not each.present)
    of_command = {each["name"]: each for each in run("jobs.doctor", "--format", "json").json}
    assert of_command["torch"]["present"] and of_command["CPU"]["detail"]


def test_hidden_gpus_are_told_from_absent_ones():
    hidden = replace(HERE, driver="580.1")
    gpu = found_of(hidden, "GPU")
    assert not gpu.present and "CUDA_VISIBLE_DEVICES" in gpu.remedy
    node = replace(hidden, gpus=("NVIDIA H200",) * 4)
    assert found_of(node, "GPU").detail == "4 x NVIDIA H200 (driver 580.1)"


@pytest.mark.parametrize(("error", "present"), [(None, True), (UserError("needs an NVIDIA GPU"), False)])
def test_cupti_is_here_only_if_it_answers(monkeypatch, error, present):
    monkeypatch.setattr(cupti, "load_api", Mock(side_effect=error))
    finding = found_of(replace(HERE, gpus=("NVIDIA H200",)), "cupti")
    assert finding.present == present and bool(finding.remedy) != present


@pytest.mark.parametrize(
    ("name", "capability", "says"),
    [
        ("nsys", None, []), ("nvprof", None, ["records GPUs only"]),
        ("nvprof", (7, 5), []), ("nsys", (9, 0), []), ("ncu", (7, 0), []),
        ("ncu", (6, 1), ["6.1", "7.0"]), ("nvprof", (10, 0), ["10.0", "7.5"]),
    ],
)  # fmt: skip
def test_a_profiler_is_ready_where_it_has_something_to_record(tmp_path, monkeypatch, name, capability, says):
    put_programs(tmp_path, **{name: "echo 2025.5"})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_built_for", lambda: [])
    gpus = ("NVIDIA",) if capability else ()
    found = found_of(replace(HERE, gpus=gpus, capability=capability), name)
    assert found.present != bool(says) and all(word in found.remedy for word in says)


CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "built_for", "told"),
    [
        ((9, 0), CUDA_13, ""),
        ((8, 9), CUDA_13, ""),  # code for 8.6 runs on 8.9
        ((12, 1), CUDA_13, ""),
        ((13, 0), CUDA_13, ""),  # the driver compiles it
        ((7, 0), CUDA_13, "7.0.* sm_75, .*CUDA 12.6.*cuda120"),
        ((3, 5), CUDA_13, "--device cpu"),
        ((10, 0), ["sm_80", "sm_90"], "install a newer PyTorch"),
        ((9, 1), ["sm_90a"], "install a newer PyTorch"),
        ((9, 0), ["sm_90a"], ""),
        ((9, 0), [], ""),  # it does not say
    ],
)
def test_the_build_that_serves_a_gpu_is_named(monkeypatch, capability, built_for, told):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(doctor, "_built_for", lambda: built_for)
    monkeypatch.setattr(doctor, "versions", lambda: {"torch": "2.9.0"})
    found = {each.name: each for each in examine(replace(HERE, gpus=("Tesla",), capability=capability))}
    assert found["torch for GPU"].present is not bool(told)
    assert re.search(told, found["torch for GPU"].remedy)
    assert not found["torch's release"].present and "2.11" in found["torch's release"].remedy


def driver_of(gpus: int, error: int = 0) -> SimpleNamespace:
    """libcuda of a machine with so many GPUs."""

    def says(value):
        return lambda number, *_: setattr(number._obj, "value", value) or 0

    return SimpleNamespace(
        cuInit=lambda _: error, cuDriverGetVersion=says(12060), cuDeviceGetCount=says(gpus),
        cuDeviceGetName=lambda name, _, device: setattr(name, "value", f"Orin {device}".encode()) or 0,
        cuDeviceGetAttribute=lambda number, which, _: says({75: 8, 76: 7}[which])(number),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "seen"),
    [
        (driver_of(2), (("Orin 0", "Orin 1"), "for CUDA 12.6", (8, 7))),
        (driver_of(0), ((), "for CUDA 12.6", None)),
        (driver_of(2, error=100), ((), None, None)),
    ],
)
def test_the_driver_says_which_gpus_there_are(monkeypatch, tmp_path, driver, seen):
    """Ranks take them; a launcher that saw none would plan for a node of cores."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(machine, "_DRIVER", tmp_path / "version")
    assert machine._gpus() == seen
    (tmp_path / "version").write_text("580.95.05\n")  # known also where all GPUs are hidden
    assert machine._gpus() == (seen[0], "580.95.05", seen[2])


# tau_exec: it watches as long as what it was asked for is among its parts.
EXEC = """
case "$*" in
    *-tau-python-interpreter*) {python} ;;
    *) {alone} ;;
esac
"""
PROFILE = 'touch "$PROFILEDIR/profile.0.0.0"'
OTHER_PYTHON = "TAU Error: TAU was compiled against Python 3.11.2, but version 3.12.1 was used at runtime."
NO_PYTHON = (
    "Error: No matching binding for 'python mpi' in directory /opt/tau/lib\\nBinding not found. Exiting..."
)


@pytest.fixture
def put(tmp_path):
    """Programs that stand in for TAU's; the environment in which they are found."""

    def make(alone=PROFILE, python=PROFILE):
        program = EXEC.format(alone=alone, python=python)
        put_programs(tmp_path, tau_exec=program, tau_python=program)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return make


def test_a_tau_without_python_is_none_that_can_be_used(put):
    assert look_at_tau(put()).present and not look_at_tau({"PATH": "/nowhere"}).present
    assert not look_at_tau(put(alone="true")).present  # it writes nothing
    found = look_at_tau(put(alone=f'printf "{NO_PYTHON}"; exit 1'))
    assert not found.present and "No matching binding" in found.detail
    assert "profile_mode python" not in found.detail and "+python" in found.remedy


def test_a_tau_of_another_python_serves_in_all_modes_but_one(put):
    found = look_at_tau(put(python=f'echo "{OTHER_PYTHON}"; exit 255'))
    assert found.present and found.detail.endswith(f"profile_mode python: {OTHER_PYTHON}")


# --- what cannot start, and what of a site file is not true of this node, is said before a run ---------

FAILURES = ROOT / "tests/jobs/failures"  # what real launchers printed
INTERFACE = socket.if_nameindex()[0][1]
SITE = """
partition: gpu
gpus_per_node: {gpus}
modules: [cuda/12]
network: {{ib: {{interface: ib9, device: "mlx5_0,mlx5_1:1"}}, eth: {{interface: {interface}}}}}
data: {{data/imagenet: {here}, data/other: /no/such}}
scratch: {here}
mpi: {{hostfile: /no/hosts}}
container: {{runtime: apptainer, image: /no/image.sif}}
"""


@pytest.fixture
def environment(tmp_path, monkeypatch) -> dict[str, str]:
    """Of a node with Slurm, one InfiniBand card, and a site file for it."""
    nodes = "echo 'main*|4|2|(null)'; echo 'gpu|3|64|gpu:2'"
    put_programs(tmp_path, sinfo=nodes, sbatch="echo 'allocation failure: Nodes are busy' >&2; exit 1")
    (tmp_path / "cards" / "mlx5_1").mkdir(parents=True)
    monkeypatch.setattr(site_checks, "CARDS", tmp_path / "cards")
    site = tmp_path / "mine.yaml"
    site.write_text(SITE.format(gpus=2, interface=INTERFACE, here=tmp_path))
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "SCALEPROF_SITE": str(site)}


def checks(environment: dict[str, str]) -> dict[str, Presence]:
    return {check.name: check for check in check_site(environment)}


def test_what_the_site_file_says_is_compared_with_the_node(environment, tmp_path: Path):
    of = checks(environment)
    assert of["site file"].detail == f"{tmp_path}/mine.yaml"
    assert [int(word) for word in re.findall(r"\d+", of["partition"].detail)] == [3, 64, 2]
    absent = {check.name for check in check_site(environment) if not check.present}
    networks = {"network.ib.interface", "network.ib.device"}
    assert absent == {"modules", "data", "mpi.hostfile", "container.image", *networks}
    cards = [check for check in check_site(environment) if check.name == "network.ib.device"]
    assert [check.present for check in cards] == [False, True] and "mlx5_1" in cards[0].detail
    assert of["network.ib.interface"].detail.startswith(f"no ib9; here: {INTERFACE}")
    assert f"{tmp_path}/mine.yaml" in of["network.ib.interface"].remedy
    assert "/no/such" in of["data"].detail and "module" in of["modules"].detail
    assert all(check.remedy for check in of.values() if not check.present)


def test_a_way_to_meet_mpi_that_srun_lists_and_cannot_load_is_refused(environment, tmp_path):
    (tmp_path / "mine.yaml").write_text("mpi: {srun: pmix}")
    listed = (
        'case "$1" in --mpi=list) printf "MPI plugin types are...\\n\\tpmix\\n\\tpmi2\\n" >&2;; --mpi=pmix)'
    )
    put_programs(tmp_path, srun=f"{listed} cat {FAILURES}/srun_no_pmix.txt >&2; exit 1;; esac")
    found = checks(environment)["mpi.srun"]
    why = "pmi/pmix: can not load PMIx library (Invalid MPI type 'pmix')"
    assert not found.present and found.required and found.detail.startswith(f"srun --mpi=pmix: {why}")
    assert "`mpi.srun`" in found.remedy
    site = find_site(None, environment)
    with pytest.raises(UserError, match=re.escape(f"srun --mpi=pmix: {why}; correct `mpi.srun` in ")):
        refuse(check_mpi(site, environment))
    refuse(check_mpi(site.model_copy(update={"mpi": Mpi(srun="pmi2")}), environment))
    failure = explain(1, "srun ended with exit code 1", (FAILURES / "srun_no_pmix.txt").read_text())
    assert failure.reason.startswith(why) and "`mpi.srun`" in failure.reason


def test_a_cluster_without_a_site_file_is_named_and_a_laptop_has_nothing_to_check(
    environment, root, monkeypatch
):
    monkeypatch.chdir(root)
    (missing,) = check_site({"PATH": "/bin", "SLURM_CLUSTER_NAME": "elsewhere"})
    assert "example.yaml" in missing.remedy
    assert check_site({"PATH": "/nowhere"}) == []
    (unnamed,) = check_site({"PATH": "/nowhere", "SLURM_JOB_ID": "7"})
    assert not unnamed.present
    (wrong,) = check_site({**environment, "SCALEPROF_SITE": "virtul"})
    assert not wrong.present and "'virtual'" in wrong.remedy


def test_what_is_wrong_on_a_compute_node_is_an_error_and_what_a_login_node_lacks_is_not(environment):
    wrong = [check for check in check_site({**environment, "SLURMD_NODENAME": "n1"}) if not check.present]
    assert wrong and all(check.required for check in wrong)
    assert not any("srun" in check.remedy for check in wrong)
    lacking = [check for check in check_site(environment) if not check.present]
    assert len(lacking) == len(wrong) and not any(check.required for check in lacking)
    assert all("--partition=gpu" in check.remedy for check in lacking)


@pytest.mark.parametrize(
    ("gpus", "values", "says"),
    [
        (0, {"nodes": 2}, "2 nodes requested"),
        (0, {"device": "gpu"}, "no usable GPU"),
        (0, {"loader": "dali-gpu"}, "needs a GPU, and this machine has none; on a CPU use dali-cpu"),
        (0, {"loader": "dali-cpu"}, "needs data: a folder"),
        (0, {"loader": "pytorch"}, "needs data: a folder"),
        (0, {"graph": True}, "graph true needs a GPU, and this machine has none; use graph false"),
        (1, {"graph": True}, None),
        (0, {"gpus_per_node": 3}, "2 CPU cores"),
        (0, {"profile": "nvprof"}, "records GPU activity only, and this run computes on the CPU"),
        (1, {"profile": "ncu", "device": "cpu"}, "profile ncu records GPU activity only"),
        (1, {"profile": "nvprof"}, None),
        (0, {"profile": "nsys"}, None),
        (1, {"gpus_per_node": 2}, "this machine has 1"),
        (2, {"gpus_per_node": 2, "profile": "ncu"}, "a collective of 2 ranks would never end: use one rank"),
        (1, {"gpus_per_node": 2, "device": "cpu"}, None),
        (1, {"loader": "dali-gpu", "data": "."}, None),
    ],
)
def test_the_local_launcher_says_why_it_cannot(gpus, values, says, tmp_path, monkeypatch):
    for name in ("nsys", "nvprof", "ncu"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = replace(HERE, gpus=("NVIDIA H200",) * gpus)
    launcher, run = Local(machine), make_run(values)
    assert says in launcher.why_not(run) if says else not launcher.why_not(run)
    if "loader" in values and values["loader"] != "pytorch":
        launcher = Local(replace(machine, has_dali=False))
        assert any("needs NVIDIA DALI, not installed: pip" in why for why in launcher.reasons_against(run))


def test_the_docs_have_a_line_for_each_choice(root: Path) -> None:
    shown = {"profilers.md": {*TOOLS, *LOADERS} - {"none"}, "cluster.md": {*LAUNCHERS, *BACKENDS}}
    for page, names in shown.items():
        text = (root / "docs" / page).read_text()
        assert names <= set(re.findall(r"^\| \(?`([\w-]+)`", text, re.MULTILINE))


def test_a_profiler_that_is_started_says_how() -> None:
    for name in TOOLS:
        profiler = tool(name)
        in_process = type(profiler).open_capture is not Profiler.open_capture
        assert (name in STARTED) == (profiler.wraps or in_process or name == "none"), name
