"""The container files: what can be said of them without building one."""

import re
import shlex
import subprocess

import pytest

from jobs import ROOT

FILES = ROOT / "containers"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, as (name, what follows), lines joined and comments left out."""
    text = re.sub(r"^#.*\n", "", (FILES / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line.strip())]


def definition() -> tuple[dict[str, str], dict[str, str]]:
    """The header and the sections of the Apptainer definition."""
    text = re.sub(r"^#.*\n", "", (FILES / "scaleprof.def").read_text(), flags=re.MULTILINE)
    head, *sections = re.split(r"^%", text, flags=re.MULTILINE)
    header = dict(line.split(": ", 1) for line in head.splitlines() if line.strip())
    return header, {name: body for name, _, body in (part.partition("\n") for part in sections)}


def packages(shell: str) -> set[str]:
    """What a shell text installs by apt."""
    (found,) = re.findall(r"apt-get install ([^&\n]*)", re.sub(r"\\\n\s*", " ", shell))
    return {word for word in shlex.split(found) if not word.startswith("-")}


def test_both_hold_the_same():
    header, sections = definition()
    runs = [rest for name, rest in instructions() if name == "RUN"]
    assert header["From"] == instructions()[0][1]
    assert packages(runs[0]) == packages(sections["post"])
    for step in ("pip install --no-cache-dir '.[full,mpi]'", "train/backends/build_horovod.sh /usr/local"):
        assert step in runs[1] and step in sections["post"]


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_their_shell_parses(shell):
    _, sections = definition()
    texts = [rest for name, rest in instructions() if name == "RUN"]
    texts += [sections[name] for name in ("post", "environment", "test")]
    for text in texts:
        done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
