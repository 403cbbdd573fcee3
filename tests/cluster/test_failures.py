"""Failures are told apart by what real launchers print (each file of failures/ is one's own words)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.failures import RETRIES, explain, first_death, log_tail

FAILURES = Path(__file__).parent / "failures"


@pytest.mark.parametrize(
    ("name", "kind", "code", "says"),
    [
        ("srun_killed", "rank crash", -9, "rank 3 on n2 was killed by signal 9 (SIGKILL)"),
        ("srun_segfault", "rank crash", -11, "rank 3 on n2 was killed by signal 11 (SIGSEGV)"),
        ("srun_exception", "rank crash", 1, "RuntimeError: off"),
        ("srun_wrong_use", "wrong use", 2, "no data"),
        ("srun_node_failure", "node failure", -9, "n4 has stopped responding"),
        ("srun_no_such_node", "launcher error", 1, "Requested node configuration is not available"),
        ("srun_too_many_nodes", "launcher error", 1, "Only allocated 2 nodes asked for 5"),
        ("srun_no_python", "launcher error", 2, "/no/such/python: No such file"),
        ("open_mpi_4_killed", "rank crash", -9, "rank 3 on n2 was killed by signal 9"),
        ("open_mpi_4_wrong_use", "wrong use", 2, "no data"),
        ("open_mpi_5_killed", "rank crash", -9, "rank 3 on n2 was killed by signal 9"),
        ("open_mpi_5_segfault", "rank crash", -11, "rank 3 on n2 was killed by signal 11"),
        ("open_mpi_5_exception", "rank crash", 1, "RuntimeError: off"),
        ("open_mpi_5_wrong_use", "wrong use", 2, "no data"),
        ("open_mpi_5_no_such_host", "launcher error", 1, "not included in the current: n77"),
        (
            "open_mpi_5_unreachable_host",
            "launcher error",
            1,
            "daemon failed to report back after being spawned",
        ),
        ("mpich_killed", "rank crash", -9, "a rank on n2 was killed by signal 9"),
        ("mpich_wrong_use", "wrong use", 2, "no data"),
        ("intel_mpi_killed", "rank crash", -9, "rank 3 on n2 was killed by signal 9"),
        ("intel_mpi_wrong_use", "wrong use", 255, "no data"),
    ],
)
def test_what_launchers_print_is_understood(name, kind, code, says):
    # The launcher's own exit code: that of the ranks that it ended itself, or of its own making.
    launchers_code = 143 if name.startswith("srun") and code < 0 else 255 if "intel" in name else max(code, 1)
    failure = explain(launchers_code, "srun ended with exit code 143", (FAILURES / f"{name}.txt").read_text())
    assert (failure.kind, failure.exit_code) == (kind, code)
    assert says in failure.text


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event\nsrun: error: n1: task 0: Out Of Memory",
         "out of memory"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("scaleprof: error: memory does not hold batch 9 of 224 x 224; lower --batch", "out of memory"),
        ("scaleprof: error: No space left on device: /scratch/x; free some space", "disk full"),
        ("srun: error: n3: task 4: Exited with exit code 2\nOSError: [Errno 28] No space left on device: x",
         "disk full"),
        ("slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-21T13:21:57 DUE TO NODE FAILURE, SEE",
         "node failure"),
        ("ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on node n1\n"
         "  Remote daemon: [[1,0],1] on node n2\n", "node failure"),
        ("ssh: Could not resolve hostname n99: Name or service not known", "launcher error"),
        ("", "rank crash"),
    ],
)  # fmt: skip
def test_kinds_of_failures(log, kind):
    assert explain(1, "srun ended with exit code 1", log).kind == kind


# What TAU 2.33.2 to 2.35.2 and the loader print, the lines around them, and how the rank ends.
NO_PYTHON = """
Error: No matching binding for 'python mpi' in directory /opt/tau/x86_64/lib
Available bindings (/opt/tau/x86_64/lib):
  /opt/tau/x86_64/lib/shared-mpi-pthread
Binding not found. Exiting...
"""
OTHER_PYTHON = """
TAU Error: TAU was compiled against Python 3.11.2, but version 3.12.1 was used at runtime. The compile and \
runtime versions of Python must be identical.
"""
OTHER_MPI = """
/usr/bin/python3: symbol lookup error: /usr/lib/x86_64-linux-gnu/libmpi_cxx.so.40: undefined symbol: \
ompi_mpi_errors_throw_exceptions
"""
OVERLAP = """
step 1/8 loss 7.0112
TAU: Runtime overlap: found Forward Pass (0x41407590) on the stack, but stop called on push [{markers.py}{6}]
Fatal Python error: Aborted
"""
OLD_TAU = """
TAU: pytau_stop: Stack error: profiler is NULL!
  File "profiling/tau_markers.py", line 80, in pop
