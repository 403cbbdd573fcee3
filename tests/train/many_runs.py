"""A rank that does several runs, one after the other: starting a process costs more than a tiny run.

Started by test_train.py in place of ``python -m train``, with a file of the runs and their directories.
"""

import json
import os
import sys
from pathlib import Path

from jobs.run import make_run
from train.rank import run_rank
from train.world import read_world


def main() -> None:
    for values, out in json.loads(Path(sys.argv[1]).read_text()):
        world = read_world({**os.environ, "SCALEPROF_RENDEZVOUS": (Path(out) / "rendezvous").as_uri()})
        run_rank(make_run(values), world, Path(out), keep_raw=False, say=lambda text: None)


if __name__ == "__main__":
    main()
