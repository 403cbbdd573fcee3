"""A rank that does several runs by its command, one after the other: a process costs more than a tiny run.

Started in place of ``python -m train``, with a file of each run's flags and directory.
"""

import json
import os
import sys
from pathlib import Path

from train import __main__ as command


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
