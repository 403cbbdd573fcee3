"""Columns are what the documentation says: each is named where a user looks, and none that is not there."""

import re
from pathlib import Path

import pytest

from analysis import (
    batches,
    efficiency,
    figures,
    kernel_difference,
    kernels,
    reference,
    scaled,
    scaled_published,
    tau,
    use,
)
from jobs.run import Run
from tests.analysis.commands import run
from tests.analysis.synthetic import run_of, write_pyprof, write_sweep, write_tau

COLUMNS = {
    scaled: (
        *figures.TIME_COLUMNS,
        *use.USE_COLUMNS,
        *reference.PYPROF_COLUMNS,
        *tau.TAU_COLUMNS,
        *scaled_published.SCALED_COLUMNS,
    ),
    efficiency: (*efficiency.METRICS, *efficiency.MORE),
    kernels: (*kernels.COLUMNS, *kernel_difference.SUMMARY_COLUMNS),
    batches: (*batches.FIGURES, *batches.TAU_COLUMNS),
}


def stem(column: str) -> str:
    """A column without what says that it is an end of an interval, or beside a measured peak."""
    return re.sub(r"_(low|high)$", "", column).replace("_of_measured_pct", "_pct")


@pytest.mark.parametrize("module", COLUMNS, ids=lambda module: module.__name__)
def test_each_column_is_explained_by_its_commands_help(module) -> None:
    words = set(re.findall(r"\w+", module.__doc__))
    assert not [column for column in COLUMNS[module] if column not in words and stem(column) not in words]


@pytest.mark.parametrize("module", COLUMNS, ids=lambda module: module.__name__)
def test_help_names_no_column_that_is_not_printed(module) -> None:
    united = re.findall(r"\b[a-z0-9_]+_(?:pct|ms|us|s|per_s|per_batch|batches)\b", module.__doc__)
    known = {*COLUMNS[module], "_of_measured_pct", "ms_per_batch", "a_s", "b_s", "flops_per_s", "duration_ns"}
    assert not set(united) - known


def test_methods_name_columns_that_are_printed(root: Path, tmp_path: Path) -> None:
    write_sweep(
        tmp_path / "sweep", [run_of(gpus_per_node=n, profile=p) for n in (1, 2) for p in ("none", "torch")]
    )
    write_pyprof(tmp_path / "reference")
    write_tau(tmp_path / "reference" / "i.gzip", {(1, 4, 32): [60.0], (1, 4, 64): [62.0]})
    printed = set(Run.model_fields)
    for folder in ("sweep", "reference"):
        for command in ("scaled", "efficiency", "kernels", "batches"):
            methods = ("corrected", "published") if command == "scaled" else ("corrected",)
            for method in methods:
                more = ("--method", method) if command not in ("batches",) else ()
                ran = run(f"analysis.{command}", tmp_path / folder, "--format", "csv", *more)
                printed |= set(ran.out.split("\n")[0].split(","))
    text = (root / "docs" / "methods.md").read_text()
    quoted = set(re.findall(r"`([a-z0-9_]+_(?:pct|ms|per_s|per_batch))`", text))
    assert len(quoted) >= 5
    # Columns of other commands are explained in the docstrings of those.
    elsewhere = "".join(path.read_text() for path in (root / "analysis").rglob("*.py"))
    assert not [name for name in quoted - printed if f'"{name}"' not in elsewhere]


def test_columns_of_a_row_are_all_in_order_and_none_twice(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=n, profile=p) for n in (1, 2) for p in ("none", "torch")])
    for command in ("scaled", "efficiency", "kernels", "batches"):
        head = run(f"analysis.{command}", tmp_path, "--format", "csv").out.split("\n")[0].split(",")
        assert len(head) == len(set(head))
    head = run("analysis.scaled", tmp_path, "--format", "csv").out.split("\n")[0].split(",")
    assert head[0] == "method"
    wanted = [*figures.TIME_COLUMNS, *use.USE_COLUMNS]
    assert [name for name in head if name in wanted] == wanted
