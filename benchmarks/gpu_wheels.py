"""python -m benchmarks.gpu_wheels FOLDER [--python 3.12]: the wheels that benchmarks.gpu needs beside torch.

For a GPU machine that reaches no package registry: run this where there is one, copy FOLDER, and there
``python3 -m benchmarks.gpu --wheels FOLDER``. Without DALI (--without-dali) they are 175 MB for Python 3.12.
torch and torchvision are the machine's own. What has no wheel for that Python is named, and left out.

A machine that has much of it already needs less: --have FILE, which ``python3 -m pip freeze`` printed there.
Its own releases are then used instead of those that the tests run on: of 175 MB, 44 where NumPy, SciPy,
pandas, pyarrow and Pillow are there. Where only so much can be copied at a time: ``tar c FOLDER | split -b
60M - piece.`` here, and ``cat piece.* | tar x`` there.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
# Newest first: pip takes a wheel of any of them.
PLATFORMS = (
    "manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014",
    "manylinux_2_12", "manylinux2010", "manylinux_2_5", "manylinux1",
)  # fmt: skip


def requirements(pyproject: Path = ROOT / "pyproject.toml") -> tuple[list[str], list[str], list[str]]:
    """What the project pins but torch: (all but DALI, DALI, what is to come without its own requirements)."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    pinned = [one.partition(";")[0].strip() for one in project["optional-dependencies"]["full"]]
    ours = [one for one in pinned if not one.startswith("torch") and "dali" not in one]
    # CUPTI's library and CUDA's bindings: torch has brought those of its own release.
    alone = [one.partition(";")[0].strip() for one in project["optional-dependencies"]["cupti"]]
    return ours, [one for one in pinned if "dali" in one], alone


def command(folder: Path, wanted: Sequence[str], python: str, alone: bool) -> list[str]:
    """pip's words for wheels of another Python than this."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    words += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    words += [f"--platform={one}_x86_64" for one in PLATFORMS]
    return [*words, *(["--no-deps"] if alone else []), *wanted]


def download(folder: Path, dali: bool, python: str) -> list[str]:
    """Download the wheels; those that could not be had are returned.

    Raises:
        CalledProcessError: not even what is needed without DALI and CUPTI.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ours, of_dali, alone = requirements()
    # All at once: by itself DALI would bring another NumPy. It needs nvJPEG, which torch does not bring.
    without: list[str] = []
    if not dali or not _is_had(command(folder, [*ours, *of_dali], python, False)):
        subprocess.run(command(folder, ours, python, False), check=True)
        without = of_dali if dali else []
    return [*without, *(one for one in alone if not _is_had(command(folder, [one], python, True)))]


def _is_had(command: Sequence[str]) -> bool:
    return subprocess.run(command, check=False).returncode == 0


def leave_out(folder: Path, have: str) -> None:
    """Delete the wheels of packages that are in a list, as ``pip freeze`` prints it."""
    there = {_normal(re.split(r"[=@ ]", line)[0]) for line in have.splitlines()}
    for path in folder.glob("*.whl"):
        if _normal(path.name.split("-")[0]) in there:
            path.unlink()


def _normal(name: str) -> str:
    """A package's name, whichever way it is written."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install(wheels: Path, work: Path) -> tuple[Path, dict[str, str]]:
    """Unpack the wheels into a folder of their own, without a registry; torch stays the machine's.

    Returns:
        The folder, and those that do not fit this Python, each with the reason.
    """
    site, partial = work.resolve() / "site", work.resolve() / "site.partial"
    if site.is_dir():
        return site, {}
    shutil.rmtree(partial, ignore_errors=True)  # of an installation that was interrupted
    # Names, so that of a folder for several releases of Python pip takes those that fit.
    names = sorted({path.name.split("-")[0] for path in wheels.glob("*.whl")})
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-index",
           "--no-deps", "--no-compile", "--find-links", str(wheels), "--target", str(partial)]  # fmt: skip
    absent: dict[str, str] = {}
    # All at once: a second call would not add to a package that the first has begun (nvidia/).
    if _failure([*pip, *names]):
        absent = {name: why for name in names if (why := _failure([*pip, "--dry-run", name]))}
        if fitting := [name for name in names if name not in absent]:
            shutil.rmtree(partial, ignore_errors=True)
            subprocess.run([*pip, *fitting], check=True)
    partial.mkdir(exist_ok=True)
    partial.rename(site)
    return site, absent


def _failure(command: Sequence[str]) -> str:
    """The last line of what a command says that fails; "" if it does not."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
    return last if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_wheels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", choices=PYTHONS, default="3.12", help="of the GPU machine [3.12]")
    parser.add_argument("--without-dali", action="store_true")
    parser.add_argument("--have", type=Path, help="a list of what the GPU machine has: none of these")
    given = parser.parse_args()
    absent = download(given.folder, not given.without_dali, given.python)
    if given.have:
        leave_out(given.folder, given.have.read_text())
    size = sum(path.stat().st_size for path in given.folder.glob("*.whl"))
    print(f"{len(list(given.folder.glob('*.whl')))} wheels, {size / 1e6:.0f} MB, in {given.folder}")
    for one in absent:
        print(f"no wheel of {one} for Python {given.python}", file=sys.stderr)
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
