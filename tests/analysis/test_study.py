"""What was loaded never changes; a run that cannot be used is left out once, in one place, for all."""

from pathlib import Path

import pytest

from analysis.display.metrics import records
from analysis.frames.kernel_sums import costs
from analysis.frames.load import load
from analysis.frames.steps import all_series
from analysis.frames.study import BOTH, Failure, Source, Study, Unusable
from analysis.measures import anatomy, communication
from analysis.measures.points import points_of
from tests.analysis.synthetic import run_of, write_sweep
from tests.analysis.test_bad_results import sweep, truncate


@pytest.fixture
def study() -> Study:
    return Study(Path("results"), [Source(name, "run", {}, Path(name)) for name in ("one", "two", "three")])


def test_a_run_that_cannot_be_used_is_left_out_while_its_set_is_read(study: Study) -> None:
    asked = []

    def length(source: Source) -> int | None:
        asked.append(source.id)
        if source.id == "two":
            raise Unusable(source, "its table\nis damaged")
        return len(source.id) if source.id == "three" else None

    for _ in range(2):
        assert [(one.id, answer) for one, answer in study.each(study.loaded, length)] == [("three", 5)]
    assert asked.count("two") == 1
    assert [one.id for one in study.sources] == ["one", "three"] and len(study.loaded) == 3
    (failed,) = study.failed
    assert (failed.point, failed.reason, failed.kind) == ("two", "its table is damaged", "unusable")


def test_a_run_that_one_measure_cannot_use_counts_in_no_later_one(tmp_path: Path) -> None:
    broken = sweep(tmp_path)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch", batch=64)])
    truncate(broken / "rank_0001" / "kernels.parquet")
    study = load(tmp_path)
    before = {source.id for source in study.sources}
    assert broken.name in all_series(study)  # of its batches nothing is wrong
    first = set(costs(study, study.sources).index)
    assert {source.id for source in study.sources} == before - {broken.name}
    assert first == set(costs(study, study.loaded).index) and broken.name not in first
    for measure in (communication.communication, anatomy.anatomy):
        assert broken.name not in {row["run"] for row in records(measure(study).rows)}
    assert broken.name not in all_series(study)
    assert [failure.point for failure in study.failed] == [broken.name]
    assert points_of(study) is points_of(study)


@pytest.mark.parametrize(("other", "failed"), [("changed", ["A: run_0", "B: run_0"]), ("results", ["run_0"])])
def test_of_two_sets_all_that_failed_is_counted_and_what_is_noted_of_both_is_said_once(other, failed):
    a, b = Study(Path("results")), Study(Path(other))
    for study in (a, b):
        study.failed.append(Failure("run_0", "killed", "failed"))
        study.note("recorded", text="no peaks were measured")
    a.note("recorded", "run_0", text="its clock is late")
    b.note("recorded", "run_1", text="its clock is late")
    b.note("recorded", "run_2", text="its clock is late")
    b.note("recorded", side=BOTH, text="they ran one after the other")
    a.join(b)
    assert [one.point for one in a.failed] == failed
    of = [(one.data["text"], one.side, one.run) for one in a.noted]
    assert of == [
        ("no peaks were measured", "", None), ("its clock is late", "A", "run_0"),
        ("its clock is late", "B", "run_1"), ("its clock is late", "B", "run_2"),
        ("they ran one after the other", "both", None),
    ]  # fmt: skip
