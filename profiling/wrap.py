"""Run Python under a profiler, as one rank: python -m profiling.wrap --tool NAME --out DIR [...] -- ARGUMENTS

Starts ``python ARGUMENTS`` under the tool and, if that succeeds, converts the tool's files to the tables of
this rank, e.g. DIR/rank_0003. A launcher starts it once per rank; its environment variables give the rank.
Exit code: that of the program; 2: the tool is missing, or its output cannot be read.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from glob import glob
from pathlib import Path

import orjson

from profiling.arguments import Parser
from profiling.clocks import set_clock
from profiling.errors import EXIT_DONE, UserError, did_you_mean, run_command
from profiling.findings import Finding
from profiling.identity import read_identity
from profiling.readers.files import Origin
from profiling.tables import Writer, rank_directory, whole_file
from profiling.tools import TOOLS, Options, check_can_record, check_permission, run_step, run_tree, tool

RAW = "raw"  # below a rank's directory: what the profiler itself wrote
_REPORT = "rank.json"  # of the rank; what was found is added to it
# A GPU's own device; under Windows its driver's stands in for it. /dev/nvidiactl says nothing: CUDA programs,
# nvprof among them, make it where root runs them without a GPU.
_GPUS = ("/dev/nvidia[0-9]*", "/dev/dxg")


def wraps(name: str) -> bool:
    return name in TOOLS and tool(name).wraps


def wrapped(
    name: str, command: list[str], out: Path, device: str, first_batch: int, keep_raw: bool,
    mode: str = "auto", kernels: str = "", metrics: str = "",
) -> list[str]:  # fmt: skip
    """A rank's command (it begins with Python) as it is to be started for a profiler; pure; see --help."""
    if not wraps(name):
        return command
    words = [command[0], "-m", "profiling.wrap", "--tool", name, "--out", str(out), "--device", device]
    words += ["--first-batch", str(first_batch)] if first_batch else []
    words += ["--mode", mode] if mode != "auto" else []
    words += ["--kernels", kernels] if kernels else []
    words += [f"--metrics={metrics}"] if metrics else []  # it may begin with a dash
    return [*words, *(["--keep-raw"] if keep_raw else []), "--", *command[1:]]


# What profilers around a process set in it, as whole names or as beginnings of names.
WRAPPED = "SCALEPROF_WRAPPED"  # is ours
WATCHERS = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
_THEIRS = (WRAPPED, *WATCHERS, "NSYS_", "NV_COMPUTE_", "TAU_", "VTUNE_")


def is_watched(name: str, environment: Mapping[str, str]) -> bool:
    """Whether a profiler that is to be around this process seems to be."""
    return not wraps(name) or any(variable.startswith(_THEIRS) for variable in environment)


def run_wrapped(name: str, arguments: list[str], out: Path, options: Options, keep_raw: bool = False) -> int:
    """Run Python under a tool as one rank; the exit code. UserError: it cannot, or left nothing readable."""
    check_can_record(name, options)
    profiler = tool(name)
    directory = rank_directory(out, options.rank) / RAW
    directory.mkdir(parents=True, exist_ok=True)
    command = profiler.wrap([sys.executable, *arguments], directory, options)
    variables = profiler.environment(directory, options)
    code = run_tree(command, {**os.environ, **variables, WRAPPED: name})
    check_permission(name, profiler.outputs(directory))
    if code == 0 and profiler.is_read_later(options):
        print(f"scaleprof: {directory} is kept, to be read by profiling.convert", file=sys.stderr)
    elif code == 0:
        findings = collect_output(name, directory, options)
        add_findings(directory.parent / _REPORT, findings)
        if not keep_raw:
            # A report may hold the whole environment of the process, secrets included.
            shutil.rmtree(directory)
    return code


def collect_output(name: str, directory: Path, options: Options) -> list[Finding]:
    """Write the tables of what a tool wrote to ``directory`` beside it; UserError: nothing readable."""
    profiler = tool(name)
    for step in profiler.finish(directory, options):
        run_step(step, name)
    outputs = [path for path in profiler.outputs(directory) if path.exists()]
    if not outputs and options.rank and profiler.only_rank_0_writes:
        return []
    if not outputs:
        raise UserError(f"profiler {name} wrote nothing to {directory}; see its messages in the log")
    findings: list[Finding] = []
    origin = Origin(options.rank, options.first_batch, options.world_size, options.mode)
    with Writer(directory.parent) as writer:
        for path in outputs:
            for table, piece in profiler.stream(path, findings, origin):
                if len(piece):  # a run on a CPU has no kernels: no table says so better than an empty one
                    writer.add(table, piece)
    return findings + set_clock(directory.parent, name)


def add_findings(report: Path, findings: list[Finding]) -> None:
    """Add what was found to a rank's report, so that the analysis shows it."""
    if not findings or not report.exists():
        return
    content = orjson.loads(report.read_bytes())
    content["findings"] = [*content.get("findings", []), *(finding.to_json() for finding in findings)]
    with whole_file(report) as file:
        file.write(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def has_gpu() -> bool:
    return any(map(glob, _GPUS))


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m profiling.wrap", description=__doc__)
    tools = [name for name in TOOLS if wraps(name)]
    add = parser.add_argument
    add("--tool", required=True, metavar="NAME", help=f"one of: {', '.join(tools)}")
    add("--out", required=True, type=Path, metavar="DIR", help="the run's directory")
    add("--mode", default="auto", help="mode of the profiler [auto]")
    add("--kernels", default="", metavar="REGEX", help="read the counters of these kernels only [all]")
    add("--metrics", default="", metavar="NAMES", help="counters to read [the mode's]; options of vtune")
    add("--first-batch", type=int, default=0, metavar="K", help="record from step K on [0]")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="device of the run [auto]")
    add("--keep-raw", action="store_true", help="keep the profiler's files, which contain the environment")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="Python's arguments")
    given = parser.parse_args(arguments)
    if given.tool not in tools:
        raise UserError(f"profiler {given.tool!r} cannot wrap a command{did_you_mean(given.tool, tools)}")
    command = given.arguments[given.arguments[:1] == ["--"] :]
    if not command:
        raise UserError("nothing to run: give Python's arguments after --, e.g. -- -m train --batches 10")
    gpu = given.device == "gpu" or (given.device == "auto" and has_gpu())
    me = read_identity(os.environ)
    options = Options(given.mode, given.kernels, given.first_batch, gpu, me.size, me.rank, given.metrics)
    return run_wrapped(given.tool, command, given.out, options, given.keep_raw) or EXIT_DONE


if __name__ == "__main__":
    run_command(main)
