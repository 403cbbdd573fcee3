"""No forecast where more ranks would share the cores that the measured ones had."""

import shutil
from typing import Any

import pytest

from analysis.frames.load import load
from analysis.measures.points import shared_cores
from jobs import store
from jobs.store import Manifest
from profiling.findings import Finding
from tests.analysis.commands import found, one_line_error
from tests.analysis.commands import run as run_command
from tests.analysis.frames import opening_of, section_of
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep_record


def plant(directory, device="cpu", cores: int | None = 4, hosts=1, **fields: Any):
    for ranks in (1, 2):
        shape = {"nodes": min(hosts, ranks), "gpus_per_node": ranks // min(hosts, ranks)}
        for profile in ("none", "torch"):
            run = run_of(profile=profile, **shape, **fields)
            path = write_run(directory, run, Truth(device=device)) / store.MANIFEST
            manifest = Manifest.model_validate_json(path.read_text())
            reports = [one.model_copy(update={"hostname": f"h{one.rank % hosts}"}) for one in manifest.ranks]
            host = {"cores": cores} if cores else {}
            store.write_record(path, manifest.model_copy(update={"ranks": reports, "host": host}))
    write_sweep_record(directory)
    return load(directory)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({}, True),  # each has its share of the cores
        ({"cores": None}, True),
        ({"threads": 2}, True),  # four ranks of two threads would have four cores
        ({"threads": 1}, False),  # four ranks of one thread have one each
        ({"hosts": 2}, False),  # more ranks bring more hosts
        ({"device": "NVIDIA A100-SXM4-40GB"}, False),
    ],
)
def test_ranks_that_would_share_cores_are_told(tmp_path, given, share):
    assert shared_cores(plant(tmp_path, **given)) == share


def test_the_report_gives_no_forecast_for_ranks_that_would_share_cores(tmp_path):
    study = plant(tmp_path)
    assert "simulated" not in opening_of(study)
    section = section_of(study, "prediction")
    assert section.unavailable == str(Finding("cores_shared")) and not section.charts
    assert "cores_shared" in found("analysis.predict", tmp_path)


def test_where_nothing_can_be_predicted_shared_cores_are_the_reason(tmp_path):
    """And not that more numbers of ranks should be measured: these would share the cores as well."""
    plant(tmp_path)
    for path in tmp_path.glob("run_*_1_2_*"):
        shutil.rmtree(path)
    assert str(Finding("cores_shared")) in one_line_error(run_command("analysis.predict", tmp_path))


@pytest.mark.parametrize(("threads_of", "differ"), [({1: 2, 2: 1}, True), ({1: 2, 2: 2}, False)])
def test_different_threads_per_rank_are_said_by_table_and_report(tmp_path, threads_of, differ):
    plant(tmp_path)
    for path in tmp_path.glob(f"run_*/{store.MANIFEST}"):
        manifest = Manifest.model_validate_json(path.read_text())
        threads = threads_of[len(manifest.ranks)]
        reports = [one.model_copy(update={"threads": threads}) for one in manifest.ranks]
        store.write_record(path, manifest.model_copy(update={"ranks": reports}))
    of_table = found("analysis.scaled", tmp_path)
    assert of_table.get("threads_differ") == ({"threads": [1], "base": [2]} if differ else None)
    assert ("threads per rank" in opening_of(load(tmp_path))) == differ
