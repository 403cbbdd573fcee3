"""A program that was watched and one that a sweep started are compared by what both record."""

import json
from pathlib import Path

import pytest

from analysis.frames.load import load
from analysis.measures.compare import compared
from analysis.measures.watched import align_watched
from analysis.report.changes import build
from jobs import store
from jobs.by_hand import run_of as watched_run_of
from jobs.program import unknown_fields
from jobs.run import Run
from jobs.store import Manifest, RankReport
from profiling.errors import UserError
from profiling.identity import Identity
from profiling.watching.program import Program
from tests.analysis.commands import found, one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep_record

TEMPLATE = "--samples=8 mine.py --batch-size {batch} --lr {lr}"
RUNS = 4


def put(folder: Path, of: Run, unknown: list[str], truth: Truth, name: str = "") -> None:
    """Some runs of a program, with the fields that say nothing of it."""
    for repetition in range(RUNS):
        written = write_run(folder, of, truth, repetition, outside=tuple(of.factors))
        manifest = store.read_record(written / store.MANIFEST, Manifest)
        store.write_record(written / store.MANIFEST, manifest.model_copy(update={"unknown": unknown}))
        if name:
            written.rename(folder / f"{name}{repetition}")


def swept(folder: Path, truth: Truth, template: str = TEMPLATE, **factors: list) -> Path:
    """A sweep of two learning rates on 1 and 2 ranks."""
    for ranks in (1, 2):
        for lr in (0.1, 0.01):
            for threads in factors.get("threads", [1]):
                of = run_of(
                    gpus_per_node=ranks, program=template, factors={"lr": lr}, threads=threads, batches=20
                )
                put(folder, of, unknown_fields(of), truth, f"{ranks}-{lr}-{threads}-" if factors else "")
    write_sweep_record(folder)
    return folder


def watched(
    folder: Path,
    truth: Truth,
    *,
    script: str = "mine.py",
    batches: int = 20,
    lr: str = "0.1",
    per_step: int = 1,
) -> Path:
    """The same program with one of the learning rates, watched on 1 and 2 ranks."""
    for ranks in (1, 2):
        program = Program(script, ("--batch-size", "32", "--lr", lr))
        report = RankReport(
            rank=0, world_size=ranks, device="cpu", backend="", batches_done=batches, images_done=0,
            losses_finite=True, parameter_digest="", model="MyNet", grad="fp32", samples=32, workers=3,
            hostname="node0",
        )  # fmt: skip
        put(
            folder,
            *watched_run_of(report, Identity(0, ranks, 0, ranks), program, "none", per_step),
            truth,
            f"w{ranks}-",
        )
    return folder


FAST = Truth({1: 100.0, 2: 110.0}, device="cpu")
SLOW = Truth({1: 120.0, 2: 132.0}, device="cpu")


@pytest.mark.parametrize("script", ["mine.py", "/home/me/mine.py"])
def test_both_are_compared_where_they_agree_in_what_both_record(tmp_path, script):
    a, b = swept(tmp_path / "a", FAST), watched(tmp_path / "b", SLOW, script=script)
    for one, other, wanted in ((a, b, 20), (b, a, -100 / 6)):
        ran = run("analysis.compare", one, other, "--format", "json")
        steps = [row for row in ran.json if row["kind"] == "step"]
        assert [row["gpus_per_node"] for row in steps] == ["1", "2"]
        assert all(row["effect_pct"] == pytest.approx(wanted, abs=2) for row in steps)
        said = found("analysis.compare", one, other)
        assert said["not_recorded"] == {"what": ["grad", "model", "network", "threads", "workers"]}
        assert all("lr=0.01" in name for name in said["not_compared"]["what"])
    # The report of the two has them as one, too.
    page = build(load(a), load(b))
    assert "worse" in page.summary[0].text


def test_what_both_record_and_differs_in_is_named_alone(tmp_path):
    a = swept(tmp_path / "a", FAST)
    said = one_line_error(run("analysis.compare", a, watched(tmp_path / "b", SLOW, batches=30)))
    assert "--across batches" in said
    found = run("analysis.compare", a, tmp_path / "b", "--across", "batches", "--format", "json").json
    assert [row["kind"] for row in found].count("step") == 2


def test_another_command_is_all_that_differs_and_may(tmp_path):
    a, b = tmp_path / "a", watched(tmp_path / "b", SLOW, lr="0.5")
    for ranks in (1, 2):
        of = run_of(gpus_per_node=ranks, program=TEMPLATE, factors={"lr": 0.1}, threads=1, batches=20)
        put(a, of, unknown_fields(of), FAST)
    write_sweep_record(a)
    for pair in ((a, b), (b, a)):
        said = one_line_error(run("analysis.compare", *pair))
        assert said.endswith("--across program")
    ran = run("analysis.compare", a, b, "--across", "program", "--format", "json")
    assert [row["gpus_per_node"] for row in ran.json if row["kind"] == "step"] == ["1", "2"]
    assert {"network", "threads", "lr"} <= set(
        found("analysis.compare", a, b, "--across", "program")["not_recorded"]["what"]
    )


def test_a_manifest_has_no_default_of_what_is_not_known(tmp_path):
    watched(tmp_path, SLOW)
    (first, *_) = sorted(tmp_path.glob("w*/manifest.json"))
    of_run = json.loads(first.read_text())["run"]
    assert of_run["workers"] == 3 and not {"loader", "network", "image_size"} & of_run.keys()


def test_of_several_configurations_that_it_may_be_it_is_none(tmp_path):
    a = swept(tmp_path / "a", FAST, threads=[1, 2])
    said = one_line_error(run("analysis.compare", a, watched(tmp_path / "b", SLOW)))
    assert "threads" in said


def test_steps_of_several_optimizer_steps_are_compared_with_such_steps_alone(tmp_path):
    one = swept(tmp_path / "one", FAST, "--steps-per-batch=1 mine.py --batch-size {batch} --lr {lr}")
    three = swept(tmp_path / "three", FAST, "--steps-per-batch=3 mine.py --batch-size {batch} --lr {lr}")
    for per_step, same, other in ((1, one, three), (3, three, one)):
        script = "/home/me/mine.py"
        of_run = watched(tmp_path / f"watched{per_step}", SLOW, script=script, per_step=per_step)
        assert compared(*align_watched(load(same), load(of_run)))
        with pytest.raises(UserError, match="program"):
            compared(*align_watched(load(other), load(of_run)))


def test_a_script_that_another_is_given_is_not_that_script(tmp_path):
    a = swept(tmp_path / "a", FAST, "starts.py its/mine.py --batch-size {batch} --lr {lr}")
    with pytest.raises(UserError, match="program"):
        compared(*align_watched(load(a), load(watched(tmp_path / "b", SLOW))))
