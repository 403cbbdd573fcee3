"""What may happen to a sweep in a night on a cluster; each time the state afterwards is right.

Ranks train nothing here (tests/cluster/scripted); all else is real: Slurm, its nodes, what kills them, the
batch script. What happens takes its time, so all of it happens at once, while the tests of the other files
run; each test then looks at its own part. (Killed and hanging ranks: test_many_ranks, tests/jobs.)
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.execute import SweepRecord
from jobs.store import read_record
from profiling.identity import expand_nodes
from tests.cluster.virtual import FOREGROUND, Cluster, Sweep

SLOW = {"BATCH_S": "0.6"}  # 6 s a run: time to do something to it
# Nodes that one test prepares for itself: those that cut the power of a node of their own keep off them.
PREPARED = "n28,n29,n30"
KEEP_OFF = f"--exclude={PREPARED},{','.join(FOREGROUND)}"
HAPPENINGS: dict[str, Callable[[Cluster, Path], None]] = {}


def happening(function: Callable[[Cluster, Path], None]) -> Callable[[Cluster, Path], None]:
    HAPPENINGS[function.__name__] = function
    return function


@pytest.fixture(scope="session")
def happenings(cluster, tmp_path_factory, request) -> Iterator[dict[str, Future]]:
    """All that this session's tests look at, under way."""
    wanted = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.originalname == "test_on_the_cluster"
    ]
    with ThreadPoolExecutor(len(wanted)) as pool:
        yield {name: pool.submit(HAPPENINGS[name], cluster, tmp_path_factory.mktemp(name)) for name in wanted}


@happening
def every_run_runs_on_its_own_number_of_nodes_the_largest_first(cluster: Cluster, folder: Path) -> None:
    sweep = Sweep(cluster, folder).write("nodes: [1, 2, 4, 8]", ranks=2)
    job = sweep.submit("--nodes=4")
    assert cluster.wait(job)["ExitCode"] == "0:0", sweep.said(job)
    assert sweep.done() == [1, 2, 4]
    for manifest in sweep.manifests().values():
        hosts = [report.hostname for report in manifest.ranks]
        assert len(set(hosts)) == manifest.run.nodes and hosts[::2] == hosts[1::2]
        assert manifest.environment["SLURM_JOB_ID"] == job
        assert manifest.environment.get("GLOO_SOCKET_IFNAME", "eth0") == "eth0"
    order = [line for line in sweep.said(job).splitlines() if line.startswith("[")]
    assert [line.split("_config_")[1][0] for line in order] == ["4", "2", "1"]
    record = read_record(sweep.results / "sweep.json", SweepRecord)
    assert ["_config_8_" in left["id"] for left in record.excluded] == [True]
    again = sweep.submit("--nodes=4")
    assert cluster.wait(again)["ExitCode"] == "0:0"
    assert "done: " in sweep.said(again)


@happening
def a_job_that_is_not_to_end_with_a_node_goes_on_with_the_others(cluster: Cluster, folder: Path) -> None:
    sweep = Sweep(cluster, folder).write()
    job = sweep.submit("--nodes=4", "--no-kill", KEEP_OFF, **SLOW)
    cluster.until(lambda: any("config_4_" in name for name in sweep.running()))
    cluster.until(lambda: "step 2/" in sweep.log_of_running())
    node = expand_nodes(cluster.job(job)["NodeList"])[-1]
    cluster.control("kill-node", node)
    try:
        assert cluster.wait(job)["ExitCode"] == "0:0", sweep.said(job)
    finally:
        cluster.control("boot-node", node)
    assert sweep.done() == [1, 2, 4] and not sweep.running()
    lost = [each.failed_nodes for each in sweep.manifests().values() if each.failure == "node failure"]
    assert lost == [[node]] and "slurm/sweep.sh: back" in sweep.said(job)
    finished = {one.run.nodes: one.ended for one in sweep.manifests().values() if one.done}
    assert finished[4] > finished[1]  # the smaller runs ran on the nodes that were left


@happening
def a_job_whose_first_node_dies_starts_again_and_resumes(cluster: Cluster, folder: Path) -> None:
    sweep = Sweep(cluster, folder).write("nodes: [1, 2, 3]")
    job = sweep.submit("--nodes=3", KEEP_OFF, **SLOW)
    cluster.until(lambda: sweep.done() == [3])
    ended = [manifest.ended for manifest in sweep.manifests().values()]
    cluster.until(lambda: any("config_2_" in name for name in sweep.running()))
    node = cluster.job(job)["BatchHost"]
    cluster.control("kill-node", node)
    try:
        cluster.until(lambda: cluster.job(job)["Restarts"] == "1")
        assert cluster.wait(job)["ExitCode"] == "0:0", sweep.said(job)
    finally:
        cluster.control("boot-node", node)
    assert sweep.done() == [1, 2, 3] and not sweep.running()
    assert f"start 2 of job {job}\n" in sweep.said(job)
    assert ended[0] in [manifest.ended for manifest in sweep.manifests().values()]


@happening
def when_the_time_is_up_the_job_starts_again_and_resumes(cluster: Cluster, folder: Path) -> None:
    sweep = Sweep(cluster, folder).write("nodes: [1, 2]", "repetitions: 3")
    # Slurm looks every 30 s: the signal comes 25 to 55 s after the start, and the runs take longer.
    job = sweep.submit("--nodes=2", "--time=1", "--signal=B:USR1@5", BATCH_S="0.95")
    assert cluster.wait(job, 900)["ExitCode"] == "0:0", sweep.said(job)
    assert int(cluster.job(job)["Restarts"]) >= 1
    assert sweep.done() == [1] * 3 + [2] * 3 and not sweep.running()
    assert all(manifest.done for manifest in sweep.manifests().values())


