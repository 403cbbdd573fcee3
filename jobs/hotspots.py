"""Time the kernels of a run, then read counters of those that take longest.

    python -m jobs.hotspots CONFIG --top 5
    python -m jobs.hotspots configs/resnet50.yaml --only loader=synthetic --batch 32
    python -m jobs.hotspots configs/quick.yaml --device cpu --image-size 32

The first configuration of a sweep (--only chooses another) runs twice on one rank: first under the torch
profiler, to find the hottest kernels, then with a tool that reads the counters of these kernels only: ncu, or
nvprof on GPUs that it supports; vtune on a CPU. If there is no such tool, or it lacks permission, a line
says so and only the times are shown.

To print the table again: python -m analysis.hotspots DIR. A second call measures only what is missing; other
configurations are added to the results.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.execute import Execution, describe, run_sweep
from jobs.launchers.base import Local
from jobs.machine import Machine, this_machine
from jobs.processes import stopped_in_order
from jobs.run import Run, make_run
from jobs.run_fields import OUTSIDE_FIELDS, add_format_flags, make_parser, parse_value, print_answer
from jobs.sweep_file import Sweep, SweepRun, choose, read_sweep
from profiling import schemas, tables
from profiling.arguments import count
from profiling.errors import UserError, run_command
from profiling.tools import tool

SIZES = ("device", "batch", "image_size")  # flags that say its size
TIMED_BATCHES, COUNTED_BATCHES = 10, 3  # of which the profiler records the later half, and the last one
# What each tool is asked for. Counters of a CPU's functions are VTune's, whatever their names.
_MODES = {"ncu": "counters", "nvprof": "metrics", "vtune": "auto"}
_LONGEST = Run.model_fields["profile_kernels"].metadata[0].max_length
# Compute capability. nvprof traces GPUs up to 7.5, but of these no more reads metrics ("profiling is not
# supported on devices with compute capability 7.5 and higher").
_NVPROF_TO = (7, 2)
# What the two runs have of us; all else is the configuration's.
_ALONE = {"nodes": 1, "gpus_per_node": 1, "backend": "auto", "grad": "fp32"}
_SHORT = {"profile": "torch", "batches": TIMED_BATCHES, "attribute_from": None}
_USUAL = {"profile_mode": "auto", "profile_kernels": "", "profile_metrics": "", "profile_schedule": ""}


def main() -> int:
    parser = make_parser("python -m jobs.hotspots", __doc__)
    add = parser.add_argument
    add("config", type=Path, help="the sweep file (configs/*.yaml)")
    add("--top", type=count, default=5, metavar="N", help="number of kernels [5]")
    only = "measure the first configuration with these values"
    add("--only", action="append", default=[], metavar="FIELD=VALUE[,VALUE]", help=only)
    add("--out", type=Path, default=Path("results"), metavar="DIR", help="folder for the runs [results]")
    for name in SIZES:
        add("--" + name.replace("_", "-"), metavar=name.upper(), help="instead of the sweep's value")
    add_format_flags(parser, ["--output"])
    arguments = parser.parse_args()
    sweep = read_sweep(arguments.config)
    first = choose(sweep, arguments.only, str(arguments.config))[0][0]
    if first.configuration.program:
        raise UserError(f"{arguments.config}: hot spots of a program: profile: torch, then analysis.kernels")
    texts = {name: getattr(arguments, name) for name in SIZES}
    sized = {name: parse_value(name, text) for name, text in texts.items() if text is not None}
    # Of several ranks counters cannot be read: each kernel is repeated, and a collective would wait for ever.
    run = make_run({**first.configuration.model_dump(), **_ALONE, **_SHORT, **_USUAL, **sized})
    print(describe(run), file=sys.stderr, flush=True)
    # Fields outside a run's id that tell its configuration from others measured in the same directory.
    outside = {*first.outside, *sized} & set(OUTSIDE_FIELDS) - {*_ALONE, *_SHORT, *_USUAL}
    sweep_run = SweepRun(run, 0, tuple(sorted(outside)))
    directory = arguments.out / f"{sweep.name}-hotspots-{arguments.top}"
    with stopped_in_order():
        measure(sweep_run, directory, arguments.top, this_machine())
    chosen = (f"--run={sweep_run.id}_ret_0", f"--top={arguments.top}")
    print_answer("analysis.hotspots", directory, arguments, *chosen)


def measure(sweep_run: SweepRun, directory: Path, top: int, machine: Machine) -> None:
    """Time a configuration, and read the counters of its hottest kernels with the first tool that can."""
    run = sweep_run.configuration
    if not _done(sweep_run, directory):
        raise UserError(f"the timing run failed; its log is in {directory}")
    rank = tables.rank_directory(directory / f"{sweep_run.id}_ret_0", 0)
    kernels = tables.read(rank, "kernels", ["short_name", "class", "duration_ns"]).to_pandas()
    of_model = kernels[~kernels["class"].isin(schemas.APART)].groupby("short_name", observed=True)
    spent = of_model["duration_ns"].sum().sort_values(ascending=False, kind="stable")
    names = [str(name) for name in spent.index[:top]]
    if not names:
        raise UserError(f"{rank} contains no kernels of the model")
    on_gpu = run.device != "cpu" and bool(machine.gpus)
    for counter in tools_for(on_gpu, machine.capability):
        if _done(replace(sweep_run, configuration=counted(run, counter, names)), directory):
            return
    print("no counters read", file=sys.stderr)


def _done(sweep_run: SweepRun, directory: Path) -> bool:
    values = {"name": directory.name, "run": sweep_run.configuration.model_dump(), "hang_limit_s": 0}
    sweep = Sweep.model_validate({**values, "repetitions": 1})
    return run_sweep(Execution(sweep, directory, Local(), [sweep_run])).failed == 0


def tools_for(on_gpu: bool, capability: tuple[int, int] | None) -> list[str]:
    """The tools that are here and can read the device's counters, the best first."""
    here = []
    for name in ("ncu", "nvprof") if on_gpu else ("vtune",):
        oldest, newest = tool(name).oldest_gpu or (0, 0), _NVPROF_TO if name == "nvprof" else (99, 0)
        if capability is not None and not oldest <= capability <= newest:
            continue
        if shutil.which(tool(name).program):
            here.append(name)
        else:
            print(f"{name} missing: {tool(name).install}", file=sys.stderr)
    return here


