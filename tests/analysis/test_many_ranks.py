"""The sweep that benchmarks.ranks measures on is one of ours: as many kernels as said, and a slow rank."""

import numpy as np
import pytest

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


def test_a_bar_that_is_missed_is_named():
    within = {"seconds": ranks.BAR_S, "peak_gb": ranks.BAR_GB}
    page = {"page_mb": ranks.BAR_PAGE_MB, "view_s": ranks.BAR_VIEW_S}
    sweep = {**dict.fromkeys(ranks.COMMANDS, within), "report": {**within, **page}}
    assert ranks.missed(sweep) == []
    sweep |= {"scaled": {**within, "seconds": 181.0}, "report": {**within, **page, "view_s": 3.1}}
    assert ranks.missed(sweep) == ["scaled, seconds: 181.0 (at most 180)", "view_s: 3.1 (at most 3)"]


@pytest.mark.parametrize(("cpu_s", "power"), [(24.0, 1.0), (96.0, 2.0), (6.0, 0.0)])
def test_the_power_of_ranks_is_that_between_the_two_largest_sweeps(cpu_s, power):
    sweeps = [
        {"ranks": 16, "scaled": {"cpu_s": 5.0}},
        {"ranks": 64, "scaled": {"cpu_s": 6.0}},
        {"ranks": 256, "scaled": {"cpu_s": cpu_s}},
    ]
    assert ranks.power(sweeps, "scaled") == pytest.approx(power, abs=0.01)
    assert ranks.power(sweeps[:1], "scaled") is None
