"""What does this machine have, what is missing, and which command installs it?

On a cluster: which site file is used, and is what it says true of this node?

    python -m jobs.doctor [--site NAME|FILE] [--format table|json]

Exit code 0: scaleprof can train here; 1: something that it needs is missing, or the site file is wrong.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from jobs.flags import make_parser
from jobs.gpus import NO_AMD, why_not_built_for, why_not_tested
from jobs.launchers import LAUNCHERS
from jobs.loaders import LOADERS, Library
from jobs.machine import Machine, this_machine, versions
from jobs.site import add_site_flag
from jobs.site_check import check_site
from jobs.tau_here import look_at_tau, presence_of
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.presence import Presence
from profiling.tools import ON_A_CPU, TOOLS, tool
from profiling.wording import command, how_many

AMD_DRIVER = Path("/dev/kfd")


@dataclass(frozen=True)
class Check:
    """One thing a user may want here: is it there, which one, and how to get it if not."""

    group: str
    name: str
    present: bool
    detail: str
    remedy: str = ""
    required: bool = False


def examine(machine: Machine, site: str | None = None) -> list[Check]:
    """All checks about this machine, in the order in which they are shown.

    Args:
        site: a site file's name or path; None: the one that is used here.
    """
    return [
        *_hardware(machine),
        *_libraries(),
        *_torch(machine),
        *_loaders(machine),
        *_launchers(),
        *_profilers(bool(machine.gpus), machine.capability),
        *(_of("cluster", presence) for presence in check_site(os.environ, site)),
    ]


def _hardware(machine: Machine) -> list[Check]:
    gpus = ", ".join(f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus))
    driver = f" (driver {machine.driver})" if machine.driver else ""
    if machine.gpus:
        remedy = ""
    elif AMD_DRIVER.exists():
        remedy = NO_AMD
    elif machine.driver:
        remedy = "CUDA_VISIBLE_DEVICES hides the GPUs; unset it, or ask the batch system for some"
    else:
        remedy = "no NVIDIA driver found; on a cluster, run this on a GPU node (srun --gpus 1 ...)"
    return [
        Check(
            "machine",
            "CPU",
            True,
            f"{machine.cpu}, {how_many(machine.cores, 'core')} available",
        ),
        Check("machine", "memory", True, f"{machine.memory_bytes / 1e9:.0f} GB"),
        Check("machine", "GPU", bool(machine.gpus), gpus + driver if gpus else "none", remedy),
    ]


def _libraries() -> list[Check]:
    installed = versions()
    return [
        Check(
            "libraries",
            name,
            name in installed,
            installed.get(name, "not installed"),
            remedy,
            required=required,
        )
        for name, remedy, required in (
            ("torch", "make setup  (or: pip install -e .)", True),
            ("torchvision", "make setup  (or: pip install -e .)", True),
            ("mpi4py", "pip install -e '.[mpi]'", False),
            ("horovod", "make horovod  (not needed for DDP)", False),
        )
    ]


def _torch(machine: Machine) -> list[Check]:
    """Whether the PyTorch that is installed is one of those tested, and has kernels for the GPU."""
    installed = versions().get("torch")
    if not installed:
        return []
    remedy = why_not_tested(installed)
    checks = [Check("libraries", "torch's release", False, installed, remedy)] if remedy else []
    if machine.capability:
        built_for = _built_for()
        remedy = why_not_built_for(machine.capability, built_for, (*machine.gpus, "the GPU")[0])
        checks.append(Check("libraries", "torch for this GPU", not remedy, ", ".join(built_for), remedy))
    return checks


def _built_for() -> list[str]:
    """The GPUs that PyTorch is built for; asked in a process of its own, for it takes seconds to load."""
    code = "import torch; print(*torch.cuda.get_arch_list())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return asked.stdout.split()


def _loaders(machine: Machine) -> list[Check]:
    """A line for all loaders that need the same."""
    alike: dict[tuple[Library | None, str], list[str]] = {}
    for name, loader in LOADERS.items():
        alike.setdefault((loader.library, loader.on_cpu), []).append(name)
    return [_loader(machine, names, *needs) for needs, names in alike.items()]


def _loader(machine: Machine, names: Sequence[str], library: Library | None, on_cpu: str) -> Check:
    installed = library is None or library.module in machine.libraries
    lacks_gpu = bool(on_cpu) and not machine.gpus
    detail, remedy = "part of every installation", ""
    if library is not None:
        # Of DALI there is a package for each release of CUDA.
        detail = versions().get(library.package, "of another package" if installed else "not installed")
    if library is not None and not installed:
        remedy = library.install
    elif lacks_gpu:
        remedy = f"needs a GPU; on a CPU use {on_cpu}"
    return Check("loaders", ", ".join(names), not remedy, detail, remedy)


def _launchers() -> list[Check]:
    return [_of("launchers", launcher.presence()) for launcher in LAUNCHERS.values()]


def _profilers(gpu: bool, capability: tuple[int, int] | None) -> list[Check]:
    # TAU is tried, also under the mpirun that is here, of which profiling knows nothing.
    seen = {
        name: presence_of(look_at_tau(gpu=gpu)) if name == "tau" else tool(name).presence() for name in TOOLS
    }
    return [_of("profilers", of_profiler(name, one, gpu, capability)) for name, one in seen.items() if one]


def of_profiler(
    name: str, presence: Presence, gpu: bool, capability: tuple[int, int] | None = None
) -> Presence:
    """A profiler that is installed, and on this machine has nothing that it can record, is not ready.

    Args:
        capability: compute capability of the GPU.
    """
    oldest, newest = tool(name).oldest_gpu, tool(name).newest_gpu
    if presence.present and not gpu and tool(name).gpu_only:
        remedy = f"records GPUs only, and there is none here; {ON_A_CPU}"
    elif presence.present and oldest and capability and capability < oldest:
        remedy = _other_gpus("from {} on", oldest, capability, "nvprof")
    elif presence.present and newest and capability and capability > newest:
        remedy = _other_gpus("up to {}", newest, capability, "nsys or cupti")
    else:
        return presence
    return replace(presence, present=False, remedy=remedy)


def _other_gpus(which: str, last: tuple[int, int], capability: tuple[int, int], instead: str) -> str:
    its, here = ("{}.{}".format(*one) for one in (last, capability))
    of_it = which.format(f"compute capability {its}")
    return f"records GPUs {of_it}, and that of this one is {here}; use {instead}"


def _of(group: str, presence: Presence) -> Check:
    return Check(group, **asdict(presence))


def show(checks: list[Check]) -> None:
    """The checks on standard output, below their groups; for what is missing, how to get it."""
    console = Console(highlight=False)
    console.print(f"This machine: {socket.gethostname()}", style="italic")
    for group, inside in groupby(checks, lambda check: check.group):
        console.print(group, style="bold")
        for check in inside:
            style = "green" if check.present else "red" if check.required else "yellow"
            sign = Text("✓" if check.present else "✗" if check.required else "–", style=style)
            console.print(Text("  ") + sign + f" {check.name}: {check.detail}", soft_wrap=True)
            if not check.present:
                console.print(Text(f"      to get it: {check.remedy}"), soft_wrap=True)


def main() -> int:
    parser = make_parser("python -m jobs.doctor", __doc__)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output format [table]")
    add_site_flag(parser)
    parser.add_argument("word", nargs="?", help=argparse.SUPPRESS)  # a sweep file is a likely mistake
    arguments = parser.parse_args()
    if word := arguments.word:
        instead = f"; whether the runs of a sweep can start: {command('jobs.sweep', word, '--dry-run')}"
        see = instead if word.endswith((".yaml", ".yml")) else " (see --help)"
        raise UserError(f"unexpected argument: {word}{see}")
    checks = examine(this_machine(), arguments.site)
    if arguments.format == "json":
        json.dump([asdict(check) for check in checks], sys.stdout, indent=2)
        print()
    else:
        show(checks)
    return EXIT_FAILED if any(f.required and not f.present for f in checks) else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
