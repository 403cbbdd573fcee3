"""How many instructions does a program execute between marks? valgrind counts, so the machine may be busy."""

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.child import ROOT
from profiling.errors import UserError


def mark() -> None:
    """Have valgrind write what was executed since the last mark: at a call that nothing else makes."""
    os.getsid(0)


def between_marks(command: Sequence[str]) -> list[int]:
    """Instructions of a process from each mark to the next, and from the last to its end.

    Raises:
        UserError: there is no valgrind, or the process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "counted"
        counter = ["valgrind", "--tool=callgrind", "--dump-before=getsid", "--dump-line=no",
                   f"--callgrind-out-file={written}"]  # fmt: skip
        # Python's hashes, and so its dictionaries, are the same in each process.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                [*counter, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise UserError("no valgrind here (apt-get install valgrind)") from None
        if done.returncode:
            raise UserError(f"valgrind did not count: {done.stderr[-300:]}")
        files = sorted(Path(folder).glob("counted.*"), key=lambda path: int(path.suffix[1:]))
        # The first holds all that was executed before the first mark.
        return [_executed(file.read_text()) for file in files[1:]]


def _executed(written: str) -> int:
    """What one file of callgrind sums to."""
    found = re.search(r"^totals: (\d+)", written, re.MULTILINE)
    if found is None:
        raise UserError("valgrind wrote a file without a sum")
    return int(found[1])
