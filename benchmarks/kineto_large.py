"""python -m benchmarks.kineto_large: does a trace of ten million events need less than half of its size?

A real trace (as of ``benchmarks.kineto``) is tiled to ten million events and becomes tables in a process of
its own. The bar is on that process's peak memory, against the size of the text that was read (uncompressed).

    python -m benchmarks.kineto_large            # the traces of benchmarks.kineto; 0.5 GB of temporary files
"""

import argparse
import gzip
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import facts, machine, measure, write
from benchmarks.kineto import DATA, tile
from profiling.errors import UserError, run_command

TRACE = "nccl_data.json.gz"
BAR_MEMORY = 0.5
READ = (
    "from pathlib import Path\nfrom profiling.tools import tool",
    'sum(len(piece) for name, piece in tool("torch").stream(Path(sys.argv[1]), []) if name == "kernels")',
)


def _text_bytes(path: Path) -> int:
    with gzip.open(path) as file:
        return sum(len(piece) for piece in iter(lambda: file.read(1 << 22), b""))


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    return (
        "# A Kineto trace of ten million events to tables\n\n"
        f"{facts(report['machine'])}. Bar: less than {BAR_MEMORY:g} of the text's size in memory.\n\n"
        f"    {report['command']}\n\n"
        "| trace | events | text, MB | peak, MB | of the text | seconds | CPU, s | kernels |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        f"| {report['trace']} | {report['events']:,} | {report['text_mb']} | {report['peak_mb']} "
        f"| {report['memory_ratio']} | {report['seconds']} | {report['cpu_s']} | {report['kernels']:,} |\n"
    )


def main() -> int:
    """The command; exit code 1 if the bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kineto_large", description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    given = parser.parse_args()
    if not (DATA / TRACE).is_file():
        raise UserError(f"the trace is not on this machine: {DATA / TRACE} does not exist")
    where = machine(("numpy", "orjson", "pyarrow"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TRACE
        events = tile(DATA / TRACE, path, given.events)
        one, text_mb = measure(*READ, path), _text_bytes(path) / 1e6
    report: dict[str, Any] = {
        "command": f"python -m benchmarks.kineto_large --events {given.events}",
        "machine": where, "trace": TRACE, "events": events, "text_mb": round(text_mb),
        "peak_mb": round(one["peak_mb"]), "memory_ratio": round(one["peak_mb"] / text_mb, 3),
        "seconds": round(one["seconds"], 1), "cpu_s": round(one["cpu_s"], 1), "kernels": one["result"],
    }  # fmt: skip
    write("kineto_large", report, as_markdown(report))
    return 1 if report["memory_ratio"] >= BAR_MEMORY else 0


if __name__ == "__main__":
    run_command(main)
