"""Memory that a command has freed is used again; the kernel is not asked for it anew."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from profiling.heap import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work(times):
    for _ in range(times):
        columns = [np.ones(1 << 20) for _ in range(3)]

{first}
work(5)
before = faults()
work(20)
print(faults() - before)
"""


def faults_of(first: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(first=first)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_columns_that_come_and_go_take_no_new_pages():
    assert faults_of("keep_freed_memory()") < faults_of("") / 10
