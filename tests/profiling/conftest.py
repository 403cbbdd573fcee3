"""What tests share: processes with PyTorch, from which programs of users fork."""

from collections.abc import Iterator

import pytest

from tests.forked import Parent
from tests.profiling.watching import Forks, variables


@pytest.fixture(scope="session")
def forks(tmp_path_factory) -> Iterator[Forks]:
    """For programs that PyTorch does not compile: optimizers import its compiler all the same."""
    with Parent(["torch._dynamo", "pandas", "jobs.by_hand", "profiling.tools"], variables()) as parent:
        yield Forks(parent, tmp_path_factory.mktemp("forks"))


@pytest.fixture(scope="session")
def forks_before_the_compiler(tmp_path_factory) -> Iterator[Forks]:
    """For programs that are compiled: hooks are in PyTorch before its compiler is imported."""
    with Parent(["torch", "jobs.by_hand", "profiling.tools"], variables()) as parent:
        yield Forks(parent, tmp_path_factory.mktemp("forks"))
