"""A rank that does several runs by its command, one after the other: a process costs more than a tiny run.

Started in place of ``python -m train``, with a file of each run's flags and directory.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from jobs.execution import ROOT
from jobs.flags import to_flags
from jobs.launchers.local import Local
from jobs.processes import Ended, Limits, run_processes
from jobs.run import Run
from train import __main__ as command

RUNS, LOG = "runs.json", "log.txt"


def by_one_pair(
    runs: Mapping[str, Run], folder: Path, on_tick: Callable[[], None] = lambda: None
) -> tuple[dict[str, Path], Ended]:
    """Have two ranks, started as a sweep on this machine starts them, do all runs of two ranks.

    Returns:
        each run's directory, by its name, and how the ranks ended; ``folder/log.txt`` has what they printed.
    """
    outs = {name: folder / name for name in runs}
    for out in outs.values():
        out.mkdir()
    flags = [[to_flags(run), str(outs[name])] for name, run in runs.items()]
    (folder / RUNS).write_text(json.dumps(flags))
    rank = [sys.executable, "-m", "tests.train.many_runs", str(folder / RUNS)]
    processes = Local().processes(next(iter(runs.values())), rank, folder)
    return outs, run_processes(processes, folder / LOG, Limits(600), ROOT, on_tick)


def main() -> int:
    command.leave_at_once = lambda: None  # there is another run to do
    for flags, out in json.loads(Path(sys.argv[1]).read_text()):
        os.environ["SCALEPROF_RENDEZVOUS"] = (Path(out) / "rendezvous").as_uri()
        sys.argv = ["train", *flags, "--out", out]
        if code := command.main():
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
