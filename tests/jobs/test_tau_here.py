"""Which TAU is here and whether it serves, with programs in the place of TAU's own."""

import sys

import pytest

from jobs.tau_here import TauHere, look_at_tau, presence_of

# tau_exec: it watches as long as what it was asked for is among its parts.
EXEC = """
case "$*" in
    *-tau-python-interpreter*) {python} ;;
    *) {alone} ;;
esac
"""
PROFILE = 'touch "$PROFILEDIR/profile.0.0.0"'
OTHER_PYTHON = "TAU Error: TAU was compiled against Python 3.11.2, but version 3.12.1 was used at runtime."
NO_PYTHON = (
    "Error: No matching binding for 'python mpi' in directory /opt/tau/lib\\nBinding not found. Exiting..."
)


@pytest.fixture
def put(tmp_path):
    """Programs that stand in for TAU's; the environment in which they are found."""

    def make(tags, alone=PROFILE, python=PROFILE):
        said = f"TAUROOT={tmp_path}\\nPYTHONINT={tmp_path}/python-of-tau\\n"
        programs = {
            "tau_exec": EXEC.format(alone=alone, python=python),
            "tau_python": EXEC.format(alone=alone, python=python),
            "tau-config": f'[ "$1" = --list-options ] && echo {tags} || printf "{said}"',
            "python-of-tau": "echo Python 3.11.2",
        }
        for name, text in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        (tmp_path / "include").mkdir(exist_ok=True)
        (tmp_path / "include" / "TAU.h").write_text('/* TAU */\n#define TAU_VERSION "2.35"\n')
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return make


def test_a_tau_that_serves_says_its_version_and_what_it_was_built_with(put):
    found = look_at_tau(put("DISABLE,PROFILE,PTHREAD,PYTHON,SERIAL"))
    assert found.serves and found.under_mpirun is None  # it has no MPI to be tried with
    assert (
        found.detail == "TAU 2.35 with Python 3.11.2, threads; works with this Python, in profile_mode python"
    )


def test_a_tau_without_python_is_none_that_can_be_used(put):
    found = look_at_tau(put("MPI,PTHREAD", alone=f'printf "{NO_PYTHON}"; exit 1'))
    assert not found.serves and found.in_python is None
    assert found.detail.startswith(
        "TAU 2.35 with MPI, threads; it cannot profile this Python: Error: No match"
    )
    presence = presence_of(found)
    assert not presence.present and "+python" in presence.remedy


def test_a_tau_of_another_python_serves_in_all_modes_but_one(put):
    found = look_at_tau(put("PYTHON", python=f'echo "{OTHER_PYTHON}"; exit 255'))
    assert found.serves and found.detail.endswith(
        f"works with this Python; not in profile_mode python: {OTHER_PYTHON}"
    )


def test_a_tau_that_writes_nothing_does_not_serve(put):
    assert look_at_tau(put("PYTHON", alone="true")).alone == "it writes no profile"


def test_a_tau_of_another_mpi_serves_alone():
    found = TauHere("2.35", ("MPI", "Python"), "", "symbol lookup error: x", "", "Open MPI 5")
    assert found.serves
    assert found.detail.endswith("; not under mpirun (Open MPI 5): symbol lookup error: x")


def test_where_there_are_gpus_it_is_tried_with_cupti(put, tmp_path):
    look_at_tau(put("PYTHON", alone=f'echo "$*" > {tmp_path}/said; {PROFILE}'), gpu=True)
    assert (tmp_path / "said").read_text().startswith("-T python,cupti -cupti ")


def test_a_machine_without_tau(tmp_path):
    assert look_at_tau({"PATH": str(tmp_path)}) is None
    assert presence_of(None).detail == "not on the PATH"


def test_it_is_this_python_that_is_tried(put, tmp_path):
    look_at_tau(put("PYTHON", alone=f'echo "$*" > {tmp_path}/said; {PROFILE}'))
    assert f" {sys.executable} -c import pytau" in (tmp_path / "said").read_text()
