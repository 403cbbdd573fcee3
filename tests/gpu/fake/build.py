"""Build stand-ins for the NVIDIA libraries that an installed PyTorch for CUDA asks for.

python build.py SITE DRIVER    SITE: the site-packages with torch; DRIVER: a folder for libcuda and NVML

What is asked for is read from PyTorch's libraries: a stand-in has each function that one of them names. Those
of ``libraries/`` do what they say; all others return 801, CUDA's "not supported".
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "libraries"
RUNTIME = "libcudart.so.13"
NVML = "libnvidia-ml.so.1"  # PyTorch does not link it; pynvml loads it
OF_THE_DRIVER = ("libcuda.so.1", NVML)
# How functions begin whose symbols have no version, which would name the library; the driver's last.
UNVERSIONED = {
    "nccl": "libnccl.so.2",
    "cuFile": "libcufile.so.0",
    "cusparseLt": "libcusparseLt.so.0",
    "cu": "libcuda.so.1",
}
# Weak, so that what libraries/ defines comes first.
NOTHING = "__attribute__((weak)) int {}() {{ return 801; }}\n"


def output(*command: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def needed(libraries: Iterable[Path]) -> dict[str, tuple[str, set[str]]]:
    """Library -> (its symbols' version, the functions of it that are named)."""
    functions: dict[str, set[str]] = defaultdict(set)
    versions: dict[str, str] = {}
    for library in libraries:
        for owner in re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^]]*)\]", output("readelf", "-d", library)):
            functions[owner] |= set()
        owners = owner_of_version(output("readelf", "-WV", library))
        undefined = output("nm", "-D", "-u", "--with-symbol-versions", library)
        for name, version in re.findall(r" U ([A-Za-z]\w*)(?:@(\S+))?\n", undefined):
            owner = owners.get(version) if version else owner_of(name)
            if owner in functions:
                functions[owner].add(name)
                versions[owner] = version
    return {owner: (versions.get(owner, ""), names) for owner, names in functions.items()}


def owner_of_version(needs: str) -> dict[str, str]:
    """Version of symbols -> the library that has it, of readelf's table of version needs."""
    owners: dict[str, str] = {}
    for owner, names in re.findall(r"File: (\S+) +Cnt: \d+\n((?:.*Name: .*\n)+)", needs):
        owners |= dict.fromkeys(re.findall(r"Name: (\S+)", names), owner)
    return owners


def owner_of(function: str) -> str | None:
    """The library that defines a function whose symbol has no version."""
    return next((owner for start, owner in UNVERSIONED.items() if re.match(f"{start}[A-Z]", function)), None)


def compile_library(
    target: Path, version: str, functions: Iterable[str], includes: Path, links: list[Path]
) -> None:
    """Build ``target`` of its source, if there is one, and of functions that do nothing."""
    sources = list(SOURCES.glob(f"{target.name.removeprefix('lib').partition('.so')[0]}.c*"))
    with tempfile.TemporaryDirectory() as scratch:
        rest, exported = Path(scratch) / "rest.c", Path(scratch) / "map"
        rest.write_text("".join(NOTHING.format(name) for name in sorted(functions)))
        # -rpath: they find the runtime's stand-in beside them.
        words = ["-O1", "-fPIC", "-shared", "-w", "-fpermissive", f"-I{includes}", "-Wl,-rpath,$ORIGIN"]
        words += [f"-Wl,-soname,{target.name}", "-o", str(target)]
        if version:
            exported.write_text(f"{version} {{ global: *; }};\n")
            words.append(f"-Wl,--version-script={exported}")
        target.unlink(missing_ok=True)  # of the wheel that brought the headers
        output("gcc", *words, *sources, rest, *links, "-lstdc++", "-lpthread", "-ldl")


def main() -> None:
    site, driver = Path(sys.argv[1]), Path(sys.argv[2])
    cuda = site / "nvidia" / "cu13"
    torch = [*(site / "torch" / "lib").glob("*.so*"), *(site / "torchvision").glob("_C*.so")]
    libraries = needed(torch) | {NVML: ("", set())}
    runtime = cuda / "lib" / RUNTIME
    driver.mkdir(exist_ok=True)
    # The others call the runtime's, which comes first.
    for name in sorted(libraries, key=lambda name: name != RUNTIME):
        version, functions = libraries[name]
        alone = name == RUNTIME or name in OF_THE_DRIVER
        target = (driver if name in OF_THE_DRIVER else runtime.parent) / name
        compile_library(target, version, functions, cuda / "include", [] if alone else [runtime])


if __name__ == "__main__":
    main()
