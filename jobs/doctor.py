"""What this machine has, what is missing, and the command that installs it.

On a cluster it also names the site file in use and checks it against this node.

    python -m jobs.doctor [--site NAME|FILE] [--format table|json]

Exit code 0: scaleprof can train here; 1: something that it needs is missing, or the site file is wrong.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from jobs.failures import explain
from jobs.launchers import LAUNCHERS
from jobs.machine import NO_AMD, TESTED, Machine, ask, check_built_for, is_tested, this_machine, versions
from jobs.run import DALI_PACKAGE, INSTALL_DALI, LOADERS
from jobs.run_fields import make_parser
from jobs.site import add_site_flag, check_site
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.tools import ON_A_CPU, TOOLS, Options, Presence, tool

AMD_DRIVER = Path("/dev/kfd")
_HIDDEN = "CUDA_VISIBLE_DEVICES hides the GPUs"
_NO_DRIVER = "no NVIDIA driver; on a cluster, run this on a GPU node (srun --gpus 1 ...)"
_ARCHITECTURES = "import torch; print(*torch.cuda.get_arch_list())"
_SETUP = "make setup  (or: pip install -e '.[full]')"
_LIBRARIES = (  # name, how one gets it, whether nothing works without it
    ("torch", _SETUP, True),
    ("torchvision", _SETUP, True),
    ("mpi4py", "pip install -e '.[mpi]'", False),
    ("horovod", "make horovod  (not needed for DDP)", False),
)


def examine(machine: Machine, site: str | None = None) -> list[Presence]:
    groups: dict[str, Iterable[Presence]] = {
        "machine": _hardware(machine),
        "libraries": _libraries(machine),
        "loaders": _loaders(machine),
        "launchers": [launcher.presence() for launcher in LAUNCHERS.values()],
        "profilers": _profilers(machine),
        "cluster": check_site(os.environ, site),
    }
    return [replace(each, group=group) for group, presences in groups.items() for each in presences]


def _hardware(machine: Machine) -> Iterator[Presence]:
    yield Presence("CPU", True, f"{machine.cpu}, cores: {machine.cores}")
    yield Presence("memory", True, f"{machine.memory_bytes / 1e9:.0f} GB")
    gpus = ", ".join(f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus))
    driver = f" (driver {machine.driver})" if machine.driver else ""
    remedy = NO_AMD if AMD_DRIVER.exists() else _HIDDEN if machine.driver else _NO_DRIVER
    yield Presence("GPU", bool(gpus), gpus + driver if gpus else "none", "" if gpus else remedy)


def _libraries(machine: Machine) -> Iterator[Presence]:
    """The libraries; PyTorch also: whether its release is tested, and has kernels for the GPU."""
    installed = versions()
    for name, remedy, required in _LIBRARIES:
        yield Presence(name, name in installed, installed.get(name, "-"), remedy, required)
    if (torch := installed.get("torch")) and not is_tested(torch):
        first, last = (".".join(map(str, release)) for release in TESTED)
        yield Presence("torch's release", False, torch, f"tested: {first} to {last}")
    if torch and machine.capability:
        archs, remedy = _built_for(), ""
        try:
            check_built_for(machine.capability, archs, (*machine.gpus, "the GPU")[0])
        except UserError as error:
            remedy = str(error)
        yield Presence("torch for GPU", not remedy, ", ".join(archs), remedy)


def _built_for() -> list[str]:
    """The GPUs that PyTorch is built for; asked in a process of its own, for it takes seconds to load."""
    command = [sys.executable, "-c", _ARCHITECTURES]
    return ask(command, timeout_s=300).stdout.split()


def _loaders(machine: Machine) -> Iterator[Presence]:
    for name, loader in LOADERS.items():
        detail, remedy = "built in", ""
        if loader.by_dali:  # there is a package for each release of CUDA
            other = "of another package" if machine.has_dali else "not installed"
            detail, remedy = versions().get(DALI_PACKAGE, other), "" if machine.has_dali else INSTALL_DALI
        if loader.on_cpu and not machine.gpus:
            remedy = remedy or f"needs a GPU; on a CPU use {loader.on_cpu}"
        yield Presence(name, not remedy, detail, remedy)


def _profilers(machine: Machine) -> Iterator[Presence]:
    """The profilers; one that has nothing on this machine that it can record is not ready."""
    gpu, capability = bool(machine.gpus), machine.capability
    for name in TOOLS:
        # TAU is tried: only then is it known whether it serves this Python.
        presence = look_at_tau(gpu=gpu) if name == "tau" else tool(name).presence()
        if presence is None:
            continue
        oldest, newest = tool(name).oldest_gpu or (0, 0), tool(name).newest_gpu or (99, 0)
        remedy = f"records GPUs only; {ON_A_CPU}" if not gpu and tool(name).gpu_only else ""
        if capability and not oldest <= capability <= newest:
            remedy = "this GPU: {}.{}; supported: {}.{} to {}.{}".format(*capability, *oldest, *newest)
        unready = presence.present and remedy
        yield replace(presence, present=False, remedy=remedy) if unready else presence


def look_at_tau(environment: Mapping[str, str] = os.environ, gpu: bool = False) -> Presence:
    """The TAU on the PATH, and whether it can profile a Python that does nothing."""
    if not shutil.which("tau_exec", path=environment.get("PATH")):
        return Presence("tau_exec", False, "not on the PATH", tool("tau").install)
    if why := _try_tau(["-c", "import pytau"], Options(gpu=gpu), environment):
        return Presence("tau_exec", False, why, tool("tau").install)
    why = _try_tau(["-c", "pass"], Options("python", gpu=gpu), environment)
    return Presence("tau_exec", True, f"works; profile_mode python: {why or 'works'}")


def _try_tau(arguments: Sequence[str], options: Options, environment: Mapping[str, str]) -> str:
    """Run Python under TAU as a rank would be; why that failed, in TAU's or the loader's words; "" if not."""
    with tempfile.TemporaryDirectory() as folder:
        command = tool("tau").wrap([sys.executable, *arguments], Path(folder), options)
        variables = {**environment, **tool("tau").environment(Path(folder), options)}
        ended = ask(command, variables, 60, Path(folder))
        if ended.returncode:
            log = ended.stdout + ended.stderr
            return explain(ended.returncode, f"exit code {ended.returncode}", log).text
        return "" if any(Path(folder).glob("profile.*")) else "no profile written"


def show(checks: list[Presence]) -> None:
    """The checks on standard output, below their groups; for what is missing, how to get it."""
    console = Console(highlight=False)
    console.print(f"This machine: {socket.gethostname()}", style="italic")
    for group, inside in groupby(checks, lambda check: check.group):
        console.print(group, style="bold")
        for check in inside:
            sign, style = (
                ("✓", "green") if check.present else ("✗", "red") if check.required else ("–", "yellow")
            )
            line = Text.assemble("  ", (sign, style), f" {check.name}: {check.detail}")
            remedy = "" if check.present else f"\n      to get it: {check.remedy}"
            console.print(line + remedy, soft_wrap=True)


def main() -> int:
    parser = make_parser("python -m jobs.doctor", __doc__)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="output format [table]")
    add_site_flag(parser)
    arguments = parser.parse_args()
    checks = examine(this_machine(), arguments.site)
    if arguments.format == "json":
        json.dump([asdict(check) for check in checks], sys.stdout, indent=2)
        print()
    else:
        show(checks)
    return EXIT_FAILED if any(each.required and not each.present for each in checks) else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
