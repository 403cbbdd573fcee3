"""Which TAU is here and whether it serves, with programs in the place of TAU's own."""

import sys

import pytest

from jobs.doctor import look_at_tau

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
    assert found.present and "MPI" not in found.detail  # it has none to be tried with
    assert found.detail.startswith("TAU 2.35 (Python 3.11.2, threads); ")


def test_a_tau_without_python_is_none_that_can_be_used(put):
    found = look_at_tau(put("MPI,PTHREAD", alone=f'printf "{NO_PYTHON}"; exit 1'))
    assert not found.present and "No matching binding" in found.detail
    assert "profile_mode python" not in found.detail and "+python" in found.remedy


def test_a_tau_of_another_python_serves_in_all_modes_but_one(put):
    found = look_at_tau(put("PYTHON", python=f'echo "{OTHER_PYTHON}"; exit 255'))
    assert found.present and found.detail.endswith(f"profile_mode python: {OTHER_PYTHON}")


def test_a_tau_that_writes_nothing_does_not_serve(put):
    assert not look_at_tau(put("PYTHON", alone="true")).present


def test_where_there_are_gpus_it_is_tried_with_cupti(put, tmp_path):
    look_at_tau(put("PYTHON", alone=f'echo "$*" > {tmp_path}/said; {PROFILE}'), gpu=True)
    said = (tmp_path / "said").read_text()
    assert said.startswith("-T python,cupti -cupti ") and f" {sys.executable} -c import pytau" in said
    assert not look_at_tau({"PATH": "/nowhere"}).present
