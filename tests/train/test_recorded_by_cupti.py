"""A rank that CUPTI records, from its start to its report: its stages are heard, its tables are there."""

import sys
from types import ModuleType

import pytest
import torch

from profiling import tables
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from tests.profiling.fake_cupti import FakeCupti
from train.rank import run_rank
from train.world import World

from .conftest import run_of

CLOCKS_NS = 10_000_000  # by which two readings of the host's clock may miss each other on a busy machine


@pytest.fixture
def api(monkeypatch):
    """The package's functions, and a device that is done at once."""
    module = ModuleType("cupti")
    module.cupti = FakeCupti()
    monkeypatch.setitem(sys.modules, "cupti", module)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    before = torch.get_num_threads()
    yield module.cupti
    torch.set_num_threads(before)


def test_the_stages_of_the_attributed_steps_lie_where_the_batches_have_them(data_set, tmp_path, api):
    run = run_of(data_set, model="resnet18", batches=4, attribute_from=1, threads=1, profile="cupti")
    finished = run_rank(run, World(), tmp_path, keep_raw=False, say=lambda line: None)
    directory = tables.rank_directory(tmp_path, 0)
    markers = tables.read(directory, "markers").to_pandas()
    counts = markers.groupby("name", observed=True).size().to_dict()
    assert counts == {FORWARD: 3, BACKWARD: 3, UPDATE: 3, END_OF_BATCH: 3}
    batches = tables.read(directory, "batches").to_pandas().query("attributed")
    forward = markers[markers["name"] == FORWARD]
    # Both clocks are the host's: what lies in a batch lies there on either.
    assert (forward["start_ns"].to_numpy() > batches["start_ns"].to_numpy() - CLOCKS_NS).all()
    assert (forward["end_ns"].to_numpy() < batches["end_ns"].to_numpy() + CLOCKS_NS).all()
    assert finished.wrong == "" and not api.enabled
    assert {"clock_aligned", "recording_empty"} <= {finding.code for finding in finished.report.findings}
