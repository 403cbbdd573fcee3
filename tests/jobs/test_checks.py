"""What cannot start, and what of a site file is not true of this node, is said before a run."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from jobs import checks as site_checks
from jobs.checks import check_mpi, check_site, refuse
from jobs.failures import explain
from jobs.launchers import LAUNCHERS
from jobs.launchers.base import Local
from jobs.loaders import LOADERS
from jobs.run import BACKENDS, make_run
from jobs.site import Mpi, find_site
from profiling.errors import UserError
from profiling.presence import Presence
from profiling.tools import STARTED, TOOLS, tool
from profiling.tools.base import Profiler
from tests.analysis.commands import ROOT
from tests.builders import put_programs
from tests.jobs.scripted import HERE

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


def test_more_gpus_than_the_partition_has_are_named(environment, tmp_path):
    (tmp_path / "mine.yaml").write_text(SITE.format(gpus=4, interface=INTERFACE, here=tmp_path))
    gpus = checks(environment)["gpus_per_node"]
    assert gpus.required and gpus.detail == "4; in gpu: 2"
    assert "`gpus_per_node`" in gpus.remedy
    (tmp_path / "mine.yaml").write_text("partition: gpux")
    partition = checks(environment)["partition"]
    assert not partition.present and partition.required


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
    on_node = {**environment, "SLURMD_NODENAME": "n1"}
    wrong = [check for check in check_site(on_node) if not check.present]
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
        launcher = Local(replace(machine, libraries=frozenset()))
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
