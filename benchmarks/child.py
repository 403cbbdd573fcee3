"""How long, and in how much memory, does a piece of code run in a process of its own?"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from profiling.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"

# ru_maxrss would begin at the size of the process that forked us.
_CODE = """
import json, sys, time
{imports}
start, used = time.perf_counter(), time.process_time()
result = {call}
seconds, cpu_s = time.perf_counter() - start, time.process_time() - used
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("RESULT" + json.dumps(dict(seconds=seconds, cpu_s=cpu_s, peak_mb=peak * 1024 / 1e6, result=result)))
"""


def result_of(command: Sequence[str], environment: Mapping[str, str], timeout_s: int) -> dict[str, Any]:
    """What a program prints behind ``RESULT``, as JSON.

    Raises:
        UserError: it prints none; its last line on stderr says why.
    """
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
        timeout=timeout_s,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("RESULT"):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
            return result
    raise UserError(f"no result of {command[0]}: {' '.join(done.stderr.strip().splitlines()[-1:])}")


def measure(imports: str, call: str, *arguments: object, timeout_s: int = 1800) -> dict[str, Any]:
    """``call`` (an expression; ``sys.argv[1:]`` are ``arguments``) in a fresh process.

    Returns:
        ``seconds`` and ``cpu_s`` of the call alone, ``peak_mb`` of the whole process (1e6 bytes), ``result``.

    Raises:
        UserError: it failed.
    """
    code = _CODE.format(imports=imports, call=call)
    return result_of([sys.executable, "-c", code, *map(str, arguments)], {"PYTHONPATH": str(ROOT)}, timeout_s)


def machine(libraries: Iterable[str]) -> dict[str, Any]:
    """What the figures depend on: processor, its cores, the load of others, Python and ``libraries``."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in libraries},
    }


def facts(where: Mapping[str, Any]) -> str:
    """A machine's facts as a line."""
    return ", ".join(f"{name} {value}" for name, value in where.items())


def write(name: str, report: Mapping[str, Any], page: str, folder: Path = RESULTS) -> None:
    """Write a benchmark's results for programs and for people, and print the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.md").write_text(page)
    print(page)


def finish(name: str, report: Mapping[str, Any], page: str, only: str) -> None:
    """Write the results of a whole benchmark; of a part of it, ``only`` print them."""
    print(page) if only else write(name, report, page)
