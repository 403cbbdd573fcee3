"""python -m benchmarks.many_ranks: what do 8 to 1,024 ranks cost the suite and its file system?

On a virtual cluster of 64 nodes, a sweep of one run by srun and by mpirun. The ranks train nothing: they are
Python processes that start, meet as the project's ranks do (train.world, at a stand-in for PyTorch's
store), tell each other a text, leave their files and end. What is measured:

1. Seconds to the meeting of all ranks, from the last rank's report to the manifest, and in all; processor
   seconds of everything on the cluster, its daemons included (a control group; as root).
2. Files and bytes that the run leaves.
3. Calls about files (strace) of one real rank of training: those in its run's folder, and all others, which
   are Python's and PyTorch's at import.

    python -m benchmarks.many_ranks --scratch FOLDER   (10 minutes; as root, with Slurm, Open MPI, strace)
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.child import facts, machine, write
from benchmarks.scripted_ranks import few_open_files, many, scripted, write_sweep
from benchmarks.virtual import Cluster
from jobs import store
from jobs.store import OWNER, Manifest
from profiling import tables
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command

NODES, RANKS_PER_NODE = 64, 16
SHAPES = ((8, 1), (8, 8), (16, 16), (64, 16))  # nodes, ranks per node
BAR_S = 60.0  # for the largest, on two cores that do nothing else: twice as many processor seconds
_CALLS = "%file,getdents64,fsync"
_TRAIN = "--model=squeezenet1_1 --loader=synthetic --batch=2 --batches=4 --image-size=32 --threads=1"


@dataclass(frozen=True)
class Measured:
    """What a run of so many ranks took, in seconds, and left."""

    launcher: str
    nodes: int
    ranks: int
    met_s: float
    gathered_s: float  # from the last rank's report to the manifest
    all_s: float
    processor_s: float
    files: int
    folders: int
    manifest_bytes: int
    log_bytes: int


class Processor:
    """The processor time of this process and all that it starts from now on, by a control group."""

    def __init__(self, name: str) -> None:
        root = Path("/sys/fs/cgroup")
        self._unified = (root / "cgroup.controllers").exists()
        self._parent = root if self._unified else root / "cpuacct"
        self._group = self._parent / name
        try:
            self._group.mkdir(exist_ok=True)
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            raise UserError(f"no control group for processor time: {error}; it needs root") from None

    @property
    def seconds(self) -> float:
        if self._unified:
            said = dict(line.split() for line in (self._group / "cpu.stat").read_text().splitlines())
            return int(said["usage_usec"]) / 1e6
        return int((self._group / "cpuacct.usage").read_text()) / 1e9

    def leave(self) -> None:
        (self._parent / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def cluster_of(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder / "cluster")
    words = ["start", str(NODES), str(RANKS_PER_NODE)]
    cluster.control(*words, VIRTUAL_CLUSTER_OWNER=str(os.getpid()))
    try:
        yield cluster
    finally:
        cluster.control("stop")


def measure(
    cluster: Cluster, folder: Path, launcher: str, shape: tuple[int, int], processor: Processor
) -> Measured:
    """One run of so many nodes with so many ranks each.

    Raises:
        UserError: it failed.
    """
    nodes, per_node = shape
    folder.mkdir()
    once, in_all = "repetitions: 1\nretries: 0", nodes * per_node
    file = write_sweep(folder, "s", f"nodes: {nodes}", once, per_node, in_all)
    variables = {**scripted(folder), **many(folder, launcher, os.environ["PATH"])}
    out, before = folder / "job.txt", processor.seconds
    words = ["sbatch", "--wait", f"--nodes={nodes}", f"--output={out}", "slurm/sweep.sh", str(file)]
    with few_open_files():
        cluster.control("exec", *words, "--out", str(folder / "results"), **variables)
    took = processor.seconds - before
    (run,) = (folder / "results" / "s").glob("run_*_ret_0")
    manifest = store.read_record(run / store.MANIFEST, Manifest)
    began = datetime.fromisoformat(manifest.started).timestamp()
    first = tables.rank_directory(run, 0)
    reports = [(tables.rank_directory(run, rank) / store.RANK_REPORT) for rank in range(in_all)]
    written = (run / store.MANIFEST).stat()
    inside = list(run.rglob("*"))
    return Measured(
        launcher, nodes, in_all,
        met_s=(first / "met").stat().st_mtime - began,
        gathered_s=written.st_mtime - max(report.stat().st_mtime for report in reports),
        all_s=written.st_mtime - began,
        processor_s=took,
        files=sum(path.is_file() for path in inside) - 1,  # "met" is the benchmark's
        folders=sum(path.is_dir() for path in inside),
        manifest_bytes=written.st_size,
        log_bytes=(run / store.LOG).stat().st_size,
    )  # fmt: skip


def calls_of_a_rank(folder: Path) -> dict[str, Any]:
    """How often one rank of training calls the system about files: of its run's folder, and of others."""
    out, calls = folder / "results", folder / "calls.txt"
    train = [sys.executable, "-m", "train", f"--out={out}", *_TRAIN.split(), "--learning-rate=0.001"]
    out.mkdir(parents=True)
    (out / OWNER).touch()  # as of a run that a sweep has started: that writes the manifest
    strace = ["strace", "-f", "-qq", "-y", "-e", f"trace={_CALLS}", "-o", str(calls)]
    done = subprocess.run([*strace, *train], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"strace of a rank failed: {done.stderr.strip()[-300:]}")
    lines = calls.read_text(errors="replace").splitlines()
    # What starts it names the folder, too.
    own = [line for line in lines if str(out) in line and "execve(" not in line]
    names: dict[str, int] = {}
    for line in own:
        name = line.split()[1].partition("(")[0]
        names[name] = names.get(name, 0) + 1
    return {"own": names, "own_in_all": len(own), "others": len(lines) - len(own)}


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as tables for people."""
    lines = [
        "# What many ranks cost", "",
        f"{facts(report['machine'])}. A virtual cluster of {NODES} nodes that share this "
        "machine's cores; the ranks train nothing.", "", f"    {report['command']}", "",
        "| launcher | nodes | ranks | met, s | manifest after the last rank, s | in all, s | processor, s "
        "| per rank, ms | files | manifest, kB | log, kB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in report["runs"]:
        cells = [
            row["launcher"], f"{row['nodes']}", f"{row['ranks']}", f"{row['met_s']:.1f}",
            f"{row['gathered_s']:.2f}", f"{row['all_s']:.1f}", f"{row['processor_s']:.1f}",
            f"{1e3 * row['processor_s'] / row['ranks']:.0f}", f"{row['files']}",
            f"{row['manifest_bytes'] / 1e3:.0f}", f"{row['log_bytes'] / 1e3:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    calls = report["calls"]
    most = sorted(calls["own"].items(), key=lambda item: -item[1])
    named = ", ".join(f"{count} {name}" for name, count in most)
    lines += [
        "", "Processor seconds are those of all on the cluster: ranks, Slurm, mpirun, the sweep. All other "
        "seconds depend on what else the machine does.", "",
        f"One rank of training makes {calls['own_in_all']} calls about files in its run's folder ({named}) "
        f"and {calls['others']} about others: Python and PyTorch at import.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_ranks", description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True, help="an empty folder that all nodes see")
    scratch: Path = parser.parse_args().scratch
    scratch.mkdir(parents=True, exist_ok=True)
    where = machine(["torch"])
    calls = calls_of_a_rank(scratch)
    processor = Processor(f"scaleprof-many-ranks-{os.getpid()}")
    try:
        with cluster_of(scratch) as cluster:
            runs = _runs(cluster, scratch, processor)
    finally:
        processor.leave()
    report = {
        "command": "python -m benchmarks.many_ranks --scratch FOLDER", "machine": where,
        "runs": [asdict(run) for run in runs], "calls": calls,
    }  # fmt: skip
    write("many_ranks", report, as_markdown(report))
    shutil.rmtree(scratch)
    return EXIT_DONE if all(run.processor_s <= 2 * BAR_S for run in runs) else EXIT_FAILED


def _runs(cluster: Cluster, scratch: Path, processor: Processor) -> Sequence[Measured]:
    return [
        measure(cluster, scratch / f"{launcher}-{nodes}-{ranks}", launcher, (nodes, ranks), processor)
        for nodes, ranks in SHAPES
        for launcher in ("slurm", "mpirun")
    ]


if __name__ == "__main__":
    run_command(main)