def counted(run: Run, counter: str, names: Sequence[str]) -> Run:
    """The run in which the tool ``counter`` reads the counters of such kernels."""
    short: dict[str, Any] = {"profile": counter, "profile_mode": _MODES[counter]}
    if counter != "vtune":
        short |= {"batches": COUNTED_BATCHES, "attribute_from": COUNTED_BATCHES - 1}
        short |= {"profile_kernels": pattern_of(names, whole=counter == "ncu")}
    return make_run({**run.model_dump(), **short})


def pattern_of(names: Sequence[str], whole: bool) -> str:
    """A regular expression for kernels of such short names; the last are left out where it gets too long.

    ncu searches it in the function's name without namespace and arguments, which is to match ``whole``:
    ``vectorized_elementwise_kernel`` is no ``elementwise_kernel``. nvprof finds names that contain one.
    """
    functions = [re.sub(r"\W.*", "", name.rpartition("::")[2]) for name in names]
    chosen = list(dict.fromkeys(filter(None, functions)))
    longest = _LONGEST - 4 if whole else _LONGEST  # less "^(" and ")$"
    while len("|".join(chosen)) > longest:
        chosen.pop()
    pattern = "|".join(chosen)
    return f"^({pattern})$" if whole and pattern else pattern


if __name__ == "__main__":
    run_command(main)
