"""Modules run as ``python -m`` runs them, each in a process forked from one that has imported PyTorch.

PyTorch's import takes 3 s of a processor, what most tests do with it a tenth of that. Such a process has a
folder, an environment, arguments and an output of its own. It differs from one that Python starts in that
libraries are there before its first line, and in that it ends at once: what depends on either is tested in
processes of the other kind.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from profiling.process import leave_at_once

ROOT = Path(__file__).resolve().parents[1]


class Parent:
    """A process that has imported some modules, and forks.

    Args:
        python: the command that starts Python.
        modules: what it imports.
        environment: its own; its children get theirs.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str],
        python: Sequence[str] = (sys.executable,),
    ) -> None:
        self._process = subprocess.Popen(
            [*python, "-m", "tests.forked", *modules],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> "Parent":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def start(
        self, output: Path, *words: object, environment: Mapping[str, str], folder: Path = ROOT
    ) -> "Child":
        """Start ``python -m WORDS``; ``output`` gets what it prints."""
        order = {
            "words": [str(word) for word in words],
            "environment": dict(environment),
            "folder": str(folder),
            "output": str(output),
        }
        return Child(self, self.ask(order), output)

    def ask(self, order: object) -> int:
        """The answer to an order of :func:`_serve`."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        print(json.dumps(order), file=stdin, flush=True)
        return int(stdout.readline())


@dataclass
class Child:
    """A process that was forked; it must be waited for once."""

    parent: Parent
    pid: int
    output: Path

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit_s: float) -> tuple[int, str]:
        """Its exit code, as subprocess gives it, and what it printed; after ``limit_s`` it is killed."""
        limit = threading.Timer(limit_s, self.kill)
        limit.start()
        try:
            return self.parent.ask(self.pid), self.output.read_text()
        finally:
            limit.cancel()


def _serve(orders: IO[str], answers: IO[str]) -> dict | None:
    """Fork for each order, and answer with the process's number; to such a number with the exit code.

    Returns:
        in a forked process its order, in the parent None: there are no more.
    """
    for line in iter(orders.readline, ""):
        order = json.loads(line)
        if isinstance(order, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(order, 0)[1])
        elif not (answer := os.fork()):
            return order
        print(answer, file=answers, flush=True)
    return None


def _run(order: Mapping) -> int:
    """Do in this process, which was forked, what the order says; the exit code."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    for stream, file in ((0, os.devnull), (1, order["output"])):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, stream)
        os.close(opened)
    os.dup2(1, 2)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (as Python's own, for as long as the process lives)
    sys.path[0] = order["folder"]
    module, *arguments = order["words"]
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 (as Python itself)
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    gc.disable()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    order = _serve(sys.stdin, sys.stdout)
    if order is not None:
        leave_at_once(_run(order))


if __name__ == "__main__":
    main()
