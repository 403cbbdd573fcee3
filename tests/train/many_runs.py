"""A rank that does several runs by its command, one after the other: a process costs more than a tiny run.

It takes the place of ``python -m train``, with a file of each run's flags and directory.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jobs import ROOT
from jobs.failures import Ended
from jobs.launchers.base import Local
from jobs.processes import Limits, Process, run_processes
from jobs.run import Run
from jobs.run_fields import to_flags
from tests.forked import Parent
from train import __main__ as command

RUNS, LOG = "runs.json", "log.txt"
LEFT = "threads of Gloo left: "
LIMIT_S = 600


def prepare(runs: Mapping[str, Run], folder: Path) -> tuple[dict[str, Path], list[Process]]:
    """Each run's directory, by its name, and two ranks that do them all, as a sweep would start them."""
    outs = {name: folder / name for name in runs}
    for out in outs.values():
        out.mkdir()
    (folder / RUNS).write_text(json.dumps([[to_flags(run), str(outs[name])] for name, run in runs.items()]))
    rank = [sys.executable, "-m", "tests.train.many_runs", str(folder / RUNS)]
    return outs, Local().processes(next(iter(runs.values())), rank, folder)


def by_one_pair(
    runs: Mapping[str, Run], folder: Path, on_tick: Callable[[], None]
) -> tuple[dict[str, Path], Ended]:
    """Have two ranks do all runs of two ranks.

    Returns:
        each run's directory, by its name, and how the ranks ended; ``folder/log.txt`` has what they printed.
    """
    outs, processes = prepare(runs, folder)
    return outs, run_processes(processes, folder / LOG, Limits(LIMIT_S), ROOT, on_tick)


def by_forked_pair(runs: Mapping[str, Run], folder: Path, ready: Parent) -> dict[str, Path]:
    """The same of processes that are forked, and that must succeed; each run's directory."""
    outs, processes = prepare(runs, folder)
    assert fork(processes, folder / LOG, ready) == [0, 0], (folder / LOG).read_text()
    return outs


def fork(processes: Sequence[Process], log: Path, ready: Parent) -> list[int]:
    """The exit codes of ``python -m MODULE ARGUMENTS``, forked; ``log`` has what they printed."""
    children = []
    for process in processes:
        python, dash_m, *words = process.argv
        assert (python, dash_m) == (sys.executable, "-m")
        children.append(ready.start(log, *words, environment={**os.environ, **process.environment}))
    return [child.wait(LIMIT_S)[0] for child in children]


def threads_of_gloo() -> int:
    """How many threads of Gloo's this process has."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


def main() -> int:
    for flags, out in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["SCALEPROF_RENDEZVOUS"] = Path(f"{out}.rendezvous").as_uri()
        sys.argv = ["train", *flags, "--out", out]
        if code := command.main():
            return code
        print(f"{LEFT}{threads_of_gloo()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
