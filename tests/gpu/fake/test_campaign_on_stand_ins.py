"""benchmarks.gpu, all parts but those that take longest, on stand-ins for NVIDIA's libraries."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import PARTS
from tests.gpu.fake.environment import run

pytestmark = pytest.mark.long
# benchmarks.gpu; its figures, which mean nothing here, are measured for 0.1 s each instead of five seconds.
CAMPAIGN = """
import sys
from benchmarks import gpu

gpu.WORKER = ["-c", '''
from dataclasses import replace
from benchmarks import gpu_part, gpu_parts
from profiling.errors import run_command

gpu_part.ON_GPU = replace(gpu_part.ON_GPU, cell_s=0.1)
run_command(gpu_parts.main)
''']
sys.exit(gpu.main())
"""
# Those that measure in the process of the parts, and those that start others: two tests, for two processors.
INSIDE = ("machine", "correctness", "speed", "batches", "loaders", "precisions", "markers", "host")
COMMANDS = ("tools", "perturbation", "sweep", "counters", "profiles")


def campaign(out: Path, parts: Sequence[str]) -> dict:
    """What these parts have found, all of which were done, on a GPU of little memory.

    Batches have a kernel for each image. What is found is wrong, since nothing is computed; that the parts
    are done is what the day needs.
    """
    words = ("--minutes", 30, "--parts", ",".join(parts), "--out", out)
    code, said = run("-c", CAMPAIGN, *words, limit_s=1900, FAKE_MEM_MB=3000)
    found = json.loads((out / "gpu.json").read_text())["parts"]
    assert {name: part["status"] for name, part in found.items()} == dict.fromkeys(parts, "done"), said
    assert code == (1 if any(part["wrong"] for part in found.values()) else 0), said
    return found


def rows_of(found: dict, part: str) -> list:
    """The first cells of a part's tables."""
    return [row[0] for table in found[part]["tables"] for row in table["rows"]]


def test_the_campaign_has_all_parts_but_those_that_take_longest():
    assert {*INSIDE, *COMMANDS, "compile", "studies"} == set(PARTS)


@pytest.mark.wide
def test_what_the_campaign_measures_itself_is_done_on_a_gpu(tmp_path):
    found = campaign(tmp_path, INSIDE)
    checks = {row[0]: row[3] for row in found["correctness"]["tables"][0]["rows"]}
    assert checks["loss, fp32, against a CPU's fp32"] == "NO"
    assert (
        checks["labels of pytorch that differ"] == checks["out of memory, and no line that says so"] == "yes"
    )
    assert not any("Error" in what for what in found["correctness"]["wrong"]), found["correctness"]["wrong"]
    assert rows_of(found, "speed") == ["scaleprof", "bare PyTorch"]
    assert rows_of(found, "batches") == ["32"]
    assert found["batches"]["left_out"]["batch 512"] == "not enough memory"
    assert rows_of(found, "loaders") == ["synthetic", "pytorch"] and len(rows_of(found, "precisions")) == 8


@pytest.mark.wide
def test_the_commands_of_the_campaign_are_done_on_a_gpu(tmp_path):
    found = campaign(tmp_path, COMMANDS)
    assert {"none", "torch", "cupti"} <= set(rows_of(found, "perturbation"))
    assert len(rows_of(found, "tools")) >= 2
    assert rows_of(found, "sweep")[0] == "jobs.sweep" and len(rows_of(found, "sweep")) == 4
    assert (tmp_path / "report.html").exists()
    assert "torch" in rows_of(found, "profiles") and (tmp_path / "profiles.tar.gz").exists()