@happening
def a_cancelled_job_leaves_what_a_new_one_finishes(cluster: Cluster, folder: Path) -> None:
    sweep = Sweep(cluster, folder).write()
    job = sweep.submit("--nodes=4", **SLOW)
    cluster.until(lambda: sweep.done() == [4] and bool(sweep.running()))
    ended = [manifest.ended for manifest in sweep.manifests().values()]
    cluster.control("exec", "scancel", job)
    assert cluster.wait(job)["JobState"] == "CANCELLED"
    cluster.until(lambda: not list(sweep.results.glob("run_*/owner.json")))
    assert sweep.done() == [4]
    cluster.until(lambda: f"to resume: submit job {job} again" in sweep.said(job), 30)
    again = sweep.submit("--nodes=4")
    assert cluster.wait(again)["ExitCode"] == "0:0", sweep.said(again)
    assert sweep.done() == [1, 2, 4] and not sweep.running()
    assert ended[0] in [manifest.ended for manifest in sweep.manifests().values()]


@happening
def two_jobs_share_a_sweep_and_no_run_runs_twice(cluster: Cluster, folder: Path) -> None:
    sweep = Sweep(cluster, folder).write("nodes: [1, 2]", "repetitions: 3")
    go = folder / "go"
    jobs = [sweep.submit("--nodes=2", WAIT_FOR=str(go)) for _ in range(2)]
    cluster.until(lambda: len(sweep.running()) == 2)  # one job must not have done all before the other begins
    go.touch()
    for job in jobs:
        assert cluster.wait(job)["ExitCode"] == "0:0", sweep.said(job)
    assert sweep.done() == [1] * 3 + [2] * 3 and not sweep.running()
    assert {manifest.environment["SLURM_JOB_ID"] for manifest in sweep.manifests().values()} == set(jobs)
    assert len([line for job in jobs for line in sweep.said(job).splitlines() if line.startswith("[")]) == 6
    assert read_record(sweep.results / "sweep.json", SweepRecord).launcher == "slurm"


@happening
def a_node_with_a_full_disk_is_left_out_where_there_is_another(cluster: Cluster, folder: Path) -> None:
    sweep = Sweep(cluster, folder).write("nodes: [2]")
    # Of the three nodes one sees, in the place of the results, a small disk of its own that is full.
    node = PREPARED.split(",")[1]
    cluster.control("on", node, "mount", "-t", "tmpfs", "-o", "size=8k", "small", str(sweep.results))
    cluster.control("on", node, "sh", "-c", f"head -c 1M /dev/zero >{sweep.results}/filler || true")
    try:
        job = sweep.submit("--nodes=3", f"--nodelist={PREPARED}")
        assert cluster.wait(job)["ExitCode"] == "0:0", sweep.said(job)
    finally:
        cluster.control("on", node, "umount", str(sweep.results))
    assert sweep.done() == [2] and not sweep.running()
    (done,) = [manifest for manifest in sweep.manifests().values() if manifest.done]
    assert {report.hostname for report in done.ranks} == {"n28", "n30"}
    failed = [each for each in sweep.manifests().values() if each.failure == "disk full"]
    assert failed and sweep.said(job).count("disk full: ") == 2


@happening
def a_job_for_each_number_of_nodes_and_a_report_at_the_end(cluster: Cluster, folder: Path) -> None:
    """The second of two submissions; the first is cancelled, and says how to submit again."""
    sweep = Sweep(cluster, folder).write()
    where = [f"--exclude={','.join(FOREGROUND)}", f"--output={folder}/%x.out"]
    command = ["slurm/submit.sh", str(sweep.file), *where, "--", f"--out={folder}/results"]

    def submitted(**variables: str) -> list[str]:
        answer = cluster.run(*command, **{**sweep.scripted, **variables})
        assert answer.returncode == 0, answer.stderr
        return [line.split()[1].rstrip(":") for line in answer.stdout.splitlines()]

    jobs = submitted(**SLOW, SCALEPROF_SITE="virtual")
    cluster.until(lambda: bool(sweep.running()))
    cluster.control("exec", "scancel", *jobs)
    cluster.until(lambda: "to resume: submit job" in (folder / "s-1.out").read_text(), 60)
    jobs = submitted()
    assert len(jobs) == 4
    for job in jobs:
        assert cluster.wait(job)["ExitCode"] == "0:0", (folder / "s-report.out").read_text()
    assert sweep.done() == [1, 2, 4]
    assert [cluster.job(job)["NumNodes"] for job in jobs] == ["1", "2", "4", "1"]
    assert (sweep.results / "report.html").is_file()
    assert "\nWeak scaling" in "\n" + (folder / "s-report.out").read_text()


@pytest.mark.turn(2)
def test_they_are_under_way(happenings, cluster):
    cluster.until(lambda: bool(cluster.control("exec", "squeue", "--noheader", "--name=scaleprof")))
    assert happenings


@pytest.mark.turn(4)
@pytest.mark.parametrize("name", HAPPENINGS)
def test_on_the_cluster(name, happenings):
    happenings[name].result()
