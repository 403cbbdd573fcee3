"""Two ranks that train together over gloo, each recorded: collectives, whose they are, how long they take."""

import gzip
import os

import pytest

from profiling.tables import rank_directory, read

pytestmark = pytest.mark.long

pytest.importorskip("torch")
SECRET = "hunter2-do-not-write-me"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, forks):
    """Each rank's directory and kernels."""
    directory = tmp_path_factory.mktemp("run")
    environment = {**os.environ, "API_TOKEN": SECRET, "OMP_NUM_THREADS": "1"}
    log = directory / "log.txt"
    started = [
        forks.parent.start(log, "tests.profiling.recorded_rank", directory, rank, environment=environment)
        for rank in (0, 1)
    ]
    codes = [rank.wait(600)[0] for rank in started]
    assert codes == [0, 0], log.read_text()
    directories = [rank_directory(directory, rank) for rank in (0, 1)]
    return [(found, read(found, "kernels").to_pandas()) for found in directories]


def test_the_gradients_of_a_batch_are_sent_once(ranks):
    from tests.profiling.recorded_rank import PARAMETERS

    for rank, (_, kernels) in enumerate(ranks):
        communication = kernels[kernels["class"] == "communication"]
        assert set(communication["rank"]) == {rank}
        assert set(communication["name"]) == {"gloo:all_reduce", "gloo:broadcast"}
        gradients = communication[communication["name"] == "gloo:all_reduce"]
        assert set(gradients["direction"]) == {"bprop"}
        assert gradients.groupby("batch_index")["bytes"].sum().to_list() == [4 * PARAMETERS] * 2
        # Batch norm's statistics go from rank 0 to all before each forward pass.
        statistics = communication[communication["name"] == "gloo:broadcast"]
        assert set(statistics["direction"]) == {"fprop"}


def test_a_collective_lasts_until_its_last_rank_has_come(ranks):
    """What is recorded is the collective itself, in gloo's own thread, and not the call that asked for it."""
    from tests.profiling.recorded_rank import LATE_S

    early, late = (
        kernels[(kernels["name"] == "gloo:all_reduce") & (kernels["batch_index"] == 2)]
        for _, kernels in ranks
    )
    first, last = early.iloc[0], late.iloc[0]
    assert first["duration_ns"] > LATE_S / 2 * 1e9
    assert first["start_ns"] + first["duration_ns"] >= last["start_ns"]
    assert last["duration_ns"] < first["duration_ns"]


def test_nothing_of_the_environment_is_written(ranks):
    for directory, _ in ranks:
        files = [path for path in directory.rglob("*") if path.is_file()]
        assert len(files) == 3
        for path in files:
            content = path.read_bytes()
            text = gzip.decompress(content) if path.suffix == ".gz" else content
            assert SECRET.encode() not in text
            assert b"API_TOKEN" not in text
