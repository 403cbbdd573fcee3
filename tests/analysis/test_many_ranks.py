"""The sweep that benchmarks.ranks measures on is one of ours: as many kernels as said, and a slow rank."""

import numpy as np

from analysis.frames.load import load
from analysis.measures.lateness import STRAGGLER
from benchmarks import ranks
from benchmarks.planted_sweep import Job, write_sweep
from profiling import tables
from tests.analysis.frames import stragglers_rows


def test_a_made_rank_has_its_kernels_one_after_the_other_and_the_slow_rank_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "OF_A_LAYER", 3)
    job = Job(ranks=16, nodes=2, slow=(ranks.SLOW,), gpu=ranks.SLOWER)
    write_sweep(tmp_path, [job], repetitions={"torch": 1}, batches=40, recorded=ranks.ManyKernels(16))
    (source,) = load(tmp_path).recorded
    for path in source.tables("kernels"):
        kernels = tables.read(path.parent, "kernels")
        assert len(kernels) == 20 * ranks.kernels_of_a_step()
        batches = tables.read(path.parent, "batches")
        for batch in (20, 39):
            of_batch = kernels.filter(kernels["batch_index"].to_numpy() == batch)
            start, took, stream, launch = (
                of_batch[name].to_numpy() for name in ("start_ns", "duration_ns", "stream", "launch_ns")
            )
            end = batches["end_ns"][batch].as_py()
            assert (start >= batches["start_ns"][batch].as_py()).all() and (start + took <= end).all()
            assert (launch < start).all()
            for one in np.unique(stream):
                mine = stream == one
                assert (start[mine][1:] >= (start + took)[mine][:-1]).all()  # of a stream one at a time
    rows = stragglers_rows(load(tmp_path))
    assert [(row["rank"], row["cause"]) for row in rows if row["verdict"] == STRAGGLER] == [(3, "GPU")]
