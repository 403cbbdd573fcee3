"""A site file says what is true of a cluster; a wrong one is one line that names the right word."""

import os
import subprocess

import pytest

from jobs.execute import Result
from jobs.run import LINK, make_run
from jobs.site import (
    NO_SITE,
    SITES,
    Network,
    Networks,
    Site,
    check_modules,
    find_site,
    network_environment,
    read_site,
    refuse,
    sbatch_words,
    shell_commands,
)
from jobs.sweep import at_site
from jobs.sweep_file import read_sweep
from profiling.errors import UserError
from tests.analysis.commands import Ran, run
from tests.builders import put_programs


@pytest.mark.parametrize("path", sorted(SITES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_sites_we_ship_are_whole(path):
    assert read_site(path).name == path.stem


def test_the_example_uses_and_so_explains_every_key():
    text = (SITES / "example.yaml").read_text()
    site = read_site(SITES / "example.yaml")
    for part in (site, site.network.ib, site.mpi):
        for key in type(part).model_fields:
            assert key == "name" or f"{key}:" in text


def test_a_site_is_found_by_name_by_variable_by_file_and_by_its_cluster(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("partition: fast")
    assert find_site("virtual", {}).cluster == "virtual"
    assert find_site(None, {"SCALEPROF_SITE": "virtual"}).name == "virtual"
    assert find_site(str(own), {"SCALEPROF_SITE": "virtual"}).partition == "fast"
    assert find_site(None, {"SLURM_CLUSTER_NAME": "virtual"}).name == "virtual"
    assert find_site(None, {"SLURM_CLUSTER_NAME": "elsewhere"}).name == "none"
    with pytest.raises(UserError, match="no site 'virtul'; did you mean 'virtual'"):
        find_site("virtul", {})


def test_the_settings_of_a_site_file_are_printed(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("partition: gpu\nmodules: [2024]\nnetwork: {ib: {interface: ib0}}\nscratch: /tmp")
    answer = run("jobs.site", path)
    first, *rest = answer.out.splitlines()
    assert (answer.code, answer.err, first) == (0, "", f"# {path}")
    assert rest == [
        "modules:", "- '2024'", "partition: gpu", "network:", "  ib:", "    interface: ib0", "scratch: /tmp",
    ]  # fmt: skip
    answer = run("jobs.site")
    assert answer.code == 0 and answer.out == f"# site file: {NO_SITE}\n"


@pytest.fixture
def mine(tmp_path):
    """Reads a site file of such content, ``mine.yaml``."""

    def read(text: str) -> Site:
        (tmp_path / "mine.yaml").write_text(text)
        return read_site(tmp_path / "mine.yaml")

    return read


def bash(*commands: str, **environment: str) -> subprocess.CompletedProcess:
    words = ["bash", "-c", "\n".join(commands)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def test_modules_are_loaded_and_variables_set_unless_the_user_has(tmp_path, mine):
    module = "module() { echo loaded $*; [[ $3 != absent ]]; };"
    assert bash(module, *shell_commands(mine("modules: [2024, x]"))).stdout == "loaded load 2024 x\n"
    absent = shell_commands(mine("modules: [2024, absent]"))
    for answer in (bash(module, *absent), bash(*absent)):
        assert answer.returncode == 2 and f"error: {tmp_path}/mine.yaml: `modules`" in answer.stderr
    variables = shell_commands(mine("""environment: {MINE: 'a "b" $c `d` \\e }', YOURS: 1}"""))
    assert bash(*variables, 'printf "%s|%s" "$MINE" "$YOURS"', YOURS="2").stdout == 'a "b" $c `d` \\e }|2'


def test_modules_that_are_not_there_are_known_before_the_first_run(mine):
    path = {"PATH": os.environ["PATH"]}
    with pytest.raises(UserError, match=r"cuda/12 cannot be loaded: .*module.*`modules`"):
        refuse(check_modules(mine("modules: [cuda/12]"), path))
    # As environment modules export it to the shells of a login.
    function = {**path, "BASH_FUNC_module%%": "() { echo no module $2 >&2; [ $2 = gcc ]; }"}
    with pytest.raises(UserError, match="cuda/12 cannot be loaded: no module cuda/12"):
        refuse(check_modules(mine("modules: [cuda/12]"), function))
    refuse(check_modules(mine("modules: [gcc]"), function))
    assert not list(check_modules(Site(), {}))


def test_two_site_files_for_one_cluster_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.site.SITES", tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("cluster: mine")
    with pytest.raises(UserError, match=r"the cluster 'mine' \(.*a\.yaml, .*b\.yaml\); set SCALEPROF_SITE"):
        find_site(None, {"SLURM_CLUSTER_NAME": "mine"})
    assert find_site("b", {"SLURM_CLUSTER_NAME": "mine"}).file == tmp_path / "b.yaml"


def test_what_sbatch_is_told(mine):
    assert sbatch_words(mine("reservation: tests\nqos: high")) == ["--qos=high", "--reservation=tests"]
    words = sbatch_words(find_site("example", {}))
    assert words == ["--partition=gpu", "--account=my-project", "--exclusive"]


def test_data_are_where_the_site_has_them(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("run: {loader: pytorch, data: [data/imagenet, data/demo]}")
    sweep = at_site(read_sweep(path), find_site("example", {}))
    assert sweep.run["data"] == ["/project/imagenet/tfrecord", "data/demo"]
    path.write_text("run: {loader: pytorch, data: data/imagenet}")
    assert at_site(read_sweep(path), find_site("example", {})).run["data"] == "/project/imagenet/tfrecord"


def test_a_networks_variables_are_the_users_first_and_one_node_has_none():
    """What they are, golden files of launchers say."""
    site = find_site("example", {})
    ib = network_environment(make_run({"nodes": 2, "network": "IB"}), site, {})
    fast = site.model_copy(update={"network": Networks(ib=Network(gbit_per_s=200))})
    assert network_environment(make_run({"nodes": 2, "network": "ib"}), fast, {})[LINK] == "200"
    set_by_user = {"NCCL_IB_DISABLE": "1", "NCCL_IB_TIMEOUT": "18"}
    left = network_environment(make_run({"nodes": 2, "network": "ib"}), site, set_by_user)
    assert left.keys() == ib.keys() - set_by_user.keys() and ib.keys() > set_by_user.keys()
    assert network_environment(make_run({"network": "ib"}), site, {}) == {}


def test_the_site_file_in_use_is_named_and_its_network_holds_before_anything_runs(
    tmp_path, root, monkeypatch
):
    monkeypatch.chdir(root)
    (tmp_path / "s.yaml").write_text("run: {batches: 1, network: [eth, ib]}")
    dry_run = ("jobs.sweep", tmp_path / "s.yaml", "--dry-run")
    answer = run(*dry_run, "--site", "virtual", "--only", "network=eth")
    assert answer.code == 0 and "jobs/sites/virtual.yaml" in answer.err.splitlines()[0]
    answer = run(*dry_run, "--site", "virtual")
    assert answer.code == 2 and "network ib" in answer.err
    assert "site file:" not in run(*dry_run).err
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "elsewhere")
    assert run(*dry_run).err.splitlines()[0] == f"site file: {NO_SITE}"


@pytest.fixture
def in_job(tmp_path, monkeypatch):
    """Runs a sweep of one and two nodes in a job of Slurm on such nodes, at a site of such a file."""
    put_programs(tmp_path, srun="exit 1")
    monkeypatch.setattr("jobs.sweep.run_sweep", lambda *given: Result())

    def sweep(site: str, nodes: str, *words: str) -> Ran:
        (tmp_path / "here.yaml").write_text(site)
        (tmp_path / "s.yaml").write_text("run: {nodes: [1, 2], batch: [2, 4], batches: 3}")
        job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes, "PATH": f"{tmp_path}:/usr/bin:/bin"}
        for name, value in job.items():
            monkeypatch.setenv(name, value)
        at = ["--out", tmp_path, "--site", tmp_path / "here.yaml"]
        return run("jobs.sweep", tmp_path / "s.yaml", "--launcher=slurm", *at, *words)

    return sweep


def test_a_job_on_a_node_without_the_scratch_folder_ends_in_a_line_and_makes_none(
    tmp_path, in_job, monkeypatch
):
    scratch = f"scratch: {tmp_path}/none"
    assert in_job(scratch, "n1").code == 0  # in a shell of salloc, on the login node
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    answer = in_job(scratch, "n1")
    assert answer.code == 2 and not (tmp_path / "none").exists()
    said = answer.err.splitlines()[-1]
    assert f"scratch {tmp_path}/none" in said and said.endswith(f"{tmp_path}/here.yaml")
    assert in_job(scratch, "n[1-2]", "--dry-run").code == 0


@pytest.mark.parametrize(("nodes", "code"), [("n[1-2]", 2), ("n1", 0)])
def test_a_job_on_a_node_without_the_interface_ends_in_a_line_before_its_first_run(
    tmp_path, in_job, monkeypatch, nodes, code
):
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    answer = in_job("network: {eth: {interface: nope0}}", nodes)
    assert answer.code == code  # an allocation of one node uses no network
    errors = [line.partition("; correct ")[2] for line in answer.err.splitlines() if "error" in line]
    assert errors == [f"`network.eth.interface` in {tmp_path}/here.yaml"] * (code == 2)