SystemError: <built-in function stop> returned NULL without setting an exception
"""


@pytest.mark.parametrize(
    ("log", "code", "kind", "says"),
    [
        (NO_PYTHON, 1, "profiler error", "No matching binding for 'python mpi'"),
        (OTHER_PYTHON.replace("\\\n", ""), 255, "profiler error", "compiled against Python 3.11.2"),
        (OTHER_MPI.replace("\\\n", ""), 127, "library error", "ompi_mpi_errors_throw_exceptions"),
        (OVERLAP, 134, "profiler error", "found Forward Pass"),
        (OVERLAP, -6, "profiler error", "found Forward Pass"),
        (OLD_TAU, 1, "profiler error", "profiler is NULL"),
    ],
)
def test_a_profiler_that_cannot_serve_says_why_and_is_not_tried_again(log, code, kind, says):
    failure = explain(code, "rank 0 ended with exit code 134", log)
    assert (failure.kind, failure.exit_code) == (kind, code) and says in failure.text
    assert "\n" not in failure.text and kind not in RETRIES


def test_a_binding_that_was_found_after_all_is_no_reason():
    log = NO_PYTHON.replace("Binding not found. Exiting...\n", "Traceback\nRuntimeError: off\n")
    failure = explain(1, "", log)
    assert (failure.kind, failure.text) == ("rank crash", "RuntimeError: off")


def test_the_node_of_a_failure_is_named():
    full = "srun: error: n3: task 4: Exited with exit code 2\nOSError: [Errno 28] No space left on device"
    assert explain(1, "", full).nodes == ("n3",)
    lost = "has lost communication with a remote daemon.\n Remote daemon: [[1,0],1] on node n2\n"
    assert explain(1, "", lost).nodes == ("n2",)


def test_a_rank_that_was_killed_is_why_others_gave_up():
    log = "srun: error: n1: task 0: Exited with exit code 1\n"
    log += "srun: error: n2: tasks 2-3: Bus error (core dumped)"
    death = first_death(log)
    assert death and (death.rank, death.node, death.code) == (2, "n2", -7)


def test_what_ends_the_same_again_is_not_tried_again():
    assert not {"wrong use", "wrong result", "out of memory", "time limit"} & set(RETRIES)


@given(st.text(max_size=300), st.integers(-15, 255).filter(bool))
def test_any_log_gives_one_line(log, code):
    failure = explain(code, "rank 0 ended", log)
    assert failure.kind and "\n" not in failure.reason.strip()


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (
            "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification",
            "Invalid generic resource (gres) specification: correct `gpus_per_node` in the site file",
        ),
        (
            "srun: error: Couldn't find the specified plugin name for mpi/foo looking at all files\n"
            "srun: error: cannot find mpi plugin for mpi/foo\n"
            "srun: error: Invalid MPI type 'foo', --mpi=list for acceptable types",
            "Invalid MPI type 'foo', --mpi=list for acceptable types: correct `mpi.srun` in the site file",
        ),
        (
            "srun: unrecognized option '--foo'\nTry \"srun --help\" for more information",
            "srun: unrecognized option '--foo': correct `srun` in the site file",
        ),
        (
            "An unrecognized option was included on the mpirun command line:\n\n  Option: --foo\n\nPlease",
            "mpirun command line: Option: --foo: correct `mpi.flags` in the site file",
        ),
        (
            "slurmstepd-n2: error: execve(): apptainer: No such file or directory",
            "apptainer: No such file or directory: correct `container` or `modules` in the site file",
        ),
    ],
)
def test_what_the_site_file_has_wrong_names_its_key_and_is_not_tried_again(log, says):
    failure = explain(1, "srun ended with exit code 1", f"{log}\n")
    assert failure.kind == "wrong use" and failure.kind not in RETRIES and says in failure.reason


def test_the_killed_one_of_a_thousand_ranks_is_found_before_what_the_others_say(tmp_path):
    frames = "".join(
        f'[rank{{0}}]:   File "/env/torch/nn/parallel/{i}.py", line {i}, in forward\n' for i in range(60)
    )
    lost = "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: remote process exited\n"
    log = tmp_path / "log.txt"
    others = "".join((frames + lost).format(rank) for rank in range(1023))
    log.write_text(
        f"srun: error: n44: task 700: Killed\n{others}srun: error: n1: task 3: Exited with exit code 1\n"
    )
    failure = explain(1, "srun ended with exit code 1", log_tail(log, 1024))
    assert failure.text.startswith("rank 700 on n44 ") and (failure.exit_code, failure.nodes) == (
        -9,
        ("n44",),
    )
