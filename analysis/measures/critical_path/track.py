"""The critical path of a run's steps as a track of its timeline, on each rank that it leads through."""

from collections.abc import Sequence

import numpy as np

from analysis.display.perfetto import Slices, Words
from analysis.measures.anatomy.timeline_file import NOTHING_MORE, Added
from analysis.measures.anatomy.timeline_rows import Tracks
from analysis.measures.critical_path.paths import StepPath, paths_of
from analysis.results.source import Source
from analysis.results.study import Study

WHAT = "pieces of the critical path"


def added(study: Study, source: Source) -> Added:
    """The tracks of a run's ranks; none where it has no path."""
    if not source.tables("kernels"):
        return NOTHING_MORE
    paths = study.use(source, lambda one: paths_of(study, one))
    steps = paths.steps if paths else ()
    ranks = sorted({rank for step in steps for rank in step.rank.tolist()})
    return WHAT, {rank: _of_rank(steps, rank) for rank in ranks}


def _of_rank(steps: Sequence[StepPath], rank: int) -> Tracks:
    columns = {
        name: np.concatenate([getattr(step, name)[step.rank == rank] for step in steps])
        for name in ("start_ns", "duration_ns", "part", "kernel", "operator", "layer")
    }
    batch = np.concatenate([np.full((step.rank == rank).sum(), step.batch_index) for step in steps])
    order = np.argsort(columns["start_ns"], kind="stable")
    column = {name: values[order] for name, values in columns.items()}
    # Where clocks drift, a piece may overlap the next by a nanosecond of rounding.
    reach = np.maximum.accumulate(column["start_ns"] + column["duration_ns"])
    start = np.maximum(column["start_ns"], np.append(column["start_ns"][:1], reach[:-1]))
    slices = Slices(
        np.zeros(len(order), np.int32),
        start,
        reach,
        _words(column["part"]),
        Words.same("critical path", len(order)),
        {
            **{name: _words(column[name]) for name in ("kernel", "operator", "layer")},
            "step": batch[order].astype(np.int64),
        },
    )
    return Tracks(["critical path"], slices)


def _words(texts: np.ndarray) -> Words:
    known = {text: code for code, text in enumerate(dict.fromkeys(one for one in texts.tolist() if one))}
    codes = [known.get(one, -1) for one in texts.tolist()]
    return Words(np.array(codes, np.int32), list(known))
