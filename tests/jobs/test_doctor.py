"""The doctor says what is here, and how to get what is not."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest

from jobs import doctor
from jobs.doctor import Check, examine
from jobs.machine import Machine
from profiling.errors import UserError
from profiling.presence import of_program
from profiling.tools import cupti

WITH_DALI = frozenset({"nvidia.dali"})
HERE = Machine("h", "os", "cpu", 2, 1, (), None, WITH_DALI)


def test_what_is_missing_comes_with_what_to_do():
    bare = Machine("h", "os", "cpu", 2, 8_000_000_000, (), None, frozenset())
    findings = examine(bare)
    named = {f.name for f in findings}
    assert named >= {"GPU", "torch", "nsys", "nvprof", "tau_exec", "cupti", "mpirun", "srun", "dali-cpu"}
    assert all(f.remedy for f in findings if not f.present)


def test_hidden_gpus_are_told_from_absent_ones():
    hidden = Machine("h", "os", "cpu", 2, 1, (), "580.1", WITH_DALI)
    gpu = next(f for f in examine(hidden) if f.name == "GPU")
    assert not gpu.present and "CUDA_VISIBLE_DEVICES" in gpu.remedy
    node = replace(hidden, gpus=("NVIDIA H200",) * 4)
    assert next(f for f in examine(node) if f.name == "GPU").detail == "4 x NVIDIA H200 (driver 580.1)"


def test_the_command_prints_json_and_finds_torch(root):
    command = [sys.executable, "-m", "jobs.doctor", "--format", "json"]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    findings = {f["name"]: f for f in json.loads(answer.stdout)}
    assert findings["torch"]["present"] and findings["CPU"]["detail"]


@pytest.mark.parametrize(("error", "present"), [(None, True), (UserError("needs an NVIDIA GPU"), False)])
def test_cupti_is_here_only_if_it_answers(monkeypatch, error, present):
    monkeypatch.setattr(cupti, "load_api", Mock(side_effect=error))
    node = replace(HERE, gpus=("NVIDIA H200",))
    finding = next(f for f in examine(node) if f.name == "cupti")
    assert finding.present == present and bool(finding.remedy) != present


def test_a_launcher_that_answers_with_an_error_is_not_here(tmp_path, monkeypatch):
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/sh\necho 'srun: error: no DNS record 42' >&2\necho 'srun: fatal: no cluster' >&2\nexit 1\n"
    )
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    finding = next(f for f in examine(HERE) if f.name == "srun")
    assert not finding.present and finding.detail.endswith("fatal: no cluster")
    assert finding.remedy


def test_a_release_is_not_looked_for_in_a_copyright(tmp_path, monkeypatch):
    nvprof = tmp_path / "nvprof"
    nvprof.write_text(
        "#!/bin/sh\necho 'Copyright (c) 2012 - 2022 NVIDIA'\necho 'Release version 11.8.86 (21)'\n"
    )
    nvprof.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert of_program(["nvprof", "--version"], "").detail == "Release version 11.8.86 (21)"
    (found,) = [one for one in examine(HERE) if one.name == "nvprof"]  # which has no GPU
    assert not found.present and found.detail == "Release version 11.8.86 (21)"
    assert found.remedy


@pytest.mark.parametrize(
    ("name", "capability", "says"),
    [
        ("nsys", None, []), ("nvprof", None, ["records GPUs only"]),
        ("nvprof", (7, 5), []), ("nsys", (9, 0), []), ("ncu", (7, 0), []),
        ("ncu", (6, 1), ["6.1", "7.0"]), ("nvprof", (10, 0), ["10.0", "7.5"]),
    ],
)  # fmt: skip
def test_a_profiler_is_ready_where_it_has_something_to_record(tmp_path, monkeypatch, name, capability, says):
    (tmp_path / name).write_text("#!/bin/sh\necho 2025.5\n")
    (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_built_for", lambda: [])
    gpus = ("NVIDIA",) if capability else ()
    found = next(f for f in examine(replace(HERE, gpus=gpus, capability=capability)) if f.name == name)
    assert found.present != bool(says) and all(word in found.remedy for word in says)


@pytest.mark.parametrize("columns", [40, 200])
def test_a_path_is_not_broken_and_what_is_missing_has_a_remedy(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    path = "/projects/group-of-users/scaleprof/jobs/sites/my-cluster.yaml"
    doctor.show([
        Check("machine", "CPU", True, "AMD EPYC 7763"),
        Check("cluster", "site file", True, path),
        Check("cluster", "scratch", False, "/scratch", f"correct `scratch` in {path}"),
    ])  # fmt: skip
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == f"This machine: {socket.gethostname()}"  # under srun, one of many
    assert printed.count(path) == 2 and printed.count("to get it") == 1
