"""Tests here are skipped, with the reason, where there are no stand-ins for NVIDIA's libraries."""

import tempfile
from collections.abc import Iterator

import pytest

from tests.gpu.fake.environment import HERE


@pytest.fixture(scope="module", autouse=True)
def messages() -> Iterator[None]:
    """A folder for what ranks exchange: in memory, which is given back when the tests have ended."""
    if not (HERE / "fake").is_dir():
        pytest.skip("no stand-ins for NVIDIA's libraries here (make gpu-fake: 1.3 GB)")
    with (
        tempfile.TemporaryDirectory(prefix="fake-nccl-", dir="/dev/shm") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("FAKE_NCCL_FOLDER", folder)
        yield
