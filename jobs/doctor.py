"""What does this machine have, what is missing, and which command installs it?

On a cluster: which site file is used, and is what it says true of this node?

    python -m jobs.doctor [--site NAME|FILE] [--format table|json]

Exit code 0: scaleprof can train here; 1: something that it needs is missing, or the site file is wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
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
_WIDE = 1000  # columns in a file or a pipe, where no line need be wrapped; the table takes what it needs


@dataclass(frozen=True)
class Finding:
    """One thing a user may want here: is it there, which one, and how to get it if not."""

    group: str
    name: str
    present: bool
    detail: str
    remedy: str = ""
    required: bool = False


def examine(machine: Machine, site: str | None = None) -> list[Finding]:
    """All findings about this machine, in the order in which they are shown.

    Args:
        site: a site file's name or path; None: the one that is used here.
    """
    return [
        *_hardware(machine),
        *_libraries(),
        *_torch(machine),
        *_loaders(machine),
        *_launchers(),
        *_profilers(bool(machine.gpus)),
        *(_of("cluster", presence) for presence in check_site(os.environ, site)),
    ]


def _hardware(machine: Machine) -> list[Finding]:
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
        Finding(
            "machine",
            "CPU",
            True,
            f"{machine.cpu}, {how_many(machine.cores, 'core')} available",
        ),
        Finding("machine", "memory", True, f"{machine.memory_bytes / 1e9:.0f} GB"),
        Finding("machine", "GPU", bool(machine.gpus), gpus + driver if gpus else "none", remedy),
    ]


def _libraries() -> list[Finding]:
    installed = versions()
    return [
        Finding(
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


def _torch(machine: Machine) -> list[Finding]:
    """Whether the PyTorch that is installed is one of those tested, and has kernels for the GPU."""
    installed = versions().get("torch")
    if not installed:
        return []
    remedy = why_not_tested(installed)
    findings = [Finding("libraries", "torch's release", False, installed, remedy)] if remedy else []
    if machine.capability:
        built_for = _built_for()
        remedy = why_not_built_for(machine.capability, built_for, (*machine.gpus, "the GPU")[0])
        findings.append(Finding("libraries", "torch for this GPU", not remedy, ", ".join(built_for), remedy))
    return findings


def _built_for() -> list[str]:
    """The GPUs that PyTorch is built for; asked in a process of its own, for it takes seconds to load."""
    code = "import torch; print(*torch.cuda.get_arch_list())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return asked.stdout.split()


def _loaders(machine: Machine) -> list[Finding]:
    """A line for all loaders that need the same."""
    alike: dict[tuple[Library | None, str], list[str]] = {}
    for name, loader in LOADERS.items():
        alike.setdefault((loader.library, loader.on_cpu), []).append(name)
    return [_loader(machine, names, *needs) for needs, names in alike.items()]


def _loader(machine: Machine, names: Sequence[str], library: Library | None, on_cpu: str) -> Finding:
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
    return Finding("loaders", ", ".join(names), not remedy, detail, remedy)


def _launchers() -> list[Finding]:
    return [_of("launchers", launcher.presence()) for launcher in LAUNCHERS.values()]


def _profilers(gpu: bool) -> list[Finding]:
    # TAU is tried, also under the mpirun that is here, of which profiling knows nothing.
    seen = {
        name: presence_of(look_at_tau(gpu=gpu)) if name == "tau" else tool(name).presence() for name in TOOLS
    }
    return [_of("profilers", of_profiler(name, one, gpu)) for name, one in seen.items() if one]


def of_profiler(name: str, presence: Presence, gpu: bool) -> Presence:
    """A profiler that is installed, and on this machine has nothing to record, is not ready."""
    if gpu or not presence.present or not tool(name).gpu_only:
        return presence
    return replace(presence, present=False, remedy=f"records GPUs only, and there is none here; {ON_A_CPU}")


def _of(group: str, presence: Presence) -> Finding:
    return Finding(group, **asdict(presence))


def show(findings: list[Finding]) -> None:
    """The findings on standard output: as a table or, where that would break a word (a path), as a list."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    cells = [_HEADINGS, *(_cells(finding) for finding in findings)]
    widths = widths_of(cells, console.width - len(_SIGN) - _GAP * len(_HEADINGS))
    if widths is None:
        _show_list(findings, console)
        return
    table = Table(title=_TITLE, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("", width=len(_SIGN))
    for heading, width in zip(_HEADINGS, widths, strict=True):
        table.add_column(heading, width=width)
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            table.add_row("", Text(group, style="bold"))
        # Text, because a plain string would be read as markup: "pip install -e '.[mpi]'" without its "[mpi]".
        table.add_row(_sign(finding), *map(Text, _cells(finding)))
    with console.capture() as drawn:
        console.print(table)
    # A table is drawn as wide as its widest line, and blanks fill the others.
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


_TITLE, _HEADINGS = "This machine", ("what", "here", "to get it")
_SIGN, _GAP = " ", 2  # a sign is one column wide, and so many are between two columns


def _cells(finding: Finding) -> tuple[str, str, str]:
    return finding.name, finding.detail, "" if finding.present else finding.remedy


def _sign(finding: Finding) -> Text:
    if finding.present:
        return Text("✓", style="green")
    return Text("✗", style="red") if finding.required else Text("–", style="yellow")


def widths_of(rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of a table's columns in which no word is broken; None: there is not so much room.

    What is left beyond the longest words goes to the columns by how much wider their cells are.
    """
    columns = list(zip(*rows, strict=True))
    least = [max((len(word) for cell in cells for word in cell.split()), default=0) for cells in columns]
    more = [max(map(len, cells)) - words for cells, words in zip(columns, least, strict=True)]
    left = room - sum(least)
    if left < 0:
        return None
    share = min(1.0, left / (sum(more) or 1))
    return [words + int(share * wider) for words, wider in zip(least, more, strict=True)]


def _show_list(findings: list[Finding], console: Console) -> None:
    """Each finding in lines of its own; a word that is wider than the terminal stays one."""

    def say(words: str, indent: str, sign: Text | None = None, style: str = "") -> None:
        first = Text(indent) if sign is None else sign + Text(" ")
        wrapped = textwrap.wrap(
            words, max(1, console.width - len(indent)), break_long_words=False, break_on_hyphens=False
        )
        for number, line in enumerate(wrapped):
            console.print((Text(indent) if number else first) + Text(line, style=style), soft_wrap=True)

    say(_TITLE, "", style="italic")
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            say(group, "  ", style="bold")
        name, detail, remedy = _cells(finding)
        say(f"{name}: {detail}", "  ", _sign(finding))
        say(f"to get it: {remedy}" if remedy else "", "    ")


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
    findings = examine(this_machine(), arguments.site)
    if arguments.format == "json":
        json.dump([asdict(finding) for finding in findings], sys.stdout, indent=2)
        print()
    else:
        show(findings)
    return EXIT_FAILED if any(f.required and not f.present for f in findings) else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
