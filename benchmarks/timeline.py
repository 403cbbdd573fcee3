"""python -m benchmarks.timeline: how long does a timeline of 64 ranks take?

The set is that of ``benchmarks.synthetic_sweep``: 64 ranks under Nsight Systems, steps of 4,062 kernels
(260,000 a step over the ranks), made tables by ``profiling.convert``. Timed is the command that a user
types, ``analysis.timeline --batches 1``, from start to exit; memory is its process's peak (Linux).

    python -m benchmarks.timeline                # needs 0.3 GB in the folder of temporary files
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.child import facts, machine, write
from benchmarks.raw_to_table import KERNELS, timed
from benchmarks.synthetic_sweep import write_sweep
from profiling.errors import run_command

BAR_S = 30.0


def main() -> int:
    """The command; exit code 1 if the bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    given = parser.parse_args()
    where = machine(("numpy", "perfetto", "protobuf", "pyarrow"))
    with tempfile.TemporaryDirectory() as folder:
        sweep, trace = Path(folder) / "sweep", Path(folder) / "trace.gz"
        write_sweep(sweep, (given.ranks,), (given.ranks,), 3, KERNELS)
        timed(["profiling.convert", *map(str, sorted(sweep.glob("run_*/*.sqlite")))])
        took = timed(["analysis.timeline", str(sweep), "--batches", "1", "--output", str(trace)])
        size_mb = round(trace.stat().st_size / 1e6, 1)
    report = {
        "command": f"python -m benchmarks.timeline --ranks {given.ranks}",
        "machine": where, "kernels": given.ranks * KERNELS, "trace_mb": size_mb, **took,
    }  # fmt: skip
    page = f"""# A step of many ranks as a timeline

{facts(where)}; one step of {given.ranks} ranks, {report["kernels"]:,} kernels, by
`python -m analysis.timeline --batches 1`. Bar: {BAR_S:g} s of CPU time.

    {report["command"]}

| seconds | CPU, s | peak, GB | trace, MB |
| ---: | ---: | ---: | ---: |
| {took["seconds"]} | {took["cpu_s"]} | {took["peak_gb"]} | {size_mb} |
"""
    write("timeline", report, page)
    return 1 if took["cpu_s"] > BAR_S else 0


if __name__ == "__main__":
    run_command(main)
